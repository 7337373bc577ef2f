"""The joint step of theta, contrast and offset under a loss, where they cannot be eliminated.

The weights depend on them, so χ² is known only at the point (theta, offset, contrast) of the pass,
and the next step is one of the joint problem. The Schur complement over contrast and offset is the
reduced problem in theta; a step of theta determines that of contrast and offset.
"""

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import Gram, RobustGram
from homodyne_dask.kernels.problem import SUM_ROUNDING
from homodyne_dask.models.parameters import PriorTerms
from homodyne_dask.solver.elimination import (
    Z,
    chisqr_rounding,
    columns_times_residual,
    constraint_columns,
    cost,
    eliminated,
    without_active,
    zero_below_rounding,
)
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.solver.variable_projection import (
    LinearSolution,
    prior_moments,
    problem_at,
    reduce,
)

MIN_SLOPE = 0.25
"""Mean slope of the influence over the mean weight, below which most pairs are outliers."""
MIN_HESSIAN_SLOPE = 0.1
"""Floor of that slope in the Hessian, so that steps stay finite."""


def reduced_problem(
    gram: Gram | RobustGram,
    scaling: Scaling,
    linear_params: Float[np.ndarray, "bin 2"] | None,
    sum_rounding: float = SUM_ROUNDING["float64"],
    prior: PriorTerms | None = None,
) -> ReducedProblem:
    """Return the reduced problem of a pass.

    linear_params: the (offset - 1, contrast) at which a pass with a loss was made; None without a loss.
    sum_rounding, prior: see `reduce`.
    """
    if isinstance(gram, Gram):
        return reduce(gram, scaling, sum_rounding, prior)
    assert linear_params is not None
    return _at(gram, scaling, linear_params, sum_rounding).with_prior(prior)


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


def _at(
    gram: RobustGram,
    scaling: Scaling,
    linear_params: Float[np.ndarray, "bin 2"],
    sum_rounding: float,
) -> ReducedProblem:
    """Return the joint problem at a point, offset and contrast eliminated from its next step."""
    M, (chisqr_per_bin, weight, _, square) = gram.moments, gram.loss.T
    used = gram.pairs > 0
    slope = np.maximum(_slope(gram), MIN_HESSIAN_SLOPE)
    prior = prior_moments(scaling, used, M.shape[2])
    normal = slope[:, None, None] * M + prior
    columns, groups = constraint_columns(scaling, len(M))
    fixed = not columns.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        gradient = columns_times_residual(M + prior, linear_params)
        at_bound = _at_bound(scaling, linear_params, gradient[:, Z], groups)
        free = without_active(normal[:, Z][:, :, Z], at_bound)
        linear = eliminated(free, columns, groups, sum_rounding)
        determined = np.repeat(linear.known | fixed, len(M) // groups) | at_bound[:, 1]
        linear_step = linear.solved(gradient[:, Z])
        own = chisqr_rounding(M, linear_params, sum_rounding)
        of_prior = np.maximum(cost(prior, linear_params), 0.0)
        chisqr_per_bin = zero_below_rounding(chisqr_per_bin, M, own) + of_prior
    contrast = np.where(determined, linear_params[:, 1] + linear_step[:, 1], 0.0)
    point = LinearSolution(linear_params, at_bound, determined, contrast)
    return problem_at(
        gram, point, (normal, gradient), (columns, linear), chisqr_per_bin,
        rounding_per_bin=chisqr_rounding(M + prior, linear_params, sum_rounding),
        sum_rounding=sum_rounding,
        prior=scaling.prior,
        linear_step=linear_step,
        linear_reduction=max(float((gradient[:, Z] * linear_step).sum()), 0.0),
        noise=float(square.sum() / (slope * weight).sum()),
    )  # fmt: skip


def _at_bound(
    scaling: Scaling,
    linear_params: Float[np.ndarray, "bin 2"],
    gradient: Float[np.ndarray, "bin 2"],
    groups: int,
) -> Bool[np.ndarray, "bin 2"]:
    """Return which of (offset - 1, contrast) are at a bound with the gradient pointing outwards."""
    if scaling.prior is None:
        return np.zeros(linear_params.shape, bool)
    each = len(linear_params) // groups
    at_bound = scaling.prior.active(linear_params[::each], gradient.reshape(groups, each, 2).sum(1))
    return np.repeat(at_bound, each, axis=0)
