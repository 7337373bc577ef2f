"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are.

Under a loss the weights depend on contrast and offset, too: χ² is known only at the point (theta, offset,
contrast) of the pass, and the next step is one of the joint problem. The Schur complement over contrast and
offset is the reduced problem in theta; a step of theta determines that of contrast and offset.

The linear parameters of a group of bins enter as (offset_k - 1, contrast_k) = t_k·β, t_k a row of
`columns`: `individual` is a group per bin with t_k = 1, the other modes are one group of
all; in `fixed` nothing is eliminated.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.backend_interface import SUM_ROUNDING
from homodyne_dask.kernels.gram import Gram, spread, summed
from homodyne_dask.models.parameters import PriorTerms
from homodyne_dask.read_only import HandedOut, cached_read_only
from homodyne_dask.solver.array_shapes import (
    LinearParams,
    Moments,
    PerBin,
    PerRate,
    SomeBins,
    Theta,
    ThetaMatrix,
)
from homodyne_dask.solver.scaling_modes import Scaling, ScalingPrior, scaling_of

Z = slice(0, 3, 2)
"""Positions of the columns of offset and contrast, 1 and f, among the moments."""
CONSTANT_F = 1e-10
"""Variance of f over its mean square below which f counts as constant."""
_ZERO_F = 1e-12
"""Weighted mean of f² below which f counts as zero."""
_INTERPOLATED = 1e4 * float(np.finfo(float).eps)
"""Most of Σw(y - 1)² that may be left of it where the model interpolates the data."""


def constraint_columns(scaling: Scaling, bins: int) -> tuple[Float[np.ndarray, "bin m"], int]:
    """Return the columns that the linear parameters multiply, and the number of groups of bins."""
    if scaling.fixed_params is not None:
        return np.zeros((bins, 0)), 1
    if scaling.columns is None:
        return np.ones((bins, 1)), bins
    return scaling.columns, 1


class Elimination(NamedTuple):
    """The elimination of offset, then contrast, from the normal equations of each group."""

    columns: Float[np.ndarray, "group member m"]
    offset: Float[np.ndarray, "group m m"]
    mean: Float[np.ndarray, "group m m"]
    """Inverse of the offset block times the mixed block: the mean of f, where m = 1."""
    contrast: Float[np.ndarray, "group m m"]
    """Inverse of the Schur complement of the contrast block: of f's variance, where m = 1."""
    determined: Bool[np.ndarray, " group"]
    rank: int
    nonfinite: Bool[np.ndarray, " group"]
    """Groups with sums that are not finite, as opposed to undetermined ones."""

    def solved(self, per_bin: Float[np.ndarray, "bin 2 *n"]) -> Float[np.ndarray, "bin 2 *n"]:
        """Return Z_k (ZᵀWZ)⁻¹ Σ Z_kᵀ b_k of every bin: the solution for right-hand sides b_k."""
        groups, members, _ = self.columns.shape
        shape = per_bin.shape
        b = per_bin.reshape(groups, members, 2, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            upper, lower = np.moveaxis(np.einsum("gkm,gkzn->gzmn", self.columns, b), 1, 0)
            lower = self.contrast @ (lower - np.swapaxes(self.mean, 1, 2) @ upper)
            upper = self.offset @ upper - self.mean @ lower
        solution = np.stack([upper, lower], axis=1)
        solution[self.nonfinite] = np.nan  # `eliminated` put the identity in place of their sums
        return np.einsum("gkm,gzmn->gkzn", self.columns, solution).reshape(shape)

    def bins_determined(self) -> SomeBins:
        """Return the bins of determined groups; all where nothing is eliminated."""
        _, members, m = self.columns.shape
        return np.repeat(self.determined | (m == 0), members)

    def inverse(self) -> Float[np.ndarray, "group 2m 2m"]:
        corner = -self.mean @ self.contrast
        upper = self.offset - corner @ np.swapaxes(self.mean, 1, 2)
        return np.block([[upper, corner], [np.swapaxes(corner, 1, 2), self.contrast]])


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
class ReducedProblem(HandedOut):
    chisqr: float
    gradient: Theta
    """Jᵀ W r, r = y - offset - contrast·f: minus half the derivative of χ²."""
    hessian: ThetaMatrix
    """Gauss-Newton: Jᵀ W J with the linear parameters projected out."""
    ndata: int
    undetermined: SomeBins
    """Bins whose f is constant or zero: they have contrast 0 and add nothing to the Hessian."""
    chisqr_per_bin: PerBin
    rounding_per_bin: PerBin
    """Accuracy of χ² (`chisqr_rounding`)."""
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
    elimination: Elimination
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
    theta_prior: PriorTerms | None = None
    """What priors of theta added to χ², gradient, Hessian and ndata; it belongs to no bin."""
    penalty: Penalty | None = None
    """What smoothing added to χ², gradient and Hessian; it belongs to no bin."""

    @property
    def linear(self) -> int:
        """The number of linear parameters that are determined."""
        return self.elimination.rank

    @property
    def columns(self) -> Float[np.ndarray, "bin m"]:
        """(offset - 1, contrast) of a bin are these columns times the linear parameters; none when fixed."""
        columns = self.elimination.columns
        return columns.reshape(len(self.linear_params), columns.shape[2])

    @cached_read_only
    def inverse(self) -> Float[np.ndarray, "group 2m 2m"]:
        """(ZᵀWZ)⁻¹ of the linear parameters of each group of bins, those of offset first."""
        return self.elimination.inverse()

    @property
    def count(self) -> PerBin:
        return self.gram.pairs.astype(float)

    @property
    def contrast(self) -> PerBin:
        """NaN of bins without pairs, as the offset."""
        return np.where(self.gram.pairs > 0, self.linear_params[:, 1], np.nan)

    @property
    def offset(self) -> PerBin:
        return np.where(self.gram.pairs > 0, 1 + self.linear_params[:, 0], np.nan)

    @property
    def linear_reduction(self) -> float:
        """The reduction of χ² that `linear_step` alone promises."""
        if self.linear_step is None:
            return 0.0
        return max(float((self.linear_gradient * self.linear_step).sum()), 0.0)

    @property
    def noise(self) -> float | None:
        """Under a loss: a parameter's variance over its entry of the inverse Hessian, for white noise."""
        loss = self.gram.loss
        if loss is None:
            return None
        return float(loss[:, 3].sum() / (_hessian_slope(self.gram) * loss[:, 1]).sum())

    @property
    def finite(self) -> bool:
        sums = (self.chisqr, self.gradient, self.hessian)
        return all(bool(np.isfinite(numbers).all()) for numbers in sums)

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
        has_freedom = freedom > 0
        return np.where(
            has_freedom, self.chisqr_per_bin / np.where(has_freedom, freedom, 1.0), np.nan
        )

    def linear_params_after(self, step: Theta, damping: float) -> LinearParams | None:
        if self.linear_step is None:
            return None
        step_alone = self.linear_step / (1 + damping)
        linear_params = self.linear_params + step_alone - self.projection @ step
        return linear_params if self.prior is None else self.prior.inside(linear_params)

    def predicted_reduction(self, step: Theta, damping: float) -> float:
        gain = 2 * step @ self.gradient - step @ self.hessian @ step
        return float(gain + self.linear_reduction * (1 - (1 - 1 / (1 + damping)) ** 2))


def eliminated(
    A_k: Float[np.ndarray, "bin 2 2"],
    at_bound: Bool[np.ndarray, "bin 2"],
    columns: Float[np.ndarray, "bin m"],
    groups: int,
    sum_rounding: float,
) -> Elimination:
    """Return the elimination of the linear parameters of every group that are not at a bound."""
    A_k = np.where(at_bound[:, :, None] | at_bound[:, None, :], 0.0, A_k)
    bins_each = len(A_k) // groups
    columns = columns.reshape(groups, bins_each, columns.shape[1])
    members = A_k.reshape(groups, bins_each, 2, 2)
    nonfinite = ~np.isfinite(members).all((1, 2, 3))
    members = np.where(nonfinite[:, None, None, None], np.eye(2), members)
    A = np.einsum("gka,gkb,gkzy->gzyab", columns, columns, members)
    w, wf, wff = A[:, 0, 0], A[:, 0, 1], A[:, 1, 1]
    offset, of_offset = _inverse(w, np.diagonal(w, axis1=1, axis2=2), 1e-13)
    mean = offset @ wf
    size = np.diagonal(wff, axis1=1, axis2=2)
    size = np.where(size > _ZERO_F * np.diagonal(w, axis1=1, axis2=2), size, 0.0)
    least = max(CONSTANT_F, 4 * sum_rounding)  # x = (mean, 1) in `chisqr_rounding`
    contrast, of_contrast = _inverse(wff - np.swapaxes(wf, 1, 2) @ mean, size, least)
    determined = (of_contrast > 0) | nonfinite
    rank = int(of_offset.sum() + of_contrast.sum())
    return Elimination(columns, offset, mean, contrast, determined, rank, nonfinite)


def _inverse(
    S: Float[np.ndarray, "group m m"], size: Float[np.ndarray, "group m"], least: float
) -> tuple[Float[np.ndarray, "group m m"], Float[np.ndarray, " group"]]:
    """Return the pseudo-inverse of S and its rank: eigenvalues of S over `size` count above `least`."""
    unit = np.where(size > 0, 1 / np.sqrt(np.where(size > 0, size, 1.0)), 0.0)
    scaled = S * unit[:, :, None] * unit[:, None, :]
    alone = scaled.shape[1] == 1
    values, vectors = (scaled[:, 0], 1.0) if alone else np.linalg.eigh(scaled)
    counted = values > least
    half = vectors * unit[:, :, None] / np.sqrt(np.where(counted, values, np.inf))[:, None, :]
    return half @ np.swapaxes(half, 1, 2), counted.sum(1)


def cost(M: Moments, x: Float[np.ndarray, "bin 3"]) -> PerBin:
    return np.einsum("ka,kab,kb->k", x, M[:, :3, :3], x)


def chisqr_rounding(M: Moments, x: Float[np.ndarray, "bin 3"], sum_rounding: float) -> PerBin:
    """Return the rounding of the forms xᵀMx of every bin, x over the first columns of M.

    sum_rounding: accuracy of a moment M_ij in units of √(M_ii M_jj). A form is a sum of terms of either
    sign, each of at most |x_i| √M_ii |x_j| √M_jj, so it is known to sum_rounding·(Σ |x_i| √M_ii)².
    χ², the diagonal of the Hessian and with it the rank are such forms.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return sum_rounding * (np.abs(x) * _roots_of_diagonal(M)[:, :3]).sum(1) ** 2


def _roots_of_diagonal(M: Moments) -> Float[np.ndarray, "bin k"]:
    return np.sqrt(np.maximum(np.diagonal(M, axis1=1, axis2=2), 0.0))


def zero_below_rounding(chisqr: PerBin, M: Moments, rounding: PerBin) -> PerBin:
    """Return χ² of every bin, or 0 where it is below its rounding and next to nothing of Σw(y - 1)²."""
    with np.errstate(over="ignore", invalid="ignore"):
        bound = np.minimum(rounding, _INTERPOLATED * M[:, 1, 1])
        return np.where((chisqr <= np.maximum(bound, 0.0)) & np.isfinite(bound), 0.0, chisqr)


def residual_combination(linear_params: LinearParams) -> Float[np.ndarray, "bin 3"]:
    """Return x of which [1, y - 1, f] x are the residuals."""
    x = np.ones((len(linear_params), 3))
    np.negative(linear_params, out=x[:, Z])
    return x


def projected(
    M: Moments,
    right: Float[np.ndarray, "bin k"],
    contrast: PerBin,
    P: Float[np.ndarray, "bin 2 p"],
    determined: SomeBins,
    sum_rounding: float,
) -> tuple[Float[np.ndarray, "bin p"], Float[np.ndarray, "bin p p"], Float[np.ndarray, "bin p"]]:
    """Return scores g_k, blocks H_k and the rounding of their diagonals, contrast and offset free.

    With J_k = contrast_k d_k, right = XᵀWr and P = A⁻¹B of the group, g_k = JᵀWr - PᵀZᵀWr, and H_k is the
    Gram of the projected columns, JᵀWJ - JᵀWZ P - PᵀZᵀWJ + PᵀZᵀWZ P: on its diagonal are the forms of
    `chisqr_rounding` with x = (-P₀, 0, -P₁, contrast). Bins without pairs, or not determined, have zeros
    unless their sums are not finite.
    """
    counted = determined & (np.abs(M[:, 0, 0]) > 0) | ~np.isfinite(M).all((1, 2))
    g = contrast[:, None] * right[:, 3:] - np.einsum("kzp,kz->kp", P, right[:, Z])
    A_k = M[:, Z, Z]
    B_k = M[:, Z, 3:] * contrast[:, None, None]
    D_k = M[:, 3:, 3:] * (contrast**2)[:, None, None]
    cross = np.einsum("kzp,kzr->kpr", B_k, P)
    H = D_k - cross - cross.transpose(0, 2, 1) + np.einsum("kzp,kzy,kyr->kpr", P, A_k, P)
    size, across = _roots_of_diagonal(M), np.abs(contrast)[:, None]
    form = (np.abs(P) * size[:, Z, None]).sum(1) + across * size[:, 3:]
    rounding = np.where(counted[:, None], sum_rounding * form**2, 0.0)
    return np.where(counted[:, None], g, 0.0), np.where(counted[:, None, None], H, 0.0), rounding


MIN_SLOPE = 0.25
"""Mean slope of the influence over the mean weight, below which most pairs are outliers."""
MIN_HESSIAN_SLOPE = 0.1
"""Floor of that slope in the Hessian, so that steps stay finite."""


def reduce(
    gram: Gram,
    scaling: Scaling | str,
    sum_rounding: float = SUM_ROUNDING["float64"],
    prior: PriorTerms | None = None,
    linear_params: LinearParams | None = None,
) -> ReducedProblem:
    """Return the reduced problem of all bins; not finite where sums are not.

    scaling: or the name of a mode that needs no angles or values: 'individual' or 'shared' (OptionError for
    another). sum_rounding: accuracy of a moment M_ij over √(M_ii M_jj). prior: the terms of the priors of
    theta, at the theta of the Gram. linear_params: the (offset - 1, contrast) at which a pass with a loss
    was made.
    """
    if isinstance(scaling, str):
        scaling = scaling_of(scaling, np.zeros(len(gram.pairs)))
    # contrasts that are shared couple all bins
    gram = gram if scaling.columns is None else gram.wide
    of_prior = _prior_moments(gram, scaling)
    sums = normal = gram.moments if scaling.prior is None else gram.moments + of_prior
    step = None
    if gram.loss is None:
        linear_params = None
    else:
        assert linear_params is not None
        normal = _hessian_slope(gram)[:, None, None] * gram.moments + of_prior
    with np.errstate(invalid="ignore", over="ignore"):
        solution = _linear_solution(sums, normal, scaling, sum_rounding, linear_params)
        linear_params, at_bound, elimination = solution
        determined = elimination.bins_determined() | at_bound[:, 1]
        x = residual_combination(linear_params)
        right = np.einsum("ka,kab->kb", x, sums[:, :3])
        slope = linear_params[:, 1]  # dc2/df
        if gram.loss is not None:
            step = elimination.solved(right[:, Z])
            slope = slope + step[:, 1]
        slope = np.where(determined, slope, 0.0)
        P = elimination.solved(normal[:, Z, 3:] * slope[:, None, None])
        g, H, H_rounding = projected(normal, right, slope, P, determined, sum_rounding)
        rounding = chisqr_rounding(sums, x, sum_rounding)
        if gram.loss is None:
            chisqr = zero_below_rounding(cost(sums, x), sums, rounding)
        else:
            of_data = chisqr_rounding(gram.moments, x, sum_rounding)
            chisqr = zero_below_rounding(gram.loss[:, 0], gram.moments, of_data)
            chisqr = chisqr + np.maximum(cost(of_prior, x), 0.0)
    place, p = gram.place, g.shape[1]
    if place is not None:
        p = 1 + int(place.max())
        g, P, H_rounding = (spread(values, place, p) for values in (g, P, H_rounding))
    problem = ReducedProblem(
        chisqr=float(chisqr.sum()),
        gradient=g.sum(0),
        hessian=summed(H, place, p),
        ndata=int(gram.pairs.sum()),
        undetermined=(gram.pairs > 0) & ~determined,
        chisqr_per_bin=chisqr,
        rounding_per_bin=rounding,
        bin_gradient=g,
        bin_hessian=H,
        bin_hessian_rounding=H_rounding,
        sum_rounding=sum_rounding,
        gram=gram,
        projection=P,
        elimination=elimination,
        linear_params=linear_params,
        at_bound=at_bound,
        normal=normal,
        linear_gradient=right[:, Z],
        prior=scaling.prior,
        linear_step=step,
    )
    return problem.with_prior(prior)


def _prior_moments(gram: Gram, scaling: Scaling) -> Moments:
    """Return what priors of contrast and offset add to the moments: of each bin, or once of a shared pair."""
    used = gram.pairs > 0
    if scaling.prior is None:
        return np.zeros((len(used), *gram.moments.shape[1:]))
    share = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
    return scaling.prior.moments(share, gram.moments.shape[2])


def _linear_solution(
    sums: Moments,
    normal: Moments,
    scaling: Scaling,
    sum_rounding: float,
    linear_params: LinearParams | None,
) -> tuple[LinearParams, Bool[np.ndarray, "bin 2"], Elimination]:
    """Return (offset - 1, contrast), which of them are at a bound, and the elimination of the others.

    linear_params: those of the pass, under a loss; else they are the optimum at theta, or fixed.
    """
    columns, groups = constraint_columns(scaling, len(sums))
    A_k, at_bound = normal[:, Z, Z], np.zeros((len(sums), 2), bool)
    free = eliminated(A_k, at_bound, columns, groups, sum_rounding)
    of_pass = linear_params is not None
    if linear_params is None:
        linear_params = scaling.fixed_params
    if linear_params is None:
        linear_params = free.solved(sums[:, 1, Z])
    if scaling.prior is None:
        return linear_params, at_bound, free

    def of_groups(per_bin: np.ndarray) -> np.ndarray:
        return per_bin.reshape(groups, members, *per_bin.shape[1:]).sum(1)

    members = len(sums) // groups
    first = linear_params[::members]  # bins of a group have the same
    if of_pass:
        right = np.einsum("ka,kaz->kz", residual_combination(linear_params), sums[:, :3, Z])
        at_bound = np.repeat(scaling.prior.active(first, of_groups(right)), members, axis=0)
    else:
        optimum = scaling.prior.solved(of_groups(A_k), of_groups(sums[:, 1, Z]), first)
        linear_params, at_bound = (np.repeat(values, members, axis=0) for values in optimum)
    return linear_params, at_bound, eliminated(A_k, at_bound, columns, groups, sum_rounding)


def mean_weight(gram: Gram) -> float:
    assert gram.loss is not None
    return float(gram.loss[:, 1].sum() / gram.pairs.sum())


def slope_known(gram: Gram) -> bool:
    """Return whether few enough pairs of every bin count as outliers for errors to be known."""
    used = gram.pairs > 0
    return bool((_slope(gram)[used] >= MIN_SLOPE).all())


def _slope(gram: Gram) -> PerBin:
    """Return Σ (ρ' + 2zρ'') / Σ ρ' of every bin; the Hessian is about that times Xᵀ W X."""
    assert gram.loss is not None
    weight, slope = gram.loss[:, 1], gram.loss[:, 2]
    return np.where(weight > 0, slope / np.where(weight > 0, weight, 1.0), 1.0)


def _hessian_slope(gram: Gram) -> PerBin:
    return np.maximum(_slope(gram), MIN_HESSIAN_SLOPE)


def linear_columns(
    reduced: ReducedProblem,
) -> tuple[Bool[np.ndarray, "bin 2"], Float[np.ndarray, "bin 2 l"]]:
    """Return which of (offset, contrast) each bin has for itself, and how they follow those of all bins."""
    bins = len(reduced.count)
    groups = len(reduced.inverse) if reduced.columns.shape[1] else 0
    if groups <= 1:  # fixed, or shared by all bins
        shared = np.einsum("km,zy->kzym", reduced.columns, np.eye(2)).reshape(bins, 2, -1)
        return np.zeros((bins, 2), bool), shared
    return ~reduced.at_bound, np.zeros((bins, 2, 0))
