"""One fit of several: outcome, parameters, and rates at its mean age."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from homodyne_dask.models.rate_forms import RATES, rate, rate_stderr
from homodyne_dask.models.spline_basis import SplineForm
from homodyne_dask.models.transport import RATE_FLOOR, Convention
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.views import numbers

FAILED = "FAILED"
CONVERGED = "converged"
"""The words of an outcome that nothing is said against."""


class Quantity(NamedTuple):
    """A fitted parameter or rate with its errors."""

    unit: str
    value: float
    stderr: float
    """Cluster-robust standard error; NaN if unknown, as are the others."""
    stderr_lower: float
    """Lower bound of the error, from blocks of frames."""
    stderr_naive: float
    dof: float
    """Degrees of freedom of `stderr`."""
    at_bound: bool = False
    """Whether the parameter ended at a bound; it then has no error."""
    conditional: bool = False
    """Whether it, or a parameter of the same rate, ended at a bound: another fit's value is not
    comparable."""

    def error(self, kind: str) -> float:
        """Return one of the errors; the lower bound is at least the naive error."""
        if kind == "stderr_lower":
            return float(np.fmax(self.stderr_lower, self.stderr_naive))
        return getattr(self, kind)

    @property
    def error_used(self) -> float:
        """The cluster-robust error, or else the larger of lower bound and naive error."""
        return self.stderr if np.isfinite(self.stderr) else self.error("stderr_lower")

    def __str__(self) -> str:
        """Return value and error for a table: '20100 ± 300', '20100 ± 300 *' if not robust, 'at bound'."""
        if self.at_bound:
            return f"{self.value:.6g} at bound"
        other = not np.isfinite(self.stderr) and np.isfinite(self.error_used)
        return numbers.value_and_error(self.value, self.error_used) + (" *" if other else "")


UNKNOWN_QUANTITY = Quantity("", np.nan, np.nan, np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class SeriesEntry:
    """One fit of several."""

    name: str
    """Name of the store or of its part."""
    folder: Path | None
    """Folder of its result, if written on this machine."""
    result: FitResult | None
    """None if the fit failed."""
    message: str = ""
    """Why it failed."""
    at: Mapping[str, float] = field(default_factory=dict)
    """Place of a part: q [1/Å] and age [s], or age, from and to [s]; empty for a whole store."""

    def __repr__(self) -> str:
        return f"<fit of {self.name}: {self.outcome_words}>"

    @property
    def outcome(self) -> str:
        """CONVERGED, another outcome's name, or FAILED."""
        return FAILED if self.result is None else self.result.outcome.name

    @property
    def outcome_words(self) -> str:
        """The outcome as it is printed: 'converged', 'max passes', 'converged, misfit'."""
        misfit = self.result is not None and self.result.misfit
        return self.outcome.lower().replace("_", " ") + ", misfit" * misfit

    @property
    def converged(self) -> bool:
        """Whether the fit has a result that converged."""
        return self.result is not None and self.result.converged

    @property
    def redchi(self) -> float:
        """The reduced χ²; NaN if the fit failed."""
        return np.nan if self.result is None else self.result.redchi

    @property
    def ndata(self) -> int | None:
        """Number of data; None if the fit failed."""
        return None if self.result is None else self.result.ndata

    @property
    def passes(self) -> int | None:
        """Passes over all data; None if the fit failed."""
        return None if self.result is None else self.result.passes

    @property
    def columns(self) -> Mapping[str, Any]:
        """What a table of fits has beside its name."""
        return self.at

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """Parameters by name; for a part also the rates J and gamma_dot at its mean age.

        A rate of free form stands for its coefficients, at the mean age or in the middle of the record.
        """
        if self.result is None:
            return {}
        table = self.result.parameters
        known = covariances(self.result)
        lower = known[1]
        found = {}
        for n, name in enumerate(map(str, table["param"].values)):
            row = {str(key): table[key].values[n] for key in table.data_vars}
            bound = np.nan if lower is None else float(np.sqrt(lower[n, n]))
            found[name] = Quantity(
                unit=str(row["unit"]),
                value=float(row["value"]),
                stderr=float(row["stderr"]),
                stderr_lower=bound,
                stderr_naive=float(row["stderr_naive"]),
                dof=float(row["dof"]),
                at_bound=bool(row["at_bound"]),
            )
        for name in _of_rates_at_bound(found):
            found[name] = found[name]._replace(conditional=True)
        if "age" in self.at:
            found |= _rates(self.result, found, known, self.at["age"])
        return _with_free_rates(self.result, found, known, self.at.get("age"))


def _of_rates_at_bound(parameters: Mapping[str, Quantity]) -> set[str]:
    """Return the parameters at a bound, and those that share a rate with one."""
    bound = {name for name, found in parameters.items() if found.at_bound}
    shared = (of for of in RATES.values() if bound.intersection(of))
    return bound.union(*shared).intersection(parameters)


def quantity_names(parameters: Sequence[str], at: Mapping[str, float]) -> list[str]:
    """Return the keys of `SeriesEntry.quantities` for a model with these parameters."""
    rates = [name for name, of in RATES.items() if "age" in at and set(of) <= set(parameters)]
    return [*parameters, *rates]


def covariances(result: FitResult) -> list[np.ndarray | None]:
    """Return the cluster-robust covariance, its lower bound and the naive covariance; None if unknown."""
    tables = (result.covariance, result.covariance_lower, result.covariance_naive)
    return [None if table is None else np.asarray(table.values, float) for table in tables]


def _rates(
    result: FitResult,
    parameters: Mapping[str, Quantity],
    known: Sequence[np.ndarray | None],
    age: float,
) -> dict[str, Quantity]:
    names, found = list(parameters), {}
    homodyne = result.config["convention"] == Convention.HOMODYNE
    t = np.array([max(age, result.inputs["frame_time"] / 2)])
    for name, of in RATES.items():
        if not set(of) <= set(names):
            continue
        at = [names.index(one) for one in of]
        theta = np.array([parameters[one].value for one in of])
        floor = RATE_FLOOR if name == "J" or homodyne else None
        (value,), gradient = rate(t, theta, floor)
        errors = [
            np.nan if of_kind is None else float(rate_stderr(gradient, of_kind[np.ix_(at, at)])[0])
            for of_kind in known
        ]
        dof = np.array([parameters[one].dof for one in of])
        fewest = float(np.min(dof[np.isfinite(dof)], initial=np.inf))
        unit = parameters[of[0]].unit
        dof_of = fewest if np.isfinite(fewest) else np.nan
        found[name] = Quantity(unit, float(value), errors[0], errors[1], errors[2], dof_of)
    return found


def _with_free_rates(
    result: FitResult,
    quantities: Mapping[str, Quantity],
    known: Sequence[np.ndarray | None],
    age: float | None,
) -> dict[str, Quantity]:
    """Return the quantities with rates of free form in place of their coefficients.

    age: where they are taken [s]; None for the middle of the record.
    """
    params = list(map(str, result.parameters["param"].values))
    rates, coefficients = {}, set()
    for rate_name, stored in (result.config.get("splines") or {}).items():
        form = SplineForm(**stored)
        names = [f"{rate_name}_{n + 1}" for n in range(form.size)]
        at = (form.first + form.last) / 2 if age is None else age
        basis = form.basis(np.array([max(at, result.inputs["frame_time"] / 2)]))
        here, of = slice(params.index(names[0]), params.index(names[-1]) + 1), basis[:, 0] > 0
        errors = [
            np.nan if one is None else float(rate_stderr(basis, one[here, here])[0])
            for one in known
        ]
        coefficient = [quantities[name] for name in names]
        bound = np.array([q.at_bound for q in coefficient])[of]
        value = float(np.array([q.value for q in coefficient]) @ basis[:, 0])
        rates[rate_name] = Quantity(
            coefficient[0].unit, value, *errors, dof=_dof_at(result, rate_name, at),
            at_bound=bool(bound.all()), conditional=bool(bound.any()),
        )  # fmt: skip
        coefficients |= set(names)
    return rates | {name: q for name, q in quantities.items() if name not in coefficients}


def _dof_at(result: FitResult, rate_name: str, age: float) -> float:
    """Return the degrees of freedom of a rate's robust error at an age [s]; NaN if unknown."""
    if result.rate_dof is None:
        return np.nan
    dof = result.rate_dof[rate_name].values
    has = np.isfinite(dof)
    return (
        float(np.interp(age, result.rate_dof["age"].values[has], dof[has])) if has.any() else np.nan
    )
