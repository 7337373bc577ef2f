"""Whether rates follow their power laws: the outcome of `check_rates`, as numbers and in words."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.results.data.operations import save_json
from homodyne_dask.results.data.result_tables import plain_values
from homodyne_dask.text import abridged

FORMAT, VERSION = "homodyne_dask check of rates", 1
LARGE = 0.5
"""Relative deviation above which a Gauss-Newton step says little of its size."""
WORDS = {"J": "J", "gamma_dot": "the shear rate"}


@dataclass(frozen=True)
class Deviation:
    """A stretch of time over which a rate deviates from its power law."""

    rate: str
    """J or gamma_dot."""
    first: float | None
    """s; None from the beginning of the record on."""
    last: float | None
    """s; None to its end."""
    size: float
    """Of the rate at the middle of the stretch, from the power law that fits the rest of the record: -0.3 is
    30 % less. It is known from two Gauss-Newton steps, of one that is `large` from one."""
    stderr: float
    """Of that, from the scatter between bins."""
    p: float
    """Probability of so much in any stretch of any rate, if the power laws (and what deviates more than this)
    are right."""

    def __str__(self) -> str:
        """Return the deviation as half a sentence."""
        side = "falls below" if self.size < 0 else "rises above"
        size = f"by {value_and_error(100 * abs(self.size), 100 * self.stderr)} %"
        size = "by more than half" if self.large else size
        return f"{WORDS[self.rate]} {side} the power law {self._when()} {size} (p = {self.p:.2g})"

    @property
    def large(self) -> bool:
        """Whether it is so large that one step does not say how large."""
        return abs(self.size) > LARGE

    def _when(self) -> str:
        if self.first is None:
            return f"before {self.last:.3g} s"
        if self.last is None:
            return f"after {self.first:.3g} s"
        return f"between {self.first:.3g} and {self.last:.3g} s"


@dataclass(frozen=True)
class RatesCheck:
    """Whether the power laws of a fit describe its rates. `print(check)` is a sentence."""

    model: str
    store: str
    rates: tuple[str, ...]
    """J, and with shear gamma_dot."""
    p: float
    """Probability of the largest deviation that was seen, or a larger one, if the power laws are right."""
    level: float
    """p up to which a deviation is called one."""
    clusters: int
    """Independent bins that show a decay."""
    deviations: tuple[Deviation, ...]
    """The largest first; each further one with those before it taken out."""
    detectable: Mapping[str, float]
    """By rate, the relative deviation over a tenth of the record that would be found in 80 % of such data;
    absent where the data do not determine it."""

    @property
    def power_laws(self) -> bool:
        """Whether the power laws are compatible with the data."""
        return not self.deviations

    def __str__(self) -> str:
        """Return the outcome in words."""
        if self.deviations:
            words = "; ".join(map(str, self.deviations))
            return f"{self.store}: {words}; a fit with --rates spline shows the form of the rate"
        one = len(self.rates) == 1
        words = " and ".join(WORDS[rate] for rate in self.rates)
        laws = "follows the power law" if one else "follow the power laws"
        return f"{self.store}: {words} {laws} of {self.model} (p = {self.p:.2g}){self._seen()}"

    def __repr__(self) -> str:
        """Return the outcome in a line."""
        return abridged(str(self))

    def _seen(self) -> str:
        """Return what would have been seen."""
        found = [f"{WORDS[rate]} by {100 * of:.2g} %" for rate, of in self.detectable.items()]
        if not found:
            return "; the data do not determine the form of the rates"
        return f"; a deviation of {' or '.join(found)} over a tenth of the record would be detected"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values, as `to_json` writes them; unknown ones are None."""
        return plain_values(
            {"format": FORMAT, "format_version": VERSION, "sentence": str(self)} | asdict(self)
        )

    def to_json(self, path: str | Path) -> None:
        """Write the numbers and the sentence as JSON with a checksum, atomically."""
        save_json(self.to_dict(), path)
