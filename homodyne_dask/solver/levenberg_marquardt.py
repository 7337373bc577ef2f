"""Levenberg-Marquardt inside bounds: one evaluation per trial point, and an outcome in words.

The loop over four decisions: the problem at a point (`reduce`), the next point, whether the fit moves
there, and whether it has ended. The caller passes the function that evaluates a trial: a pass on a cluster,
or NumPy.

The Hessian of χ²/2 is JᵀWJ + S, where S sums the second derivatives of f, weighted by residuals. Of
correlated pairs the residuals do not average out: along a direction in which S is as large as JᵀWJ,
Gauss-Newton steps overshoot again and again, or are far too short. There S is estimated from the secant
equation, (JᵀWJ + S) step = change of the gradient (structured BFGS: Al-Baali & Fletcher 1985; compare
NL2SOL: Dennis, Gay & Welsch 1981), with Powell's damping (1978), which keeps the sum positive at the point
of the step.

In a curved valley of χ² an undamped step may raise χ² before the next one lowers it far more. So a few
steps may stay above the lowest point; if none of them ends below it, the fit returns there with more
damping (the watchdog technique, Chamberlain et al. 1982).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.solver.array_shapes import Theta, ThetaMatrix, Which
from homodyne_dask.solver.normal_matrix import (
    SINGULAR,
    Eigendirections,
    bounded_step,
    eigensystem,
    sizes,
)
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import ReducedProblem
from homodyne_dask.solver.state import (
    POOR_RATIO,
    Damping,
    Options,
    Outcome,
    State,
    StepResult,
    Trial,
    trust_region_at,
)

FIXED_STRENGTHS = 1.0
"""Distance to the minimum in standard errors, from which on strengths of penalties stay."""
FREE_EXPONENTS = 4
"""Passes after which exponents of penalties stay, and strengths where others would lead uphill."""


def initial_state(search: Search, theta: Theta, reduced: ReducedProblem, options: Options) -> State:
    theta = np.asarray(theta, float)
    reduced = penalized(search, theta, reduced)
    control = Damping(options.damping)
    if options.trust_region:
        control = trust_region_at(theta, reduced.hessian, options.damping)
    return with_outcome(search, State(theta, reduced, control), options)


Evaluate = Callable[[Trial], ReducedProblem]


def iterate(search: Search, evaluate: Evaluate, start: Trial, options: Options) -> Iterator[State]:
    """Yield the states of a fit, one for each evaluation; the last one says how it ended."""
    state = initial_state(search, start.theta, evaluate(start), options)
    yield state
    yield from iterate_from(search, evaluate, state, options)


def iterate_from(
    search: Search, evaluate: Evaluate, state: State, options: Options
) -> Iterator[State]:
    states = iterate_several(search, lambda trials: [*map(evaluate, trials)], [state], options)
    yield from (one for [one] in states)


def iterate_below(
    search: Search, evaluate: Evaluate, end: State, trial: Trial, options: Options
) -> Iterator[State]:
    """Yield the states of a fit that has ended, from a trial of lower χ²; none where it is not."""
    fixed = replace(search, free=np.zeros_like(search.free), smoothness=None)
    *_, at = iterate(fixed, evaluate, trial, options)  # one, but under a loss
    penalty, variance = end.reduced.penalty, residual_variance(search, end.reduced)
    there = penalized(search, trial.theta, at.reduced, penalty and penalty.strengths)
    near = max(end.reduced.rounding, options.decrement**2 * variance)
    if not there.finite or end.reduced.chisqr - there.chisqr <= near:
        return
    start = initial_state(search, trial.theta, at.reduced, options)
    state = with_outcome(search, replace(start, passes=end.passes + 1), options)
    yield state
    yield from iterate_from(search, evaluate, state, options)


def iterate_several(
    search: Search,
    evaluate: Callable[[Sequence[Trial]], Sequence[ReducedProblem]],
    states: Sequence[State],
    options: Options,
) -> Iterator[list[State]]:
    """Yield the states of several fits after each joint evaluation, until all of them have ended."""
    states = list(states)
    while running := [n for n, at in enumerate(states) if at.outcome is Outcome.RUNNING]:
        trials = [next_trial(search, states[n]) for n in running]
        for n, trial, reduced in zip(running, trials, evaluate(trials), strict=True):
            states[n] = _next_state(search, states[n], trial, reduced, options)
        yield list(states)


def _next_state(
    search: Search, state: State, trial: Trial, evaluated: ReducedProblem, options: Options
) -> State:
    penalty, lowest = state.reduced.penalty, state.lowest
    reduced = penalized(search, trial.theta, evaluated, penalty and penalty.strengths)
    following = after_trial(search, state, trial, reduced, options)
    if not following.accepted:
        return with_outcome(search, following, options)
    if penalty is not None and lowest.decrement > FIXED_STRENGTHS:
        free = following.passes <= FREE_EXPONENTS
        exponents = None if free else penalty.strengths.exponents
        reduced = penalized(search, trial.theta, evaluated, exponents=exponents)
        chosen = _after_move(search, lowest, replace(following, reduced=reduced), options)
        if free or chosen.decrement < lowest.decrement:
            return chosen
    return _after_move(search, lowest, following, options)


def _after_move(search: Search, before: State, state: State, options: Options) -> State:
    if not state.control.second_order:
        return with_outcome(search, state, options)
    state = with_outcome(search, state, options, before)
    if state.slow_steps < SLOW_STEPS or state.second_order_term is not None:
        return state
    S = second_order_term_after(search, before, state.theta, state.reduced)
    return replace(state, second_order_term=S)


MAX_DECREMENT = 5.0
"""Distance to the minimum in standard errors within which S is estimated: farther away it changes too
much from step to step."""
_LEAST_CURVATURE = 0.2
"""Of that expected along a step: a step may be five times as long as without S."""


def next_trial(search: Search, state: State) -> Trial:
    """Return the next point to evaluate: a damped Gauss-Newton step inside the bounds."""
    reduced, damping = with_second_order_term(search, state), state.damping
    at = replace(state, reduced=reduced)

    def damped(gradient: Theta, free: Which) -> np.ndarray:
        directions = at.directions(search, free, gradient)
        return at.control.step(reduced.hessian, gradient, free, directions)

    step, _ = bounded_step(search, state.theta, reduced.hessian, reduced.gradient, damped)
    theta = search.moved(state.theta, step)
    linear_params = reduced.linear_params_after(step, damping)
    return Trial(theta, linear_params, reduced.predicted_reduction(step, damping))


def with_second_order_term(search: Search, state: State) -> ReducedProblem:
    """Return the problem with S, that of the step before, in its Hessian where that leaves it positive."""
    reduced, free = state.reduced, search.free
    if state.second_order_term is None or not reduced.finite:
        return reduced
    hessian = reduced.hessian + state.second_order_term
    scaled = eigensystem(hessian[np.ix_(free, free)], sizes(reduced.hessian)[free])
    return replace(reduced, hessian=hessian) if (scaled.values > SINGULAR).all() else reduced


def second_order_term_after(
    search: Search, state: State, theta: Theta, there: ReducedProblem
) -> ThetaMatrix | None:
    """Return S; None where directions are undetermined, after a step to or from a bound, and under a loss."""
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


MAX_NONMONOTONE_STEPS = 3
"""Steps above the lowest χ² that may follow each other, without S, before the fit returns to it."""
SLOW_STEPS = 5
"""Slow steps in a row after which S is estimated."""


def after_trial(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> State:
    lowest, step = state.lowest, trial.theta - state.theta
    reduction = lowest.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    variance = residual_variance(search, lowest.reduced)
    possible = lowest.decrement**2 * variance
    # A reduction that is rounding, as is all that is possible: then the decrement alone decides. It is not
    # compared with that of a damped step: tiny steps would continue for ever and no fit would stall.
    rounding = max(lowest.reduced.rounding, options.relative_rounding * lowest.reduced.chisqr)
    negligible = bool(possible <= rounding and abs(reduction) <= rounding)
    result = StepResult(
        trial, reduced, step, reduction, negligible, max(variance, possible), state.passes == 1,
        after_failure=not state.accepted,
    )  # fmt: skip
    if reduced.finite and (result.below_rounding or state.control.accepts(result)):
        return _accepted(search, state, result)
    small_rise = reduced.finite and state.control.allows_rise(result)
    passes, above = state.passes + 1, state.nonmonotone_steps
    if lowest.second_order_term is not None:
        return _rejected(search, state, result)
    if small_rise and above < MAX_NONMONOTONE_STEPS and passes < options.max_passes:
        return State(
            trial.theta, reduced, state.control, passes=passes, accepted=False, best=lowest,
            nonmonotone_steps=above + 1, rejected_steps=lowest.rejected_steps,
        )  # fmt: skip
    S = second_order_term_after(search, lowest, trial.theta, reduced) if small_rise else None
    return _rejected(search, state, result, S)


def _accepted(search: Search, state: State, result: StepResult) -> State:
    poor = state.control.second_order and state.best is None and result.ratio < POOR_RATIO
    known, S = state.second_order_term is not None, None
    if known or poor:
        S = second_order_term_after(search, state, result.trial.theta, result.reduced)
    only_missing = S is not None and not known
    return State(
        result.trial.theta, result.reduced,
        state.control if only_missing else state.control.after_accepted(result),
        passes=state.passes + 1, rejected_steps=state.lowest.rejected_steps, second_order_term=S,
    )  # fmt: skip


def _rejected(
    search: Search, state: State, result: StepResult, S: ThetaMatrix | None = None
) -> State:
    lowest, control = state.lowest, state.lowest.control
    if S is None:
        smallest = lowest.directions(search, lowest.movable(search)).smallest
        control = control.after_rejected(result, smallest)
    plain = lowest.second_order_term is None
    return replace(
        lowest, control=control, passes=state.passes + 1, accepted=False, second_order_term=S,
        rejected_steps=lowest.rejected_steps + plain,
    )  # fmt: skip


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
    """Return the state with decrement and outcome; before: the state from which an accepted step led here."""
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
    """Return the variance of a residual; with a penalty that which correlated pairs have in effect."""
    scale = 1.0 if reduced.penalty is None else max(reduced.penalty.strengths.scales.mean(), 1.0)
    return scale * reduced.variance(int(search.free.sum()))
