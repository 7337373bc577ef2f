"""The parameters of a fit one by one, and the true ones of simulated data where they compare with the fit."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.document.blocks import Document, Printed, table_document
from homodyne_dask.errors import OptionError, nearest, printable, shown
from homodyne_dask.models import MODELS, convention_named
from homodyne_dask.models.transport import Rates, true_rates
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.fit_result import LIMITS, FitValues, plain_rows
from homodyne_dask.text import with_unit

Array = Float[np.ndarray, "*n"]


@dataclass(frozen=True, repr=False)
class FittedParameter:
    """A parameter of a fit, with its value, its errors and how it was fitted."""

    name: str
    value: float
    """NaN where the data do not determine it."""
    stderr: float | None
    method: str
    """How `stderr` is estimated: cluster-robust or speckle; '' where it is not known."""
    stderr_naive: float | None
    """For uncorrelated noise; None, as `stderr`, where it is not known."""
    dof: float | None
    """Of `stderr`."""
    unit: str
    min: float | None
    """The lower bound in the fit, -inf without one; None where it is not known."""
    max: float | None
    vary: bool
    """Whether it was fitted; else it was given."""
    at_bound: bool
    """Whether it ended at a bound; `stderr` is then that of its value were it not bounded."""
    lower_limit: float | None
    """What is known, as the upper limit, where `value` is NaN; None elsewhere."""
    upper_limit: float | None
    optimum: float
    """Where χ² is lowest: of a parameter without a value, not to be quoted."""

    def __repr__(self) -> str:
        state = "" if self.vary else ", fixed"
        words = f"{with_unit(' '.join(self.cells()[:2]), self.unit)}{state}{', at bound' * self.at_bound}"
        return f"<{printable(words)}>"

    def cells(self) -> list[str]:
        """Return name, value ± error, unit, bounds and dof as text, '-' for what is not known."""
        lower, upper, error = (
            np.nan if number is None else number
            for number in (self.lower_limit, self.upper_limit, self.stderr)
        )
        value = numbers.limit_words(lower, upper) or numbers.value_and_error(self.value, error)
        ends = ["-" if end is None else f"{end:g}" for end in (self.min, self.max)]
        dof = "-" if self.dof is None or value == "-" else f"{self.dof:.1f}"
        return [self.name, value, self.unit, *ends, dof]


class FittedParameters(Printed, Mapping[str, FittedParameter]):
    """The parameters of a fit by name, in the model's order: `result.params["D0"].value`."""

    def __init__(self, result: FitValues) -> None:
        self._by_name: dict[str, FittedParameter] = {}
        bounds = bounds_of(result)
        for name, row in plain_rows(result.parameters, "param").items():
            low, high = bounds.get((name, str(row["unit"])), (None, None))
            fields: dict[str, Any] = {"name": name, "min": low, "max": high}
            fields["vary"] = not row["fixed"].item()
            for key in FittedParameter.__dataclass_fields__.keys() & row.keys():
                fields[key] = row[key].item()
            for key in ("stderr", "stderr_naive", "dof", *LIMITS):
                fields[key] = fields[key] if np.isfinite(fields[key]) else None
            self._by_name[name] = FittedParameter(**fields)

    def __getitem__(self, name: str) -> FittedParameter:
        if name not in self._by_name:
            raise UnknownParameterError(
                f"the fit has no parameter {shown(name)}; {nearest(name, self._by_name)}"
            )
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def _document(self) -> Document:
        head = ["parameter", "value", "unit", "min", "max", "dof"]
        return table_document("parameters", [head, *(p.cells() for p in self.values())], 3)


class UnknownParameterError(OptionError, KeyError):
    """A name that a fit has not; a KeyError, too, as of every mapping."""

    def __str__(self) -> str:  # that of KeyError puts quotes around it
        return printable(self.args[0])


def bounds_of(result: FitValues) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the bounds by name and unit; none for a model that this process does not know."""
    with suppress(OptionError):
        model, table = result.provenance.fitted_model(), result.parameters
        ranges = model.by_coefficient("bounds", result.config["bounds"]) or {}
        units = dict(zip(table["param"].values, table["unit"].values, strict=True))
        bounds = {(p.name, p.unit): p.bounds for p in model.parameters if p.name not in ranges}
        return bounds | {
            (name, str(units[name])): tuple(ends) for name, ends in ranges.items() if name in units
        }
    return {}


def nearest_turn(value: Array, to: numbers.Numbers, period: numbers.Numbers) -> Array:
    """Return values moved by whole periods to where they are nearest to others; period: 0 for none."""
    distance = np.where(period, value - to, 0.0)
    return value - period * np.round(distance / np.where(period, period, 1.0))


def truth_of(result: FitValues) -> dict[str, float] | None:
    """Return the true parameters if model, convention and gap of simulation and fit are the same."""
    truth = result.provenance.truth
    names = result.parameters["param"].values.tolist()
    if not truth or truth_mismatch(truth, result.config, names):
        return None
    return truth["parameters"]


def pulls(result: FitValues) -> dict[str, float]:
    """Return (value - truth) / stderr by parameter, as the normal deviate of the same probability."""
    truth, table = truth_of(result) or {}, result.parameters
    deviates = {}
    for name, row in plain_rows(table, "param").items():
        if name in truth and math.isfinite(row["stderr"]) and row["stderr"] > 0:
            period = result.config["periods"].get(name, math.inf)
            shift = math.remainder(row["value"] - truth[name], period) / row["stderr"]
            deviates[name] = float(numbers.normal_deviate(shift, row["dof"]))
    return deviates


def true_rates_of(result: FitValues, t: Float[np.ndarray, " n"]) -> Rates | None:
    """Return J [Å²/s] and gamma_dot [1/s] of simulated data; None without a truth of the same setting."""
    truth = result.provenance.truth
    if not truth or _other_setting(truth, result.config):
        return None
    convention = convention_named(result.config["convention"])
    return true_rates(truth.get("model", ""), truth["parameters"], t, convention)


def truth_mismatch(
    truth: Mapping[str, Any] | None, config: Mapping[str, Any], names: Iterable[str]
) -> tuple[str, str] | None:
    """Return what of a simulation differs from a fit of these options and parameters, and its value."""
    if not truth:
        return None
    model, same_names = truth.get("model"), {*truth["parameters"]} == {*names}
    if not same_names or model not in (None, config["model"]):
        return "other parameters of" if model == config["model"] else "model", str(model)
    return _other_setting(truth, config)


def _other_setting(truth: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str] | None:
    if (model := MODELS.get(config["model"])) and not model.needs_gap:
        return None
    if truth.get("convention") not in (None, config["convention"]):
        return "convention", truth["convention"]
    if truth.get("gap_angstrom") not in (None, config["gap_angstrom"]):
        return "gap", f"{truth['gap_angstrom'] / 1e4:g} um"
    return None
