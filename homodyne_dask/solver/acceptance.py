"""Acceptance: whether a fit moves to a trial, continues above its lowest point, or returns there.

In a curved valley of χ² an undamped step may raise χ² before the next one lowers it far more; if every step
had to lower χ², steps would be very short. So a few steps may stay above the lowest point; if none of them
ends below it, the fit returns there with more damping (the watchdog technique, Chamberlain et al. 1982).
"""

from dataclasses import replace

import numpy as np

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.convergence import is_rounding, residual_variance
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import Options, State, Trial
from homodyne_dask.solver.step import second_order_term_after
from homodyne_dask.solver.step_control import POOR_RATIO, StepResult

MAX_NONMONOTONE_STEPS = 3
"""Steps above the lowest χ² that may follow each other, without S, before the fit returns to it."""
SLOW_STEPS = 5
"""Slow steps in a row after which S is estimated."""


def after_trial(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> State:
    """Return the state after the trial was evaluated, without decrement and outcome."""
    result = _result(search, state, trial, reduced, options)
    if reduced.finite and (result.below_rounding or state.control.accepts(result)):
        return _accepted(search, state, trial, reduced, result)
    small_rise = reduced.finite and state.control.allows_rise(result)
    if small_rise and _may_stay_above(state, options):
        lowest = state.lowest
        return State(
            trial.theta, reduced, state.control, passes=state.passes + 1, accepted=False,
            best=lowest, nonmonotone_steps=state.nonmonotone_steps + 1,
            rejected_steps=lowest.rejected_steps,
        )  # fmt: skip
    return _rejected(search, state, trial, reduced, result, small_rise)


def _result(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> StepResult:
    """Return what the step to the trial did, compared with the lowest point so far."""
    lowest = state.lowest
    reduction = lowest.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    variance = residual_variance(search, lowest.reduced)
    possible = lowest.decrement**2 * variance
    return StepResult(
        step=trial.theta - state.theta,
        reduction=reduction,
        predicted=trial.predicted,
        below_rounding=is_rounding(lowest, reduction, possible, options),
        possible=max(variance, possible),
        first=state.passes == 1,
        after_failure=not state.accepted,
    )


def _accepted(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, result: StepResult
) -> State:
    """Return the state at the trial; S is estimated where χ² fell by much less than predicted."""
    poor = state.control.second_order and state.best is None and result.ratio < POOR_RATIO
    known = state.second_order_term is not None
    S = second_order_term_after(search, state, trial.theta, reduced) if known or poor else None
    only_missing = S is not None and not known
    control = state.control
    return State(
        trial.theta, reduced,
        control if only_missing else control.after_accepted(result, reduced.hessian),
        passes=state.passes + 1, rejected_steps=state.lowest.rejected_steps, second_order_term=S,
    )  # fmt: skip


def _may_stay_above(state: State, options: Options) -> bool:
    """Return whether another step may stay above the lowest point."""
    few = state.nonmonotone_steps < MAX_NONMONOTONE_STEPS and state.passes + 1 < options.max_passes
    return few and state.lowest.second_order_term is None


def _rejected(
    search: Search,
    state: State,
    trial: Trial,
    reduced: ReducedProblem,
    result: StepResult,
    small_rise: bool,
) -> State:
    """Return the lowest state with shorter steps to come, or with S if that begins here."""
    lowest = state.lowest
    plain = lowest.second_order_term is None
    begins = plain and small_rise
    S = second_order_term_after(search, lowest, trial.theta, reduced) if begins else None
    smallest = lowest.directions(search, lowest.movable(search)).smallest
    return replace(
        lowest,
        control=lowest.control.after_rejected(result, smallest) if S is None else lowest.control,
        passes=state.passes + 1,
        accepted=False,
        second_order_term=S,
        rejected_steps=lowest.rejected_steps + plain,
    )


def with_second_order_term_after_slow_steps(search: Search, before: State, state: State) -> State:
    """Return the state after an accepted step from `before`, with S if steps have been slow for long."""
    if state.slow_steps < SLOW_STEPS or state.second_order_term is not None:
        return state
    S = second_order_term_after(search, before, state.theta, state.reduced)
    return replace(state, second_order_term=S)
