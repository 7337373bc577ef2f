"""A row of many fits, of a series or of a table of scans: outcome, parameters, and rates at its mean age."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Bool, Float

from homodyne_dask.models.rate_forms import RATES, rate, rate_stderr
from homodyne_dask.models.spline_basis import SplineForm
from homodyne_dask.models.transport import RATE_FLOOR, Convention
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.results.data.result_tables import plain_rows
from homodyne_dask.solver.covariance import CLUSTER_ROBUST
from homodyne_dask.solver.limits import MIN_FREEDOM
from homodyne_dask.solver.state import Outcome

FAILED = "FAILED"
SCANS, PARTS = "scans", "series"
"""What is listed: several scans, or the parts of one; also the names of the files."""
ONE_OF = {SCANS: "scan", PARTS: "fit"}
FEW_FREEDOM = 10.0
"""Degrees of freedom below which ± is not most of an interval."""
CONVERGED = "converged"
"""The words of an outcome without a misfit."""


class Quantity(NamedTuple):
    """A fitted parameter or rate with its errors."""

    unit: str
    value: float
    stderr: float
    """Standard error; NaN if unknown, as are the others."""
    stderr_naive: float
    dof: float
    """Degrees of freedom of `stderr`."""
    at_bound: bool = False
    """Whether the parameter ended at a bound; it may then have no error."""
    conditional: bool = False
    """Whether it, or a parameter of the same rate, ended at a bound: another fit's value is not
    comparable."""
    method: str = ""
    """How `stderr` is estimated: cluster-robust or speckle; '' where it is not known."""

    @property
    def varied(self) -> bool:
        """Whether it was fitted: it has an error of any kind, or ended at a bound."""
        return self.at_bound or bool(np.isfinite([self.stderr, self.stderr_naive]).any())

    @property
    def interval(self) -> str:
        """The 95 % interval where the error has few degrees of freedom, as '1 to 3 (dof 5.1)', else ''."""
        if not (self.dof < FEW_FREEDOM and self.stderr > 0):
            return ""
        half = float(half_width(95.0, self.dof)) * self.stderr
        low, high = numbers.quantiles([self.value - half, self.value + half], self.stderr)
        return f"{low} to {high} (dof {self.dof:.1f})"

    def __str__(self) -> str:
        """Return value and standard error for a table: '20100 ± 300', '20100', or '-2 at bound'."""
        return self.text()

    def text(self, largest: float = 0.0) -> str:
        """Return it for a row of a table; largest: of the values and errors of the row."""
        return (
            numbers.value_and_error(self.value, self.stderr, largest) + " at bound" * self.at_bound
        )


UNKNOWN_QUANTITY = Quantity("", np.nan, np.nan, np.nan, np.nan)


@dataclass(frozen=True, repr=False)
class FitRow:
    """One fit of many; made by `fit_row`."""

    name: str
    """Name of the store, of its part or of the file."""
    folder: Path | None = None
    """Folder of its result, if written on this machine."""
    result: FitResult | None = None
    """None if the fit failed, and in the table of a watched folder, which keeps the numbers alone."""
    message: str = ""
    """Why it failed."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """What a table has beside the name: of a part q [1/Å] and age [s], or age, from and to [s]; of a
    watched file number, time and contrast; empty for a whole store."""
    outcome: str = FAILED
    """CONVERGED, another outcome's name, or FAILED."""
    outcome_words: str = "failed"
    """The outcome as it is printed: 'converged', 'max passes', 'converged, misfit'."""
    redchi: float = np.nan
    ndata: int | None = None
    passes: int | None = None
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    """Parameters by name; for a part also the rates J and gamma_dot at its mean age.

    A rate of free form stands for its coefficients, at the mean age or in the middle of the record."""
    warnings: tuple[str, ...] = ()
    """What changed against the scans before, in a watched folder."""

    def __repr__(self) -> str:
        return f"<fit of {self.name}: {self.outcome_words}>"

    @property
    def converged(self) -> bool:
        """Whether the fit has a result that converged."""
        return self.outcome == Outcome.CONVERGED.name

    @property
    def method(self) -> str:
        """How its standard errors are estimated; '' where none is known."""
        return max((quantity.method for quantity in self.quantities.values()), default="")


def fit_row(
    name: str,
    folder: Path | None,
    result: FitResult | None,
    message: str = "",
    at: Mapping[str, Any] | None = None,
) -> FitRow:
    """Return the row of a fit; result: None if it failed."""
    at = at or {}
    if result is None:
        return FitRow(name, folder, None, message, at)
    words = result.outcome.name.lower().replace("_", " ") + ", misfit" * result.misfit
    known = {key: getattr(result, key) for key in ("redchi", "ndata", "passes")}
    known["quantities"] = quantities_of(result, at.get("age"))
    return FitRow(name, folder, result, message, at, result.outcome.name, words, **known)


def quantities_of(result: FitResult, age: float | None) -> dict[str, Quantity]:
    """Return the parameters of a fit, and its rates at an age [s] where one is given.

    Rates of free form stand for their coefficients, without an age in the middle of the record.
    """
    quantities = {
        name: Quantity(**{key: row[key].item() for key in Quantity._fields if key in row})
        for name, row in plain_rows(result.parameters, "param").items()
    }
    bound = {name for name, one in quantities.items() if one.at_bound and np.isnan(one.stderr)}
    shared = (of for of in RATES.values() if bound.intersection(of))
    for name in bound.union(*shared).intersection(quantities):
        quantities[name] = quantities[name]._replace(conditional=True)
    rates, free, coefficients = {}, {}, set()
    if age is not None:
        laws = {name: of for name, of in RATES.items() if quantities.keys() >= {*of}}
        rates = {n: _rate_at(result, quantities, n, of, age) for n, of in laws.items()}
    for name, stored in result.config["splines"].items():
        form = SplineForm(**stored)
        of = [f"{name}_{n + 1}" for n in range(form.size)]
        at = (form.first + form.last) / 2 if age is None else age
        free[name] = _rate_at(result, quantities, name, of, at, form)
        coefficients.update(of)
    others = quantities | rates
    return free | {name: q for name, q in others.items() if name not in coefficients}


def column(rows: Sequence[FitRow], name: str, key: str = "value") -> np.ndarray:
    """Return the values of a quantity in some fits, or by the name of a field what else is known of it."""
    return np.array([getattr(row.quantities[name], key) for row in rows])


def constant_quantities(rows: Sequence[FitRow]) -> dict[str, str]:
    """Return, by name, values without an error of any kind that are the same in all fits: fixed ones."""
    known = [row.quantities for row in rows if row.quantities]
    if len(known) < 2:
        return {}
    return {
        name: str(first)
        for name, first in known[0].items()
        if all(name in of and str(of[name]) == str(first) and not of[name].varied for of in known)
    }


def quantity_names(rows: Sequence[FitRow], parameters: Sequence[str] = ()) -> list[str]:
    """Return the parameters and rates that all fits have; parameters: of the model, where none succeeded."""
    known = [row.quantities for row in rows if row.quantities]
    if known:
        return [name for name in known[0] if all(name in of for of in known)]
    aged = any("age" in row.at for row in rows)
    return [*parameters, *(name for name, of in RATES.items() if aged and {*of} <= {*parameters})]


def _rate_at(
    result: FitResult,
    known: Mapping[str, Quantity],
    name: str,
    parameters: Sequence[str],
    age: float,
    form: SplineForm | None = None,
) -> Quantity:
    """Return a rate at an age [s] from its parameters; form: of a rate that is not a t^b + c."""
    own, errors, bound = [known[one] for one in parameters], np.full(2, np.nan), np.zeros(1, bool)
    theta = np.array([q.value for q in own])
    t = np.array([max(age, result.provenance.inputs["frame_time"] / 2)])
    if form is None:
        homodyne = result.config["convention"] == Convention.HOMODYNE
        (value,), gradient = rate(t, theta, RATE_FLOOR if name == "J" or homodyne else None)
    else:
        gradient = form.basis(t)
        value = theta @ gradient[:, 0]
        bound = np.array([q.at_bound and np.isnan(q.stderr) for q in own])[gradient[:, 0] > 0]
    for n, covariance in enumerate((result.covariance, result.errors.covariance_naive)):
        if covariance is not None:
            own_covariance, _ = covariance_of(result, parameters, covariance)
            errors[n] = rate_stderr(gradient, own_covariance)[0]
    errors = np.where(errors > 0, errors, np.nan)  # 0 where all parameters are held
    dof = float(freedom_of_rate(result, name, np.array([age]))[0])
    errors[0] = np.nan if np.isnan(dof) else errors[0]
    has = bool(np.isfinite(errors[0]))
    return Quantity(
        own[0].unit,
        float(value),
        *errors.tolist(),
        dof=dof if has else np.nan,
        at_bound=bool(bound.all()),
        conditional=bool(bound.any()),
        method=result.parameters.attrs["method"] if has else "",
    )


def covariance_of(
    result: FitResult, parameters: Sequence[str], known: xarray.DataArray
) -> tuple[Float[np.ndarray, "p p"], Bool[np.ndarray, " p"]]:
    """Return the covariance of some parameters, and which of them are held by a bound.

    Only coefficients of a rate without a formula are held: each is of a part of the record. 0 of these and
    of fixed ones, NaN of others without an error. A selection by xarray would load Dask.
    """
    coefficients = [f"{rate}_1" for rate in result.config["splines"]]
    names = result.parameters["param"].values.tolist()
    at = [names.index(one) for one in parameters]
    fixed, bounded = (result.parameters[key].values[at] for key in ("fixed", "at_bound"))
    own = known.values[np.ix_(at, at)]
    bounded = bounded & np.isnan(np.diag(own)) & (parameters[0] in coefficients)
    held = fixed | bounded
    return np.where(held[:, None] | held, 0.0, own), bounded


def freedom_of_rate(
    result: FitResult, name: str, t: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the degrees of freedom of a rate's error at times [s]; NaN where they are too few for an error.

    They are known at the ages of `result.errors.rate_dof`.
    """
    table = result.errors.rate_dof
    if result.covariance is None or table is None:
        return np.full(len(t), np.inf)
    dof = table[name].values
    has = np.isfinite(dof)
    if not has.any():
        return np.full(len(t), np.nan)
    found = np.interp(t, table["age"].values[has], dof[has])
    scatter = result.parameters.attrs["method"] == CLUSTER_ROBUST
    return np.where(scatter & (found < MIN_FREEDOM), np.nan, found)


BEFORE = 8
"""Scans with which the next one is compared."""
FEWEST = 3
SHARE, SCATTERS = 0.2, 5.0
"""A change is said where it is more than this share of the median, and than so many robust scatters."""
_OF_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
_COMPARED: dict[str, Callable[[FitRow], float]] = {
    "contrast": lambda row: row.at["contrast"],
    "reduced χ²": lambda row: row.redchi,
}


def methods_of(rows: Sequence[FitRow]) -> str:
    """Return how the standard errors of several fits are estimated, as 'cluster-robust or speckle'."""
    return " or ".join(sorted({row.method for row in rows} - {""}))


def local_time(seconds: float) -> str:
    """Return a time as 2026-11-22 23:10:05+01:00; '' for one in no year of a calendar."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def row_of_scan(number: int, time: float, row: FitRow) -> FitRow:
    """Return the row of a watched file without the result; time: when it was written [s since 1970]."""
    contrast = np.nan
    if row.result is not None:
        known = row.result.scaling["contrast"].values
        known = known[np.isfinite(known)]
        contrast = float(np.median(known)) if len(known) else np.nan
    at = {"number": number, "time": local_time(time), "contrast": contrast}
    return replace(row, result=None, at=at)


def changes(row: FitRow, earlier: Sequence[FitRow]) -> tuple[str, ...]:
    """Return a phrase for each thing that is to be said of a scan after those before it, in their order.

    Outcome other than converged; contrast and reduced χ² far from the median of the last scans.
    """
    if row.outcome == FAILED:
        return ()  # its message says why
    found = [] if row.outcome_words == CONVERGED else [row.outcome_words]
    good = [one for one in earlier if one.outcome != FAILED][-BEFORE:]
    for words, value_of in _COMPARED.items():
        now, before = value_of(row), np.array([value_of(one) for one in good])
        before = before[np.isfinite(before)]
        if len(before) < FEWEST or not np.isfinite(now):
            continue
        median = float(np.median(before))
        scatter = _OF_NORMAL * float(np.median(np.abs(before - median)))
        if abs(now - median) > max(SHARE * abs(median), SCATTERS * scatter):
            found.append(f"{words} {now:.3g} (median of the scans before: {median:.3g})")
    return tuple(found)


def outcome_counts(rows: Sequence[FitRow], of: int, prefix: str = SCANS) -> str:
    """Return how many fits converged, ended otherwise, failed and are not yet done."""
    outcomes = [row.outcome for row in rows]
    converged, failed = outcomes.count("CONVERGED"), outcomes.count(FAILED)
    others = len(rows) - converged - failed
    words = [f"{converged} of {len(rows)} {ONE_OF[prefix]}s converged"]
    words += [f"{others} ended without converging"] * (others > 0)
    words += [f"{failed} failed"] * (failed > 0)
    words += [f"{of - len(rows)} not yet done"] * (of > len(rows))
    return ", ".join(words)
