"""Convergence: how far a fit is from the minimum, and how it ends. No other file of the solver says so."""

from dataclasses import replace

import numpy as np

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.eigendirections import Eigendirections
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import Options, Outcome, State

SLOW_STEP = 0.9
"""Decrement after a step over that before it, above which the step is slow."""
MAX_SLOW_STEPS = 10
"""Slow steps in a row after which a fit ends: it follows a valley whose bottom hardly falls."""
SMOOTHED = 20.0
"""Distance to the minimum at which a fit with penalties has converged, over that without. Steps may shorten
by 0.9 (`SLOW_STEP`) only: 0.02 standard errors are left at most, much less than λ is known to."""


def with_outcome(
    search: Search, state: State, options: Options, before: State | None = None
) -> State:
    """Return the state with its decrement, and with its outcome if it has one.

    before: the state from which an accepted step led here; it counts slow steps. A fit does not end above
    its lowest point.
    """
    if state.best is not None:
        return state
    if not state.reduced.finite:
        return replace(state, outcome=Outcome.NONFINITE)
    directions = state.directions(search, state.movable(search))
    decrement, reduced = 0.0, state.reduced
    length = np.sqrt(directions.reduction + reduced.linear_reduction)
    # else no step gains anything, even if rounding leaves a gradient
    if length != 0 and reduced.chisqr != 0:
        variance = max(residual_variance(search, reduced), np.finfo(float).tiny)
        decrement = float(length / np.sqrt(variance))
    state = replace(state, decrement=decrement)
    # Within one standard error of the optimum the quadratic model should lead there: where the decrement does
    # not fall, χ² is flat along a curve, and the steps would follow it for hundreds of passes. Under a
    # loss steps may be slow for another reason: most pairs are outliers.
    if before is not None and state.reduced.linear_step is None:
        near = 100 * options.decrement < state.decrement <= 1
        slow = near and state.decrement > SLOW_STEP * before.decrement
        state = replace(state, slow_steps=before.slow_steps + 1 if slow else 0)
    return replace(state, outcome=_outcome(search, state, directions, options))


def _outcome(
    search: Search, state: State, directions: Eigendirections, options: Options
) -> Outcome:
    if not state.accepted and state.control.exhausted(state.theta):
        return Outcome.STALLED
    reduced = state.reduced
    wanted = options.decrement * (1.0 if reduced.penalty is None else SMOOTHED)
    least = max(wanted, reduced.decrement_rounding(residual_variance(search, reduced)))
    scale = np.abs(state.theta[state.movable(search)])
    short = np.abs(directions.step(0.0)) <= options.relative_step * scale
    if state.decrement <= least or short.all():
        complete = bool(directions.determined.all())
        return Outcome.CONVERGED if complete else Outcome.SINGULAR
    if state.slow_steps >= MAX_SLOW_STEPS:
        return Outcome.SINGULAR
    return Outcome.MAX_PASSES if state.passes >= options.max_passes else Outcome.RUNNING


def residual_variance(search: Search, reduced: ReducedProblem) -> float:
    """Return the variance of a residual, in which distances to the minimum are counted.

    With a penalty it is the one that correlated pairs have in effect, in the mean of rates.
    """
    scale = 1.0 if reduced.penalty is None else max(reduced.penalty.strengths.scales.mean(), 1.0)
    return scale * reduced.variance(int(search.free.sum()))


def is_rounding(state: State, reduction: float, possible: float, options: Options) -> bool:
    """Return whether a reduction of χ² from a state is rounding, and so is all that is possible.

    Then the decrement alone decides. It is compared with the full possible reduction, not with that of a
    damped step: otherwise tiny steps would continue for ever and no fit would stall.
    """
    rounding = max(state.reduced.rounding, options.relative_rounding * state.reduced.chisqr)
    return bool(possible <= rounding and abs(reduction) <= rounding)
