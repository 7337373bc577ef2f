"""Contrast and offset carried along with theta, where a loss does not let them be eliminated.

Weights depend on them, so that χ² is no polynomial in the Gram: it is that of the point (theta,
offset, contrast) where the pass was made. From there one step of the joint problem is taken. Its
Schur complement over contrast and offset is the reduced problem in theta, and they follow its step.
"""

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.solver.elimination import Z, cost, eliminated, pulled, tied_groups, unheld
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.solver.variable_projection import (
    DIGITS,
    Point,
    Reduced,
    prior_of,
    reduce,
    reduced_at,
)

LEAST_SLOPE = 0.25
"""Mean slope of the influence over the mean weight, below which the loss sees mostly outliers."""
LEAST_BEND = 0.1
"""The same, below which it is taken for this: steps are then too short, and never without end."""


def reduced(gram: Gram, scaling: Scaling, beta: Float[np.ndarray, "bin 2"] | None) -> Reduced:
    """Return the reduced problem; beta: the (offset - 1, contrast) that a pass with a loss was at."""
    return reduce(gram, scaling) if beta is None else _at(gram, scaling, beta)


def mean_weight(gram: Gram) -> float:
    """Return the mean of ρ' over all pairs: what a loss leaves of them."""
    return float(gram.moments[:, -1, 1].sum() / gram.pairs.sum())


def slope_known(gram: Gram) -> bool:
    """Return whether the loss takes few enough pairs of every bin for outliers to tell errors."""
    used = gram.pairs > 0
    return bool((_slope(gram)[used] >= LEAST_SLOPE).all())


def _slope(gram: Gram) -> Float[np.ndarray, " bin"]:
    """Return Σ (ρ' + 2zρ'') / Σ ρ' of every bin; the Hessian is about that times Xᵀ W X.

    Exactly so where residuals do not depend on where a pair lies, as those of noise do not.
    """
    weight, slope = gram.moments[:, -1, 1], gram.moments[:, -1, 2]
    return np.where(weight > 0, slope / np.where(weight > 0, weight, 1.0), 1.0)


def _at(gram: Gram, scaling: Scaling, beta: Float[np.ndarray, "bin 2"]) -> Reduced:
    """Return the joint problem at a point, offset and contrast eliminated from its next step."""
    M, (lost, weight, _, square) = gram.moments[:, :-1], gram.moments[:, -1, :4].T
    used = gram.pairs > 0
    slope = np.maximum(_slope(gram), LEAST_BEND)
    prior = prior_of(scaling, used, M.shape[2])
    normal = slope[:, None, None] * M + prior
    ties, groups = tied_groups(scaling, len(M))
    fixed = not ties.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        pull = pulled(M + prior, beta)
        held = _held(scaling, beta, pull[:, Z], groups)
        linear = eliminated(unheld(normal[:, Z][:, :, Z], held), ties, groups)
        determined = np.repeat(linear.known | fixed, len(M) // groups) | held[:, 1]
        move = linear.solved(pull[:, Z])
        lost = lost + cost(prior, beta)
    contrast = np.where(determined, beta[:, 1] + move[:, 1], 0.0)
    point = Point(beta, held, determined, contrast)
    return reduced_at(
        gram, point, (normal, pull), (ties, linear), lost,
        rounding=float(DIGITS * (M + prior)[:, 1, 1].sum()),
        restraint=scaling.restraint,
        move=move,
        remaining=float((pull[:, Z] * move).sum()),
        noise=float(square.sum() / (slope * weight).sum()),
    )  # fmt: skip


def _held(
    scaling: Scaling,
    beta: Float[np.ndarray, "bin 2"],
    pull: Float[np.ndarray, "bin 2"],
    groups: int,
) -> Bool[np.ndarray, "bin 2"]:
    """Return which of (offset - 1, contrast) stand at a bound and are pulled beyond."""
    if scaling.restraint is None:
        return np.zeros(beta.shape, bool)
    each = len(beta) // groups
    held = scaling.restraint.pressed(beta[::each], pull.reshape(groups, each, 2).sum(1))
    return np.repeat(held, each, axis=0)
