"""Levenberg-Marquardt inside bounds: one evaluation per trial point, and an outcome in words.

Marquardt's scaling (1963), with bounds by an active set. The caller
passes the function that evaluates a trial: a pass on a cluster, or NumPy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.identifiability import MAX_SLOW_STEPS, directions_at, movable_at
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import Options, Outcome, State, Trial
from homodyne_dask.solver.step import SLOW_STEPS, secant_after, updated_secant, with_secant
from homodyne_dask.solver.step_control import MIN_RATIO, POOR_RATIO, TrustRegion, trust_region_at

SLOW_STEP = 0.9
"""Decrement after a step over that before it, above which the step is slow."""
MAX_NONMONOTONE_STEPS = 3
"""Steps above the lowest χ² that may follow each other, without S, before the fit returns to it."""
FIXED_STRENGTHS = 1.0
"""Distance to the minimum in standard errors, from which on strengths of penalties stay."""
FREE_EXPONENTS = 4
"""Passes after which exponents of penalties stay, and strengths where others would lead uphill."""
SMOOTHED = 20.0
"""Distance to the minimum at which a fit with penalties has converged, over that without. Steps may shorten
by 0.9 (`SLOW_STEP`) only: 0.02 standard errors are left at most, much less than λ is known to."""
MAX_DAMPING = 1e12
"""Damping above which a fit has stalled."""


def initial_state(
    search: Search, theta: Float[np.ndarray, " p"], reduced: ReducedProblem, options: Options
) -> State:
    """Return the first state of a fit."""
    theta = np.asarray(theta, float)
    reduced = penalized(search, theta, reduced)
    region = trust_region_at(theta, reduced.hessian) if options.trust_region else None
    state = State(theta, reduced, options.damping, trust_region=region)
    return _with_outcome(search, state, options)


def restored_state(search: Search, saved: State, options: Options) -> State:
    """Return a saved state with its decrement, and with its outcome if it has one."""
    if saved.best:
        return saved
    restored = _with_outcome(search, saved, options)
    return replace(restored, outcome=Outcome.STALLED) if _stalled(saved) else restored


Evaluate = Callable[[Trial], ReducedProblem]
"""One pass over the data."""


def iterate(search: Search, evaluate: Evaluate, start: Trial, options: Options) -> Iterator[State]:
    """Yield the states of a fit, one for each evaluation; the last one says how it ended."""
    state = initial_state(search, start.theta, evaluate(start), options)
    yield state
    yield from iterate_from(search, evaluate, state, options)


def iterate_from(
    search: Search, evaluate: Evaluate, state: State, options: Options
) -> Iterator[State]:
    """Yield the states that follow one: none if the fit has ended there."""

    def evaluate_one(trials: Sequence[Trial]) -> list[ReducedProblem]:
        return [evaluate(trial) for trial in trials]

    for [one] in iterate_several(search, evaluate_one, [state], options):
        yield one


def iterate_several(
    search: Search,
    evaluate: Callable[[Sequence[Trial]], Sequence[ReducedProblem]],
    states: Sequence[State],
    options: Options,
) -> Iterator[list[State]]:
    """Yield the states of several fits after each joint evaluation, until all of them have ended."""
    states = list(states)
    while running := [n for n, at in enumerate(states) if at.outcome is Outcome.RUNNING]:
        trials = [propose(search, states[n]) for n in running]
        for n, trial, reduced in zip(running, trials, evaluate(trials), strict=True):
            states[n] = judge(search, states[n], trial, reduced, options)
        yield list(states)


def propose(search: Search, state: State) -> Trial:
    """Return the next point to evaluate: a damped Gauss-Newton step inside the bounds."""
    step = _bounded_step(search, state)
    theta = search.moved(state.theta, step)
    reduced, damping = with_secant(search, state), state.damping
    linear_params = reduced.linear_params_after(step, damping)
    return Trial(theta, linear_params, reduced.predicted_reduction(step, damping))


def judge(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> State:
    """Return the state after the trial was evaluated: moved there, or damped more.

    In a curved valley of χ² an undamped step may raise χ² before the next one lowers it far more; if
    every step had to lower χ², steps would be very short. So a few steps may stay above the lowest
    point; if none of them ends below it, the fit returns there with more damping (the watchdog
    technique, Chamberlain et al. 1982).
    """
    bare, penalty = reduced, state.reduced.penalty
    reduced = penalized(search, trial.theta, bare, penalty and penalty.strengths)
    if state.trust_region is not None:
        return _judge_in_trust_region(search, state, state.trust_region, trial, reduced, options)
    lowest, passes = state.lowest, state.passes + 1
    gain = lowest.reduced.chisqr - reduced.chisqr
    below_rounding, left, variance = _below_rounding(search, lowest, gain, options)
    if reduced.finite and (gain > 0 or below_rounding):
        ratio = 1.0 if below_rounding or trial.predicted <= 0 else gain / trial.predicted
        poor = ratio < POOR_RATIO and state.best is None
        secant = updated_secant(search, state, trial.theta, reduced, poor)
        first = state.secant is None and secant is not None  # it may be all that was missing
        damping = state.damping if first else _relaxed_damping(state, ratio)
        moved = State(
            trial.theta, reduced, damping, passes=passes, rejected_steps=lowest.rejected_steps,
            secant=secant,
        )  # fmt: skip
        if penalty is not None and lowest.decrement > FIXED_STRENGTHS:
            kept = penalty.strengths.exponents if passes > FREE_EXPONENTS else None
            chosen = replace(moved, reduced=penalized(search, trial.theta, bare, exponents=kept))
            chosen = _with_outcome(search, chosen, options, lowest)
            if passes <= FREE_EXPONENTS or chosen.decrement < lowest.decrement:
                return chosen
        return _with_outcome(search, moved, options, lowest)
    plain = lowest.secant is None
    small_rise = reduced.finite and state.damping <= 1e-2 and -gain < 100 * max(variance, left)
    may_rise = plain and passes < options.max_passes
    if small_rise and may_rise and state.nonmonotone_steps < MAX_NONMONOTONE_STEPS:
        return State(
            trial.theta, reduced, state.damping, passes=passes, accepted=False, best=lowest,
            nonmonotone_steps=state.nonmonotone_steps + 1, rejected_steps=lowest.rejected_steps,
        )  # fmt: skip
    # damping below the smallest eigenvalue changes nothing
    smallest = directions_at(search, lowest, movable_at(search, lowest)).smallest
    secant = secant_after(search, lowest, trial.theta, reduced) if plain and small_rise else None
    rejected = replace(
        lowest, damping=max(lowest.damping * 10, smallest) if secant is None else lowest.damping,
        passes=passes, accepted=False, secant=secant,
        rejected_steps=lowest.rejected_steps + plain,
    )  # fmt: skip
    return _after_rejection(search, rejected, options)


def _judge_in_trust_region(
    search: Search,
    state: State,
    region: TrustRegion,
    trial: Trial,
    reduced: ReducedProblem,
    options: Options,
) -> State:
    """Return the state after the trial was evaluated: moved there, or with a shorter step to come."""
    passes, step = state.passes + 1, trial.theta - state.theta
    gain = state.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    below_rounding, *_ = _below_rounding(search, state, gain, options)
    reduction = trial.predicted if below_rounding else gain
    next_ = region.after(step, reduction, trial.predicted, passes == 2)
    if below_rounding or gain > MIN_RATIO * max(trial.predicted, 0.0):
        moved = State(
            trial.theta, reduced, state.damping, passes=passes, rejected_steps=state.rejected_steps,
            trust_region=next_.at(reduced.hessian),
        )  # fmt: skip
        return _with_outcome(search, moved, options)
    rejected = replace(
        state,
        passes=passes,
        accepted=False,
        rejected_steps=state.rejected_steps + 1,
        trust_region=next_,
    )
    return _after_rejection(search, rejected, options)


def _after_rejection(search: Search, rejected: State, options: Options) -> State:
    if _stalled(rejected):
        return replace(rejected, outcome=Outcome.STALLED)
    return _with_outcome(search, rejected, options)


def _stalled(state: State) -> bool:
    """Return whether steps have become too short to change anything."""
    region = state.trust_region
    if region is None:
        return state.damping > MAX_DAMPING
    return not state.accepted and bool(
        region.radius <= np.finfo(float).eps * region.length(state.theta)
    )


def _below_rounding(
    search: Search, lowest: State, gain: float, options: Options
) -> tuple[bool, float, float]:
    """Return whether a gain is rounding, the possible further gain, and the variance of a residual.

    Then the decrement alone decides. It is compared with the full possible gain, not with that of a
    damped step: otherwise tiny steps would continue for ever and no fit would stall.
    """
    variance = _variance(search, lowest.reduced)
    left = lowest.decrement**2 * variance
    rounding = max(lowest.reduced.rounding, options.relative_rounding * lowest.reduced.chisqr)
    return bool(left <= rounding and abs(gain) <= rounding), left, variance


def _relaxed_damping(state: State, ratio: float) -> float:
    """Return the damping after an accepted step: it falls to zero once the model predicts well."""
    damping = state.damping
    if not state.accepted:
        return damping * 0.3  # a step with less damping has just failed
    if abs(ratio - 1) < 0.1:
        return damping * 1e-3 if damping > 1e-7 else 0.0
    if ratio > 0.75:
        return damping * 0.1
    return damping if ratio > 0.25 else max(damping * 4, 1e-4)


def _with_outcome(
    search: Search, state: State, options: Options, before: State | None = None
) -> State:
    """Return the state with its decrement, and with its outcome if it has one.

    before: the state from which an accepted step led here; it counts slow steps.
    """
    reduced = state.reduced
    if not reduced.finite:
        return replace(state, outcome=Outcome.NONFINITE)
    free = movable_at(search, state)
    directions = directions_at(search, state, free)
    length = np.sqrt(directions.reduction + reduced.linear_reduction)
    variance = _variance(search, reduced)
    # at χ² = 0 no step gains anything, even if rounding leaves a gradient
    at_minimum = length == 0 or reduced.chisqr == 0
    decrement = 0.0 if at_minimum else float(length / np.sqrt(max(variance, np.finfo(float).tiny)))
    state = replace(state, decrement=decrement)
    if before is not None and reduced.linear_step is None:
        state = replace(state, slow_steps=_slow_steps(before, decrement, options))
        if state.slow_steps >= SLOW_STEPS and state.secant is None:
            state = replace(state, secant=secant_after(search, before, state.theta, reduced))
    change, scale = np.abs(directions.step(0.0)), np.abs(state.theta[free])
    wanted = options.decrement * (1.0 if reduced.penalty is None else SMOOTHED)
    least = max(wanted, reduced.decrement_rounding(variance))
    if decrement <= least or (change <= options.relative_step * scale).all():
        complete = bool(directions.determined.all())
        return replace(state, outcome=Outcome.CONVERGED if complete else Outcome.SINGULAR)
    if state.slow_steps >= MAX_SLOW_STEPS:
        return replace(state, outcome=Outcome.SINGULAR)
    if state.passes >= options.max_passes:
        return replace(state, outcome=Outcome.MAX_PASSES)
    return state


def _variance(search: Search, reduced: ReducedProblem) -> float:
    """Return the variance of a residual, in which distances to the optimum are counted.

    With a penalty it is the one that correlated pairs have in effect, in the mean of rates.
    """
    scale = 1.0 if reduced.penalty is None else max(reduced.penalty.strengths.scales.mean(), 1.0)
    return scale * reduced.variance(int(search.free.sum()))


def _slow_steps(before: State, decrement: float, options: Options) -> int:
    """Return the number of slow steps in a row with the one after `before`.

    Within one standard error of the optimum the quadratic model should lead there: where the decrement does
    not fall, χ² is flat along a curve, and the steps would follow it for hundreds of passes. Under a
    loss steps may be slow for another reason: most pairs are outliers.
    """
    near = 100 * options.decrement < decrement <= 1
    return before.slow_steps + 1 if near and decrement > SLOW_STEP * before.decrement else 0


def _bounded_step(search: Search, state: State) -> Float[np.ndarray, " p"]:
    """Return the damped step; parameters that would pass a bound stop there, the others are solved again."""
    state = replace(state, reduced=with_secant(search, state))
    reduced, theta = state.reduced, state.theta
    free = movable_at(search, state)
    step = np.zeros_like(theta)
    while free.any():
        gradient = reduced.gradient - reduced.hessian @ np.where(free, 0.0, step)
        if state.trust_region is not None:
            step[free] = state.trust_region.step(reduced.hessian, gradient, free)
        else:
            step[free] = directions_at(search, state, free, gradient).step(state.damping)
        low, high = search.lower - theta, search.upper - theta
        past = free & ~np.isfinite(search.period) & ((step < low) | (step > high))
        if not past.any():
            break
        step = np.where(past, np.clip(step, low, high), step)
        free = free & ~past
    return step
