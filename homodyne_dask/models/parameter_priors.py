"""Priors of parameters as a user gives them: a distribution by its name, and its numbers.

A fit takes normal ones, as measurements (`fitting.prepare.gaussian_priors`); `posterior` knows others.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from homodyne_dask.errors import OptionError, require_known, require_type, shown
from homodyne_dask.models.parameters import Search

_LARGEST = 1e60  # squares of ratios are finite


class Distribution(NamedTuple):
    """A distribution by its name, and its numbers in their order."""

    name: str
    numbers: tuple[float, ...]
    words: str
    """What a user gave for which parameter, as errors begin."""

    def require(self, names: Sequence[str], positive: Collection[str]) -> None:
        """Raise OptionError unless it has numbers of these names, some of them above 0."""
        if len(self.numbers) != len(names):
            raise OptionError(
                f"{self.words}: {self.name} takes {', '.join(names)}, not {len(self.numbers)} numbers"
            )
        for name, value in zip(names, self.numbers, strict=True):
            if not 1 / _LARGEST < abs(value or 1.0) < _LARGEST:
                raise OptionError(
                    f"{self.words}: {name} = {value:g} is not between 1e-60 and 1e60 in magnitude"
                )
            if name in positive and not value > 0:
                raise OptionError(f"{self.words}: {name} = {value:g} is not positive")
        if "low" in names and not self.numbers[-2] < self.numbers[-1]:
            low, high = self.numbers[-2:]
            raise OptionError(f"{self.words}: low = {low:g} is not below high = {high:g}")


def given_priors(given: Mapping[str, Any] | None, search: Search) -> dict[str, Distribution]:
    """Return the priors that a user gave, by parameter.

    given: by name, each as '2500:300' or (2500, 300), which are normal, or beginning with the name of a
    distribution, as 'lognormal:2500:0.3' or ('lognormal', 2500, 0.3).
    Raises OptionError for unknown and fixed parameters, and for what is no prior.
    """
    given = {} if given is None else given
    require_type("prior", given, Mapping, "priors by name, such as prior={'D0': (2500, 300)}")
    for name in given:
        require_known(name, search.names, f"prior: unknown parameter {name!r}")
        place = search.names.index(name)
        if not search.free[place]:
            raise OptionError(
                f"prior of {name}: {name} is fixed at {search.start[place]:g}, so a prior would have no "
                f"effect: remove it from prior or from fixed"
            )
    return {name: _parsed(name, value) for name, value in given.items()}


def _parsed(parameter: str, given: Any) -> Distribution:
    words = f"prior of {parameter} = {shown(given)}"
    parts = given.split(":") if isinstance(given, str) else given
    if not isinstance(parts, Sequence | np.ndarray) or len(parts) == 0:
        raise OptionError(
            f"{words} cannot be used: give mean and standard deviation, such as (2500, 300), or a "
            f"distribution, such as ('lognormal', 2500, 0.3)"
        )
    name, parts = "normal", list(parts)
    if isinstance(parts[0], str) and math.isnan(_number(parts[0])):
        name = parts.pop(0).strip().lower()
    for value in parts:
        if not math.isfinite(_number(value)):
            raise OptionError(f"{words}: {shown(value)} is not a finite number")
    return Distribution(name, tuple(map(_number, parts)), words)


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
