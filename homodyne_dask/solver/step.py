"""The next step of a fit: damped, inside the bounds, with the second-order term where that is known.

The Hessian of χ²/2 is JᵀWJ + S, where S sums the second derivatives of f, weighted by residuals. Of
correlated pairs the residuals do not average out: along a direction in which S is as large as JᵀWJ,
Gauss-Newton steps overshoot again and again, or are far too short. There S is estimated from the secant
equation, (JᵀWJ + S) step = change of the gradient (structured BFGS: Al-Baali & Fletcher 1985; compare
NL2SOL: Dennis, Gay & Welsch 1981), with Powell's damping (1978), which keeps the sum positive at the
point of the step.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.solver.eigendirections import bounded_step
from homodyne_dask.solver.normal_matrix import SINGULAR, eigensystem, sizes
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import State, Trial

MAX_DECREMENT = 5.0
"""Distance to the minimum in standard errors within which S is estimated: farther away it changes too
much from step to step."""
_LEAST_CURVATURE = 0.2
"""Of that expected along a step: a step may be five times as long as without S."""


def next_trial(search: Search, state: State) -> Trial:
    """Return the next point to evaluate: a damped Gauss-Newton step inside the bounds."""
    reduced, damping = with_second_order_term(search, state), state.damping
    at = replace(state, reduced=reduced)

    def damped(gradient: Float[np.ndarray, " p"], free: Bool[np.ndarray, " p"]) -> np.ndarray:
        directions = at.directions(search, free, gradient)
        return at.control.step(reduced.hessian, gradient, free, directions)

    step, _ = bounded_step(search, state.theta, reduced.hessian, reduced.gradient, damped)
    theta = search.moved(state.theta, step)
    linear_params = reduced.linear_params_after(step, damping)
    return Trial(theta, linear_params, reduced.predicted_reduction(step, damping))


def with_second_order_term(search: Search, state: State) -> ReducedProblem:
    """Return the problem of a state, its Hessian with S where that is estimated and leaves it positive.

    S is that of the step before: from one point to the next the sum may become indefinite.
    """
    reduced, free = state.reduced, search.free
    if state.second_order_term is None or not reduced.finite:
        return reduced
    hessian = reduced.hessian + state.second_order_term
    scaled = eigensystem(hessian[np.ix_(free, free)], sizes(reduced.hessian)[free])
    return replace(reduced, hessian=hessian) if (scaled.values > SINGULAR).all() else reduced


def second_order_term_after(
    search: Search, state: State, theta: Float[np.ndarray, " p"], there: ReducedProblem
) -> Float[np.ndarray, "p p"] | None:
    """Return S after a step from a state to theta.

    There is none where the data leave directions undetermined, which S might seem to determine, nor after a
    step to a bound or from one, which is shorter than it was meant, nor under a loss, where contrast and
    offset take steps of their own.
    """
    far = state.second_order_term is None and state.lowest.decrement > MAX_DECREMENT
    if far or there.linear_step is not None or not there.finite:
        return state.second_order_term
    if not state.directions(search, state.movable(search)).determined.all():
        return None
    inside = search.free_inside_bounds(state.theta) == search.free_inside_bounds(theta)
    if not inside.all():
        return None
    step = shortest(theta - state.theta, search.period)
    hessian = with_second_order_term(search, state).hessian
    change = state.reduced.gradient - there.gradient
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
