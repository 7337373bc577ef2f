"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are. `elimination` has the algebra.

Under a loss the weights depend on contrast and offset, too: χ² is known only at the point (theta, offset,
contrast) of the pass, and the next step is one of the joint problem. The Schur complement over contrast and
offset is the reduced problem in theta; a step of theta determines that of contrast and offset.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import Gram, RobustGram
from homodyne_dask.kernels.problem import SUM_ROUNDING
from homodyne_dask.models.parameters import PriorTerms
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
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of

MIN_SLOPE = 0.25
"""Mean slope of the influence over the mean weight, below which most pairs are outliers."""
MIN_HESSIAN_SLOPE = 0.1
"""Floor of that slope in the Hessian, so that steps stay finite."""


def reduce(
    gram: Gram | RobustGram,
    scaling: Scaling | str,
    sum_rounding: float = SUM_ROUNDING["float64"],
    prior: PriorTerms | None = None,
    linear_params: Float[np.ndarray, "bin 2"] | None = None,
) -> ReducedProblem:
    """Return the reduced problem of all bins.

    scaling: a `Scaling`, or the name of a mode that needs no angles or values: 'individual' or 'shared'.
    sum_rounding: accuracy of a moment M_ij over √(M_ii M_jj); see `kernels.problem.SUM_ROUNDING`.
    prior: the terms of the priors of theta, at the theta of the Gram.
    linear_params: the (offset - 1, contrast) at which a pass with a loss was made; not used without a loss.
    Sums that are not finite give a problem that is not finite. Raises OptionError for another name.
    """
    if isinstance(scaling, str):
        scaling = scaling_of(scaling, np.zeros(len(gram.pairs)))
    if isinstance(gram, Gram):
        return _of_squares(gram, scaling, sum_rounding).with_prior(prior)
    assert linear_params is not None
    return _under_loss(gram, scaling, linear_params, sum_rounding).with_prior(prior)


def _of_squares(gram: Gram, scaling: Scaling, sum_rounding: float) -> ReducedProblem:
    """Return the problem at the best offset and contrast."""
    M, used = gram.moments, gram.pairs > 0
    M = M + _prior_moments(scaling, used, M.shape[2])
    A_k, b_k = M[:, Z][:, :, Z], M[:, 1, Z]
    columns, groups = constraint_columns(scaling, len(M))
    linear = eliminated(A_k, columns, groups, sum_rounding)
    at_bound = np.zeros((len(M), 2), bool)
    if scaling.fixed_params is None:
        linear_params = linear.solved(b_k)
        if scaling.prior is not None:
            each = len(M) // groups
            A, b = A_k.reshape(groups, each, 2, 2).sum(1), b_k.reshape(groups, each, 2).sum(1)
            both = scaling.prior.solved(A, b, linear_params[::each])
            linear_params, at_bound = (np.repeat(of, each, axis=0) for of in both)
            linear = eliminated(without_active(A_k, at_bound), columns, groups, sum_rounding)
        determined = np.repeat(linear.known, len(M) // groups) | at_bound[:, 1]
    else:
        linear_params, determined = scaling.fixed_params, np.ones(len(M), bool)
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = chisqr_rounding(M, linear_params, sum_rounding)
        chisqr_per_bin = zero_below_rounding(cost(M, linear_params), M, rounding)
        right = columns_times_residual(M, linear_params)
    contrast = np.where(determined, linear_params[:, 1], 0.0)
    point = _LinearSolution(linear_params, at_bound, determined, contrast)
    equations, elimination = (M, right), (columns, linear)
    return _problem_at(
        gram, point, equations, elimination, (chisqr_per_bin, rounding), sum_rounding
    )


class _LinearSolution(NamedTuple):
    """Offset and contrast at a point theta."""

    linear_params: Float[np.ndarray, "bin 2"]
    """(offset - 1, contrast)."""
    at_bound: Bool[np.ndarray, "bin 2"]
    """Which of them are at a bound."""
    determined: Bool[np.ndarray, " bin"]
    """Bins that show a decay."""
    slope: Float[np.ndarray, " bin"]
    """dc2/df, the contrast; 0 where it is not determined."""


def _problem_at(
    gram: Gram | RobustGram,
    at: _LinearSolution,
    equations: tuple[Float[np.ndarray, "bin k k"], Float[np.ndarray, "bin k"]],
    elimination: tuple[Float[np.ndarray, "bin m"], Elimination],
    chisqr: tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]],
    sum_rounding: float,
) -> ReducedProblem:
    """Return the problem in theta alone from the normal equations and right-hand sides at a point.

    elimination: the columns of the linear parameters, and their elimination. chisqr: that of each bin, and
    its rounding.
    """
    (normal, right), (columns, linear), used = equations, elimination, gram.pairs > 0
    chisqr_per_bin, rounding_per_bin = chisqr
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
        rounding_per_bin=rounding_per_bin,
    )


def _prior_moments(
    scaling: Scaling, used: Bool[np.ndarray, " bin"], k: int
) -> Float[np.ndarray, "bin k k"]:
    """Return the moments of the priors: for each bin, or once for a shared scaling."""
    if scaling.prior is None:
        return np.zeros((len(used), k, k))
    each = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
    return scaling.prior.moments(each, k)


def mean_weight(gram: RobustGram) -> float:
    """Return the mean weight ρ' of all pairs under a loss."""
    return float(gram.loss[:, 1].sum() / gram.pairs.sum())


def slope_known(gram: RobustGram) -> bool:
    """Return whether few enough pairs of every bin count as outliers for errors to be known."""
    used = gram.pairs > 0
    return bool((_slope(gram)[used] >= MIN_SLOPE).all())


def _slope(gram: RobustGram) -> Float[np.ndarray, " bin"]:
    """Return Σ (ρ' + 2zρ'') / Σ ρ' of every bin; the Hessian is about that times Xᵀ W X.

    This is exact where the distribution of residuals is the same at all pairs, as that of noise.
    """
    weight, slope = gram.loss[:, 1], gram.loss[:, 2]
    return np.where(weight > 0, slope / np.where(weight > 0, weight, 1.0), 1.0)


def _under_loss(
    gram: RobustGram,
    scaling: Scaling,
    linear_params: Float[np.ndarray, "bin 2"],
    sum_rounding: float,
) -> ReducedProblem:
    """Return the joint problem at a point, offset and contrast eliminated from its next step."""
    M, (chisqr_per_bin, weight, _, square) = gram.moments, gram.loss.T
    used = gram.pairs > 0
    slope = np.maximum(_slope(gram), MIN_HESSIAN_SLOPE)
    prior = _prior_moments(scaling, used, M.shape[2])
    normal = slope[:, None, None] * M + prior
    columns, groups = constraint_columns(scaling, len(M))
    fixed = not columns.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        gradient = columns_times_residual(M + prior, linear_params)
        at_bound = np.zeros(linear_params.shape, bool)
        if scaling.prior is not None:
            each = len(M) // groups
            out = gradient[:, Z].reshape(groups, each, 2).sum(1)
            at_bound = np.repeat(scaling.prior.active(linear_params[::each], out), each, axis=0)
        free = without_active(normal[:, Z][:, :, Z], at_bound)
        linear = eliminated(free, columns, groups, sum_rounding)
        determined = np.repeat(linear.known | fixed, len(M) // groups) | at_bound[:, 1]
        linear_step = linear.solved(gradient[:, Z])
        own = chisqr_rounding(M, linear_params, sum_rounding)
        of_prior = np.maximum(cost(prior, linear_params), 0.0)
        chisqr_per_bin = zero_below_rounding(chisqr_per_bin, M, own) + of_prior
    contrast = np.where(determined, linear_params[:, 1] + linear_step[:, 1], 0.0)
    point = _LinearSolution(linear_params, at_bound, determined, contrast)
    equations, elimination = (normal, gradient), (columns, linear)
    rounding = chisqr_rounding(M + prior, linear_params, sum_rounding)
    return replace(
        _problem_at(gram, point, equations, elimination, (chisqr_per_bin, rounding), sum_rounding),
        prior=scaling.prior,
        linear_step=linear_step,
        linear_reduction=max(float((gradient[:, Z] * linear_step).sum()), 0.0),
        noise=float(square.sum() / (slope * weight).sum()),
    )  # fmt: skip
