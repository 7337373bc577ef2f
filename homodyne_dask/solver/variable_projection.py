"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are. `elimination` has the algebra.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import Gram, RobustGram
from homodyne_dask.kernels.problem import SUM_ROUNDING
from homodyne_dask.models.gaussian_priors import PriorTerms
from homodyne_dask.solver.elimination import (
    Elimination,
    Z,
    chisqr_rounding,
    columns_times_residual,
    constraint_columns,
    cost,
    eliminated,
    informative,
    projected,
    projection_rounding,
    scores,
    without_active,
    zero_below_rounding,
)
from homodyne_dask.solver.priors import ScalingPrior
from homodyne_dask.solver.scaling_modes import Scaling, scaling_named

_OF_DISTANCE = 4.0
"""The rounding of the distance to the optimum over that of residuals, as seen with sums of float32."""


@dataclass(frozen=True)
class ReducedProblem:
    """The least-squares problem in the physical parameters alone, at one theta."""

    chisqr: float
    gradient: Float[np.ndarray, " p"]
    """Jᵀ W r, r = y - offset - contrast·f: minus half the derivative of χ²."""
    hessian: Float[np.ndarray, "p p"]
    """Gauss-Newton: Jᵀ W J with the linear parameters projected out."""
    ndata: int
    linear: int
    """Linear parameters the data determine."""
    contrast: Float[np.ndarray, " bin"]
    offset: Float[np.ndarray, " bin"]
    undetermined: Bool[np.ndarray, " bin"]
    """Bins whose f is constant or zero: they have contrast 0 and add nothing to the Hessian."""
    chisqr_per_bin: Float[np.ndarray, " bin"]
    count: Float[np.ndarray, " bin"]
    rounding_per_bin: Float[np.ndarray, " bin"]
    """Accuracy of χ² (`elimination.rounding_of`)."""
    bin_gradient: Float[np.ndarray, "bin p"]
    """Scores g_k: they sum to the gradient."""
    bin_hessian: Float[np.ndarray, "bin p p"]
    """Blocks H_k: they sum to the Hessian."""
    bin_hessian_rounding: Float[np.ndarray, "bin p"]
    """Accuracy of their diagonals."""
    sum_rounding: float
    """Accuracy of a moment M_ij over √(M_ii M_jj)."""
    gram: Gram | RobustGram
    """The moments from which this was computed."""
    projection: Float[np.ndarray, "bin 2 p"]
    """P = (ZᵀWZ)⁻¹ZᵀWJ: a step of theta changes (offset, contrast) of a bin by -P step."""
    columns: Float[np.ndarray, "bin m"]
    """(offset - 1, contrast) of a bin are these columns times the linear parameters; none when fixed."""
    inverse: Float[np.ndarray, "group 2m 2m"]
    """(ZᵀWZ)⁻¹ of the linear parameters of each group of bins, those of offset first."""
    linear_params: Float[np.ndarray, "bin 2"]
    """(offset - 1, contrast) of every bin, those without pairs included."""
    at_bound: Bool[np.ndarray, "bin 2"]
    """Which of them are at a bound and do not follow theta."""
    normal: Float[np.ndarray, "bin k k"]
    """The moments in the normal equations: the Gram, and the priors."""
    linear_gradient: Float[np.ndarray, "bin 2"]
    """ZᵀWr of every bin, with the priors."""
    prior: ScalingPrior | None = None
    linear_step: Float[np.ndarray, "bin 2"] | None = None
    """The Gauss-Newton step of (offset, contrast) at this theta under a loss; None without a loss."""
    linear_reduction: float = 0.0
    """The predicted reduction of χ² by that step."""
    noise: float | None = None
    """Under a loss: the variance of a parameter over its entry of the inverse Hessian, for white noise."""
    theta_prior: PriorTerms | None = None
    """What priors of theta added to χ², gradient, Hessian and ndata; it belongs to no bin."""

    @property
    def finite(self) -> bool:
        """Whether χ² and its derivatives are finite."""
        parts = (self.chisqr, self.gradient, self.hessian)
        return all(bool(np.isfinite(part).all()) for part in parts)

    @property
    def rounding(self) -> float:
        """Accuracy of χ²: what is below this, and differences below this, are rounding."""
        prior = 0.0 if self.theta_prior is None else self.theta_prior.rounding
        return float(self.rounding_per_bin.sum()) + prior

    @property
    def relative_hessian_rounding(self) -> Float[np.ndarray, " p"]:
        """Accuracy of the diagonal of the Hessian over that diagonal; infinite where that is not positive."""
        diagonal, rounding = np.diag(self.hessian), self.bin_hessian_rounding.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(diagonal > 0, rounding / diagonal, np.inf)

    @property
    def rounded_as_float64(self) -> "ReducedProblem":
        """The problem with the Hessian known as well as from sums of float64."""
        finer = SUM_ROUNDING["float64"] / self.sum_rounding
        return replace(self, bin_hessian_rounding=self.bin_hessian_rounding * finer)

    def with_prior(self, terms: PriorTerms | None) -> "ReducedProblem":
        """Return the problem with priors of theta, each counted as one more measurement."""
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

    def variance(self, free: int) -> float:
        """Return s² = χ² over the degrees of freedom with `free` physical parameters.

        χ² counts as no less than its rounding, and without the priors of theta: far from one it would tell
        nothing of the data. Under a loss it is replaced by `noise` times the number of pairs.
        """
        chisqr = self.chisqr if self.theta_prior is None else float(self.chisqr_per_bin.sum())
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

    def freedom(self, free: int) -> int:
        """Return the degrees of freedom with `free` physical parameters, at least 1."""
        return max(self.ndata - free - self.linear, 1)

    def linear_params_after(
        self, step: Float[np.ndarray, " p"], damping: float
    ) -> Float[np.ndarray, "bin 2"] | None:
        """Return (offset - 1, contrast) to try with a step of theta; None where they are eliminated."""
        if self.linear_step is None:
            return None
        linear_params = (
            self.linear_params + self.linear_step / (1 + damping) - self.projection @ step
        )
        return linear_params if self.prior is None else self.prior.inside(linear_params)

    def predicted_reduction(self, step: Float[np.ndarray, " p"], damping: float) -> float:
        """Return the reduction of χ² by a step in the quadratic model, that of linear parameters included."""
        gain = 2 * step @ self.gradient - step @ self.hessian @ step
        return float(gain + self.linear_reduction * (1 - (1 - 1 / (1 + damping)) ** 2))


def reduce(
    gram: Gram,
    scaling: Scaling | str,
    sum_rounding: float = SUM_ROUNDING["float64"],
    prior: PriorTerms | None = None,
) -> ReducedProblem:
    """Return the reduced problem of all bins.

    scaling: a `Scaling`, or the name of a mode that needs no angles or values: 'individual' or 'shared'.
    sum_rounding: accuracy of a moment M_ij over √(M_ii M_jj); see `kernels.problem.SUM_ROUNDING`.
    prior: the terms of the priors of theta, at the theta of the Gram.
    Sums that are not finite give a problem that is not finite. Raises OptionError for another name.
    """
    M = gram.moments
    if isinstance(scaling, str):
        scaling = scaling_named(scaling, len(M))
    used = gram.pairs > 0
    M = M + prior_moments(scaling, used, M.shape[2])
    A_k, b_k = M[:, Z][:, :, Z], M[:, 1, Z]
    columns, groups = constraint_columns(scaling, len(M))
    linear = eliminated(A_k, columns, groups, sum_rounding)
    at_bound = np.zeros((len(M), 2), bool)
    if scaling.fixed_params is None:
        linear_params = linear.solved(b_k)
        if scaling.prior is not None:
            linear_params, at_bound = _inside(scaling.prior, A_k, b_k, linear_params, groups)
            linear = eliminated(without_active(A_k, at_bound), columns, groups, sum_rounding)
        determined = np.repeat(linear.known, len(M) // groups) | at_bound[:, 1]
    else:
        linear_params, determined = scaling.fixed_params, np.ones(len(M), bool)
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = chisqr_rounding(M, linear_params, sum_rounding)
        chisqr_per_bin = zero_below_rounding(cost(M, linear_params), M, rounding)
        right = columns_times_residual(M, linear_params)
    contrast = np.where(determined, linear_params[:, 1], 0.0)
    point = LinearSolution(linear_params, at_bound, determined, contrast)
    return problem_at(
        gram, point, (M, right), (columns, linear), chisqr_per_bin,
        rounding_per_bin=rounding, sum_rounding=sum_rounding,
    ).with_prior(prior)  # fmt: skip


class LinearSolution(NamedTuple):
    """Offset and contrast at a point theta."""

    linear_params: Float[np.ndarray, "bin 2"]
    """(offset - 1, contrast)."""
    at_bound: Bool[np.ndarray, "bin 2"]
    """Which of them are at a bound."""
    determined: Bool[np.ndarray, " bin"]
    """Bins that show a decay."""
    slope: Float[np.ndarray, " bin"]
    """dc2/df, the contrast; 0 where it is not determined."""


def problem_at(
    gram: Gram | RobustGram,
    at: LinearSolution,
    equations: tuple[Float[np.ndarray, "bin k k"], Float[np.ndarray, "bin k"]],
    elimination: tuple[Float[np.ndarray, "bin m"], Elimination],
    chisqr_per_bin: Float[np.ndarray, " bin"],
    *,
    sum_rounding: float,
    **more: Any,
) -> ReducedProblem:
    """Return the problem in theta alone from the normal equations and right-hand sides at a point.

    elimination: the columns of the linear parameters, and their elimination. more: the fields of
    `ReducedProblem` that do not follow from these.
    """
    (normal, right), (columns, linear), used = equations, elimination, gram.pairs > 0
    with np.errstate(invalid="ignore", over="ignore"):
        P = linear.solved(normal[:, Z, 3:] * at.slope[:, None, None])
        on = informative(normal, at.determined)
        gradient = scores(right, at.slope, P, on)
        hessian = projected(normal, at.slope, P, on)
        hessian_rounding = projection_rounding(normal, at.slope, P, on, sum_rounding)
    return ReducedProblem(
        chisqr=float(chisqr_per_bin.sum()),
        gradient=gradient.sum(0),
        hessian=hessian.sum(0),
        ndata=int(gram.pairs.sum()),
        linear=linear.rank,
        contrast=np.where(used, at.linear_params[:, 1], np.nan),
        offset=np.where(used, 1 + at.linear_params[:, 0], np.nan),
        undetermined=used & ~at.determined,
        chisqr_per_bin=chisqr_per_bin,
        count=gram.pairs.astype(float),
        bin_gradient=gradient,
        bin_hessian=hessian,
        bin_hessian_rounding=hessian_rounding,
        sum_rounding=sum_rounding,
        gram=gram,
        projection=P,
        columns=columns,
        inverse=linear.inverse(),
        linear_params=at.linear_params,
        at_bound=at.at_bound,
        normal=normal,
        linear_gradient=right[:, Z],
        **more,
    )


def prior_moments(
    scaling: Scaling, used: Bool[np.ndarray, " bin"], k: int
) -> Float[np.ndarray, "bin k k"]:
    """Return the moments of the priors: for each bin, or once for a shared scaling."""
    if scaling.prior is None:
        return np.zeros((len(used), k, k))
    each = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
    return scaling.prior.moments(each, k)


def _inside(
    prior: ScalingPrior,
    A_k: Float[np.ndarray, "bin 2 2"],
    b_k: Float[np.ndarray, "bin 2"],
    linear_params: Float[np.ndarray, "bin 2"],
    groups: int,
) -> tuple[Float[np.ndarray, "bin 2"], Bool[np.ndarray, "bin 2"]]:
    """Return (offset - 1, contrast) inside the bounds, and which of them are at one."""
    each = len(A_k) // groups
    A, b = A_k.reshape(groups, each, 2, 2).sum(1), b_k.reshape(groups, each, 2).sum(1)
    linear_params, at_bound = prior.solved(A, b, linear_params[::each])
    return np.repeat(linear_params, each, axis=0), np.repeat(at_bound, each, axis=0)
