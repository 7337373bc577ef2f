"""Levenberg-Marquardt inside bounds: one evaluation per trial point, and an outcome in words.

The loop over four decisions: the problem at a point (`reduce`), the next point (`step`), whether the fit
moves there (`acceptance`), and whether it has ended (`convergence`). The caller passes the function that
evaluates a trial: a pass on a cluster, or NumPy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.acceptance import after_trial, with_second_order_term_after_slow_steps
from homodyne_dask.solver.convergence import residual_variance, with_outcome
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.state import Options, Outcome, State, Trial
from homodyne_dask.solver.step import next_trial
from homodyne_dask.solver.step_control import Damping, trust_region_at

FIXED_STRENGTHS = 1.0
"""Distance to the minimum in standard errors, from which on strengths of penalties stay."""
FREE_EXPONENTS = 4
"""Passes after which exponents of penalties stay, and strengths where others would lead uphill."""


def initial_state(
    search: Search, theta: Float[np.ndarray, " p"], reduced: ReducedProblem, options: Options
) -> State:
    """Return the first state of a fit."""
    theta = np.asarray(theta, float)
    reduced = penalized(search, theta, reduced)
    control = Damping(options.damping)
    if options.trust_region:
        control = trust_region_at(theta, reduced.hessian, options.damping)
    return with_outcome(search, State(theta, reduced, control), options)


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
    states = iterate_several(search, lambda trials: [*map(evaluate, trials)], [state], options)
    yield from (one for [one] in states)


def iterate_below(
    search: Search, evaluate: Evaluate, end: State, trial: Trial, options: Options
) -> Iterator[State]:
    """Yield the states of a fit that has ended, from a trial where χ² is lower; none where it is not.

    What is lower by less than the distance at which a fit has converged is not.
    """
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
    """Return an accepted state with its outcome, and with the second-order term if steps are slow."""
    if not state.control.second_order:
        return with_outcome(search, state, options)
    state = with_outcome(search, state, options, before)
    return with_second_order_term_after_slow_steps(search, before, state)
