"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are. `elimination` has the algebra.

Under a loss the weights depend on contrast and offset, too: χ² is known only at the point (theta, offset,
contrast) of the pass, and the next step is one of the joint problem. The Schur complement over contrast and
offset is the reduced problem in theta; a step of theta determines that of contrast and offset.
"""

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import Gram, spread, summed
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
    projected,
    zero_below_rounding,
)
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of

MIN_SLOPE = 0.25
"""Mean slope of the influence over the mean weight, below which most pairs are outliers."""
MIN_HESSIAN_SLOPE = 0.1
"""Floor of that slope in the Hessian, so that steps stay finite."""


def reduce(
    gram: Gram,
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
    # contrasts that are shared couple all bins
    gram = gram if scaling.columns is None else gram.wide
    M, used, own = gram.moments, gram.pairs > 0, None
    of_prior = _prior_moments(scaling, used, M.shape[2])
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
    sums: Float[np.ndarray, "bin k k"],
    normal: Float[np.ndarray, "bin k k"],
    scaling: Scaling,
    sum_rounding: float,
    own: Float[np.ndarray, "bin 2"] | None,
) -> tuple[
    Float[np.ndarray, "bin 2"], Bool[np.ndarray, "bin 2"], Elimination, Float[np.ndarray, "bin m"]
]:
    """Return (offset - 1, contrast), which of them are at a bound, their elimination and its columns.

    sums: moments, priors included. normal: those in the normal equations. own: the point of a pass with a
    loss; by default the best one.
    """
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


def _prior_moments(
    scaling: Scaling, used: Bool[np.ndarray, " bin"], k: int
) -> Float[np.ndarray, "bin k k"]:
    """Return the moments of the priors: for each bin, or once for a shared scaling."""
    if scaling.prior is None:
        return np.zeros((len(used), k, k))
    each = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
    return scaling.prior.moments(each, k)


def mean_weight(gram: Gram) -> float:
    """Return the mean weight ρ' of all pairs under a loss."""
    assert gram.loss is not None
    return float(gram.loss[:, 1].sum() / gram.pairs.sum())


def slope_known(gram: Gram) -> bool:
    """Return whether few enough pairs of every bin count as outliers for errors to be known."""
    used = gram.pairs > 0
    return bool((_slope(gram)[used] >= MIN_SLOPE).all())


def _slope(gram: Gram) -> Float[np.ndarray, " bin"]:
    """Return Σ (ρ' + 2zρ'') / Σ ρ' of every bin; the Hessian is about that times Xᵀ W X.

    This is exact where the distribution of residuals is the same at all pairs, as that of noise.
    """
    assert gram.loss is not None
    weight, slope = gram.loss[:, 1], gram.loss[:, 2]
    return np.where(weight > 0, slope / np.where(weight > 0, weight, 1.0), 1.0)
