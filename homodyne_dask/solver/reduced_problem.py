"""The least-squares problem in the physical parameters, contrast and offset eliminated, at one theta."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.backend_interface import SUM_ROUNDING
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import PriorTerms
from homodyne_dask.solver.array_shapes import (
    LinearParams,
    Moments,
    PerBin,
    PerRate,
    SomeBins,
    Theta,
    ThetaMatrix,
)
from homodyne_dask.solver.scaling_modes import ScalingPrior

_OF_DISTANCE = 4.0
"""The rounding of the distance to the optimum over that of residuals, as seen with sums of float32."""


class Strengths(NamedTuple):
    values: PerRate
    exponents: PerRate
    """A second difference of coefficients is weighted by its age to this power (`Smoothness.matrices`)."""
    scales: PerRate
    """φ, the design effect: the prior covariance of a rate is φ times the inverse of λ S."""


class Penalty(NamedTuple):
    """What smoothing adds to the normal equations at a theta (`solver.penalty_strength`)."""

    names: tuple[str, ...]
    strengths: Strengths
    effective: PerRate
    """Degrees of freedom."""
    spared: float
    """Degrees of freedom that it takes from theta: tr((H + P)⁻¹P)."""
    weight: ThetaMatrix
    score_variance: ThetaMatrix
    """Σ φ λ S, the variance of its gradient where rates are drawn from their prior."""
    gradient: Theta
    pull: Theta
    """The same of a rougher theta, which is nearer to the truth on average."""
    chisqr: float
    rounding: float


@dataclass(frozen=True, eq=False)
class ReducedProblem:
    chisqr: float
    gradient: Theta
    """Jᵀ W r, r = y - offset - contrast·f: minus half the derivative of χ²."""
    hessian: ThetaMatrix
    """Gauss-Newton: Jᵀ W J with the linear parameters projected out."""
    ndata: int
    linear: int
    contrast: PerBin
    offset: PerBin
    undetermined: SomeBins
    """Bins whose f is constant or zero: they have contrast 0 and add nothing to the Hessian."""
    chisqr_per_bin: PerBin
    count: PerBin
    rounding_per_bin: PerBin
    """Accuracy of χ² (`reduce.rounding_of`)."""
    bin_gradient: Float[np.ndarray, "bin p"]
    """Scores g_k: they sum to the gradient."""
    bin_hessian: Float[np.ndarray, "bin own own"]
    """Blocks H_k: they sum to the Hessian, each at the `place` of its bin in the Gram, where it has one."""
    bin_hessian_rounding: Float[np.ndarray, "bin p"]
    """Of their diagonals."""
    sum_rounding: float
    """Accuracy of a moment M_ij over √(M_ii M_jj)."""
    gram: Gram
    projection: Float[np.ndarray, "bin 2 p"]
    """P = (ZᵀWZ)⁻¹ZᵀWJ: a step of theta changes (offset, contrast) of a bin by -P step."""
    columns: Float[np.ndarray, "bin m"]
    """(offset - 1, contrast) of a bin are these columns times the linear parameters; none when fixed."""
    inverse: Float[np.ndarray, "group 2m 2m"]
    """(ZᵀWZ)⁻¹ of the linear parameters of each group of bins, those of offset first."""
    linear_params: LinearParams
    """(offset - 1, contrast) of every bin, those without pairs included."""
    at_bound: Bool[np.ndarray, "bin 2"]
    """Which of them are at a bound and do not follow theta."""
    normal: Moments
    """The moments in the normal equations: the Gram, and the priors."""
    linear_gradient: LinearParams
    """ZᵀWr of every bin, with the priors."""
    prior: ScalingPrior | None = None
    linear_step: LinearParams | None = None
    """The Gauss-Newton step of (offset, contrast) at this theta under a loss; None without a loss."""
    linear_reduction: float = 0.0
    noise: float | None = None
    """Under a loss: the variance of a parameter over its entry of the inverse Hessian, for white noise."""
    theta_prior: PriorTerms | None = None
    """What priors of theta added to χ², gradient, Hessian and ndata; it belongs to no bin."""
    penalty: Penalty | None = None
    """What smoothing added to χ², gradient and Hessian; it belongs to no bin."""

    @property
    def finite(self) -> bool:
        parts = (self.chisqr, self.gradient, self.hessian)
        return all(bool(np.isfinite(part).all()) for part in parts)

    @property
    def rounding(self) -> float:
        """Accuracy of χ²: what is below this, and differences below this, are rounding."""
        prior = 0.0 if self.theta_prior is None else self.theta_prior.rounding
        penalty = 0.0 if self.penalty is None else self.penalty.rounding
        return float(self.rounding_per_bin.sum()) + prior + penalty

    @property
    def relative_hessian_rounding(self) -> Theta:
        """Accuracy of the diagonal of the Hessian over that diagonal; infinite where that is not positive."""
        diagonal, rounding = np.diag(self.hessian), self.bin_hessian_rounding.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(diagonal > 0, rounding / diagonal, np.inf)

    @property
    def rounded_as_float64(self) -> "ReducedProblem":
        finer = SUM_ROUNDING["float64"] / self.sum_rounding
        return replace(self, bin_hessian_rounding=self.bin_hessian_rounding * finer)

    def with_prior(self, terms: PriorTerms | None) -> "ReducedProblem":
        if terms is None:
            return self
        return replace(
            self,
            chisqr=self.chisqr + terms.chisqr,
            gradient=self.gradient + terms.gradient,
            hessian=self.hessian + np.diag(terms.weight),
            ndata=self.ndata + terms.number,
            theta_prior=terms,
        )

    def with_penalty(self, penalty: Penalty) -> "ReducedProblem":
        return replace(
            self,
            chisqr=self.chisqr + penalty.chisqr,
            gradient=self.gradient + penalty.gradient,
            hessian=self.hessian + penalty.weight,
            penalty=penalty,
        )

    @property
    def fit_chisqr(self) -> float:
        return self.chisqr if self.penalty is None else self.chisqr - self.penalty.chisqr

    def variance(self, free: int) -> float:
        """Return s²: χ² of the data, not below its rounding, over the freedom; under a loss from `noise`."""
        of_data = self.theta_prior is None and self.penalty is None
        chisqr = self.chisqr if of_data else float(self.chisqr_per_bin.sum())
        total = max(chisqr, self.rounding) if self.noise is None else self.ndata * self.noise
        return total / self.freedom(free)

    def decrement_rounding(self, variance: float) -> float:
        """Return the accuracy of the distance to the optimum in standard errors, for s² = variance.

        Were the sums those of slightly other residuals, the squares of the changes would sum to
        sum_rounding times the rounding of χ², and the distance would change by no more than their root.
        """
        if not variance > 0:
            return 0.0
        return float(_OF_DISTANCE * np.sqrt(self.sum_rounding * self.rounding / variance))

    def freedom(self, free: int) -> float:
        spared = 0 if self.penalty is None else self.penalty.spared
        return max(self.ndata - free + spared - self.linear, 1)

    def redchi(self, free: int) -> float:
        return float(self.fit_chisqr / self.freedom(free))

    def redchi_per_bin(self, free: int) -> PerBin:
        """Return that of each bin with its share of all degrees of freedom; NaN without data."""
        freedom = self.count * self.freedom(free) / self.ndata
        known = freedom > 0
        return np.where(known, self.chisqr_per_bin / np.where(known, freedom, 1.0), np.nan)

    def linear_params_after(self, step: Theta, damping: float) -> LinearParams | None:
        if self.linear_step is None:
            return None
        own = self.linear_step / (1 + damping)
        linear_params = self.linear_params + own - self.projection @ step
        return linear_params if self.prior is None else self.prior.inside(linear_params)

    def predicted_reduction(self, step: Theta, damping: float) -> float:
        gain = 2 * step @ self.gradient - step @ self.hessian @ step
        return float(gain + self.linear_reduction * (1 - (1 - 1 / (1 + damping)) ** 2))
