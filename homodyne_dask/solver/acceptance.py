"""Acceptance: whether a fit moves to a trial, continues above its lowest point, or returns there.

In a curved valley of χ² an undamped step may raise χ² before the next one lowers it far more; if every step
had to lower χ², steps would be very short. So a few steps may stay above the lowest point; if none of them
ends below it, the fit returns there with more damping (the watchdog technique, Chamberlain et al. 1982).
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

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
        return _accepted(search, state, result)
    small_rise = reduced.finite and state.control.allows_rise(result)
    lowest, passes, above = state.lowest, state.passes + 1, state.nonmonotone_steps
    if lowest.second_order_term is not None:
        return _rejected(search, state, result)
    if small_rise and above < MAX_NONMONOTONE_STEPS and passes < options.max_passes:
        return State(
            trial.theta, reduced, state.control, passes=passes, accepted=False, best=lowest,
            nonmonotone_steps=above + 1, rejected_steps=lowest.rejected_steps,
        )  # fmt: skip
    S = second_order_term_after(search, lowest, trial.theta, reduced) if small_rise else None
    return _rejected(search, state, result, S)


def _result(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> StepResult:
    """Return what the step to the trial did, compared with the lowest point so far."""
    lowest = state.lowest
    reduction = lowest.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    variance = residual_variance(search, lowest.reduced)
    possible = lowest.decrement**2 * variance
    return StepResult(
        theta=trial.theta,
        reduced=reduced,
        step=trial.theta - state.theta,
        reduction=reduction,
        predicted=trial.predicted,
        below_rounding=is_rounding(lowest, reduction, possible, options),
        possible=max(variance, possible),
        first=state.passes == 1,
        after_failure=not state.accepted,
    )


def _accepted(search: Search, state: State, result: StepResult) -> State:
    """Return the state at the trial; S is estimated where χ² fell by much less than predicted."""
    poor = state.control.second_order and state.best is None and result.ratio < POOR_RATIO
    known, S = state.second_order_term is not None, None
    if known or poor:
        S = second_order_term_after(search, state, result.theta, result.reduced)
    only_missing = S is not None and not known
    return State(
        result.theta, result.reduced,
        state.control if only_missing else state.control.after_accepted(result),
        passes=state.passes + 1, rejected_steps=state.lowest.rejected_steps, second_order_term=S,
    )  # fmt: skip


def _rejected(
    search: Search, state: State, result: StepResult, S: Float[np.ndarray, "p p"] | None = None
) -> State:
    """Return the lowest state with shorter steps to come, or with S if that begins here."""
    lowest, control = state.lowest, state.lowest.control
    if S is None:
        smallest = lowest.directions(search, lowest.movable(search)).smallest
        control = control.after_rejected(result, smallest)
    plain = lowest.second_order_term is None
    return replace(
        lowest, control=control, passes=state.passes + 1, accepted=False, second_order_term=S,
        rejected_steps=lowest.rejected_steps + plain,
    )  # fmt: skip


def with_second_order_term_after_slow_steps(search: Search, before: State, state: State) -> State:
    """Return the state after an accepted step from `before`, with S if steps have been slow for long."""
    if state.slow_steps < SLOW_STEPS or state.second_order_term is not None:
        return state
    S = second_order_term_after(search, before, state.theta, state.reduced)
    return replace(state, second_order_term=S)
