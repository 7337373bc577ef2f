"""A row of many fits, of a series or of a table of scans: outcome, parameters, and rates at its mean age."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.derived_quantities import (
    Quantity,
    coefficients_of,
    derived_quantities,
    fitted_quantities,
)
from homodyne_dask.results.data.findings import MISFIT, Finding, Findings
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.solver.levenberg_marquardt import Outcome

FAILED = "FAILED"
SCANS, PARTS = "scans", "series"
"""What is listed: several scans, or the parts of one; also the names of the files."""
ONE_OF = {SCANS: "scan", PARTS: "fit"}
CONVERGED = "converged"
"""The words of an outcome without a misfit."""
UNKNOWN_QUANTITY = Quantity("")


@dataclass(frozen=True, repr=False)
class FitRow(HandedOut):
    """One fit of many; made by `fit_row`."""

    name: str
    """Of the store, of its part or of the file."""
    folder: Path | None = None
    """Of its result, if written on this machine."""
    result: FitValues | None = None
    """None if the fit failed, and in the table of a watched folder, which keeps the numbers alone."""
    message: str = ""
    at: Mapping[str, Any] = field(default_factory=dict)
    """Of a part q [1/Å] and age [s], or age, from and to [s]; of a watched file number and time."""
    outcome: str = FAILED
    outcome_words: str = "failed"
    """'converged', 'max passes', 'converged, misfit'."""
    redchi: float = np.nan
    ndata: int | None = None
    passes: int | None = None
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    """Parameters and what follows from them (`quantities_of`), with rates at the mean age."""
    findings: Findings = field(default_factory=Findings)
    """Those that chance does not explain among all fits of the series (`without_chance`)."""

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
    result: FitValues | None,
    message: str = "",
    at: Mapping[str, Any] | None = None,
) -> FitRow:
    row = FitRow(name, folder, result, message, at or {})
    if result is None:
        return row
    fields: dict[str, Any] = {key: getattr(result, key) for key in ("redchi", "ndata", "passes")}
    fields["quantities"] = quantities_of(result, row.at.get("age"))
    return _with_findings(replace(row, outcome=result.outcome.name, **fields), 1)


def _with_findings(row: FitRow, fits: float) -> FitRow:
    if row.result is None:
        return row
    clear = Findings(f for f in row.result.findings if _p_over_level(f) * fits < 1)
    misfit = ", misfit" * (not MISFIT.isdisjoint(clear.codes))
    words = row.outcome.lower().replace("_", " ") + misfit
    return replace(row, findings=clear, outcome_words=words)


def _p_over_level(finding: Finding) -> float:
    """Return p of a test over the level of a single fit; 0 for what no test says."""
    return finding.numbers["p"] / finding.numbers["level"] if "level" in finding.numbers else 0.0


def without_chance(rows: Sequence[FitRow], fits: int) -> list[FitRow]:
    """Return rows with the findings that chance does not explain in so many fits of a series.

    The level of a test is divided by the number of fits, and multiplied by the number of fits that have a
    misfit at that level (Benjamini and Hochberg 1995). A fit whose reduced χ² is far above that of the others
    keeps all its findings.
    """
    results = [row.result for row in rows if row.result is not None]
    tests = [[s for s in result.findings.of(*MISFIT) if "level" in s.numbers] for result in results]
    smallest_p = np.sort([min(map(_p_over_level, misfits), default=1.0) for misfits in tests])
    clear = np.flatnonzero(smallest_p * fits < np.arange(1, len(smallest_p) + 1))
    level, redchi = fits / (clear.max(initial=0) + 1), np.array([fit.redchi for fit in results])
    is_outlier = [beyond_scatter(row.redchi, redchi) > 0 for row in rows]
    levels = np.where(is_outlier, 1, level).tolist()
    return [*map(_with_findings, rows, levels)]


FEWEST = 3
SHARE, SCATTERS = 0.2, 5.0
"""A change is reported above this share of the median, and above so many robust standard deviations."""
_OF_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


def beyond_scatter(value: float, others: np.ndarray) -> float:
    """Return how far a number is from the median of others; 0 where they scatter as far."""
    others = others[np.isfinite(others)]
    if len(others) < FEWEST or not np.isfinite(value):
        return 0.0
    median = float(np.median(others))
    scatter = _OF_NORMAL * float(np.median(np.abs(others - median)))
    distance = value - median
    return distance if abs(distance) > max(SHARE * abs(median), SCATTERS * scatter) else 0.0


def quantities_of(result: FitValues, age: float | None = None) -> dict[str, Quantity]:
    """Return the parameters of a fit and what follows from them; rates stand for their coefficients."""
    quantities = fitted_quantities(result)
    ended = {name: q for name, q in quantities.items() if q.at_bound and not q.limit}
    bound = {name for name, q in ended.items() if np.isnan(q.stderr)}
    shared = (parameters for parameters in RATES.values() if bound.intersection(parameters))
    for name in bound.union(*shared).intersection(quantities):
        quantities[name] = quantities[name]._replace(conditional=True)
    free, derived = result.config["splines"], derived_quantities(result, age)
    coefficients = coefficients_of(result)
    ordered = {name: derived[name] for name in free if name in derived} | quantities | derived
    return {name: quantity for name, quantity in ordered.items() if name not in coefficients}


def column(rows: Sequence[FitRow], name: str, key: str = "value") -> np.ndarray:
    return np.array([getattr(row.quantities[name], key) for row in rows])


def constant_quantities(rows: Sequence[FitRow]) -> dict[str, str]:
    """Return, by name, values without an error of any kind that are the same in all fits: fixed ones."""
    tables = [row.quantities for row in rows if row.quantities]
    if len(tables) < 2:
        return {}
    return {
        name: str(quantity)
        for name, quantity in tables[0].items()
        if all(name in t and str(t[name]) == str(quantity) and not t[name].varied for t in tables)
    }


def quantities_in(rows: Sequence[FitRow]) -> Mapping[str, Quantity]:
    """Return the quantities of the first fit that has any: what each of them is, is the same in all."""
    return next((row.quantities for row in rows if row.quantities), {})


def quantity_names(rows: Sequence[FitRow], parameters: Sequence[str] = ()) -> list[str]:
    """Return the parameters and rates that all fits have; parameters: of the model, where none succeeded."""
    tables = [row.quantities for row in rows if row.quantities]
    if tables:
        return [name for name in tables[0] if all(name in table for table in tables)]
    return [*parameters, *(name for name, law in RATES.items() if {*law} <= {*parameters})]


def methods_of(rows: Sequence[FitRow]) -> str:
    """Return how the standard errors of several fits are estimated, as 'cluster-robust or speckle'."""
    return " or ".join(sorted({row.method for row in rows} - {""}))


def outcome_counts(rows: Sequence[FitRow], total: int, prefix: str = SCANS) -> str:
    outcomes = [row.outcome for row in rows]
    converged, failed = outcomes.count("CONVERGED"), outcomes.count(FAILED)
    numbers = len(rows) - converged - failed, failed, total - len(rows)
    words = [f"{converged} of {len(rows)} {ONE_OF[prefix]}s converged"]
    for number, ended in zip(
        numbers, ("ended without converging", "failed", "not yet done"), strict=True
    ):
        words += [f"{number} {ended}"] * (number > 0)
    return ", ".join(words)
