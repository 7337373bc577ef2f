"""What the Hessian of Gauss and Newton leaves out, by differences of gradients.

The Hessian of χ²/2 is JᵀWJ + S, where S sums the second derivatives of f, weighted by residuals. Of
correlated pairs the residuals do not average out: along a direction in which S is as large as JᵀWJ,
Gauss-Newton steps overshoot again and again, or are far too short. There S is estimated from the secant
equation, (JᵀWJ + S) step = change of the gradient (structured BFGS: Al-Baali & Fletcher 1985; compare
NL2SOL: Dennis, Gay & Welsch 1981), with Powell's damping (1978), which keeps the sum positive at the
point of the step.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.eigendirections import SINGULAR
from homodyne_dask.solver.identifiability import directions_at, movable_at
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import State

NEAR = 5.0
"""Distance to the minimum in standard errors within which S is estimated: farther away it changes too
much from step to step."""
SLOW_STEPS = 5
"""Slow steps in a row after which S is estimated."""
_LEAST_CURVATURE = 0.2
"""Of that expected along a step: a step may be five times as long as without S."""


def with_secant(search: Search, state: State) -> ReducedProblem:
    """Return the problem of a state, its Hessian with S where that is estimated and leaves it positive.

    S is that of the step before: from one point to the next the sum may become indefinite.
    """
    reduced, free = state.reduced, search.free
    if state.secant is None or not reduced.finite:
        return reduced
    hessian = reduced.hessian + state.secant
    diagonal = np.diag(reduced.hessian)
    size = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values = np.linalg.eigvalsh((hessian / np.outer(size, size))[np.ix_(free, free)])
    return replace(reduced, hessian=hessian) if values.min(initial=1.0) > SINGULAR else reduced


def secant_after(
    search: Search, state: State, theta: Float[np.ndarray, " p"], there: ReducedProblem
) -> Float[np.ndarray, "p p"] | None:
    """Return S after a step from a state to theta.

    There is none where the data leave directions undetermined, which S might seem to determine, nor after a
    step to a bound or from one, which is shorter than it was meant, nor under a loss, where contrast and
    offset take steps of their own.
    """
    far = state.secant is None and state.lowest.decrement > NEAR
    if far or there.linear_step is not None or not there.finite:
        return state.secant
    if not directions_at(search, state, movable_at(search, state)).determined.all():
        return None
    inside = search.free_inside_bounds(state.theta) == search.free_inside_bounds(theta)
    if not inside.all():
        return None
    step = _shortest(theta - state.theta, search.period)
    hessian, change = with_secant(search, state).hessian, state.reduced.gradient - there.gradient
    along = hessian @ step
    expected = step @ along
    if not expected > 0:
        return None
    least = _LEAST_CURVATURE * expected
    if step @ change < least:
        share = (expected - least) / (expected - step @ change)
        change = share * change + (1 - share) * along
    updated = hessian - np.outer(along, along) / expected
    updated += np.outer(change, change) / (step @ change)
    return updated - state.reduced.hessian


def updated_secant(
    search: Search,
    state: State,
    theta: Float[np.ndarray, " p"],
    there: ReducedProblem,
    poor: bool,
) -> Float[np.ndarray, "p p"] | None:
    """Return S after a step that lowered χ², if the state has one or the step lowered it much too little."""
    if state.secant is None and not poor:
        return None
    return secant_after(search, state, theta, there)


def _shortest(step: Float[np.ndarray, " p"], period: Float[np.ndarray, " p"]) -> np.ndarray:
    """Return a difference of parameters, that of periodic ones by at most half a period."""
    periods = np.where(np.isfinite(period), period, 1.0)
    return np.where(np.isfinite(period), step - periods * np.round(step / periods), step)
