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

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.backend_interface import SUM_ROUNDING
from homodyne_dask.kernels.gram import Gram, spread, summed
from homodyne_dask.models.parameters import PriorTerms
from homodyne_dask.solver.array_shapes import LinearParams, Moments, PerBin, SomeBins
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of

Z = [0, 2]
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
    known: Bool[np.ndarray, " group"]
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
        both = np.stack([upper, lower], axis=1)
        both[self.nonfinite] = np.nan
        return np.einsum("gkm,gzmn->gkzn", self.columns, both).reshape(shape)

    def inverse(self) -> Float[np.ndarray, "group 2m 2m"]:
        corner = -self.mean @ self.contrast
        upper = self.offset - corner @ np.swapaxes(self.mean, 1, 2)
        return np.block([[upper, corner], [np.swapaxes(corner, 1, 2), self.contrast]])


def eliminated(
    A_k: Float[np.ndarray, "bin 2 2"],
    at_bound: Bool[np.ndarray, "bin 2"],
    columns: Float[np.ndarray, "bin m"],
    groups: int,
    sum_rounding: float,
) -> Elimination:
    """Return the elimination of the linear parameters of every group that are not at a bound."""
    A_k = np.where(at_bound[:, :, None] | at_bound[:, None, :], 0.0, A_k)
    each = len(A_k) // groups
    columns = columns.reshape(groups, each, columns.shape[1])
    members = A_k.reshape(groups, each, 2, 2)
    nonfinite = ~np.isfinite(members).all((1, 2, 3))
    members = np.where(nonfinite[:, None, None, None], np.eye(2), members)
    A = np.einsum("gka,gkb,gkzy->gzyab", columns, columns, members)
    w, wf, wff = A[:, 0, 0], A[:, 0, 1], A[:, 1, 1]
    offset, of_offset = _inverse(w, np.diagonal(w, axis1=1, axis2=2), 1e-13)
    mean = offset @ wf
    size = np.diagonal(wff, axis1=1, axis2=2)
    size = np.where(size > _ZERO_F * np.diagonal(w, axis1=1, axis2=2), size, 0.0)
    least = max(CONSTANT_F, 4 * sum_rounding)  # x = (mean, 1) in `rounding_of`
    contrast, of_contrast = _inverse(wff - np.swapaxes(wf, 1, 2) @ mean, size, least)
    known = (of_contrast > 0) | nonfinite
    return Elimination(
        columns, offset, mean, contrast, known, int(of_offset.sum() + of_contrast.sum()), nonfinite
    )


def _inverse(
    S: Float[np.ndarray, "group m m"], size: Float[np.ndarray, "group m"], least: float
) -> tuple[Float[np.ndarray, "group m m"], Float[np.ndarray, " group"]]:
    """Return the pseudo-inverse of S and its rank: eigenvalues of S over `size` count above `least`."""
    unit = np.where(size > 0, 1 / np.sqrt(np.where(size > 0, size, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(S * unit[:, :, None] * unit[:, None, :])
    known = values > least
    half = vectors * unit[:, :, None] / np.sqrt(np.where(known, values, np.inf))[:, None, :]
    return half @ np.swapaxes(half, 1, 2), known.sum(1)


def cost(M: Moments, linear_params: LinearParams) -> PerBin:
    x = _residual_combination(linear_params)
    return np.einsum("ka,kab,kb->k", x, M[:, :3, :3], x)


def rounding_of(
    M: Moments, x: Float[np.ndarray, "bin a n"], sum_rounding: float
) -> Float[np.ndarray, "bin n"]:
    """Return the rounding of the forms xᵀMx of every bin, x over the first columns of M.

    sum_rounding: accuracy of a moment M_ij in units of √(M_ii M_jj). A form is a sum of terms of either
    sign, each of at most |x_i| √M_ii |x_j| √M_jj, so it is known to sum_rounding·(Σ |x_i| √M_ii)².
    χ², the diagonal of the Hessian and with it the rank are such forms.
    """
    a = range(x.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.maximum(M[:, a, a], 0.0))
        return sum_rounding * np.einsum("kan,ka->kn", np.abs(x), size) ** 2


def chisqr_rounding(M: Moments, linear_params: LinearParams, sum_rounding: float) -> PerBin:
    return rounding_of(M, _residual_combination(linear_params)[:, :, None], sum_rounding)[:, 0]


def zero_below_rounding(chisqr: PerBin, M: Moments, rounding: PerBin) -> PerBin:
    """Return χ² of every bin, or 0 where it is below its rounding and next to nothing of Σw(y - 1)²."""
    with np.errstate(over="ignore", invalid="ignore"):
        bound = np.minimum(rounding, _INTERPOLATED * M[:, 1, 1])
        return np.where((chisqr <= np.maximum(bound, 0.0)) & np.isfinite(bound), 0.0, chisqr)


def _residual_combination(linear_params: LinearParams) -> Float[np.ndarray, "bin 3"]:
    return np.stack(
        [-linear_params[:, 0], np.ones(len(linear_params)), -linear_params[:, 1]], axis=1
    )


def columns_times_residual(M: Moments, linear_params: LinearParams) -> Float[np.ndarray, "bin k"]:
    x = _residual_combination(linear_params)
    return np.einsum("ka,kab->kb", x, M[:, :3, :])


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
    `rounding_of` with x = (-P₀, 0, -P₁, contrast). Bins without pairs, or not determined, have zeros unless
    their sums are not finite.
    """
    on = determined & (np.abs(M[:, 0, 0]) > 0) | ~np.isfinite(M).all((1, 2))
    g = contrast[:, None] * right[:, 3:] - np.einsum("kzp,kz->kp", P, right[:, Z])
    A_k = M[:, Z][:, :, Z]
    B_k = M[:, Z, 3:] * contrast[:, None, None]
    D_k = M[:, 3:, 3:] * (contrast**2)[:, None, None]
    cross = np.einsum("kzp,kzr->kpr", B_k, P)
    H = D_k - cross - cross.transpose(0, 2, 1) + np.einsum("kzp,kzy,kyr->kpr", P, A_k, P)
    own = contrast[:, None, None] * np.eye(P.shape[2])
    x = np.concatenate([-P[:, :1], np.zeros_like(P[:, :1]), -P[:, 1:], own], axis=1)
    rounding = np.where(on[:, None], rounding_of(M, x, sum_rounding), 0.0)
    return np.where(on[:, None], g, 0.0), np.where(on[:, None, None], H, 0.0), rounding


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
    M, used, own = gram.moments, gram.pairs > 0, None
    of_prior = np.zeros((len(used), *M.shape[1:]))
    if scaling.prior is not None:  # of each bin, or once of a shared scaling
        each = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
        of_prior = scaling.prior.moments(each, M.shape[2])
    sums = normal = M + of_prior
    step, reduction, noise = None, 0.0, None
    if gram.loss is not None:
        assert linear_params is not None
        own, bend = linear_params, np.maximum(_slope(gram), MIN_HESSIAN_SLOPE)
        normal = bend[:, None, None] * M + of_prior
        noise = float(gram.loss[:, 3].sum() / (bend * gram.loss[:, 1]).sum())
    with np.errstate(invalid="ignore", over="ignore"):
        at, at_bound, linear, columns = _linear_solution(sums, normal, scaling, sum_rounding, own)
        determined = np.repeat(linear.known | (not columns.shape[1]), len(M) // len(linear.known))
        determined |= at_bound[:, 1]
        right, rounding = columns_times_residual(sums, at), chisqr_rounding(sums, at, sum_rounding)
        slope = at[:, 1]
        if gram.loss is not None:
            step = linear.solved(right[:, Z])
            reduction = max(float((right[:, Z] * step).sum()), 0.0)
            slope = slope + step[:, 1]
            of_data = chisqr_rounding(M, at, sum_rounding)
            chisqr = zero_below_rounding(gram.loss[:, 0], M, of_data)
            chisqr = chisqr + np.maximum(cost(of_prior, at), 0.0)
        else:
            chisqr = zero_below_rounding(cost(sums, at), sums, rounding)
        slope = np.where(determined, slope, 0.0)  # dc2/df
        P = linear.solved(normal[:, Z, 3:] * slope[:, None, None])
        g, H, H_rounding = projected(normal, right, slope, P, determined, sum_rounding)
    place, p = gram.place, g.shape[1]
    if place is not None:
        p = 1 + int(place.max())
        g, P, H_rounding = (spread(of, place, p) for of in (g, P, H_rounding))
    problem = ReducedProblem(
        chisqr=float(chisqr.sum()),
        gradient=g.sum(0),
        hessian=summed(H, place, p),
        ndata=int(gram.pairs.sum()),
        linear=linear.rank,
        contrast=np.where(used, at[:, 1], np.nan),
        offset=np.where(used, 1 + at[:, 0], np.nan),
        undetermined=used & ~determined,
        chisqr_per_bin=chisqr,
        count=gram.pairs.astype(float),
        bin_gradient=g,
        bin_hessian=H,
        bin_hessian_rounding=H_rounding,
        sum_rounding=sum_rounding,
        gram=gram,
        projection=P,
        columns=columns,
        inverse=linear.inverse(),
        linear_params=at,
        at_bound=at_bound,
        normal=normal,
        linear_gradient=right[:, Z],
        rounding_per_bin=rounding,
        prior=scaling.prior,
        linear_step=step,
        linear_reduction=reduction,
        noise=noise,
    )
    return problem.with_prior(prior)


def _linear_solution(
    sums: Moments, normal: Moments, scaling: Scaling, sum_rounding: float, own: LinearParams | None
) -> tuple[LinearParams, Bool[np.ndarray, "bin 2"], Elimination, Float[np.ndarray, "bin m"]]:
    """Return (offset - 1, contrast), which of them are at a bound, their elimination and its columns."""
    columns, groups = constraint_columns(scaling, len(sums))
    A_k, each, at_bound = normal[:, Z][:, :, Z], len(sums) // groups, np.zeros((len(sums), 2), bool)
    linear = eliminated(A_k, at_bound, columns, groups, sum_rounding)
    at = scaling.fixed_params if own is None else own
    if at is None:
        at = linear.solved(sums[:, 1, Z])
    if scaling.prior is None:
        return at, at_bound, linear, columns
    if own is None:
        b = sums[:, 1, Z].reshape(groups, each, 2).sum(1)
        best = scaling.prior.solved(A_k.reshape(groups, each, 2, 2).sum(1), b, at[::each])
        at, at_bound = (np.repeat(of, each, axis=0) for of in best)
    else:
        out = columns_times_residual(sums, at)[:, Z].reshape(groups, each, 2).sum(1)
        at_bound = np.repeat(scaling.prior.active(at[::each], out), each, axis=0)
    return at, at_bound, eliminated(A_k, at_bound, columns, groups, sum_rounding), columns


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


LEAST_LEFT = 0.4
"""Share of the variance of a mean of residuals that the fit leaves at least."""


class OwnParameters(NamedTuple):
    """Offset and contrast of one bin where no other has them: what a fit of these takes out of residuals."""

    columns: Float[np.ndarray, "cell own"]
    to: Float[np.ndarray, "own cell"]
    """From residuals to their estimates."""

    def outside(self, of: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        return of - self.columns @ (self.to @ of)

    def left_by(self, of: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        return of - self.to.T @ (self.columns.T @ of)


def own_parameters(
    columns: Float[np.ndarray, "cell own"], weighted: Float[np.ndarray, "cell own"]
) -> OwnParameters:
    return OwnParameters(columns, pseudoinverse(columns.T @ weighted) @ weighted.T)


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
