"""The result of a least-squares fit of any function to any dataset."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from homodyne_dask.document.blocks import Document, Outcome, Printed, Section, Sentences, Table
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import undetermined_names
from homodyne_dask.solver import levenberg_marquardt as lm


@dataclass(frozen=True, repr=False)
class CurveFit(HandedOut, Printed):
    """The result of `curve_fit`, or of `fit` with a `ResidualModel`: popt, pcov = result."""

    names: tuple[str, ...]
    popt: Float[np.ndarray, " p"]
    pcov: Float[np.ndarray, "p p"] | None
    """NaN in rows of parameters that are fixed or at a bound; None where the data do not determine every
    parameter, or there are not more points than parameters."""
    outcome: lm.Outcome
    """How the fit ended: `Outcome.CONVERGED`, or another."""
    chisqr: float
    redchi: float
    """χ² divided by the degrees of freedom."""
    ndata: int
    """Number of points used: those at which every variable is known."""
    passes: int
    findings: Findings
    """On what the data do not determine."""
    model: str
    units: tuple[str, ...]
    compilations: dict[str, int]

    def __iter__(self) -> Iterator[np.ndarray | None]:
        """Yield popt and pcov, as scipy returns them."""
        return iter((self.popt, self.pcov))

    @property
    def converged(self) -> bool:
        """Whether the fit ended at its optimum with every parameter determined."""
        return self.outcome is lm.Outcome.CONVERGED

    @property
    def stderr(self) -> Float[np.ndarray, " p"]:
        """The square roots of the diagonal of pcov; NaN where unknown."""
        unknown = np.full(len(self.names), np.nan)
        return unknown if self.pcov is None else np.sqrt(np.diag(self.pcov))

    def _document(self) -> Document:
        lost = np.isin(self.names, [*undetermined_names(self.findings)])
        values = np.where(lost, np.nan, self.popt)
        cells = map(numbers.value_and_error, values, self.stderr)
        columns = zip(self.names, cells, self.units, strict=True)
        rows = [["parameter", "value ± stderr", "unit"], *map(list, columns)]
        findings = [(one.severity.value, one.sentence) for one in self.findings]
        facts = (
            f"χ² {self.chisqr:.6g} for {self.ndata:,} points, reduced χ² {self.redchi:.6g}, "
            f"{self.passes} pass{'es' * (self.passes != 1)}"
        )
        outcome = Outcome(self.converged, self.outcome.value, findings)
        parameters = Section("Parameters", [Table("", rows, 3), Sentences([facts])])
        return Document(self.model, [Section("Outcome", [outcome]), parameters])
