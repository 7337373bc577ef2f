"""The result of a least-squares fit of any function to any dataset."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.text import aligned_columns


@dataclass(frozen=True)
class CurveFit:
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

    def __repr__(self) -> str:
        rows = [
            [name, f"{numbers.value_and_error(value, error)} {unit}".rstrip()]
            for name, value, error, unit in zip(
                self.names, self.popt, self.stderr, self.units, strict=True
            )
        ]
        findings = [f"{one.severity}: {one.sentence}" for one in self.findings]
        head = [self.model, "", self.outcome.value, *findings, ""]
        facts = (
            f"χ² {self.chisqr:.6g} for {self.ndata:,} points, reduced χ² {self.redchi:.6g}, "
            f"{self.passes} pass{'es' * (self.passes != 1)}"
        )
        return "\n".join([*head, *aligned_columns(rows, left=2), "", facts])
