"""Bounded Levenberg-Marquardt, one evaluation per trial point, and endings that say what they are.

Marquardt's scaling (1963) with bounds by an active set. The solver sees numbers only: an
evaluation may come from a cluster or from ten lines of NumPy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.trust_region import NOT_AT_ALL, TrustRegion, trust_region_at
from homodyne_dask.solver.variable_projection import ReducedProblem


class Outcome(Enum):
    """How a fit ended. Every ending is a sentence."""

    RUNNING = "the fit is still running"
    CONVERGED = "converged: the optimum is closer than a ten-thousandth of a standard error"
    STALLED = "stalled: no step reduces χ² further, but the gradient is not zero"
    MAX_PASSES = "stopped at the limit of passes before converging"
    SINGULAR = "the data do not determine all parameters"
    NONFINITE = "the model or the data gave a value that is not a number"
    INTERRUPTED = "interrupted before converging"


@dataclass(frozen=True)
class Options:
    """When to stop and how to damp."""

    decrement: float = 1e-4
    """Converged when the expected distance to the optimum is below this many standard errors."""
    relative_step: float = 0.0
    """Or where the next undamped step would change no parameter by more than this share of it."""
    relative_rounding: float = 0.0
    """Share of χ² below which a gain is rounding, where that is more than the sums alone have."""
    trust_region: bool = False
    """Limit the length of steps by how well the last one was predicted: for starts far away."""
    max_passes: int = 100
    damping: float = 1e-3
    """The first damping, relative to the Hessian's diagonal."""


class Trial(NamedTuple):
    """A point to evaluate."""

    theta: Float[np.ndarray, " p"]
    linear_params: Float[np.ndarray, "bin 2"] | None = None
    """(offset - 1, contrast) to try with it, where a loss does not let them be eliminated."""
    predicted: float = np.nan
    """The reduction of χ² that the quadratic model expects of a step there."""


@dataclass(frozen=True)
class State:
    """Where a fit stands; the last one says how it ended."""

    theta: Float[np.ndarray, " p"]
    reduced: ReducedProblem
    damping: float
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial has the lowest χ² so far."""
    best: "State | None" = None
    """The lowest state so far, while steps above it are being tried (see `judge`)."""
    nonmonotone_steps: int = 0
    """How many steps above it lead here."""
    rejected_steps: int = 0
    """Since the fit began."""
    trust_region: TrustRegion | None = None
    """How far the next step may go, where that limits steps instead of damping."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: expected distance to the optimum in standard errors."""

    @property
    def lowest(self) -> "State":
        """The state with the lowest χ² so far."""
        return self.best or self


REJECTED_BEFORE_REST = 3
"""Trials given up before a fit may rest along what the data do not determine."""
MAX_NONMONOTONE_STEPS = 3
"""Steps above the lowest χ² that may follow each other before the fit returns to it."""
_SINGULAR = 1e-14
"""Eigenvalue of the scaled Hessian below which a direction is not determined at all."""


def initial_state(
    search: Search, theta: Float[np.ndarray, " p"], reduced: ReducedProblem, options: Options
) -> State:
    """Return the first state of a fit."""
    theta = np.asarray(theta, float)
    trust = trust_region_at(theta, reduced.hessian) if options.trust_region else None
    state = State(theta, reduced, options.damping, trust_region=trust)
    return _ended(search, state, options)


def restored_state(search: Search, saved: State, options: Options) -> State:
    """Return a saved state with its decrement, and with its ending if it has reached one."""
    return saved if saved.best else _ended(search, saved, options)


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
    reduced, damping = state.reduced, state.damping
    linear_params = reduced.linear_params_after(step, damping)
    return Trial(theta, linear_params, reduced.predicted_reduction(step, damping))


def judge(
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: Options
) -> State:
    """Return the state after the trial was evaluated: moved there, or damped more.

    In a curved valley an undamped step lands up the far wall and the next one far down the valley,
    while steps kept small enough never to rise creep along. So a few steps may stay above the lowest
    point; if none of them ends below it, the fit returns there with more damping (the watchdog
    technique, Chamberlain et al. 1982).
    """
    if state.trust_region is not None:
        return _trusted(search, state, state.trust_region, trial, reduced, options)
    lowest = state.lowest
    passes = state.passes + 1
    gain = lowest.reduced.chisqr - reduced.chisqr
    unseen, left, variance = _unseen(search, lowest, gain, options)
    if reduced.finite and (gain > 0 or unseen):
        exact = unseen or trial.predicted <= 0
        damping = _relaxed(state, 1.0 if exact else gain / trial.predicted)
        moved = State(
            trial.theta, reduced, damping, passes=passes, rejected_steps=lowest.rejected_steps
        )  # fmt: skip
        return _ended(search, moved, options)
    credible = reduced.finite and state.damping <= 1e-2 and -gain < 100 * max(variance, left)
    if credible and state.nonmonotone_steps < MAX_NONMONOTONE_STEPS and passes < options.max_passes:
        return State(
            trial.theta, reduced, state.damping, passes=passes, accepted=False, best=lowest,
            nonmonotone_steps=state.nonmonotone_steps + 1, rejected_steps=lowest.rejected_steps,
        )  # fmt: skip
    damping = max(lowest.damping * 10, _weakest(search, lowest))
    rejected = replace(
        lowest,
        damping=damping,
        passes=passes,
        accepted=False,
        rejected_steps=lowest.rejected_steps + 1,
    )
    if rejected.damping > 1e12:
        return replace(rejected, outcome=Outcome.STALLED)
    return _ended(search, rejected, options)


def _unseen(
    search: Search, lowest: State, gain: float, options: Options
) -> tuple[bool, float, float]:
    """Return whether a gain is rounding, what is left to gain, and the variance of a residual.

    Below rounding a gain cannot be seen; the decrement alone decides there. What counts is all that
    is left to gain, not what a damped step would: else tiny steps go on for ever and none stalls.
    """
    variance = lowest.reduced.variance(int(search.free.sum()))
    left = lowest.decrement**2 * variance
    rounding = max(lowest.reduced.rounding, options.relative_rounding * lowest.reduced.chisqr)
    return bool(left <= rounding and abs(gain) <= rounding), left, variance


def _trusted(
    search: Search,
    state: State,
    trust: TrustRegion,
    trial: Trial,
    reduced: ReducedProblem,
    options: Options,
) -> State:
    """Return the state after the trial was evaluated: moved there, or with a shorter step to come."""
    passes, step = state.passes + 1, trial.theta - state.theta
    gain = state.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    unseen, *_ = _unseen(search, state, gain, options)
    next_ = trust.after(step, trial.predicted if unseen else gain, trial.predicted, passes == 2)
    if unseen or gain > NOT_AT_ALL * max(trial.predicted, 0.0):
        moved = State(
            trial.theta, reduced, state.damping, passes=passes, rejected_steps=state.rejected_steps,
            trust_region=next_.at(reduced.hessian),
        )  # fmt: skip
        return _ended(search, moved, options)
    rejected = replace(
        state,
        passes=passes,
        accepted=False,
        rejected_steps=state.rejected_steps + 1,
        trust_region=next_,
    )
    if next_.radius <= np.finfo(float).eps * trust.length(state.theta):
        return replace(rejected, outcome=Outcome.STALLED)
    return _ended(search, rejected, options)


def _weakest(search: Search, state: State) -> float:
    """Return the smallest eigenvalue of the scaled Hessian: damping below it changes nothing."""
    free = movable(search, state.theta, state.reduced.gradient)
    all_of = _directions(search, state, free)
    return float(all_of.values[all_of.known].min(initial=1.0))


def _relaxed(state: State, ratio: float) -> float:
    """Return the damping after an accepted step: it falls to zero once the model predicts well."""
    damping = state.damping
    if not state.accepted:
        return damping * 0.3  # with less a step has just failed
    if abs(ratio - 1) < 0.1:
        return damping * 1e-3 if damping > 1e-7 else 0.0
    if ratio > 0.75:
        return damping * 0.1
    return damping if ratio > 0.25 else max(damping * 4, 1e-4)


def _ended(search: Search, state: State, options: Options) -> State:
    """Return the state with its decrement, and with an ending if it has reached one."""
    if not state.reduced.finite:
        return replace(state, outcome=Outcome.NONFINITE)
    free = movable(search, state.theta, state.reduced.gradient)
    all_of = _directions(search, state, free)
    left = (all_of.along**2)[all_of.known] @ (1 / all_of.values[all_of.known])
    length = np.sqrt(left + state.reduced.linear_reduction)
    variance = state.reduced.variance(int(search.free.sum()))
    # at χ² = 0 nothing is left to gain, whatever rounding leaves of the gradient
    least = length == 0 or state.reduced.chisqr == 0
    decrement = 0.0 if least else float(length / np.sqrt(max(variance, np.finfo(float).tiny)))
    state = replace(state, decrement=decrement)
    if decrement <= options.decrement or _unmoved(all_of, state.theta[free], options):
        complete = bool(all_of.known.all())
        return replace(state, outcome=Outcome.CONVERGED if complete else Outcome.SINGULAR)
    return _limited(state, options)


def _unmoved(all_of: "_Directions", theta: Float[np.ndarray, " m"], options: Options) -> bool:
    """Return whether the undamped step changes nothing by more than the share that is asked for."""
    step = _solved(all_of, 0.0)
    return bool((np.abs(step) <= options.relative_step * np.abs(theta)).all())


def _limited(state: State, options: Options) -> State:
    if state.passes >= options.max_passes:
        return replace(state, outcome=Outcome.MAX_PASSES)
    return state


def movable(
    search: Search, theta: Float[np.ndarray, " p"], gradient: Float[np.ndarray, " p"]
) -> Bool[np.ndarray, " p"]:
    """Return which parameters may move: not fixed, and no active bound."""
    active = (theta <= search.lower) & (gradient < 0) | (theta >= search.upper) & (gradient > 0)
    return search.free & ~(active & ~np.isfinite(search.period))


def undetermined(search: Search, state: State) -> list[tuple[str, ...]]:
    """Return the parameters of every direction the data do not determine at the state."""
    free = movable(search, state.theta, state.reduced.gradient)
    if not (free.any() and state.reduced.finite):
        return []
    all_of = _directions(search, state, free)
    names = np.array(search.names)[free]
    return [
        tuple(str(name) for name in names[np.abs(all_of.vectors[:, n]) > 0.3])
        for n in np.flatnonzero(~all_of.known)
    ]


class _Directions(NamedTuple):
    """The eigenvectors of the Hessian of some parameters, scaled to unit diagonal."""

    values: Float[np.ndarray, " m"]
    vectors: Float[np.ndarray, "m m"]
    along: Float[np.ndarray, " m"]
    """The scaled gradient along each."""
    known: Bool[np.ndarray, " m"]
    """Directions the data determine."""
    size: Float[np.ndarray, " m"]
    """theta = scaled theta / size."""


def _directions(
    search: Search,
    state: State,
    which: Bool[np.ndarray, " p"],
    gradient: Float[np.ndarray, " p"] | None = None,
) -> _Directions:
    """Return the directions in which some parameters may go, and which of them are determined.

    A direction is not determined where the Hessian has nothing, or where one standard error along it
    carries a parameter beyond all its scale (its value for log-scaled ones, else its bounds), no more
    than three standard errors are left to gain, and walking on has failed: the fit then rests there.
    """
    theta, reduced = state.theta, state.reduced
    H = reduced.hessian[np.ix_(which, which)]
    diagonal = np.diag(H)
    absent = ~(diagonal > 0)
    size = np.sqrt(np.where(absent, 1.0, diagonal))
    matrix = H / size[:, None] / size[None, :]
    matrix[absent, :] = matrix[:, absent] = 0.0
    values, vectors = np.linalg.eigh(matrix)
    right = (reduced.gradient if gradient is None else gradient)[which]
    along = vectors.T @ (right / size * ~absent)
    known = values > _SINGULAR
    if known.any() and state.rejected_steps >= REJECTED_BEFORE_REST:
        variance = reduced.variance(int(search.free.sum()))
        lengths = np.sqrt(variance / np.where(known, values, 1.0))
        reach = np.where(search.log, np.abs(theta), search.upper - search.lower)[which] * size
        beyond = (np.abs(vectors) * lengths > reach[:, None]).any(axis=0)
        little = along**2 <= 9 * variance * np.where(known, values, 1.0)
        known &= ~(beyond & little)
    return _Directions(values, vectors, along, known, size)


def _bounded_step(search: Search, state: State) -> Float[np.ndarray, " p"]:
    """Return the damped step; parameters it would carry past a bound stop there, the rest adapt."""
    reduced, theta = state.reduced, state.theta
    free = movable(search, theta, reduced.gradient)
    step = np.zeros_like(theta)
    while free.any():
        right = reduced.gradient - reduced.hessian @ np.where(free, 0.0, step)
        if state.trust_region is not None:
            step[free] = state.trust_region.step(reduced.hessian, right, free)
        else:
            step[free] = _solved(_directions(search, state, free, right), state.damping)
        low, high = search.lower - theta, search.upper - theta
        bounded = free & ~np.isfinite(search.period)
        past = bounded & ((step < low) | (step > high))
        if not past.any():
            break
        step = np.where(past, np.clip(step, low, high), step)
        free = free & ~past
    return step


def _solved(all_of: _Directions, damping: float) -> Float[np.ndarray, " m"]:
    """Return the damped step along the determined directions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.where(all_of.known, all_of.along / (all_of.values + damping), 0.0)
    return all_of.vectors @ moved / all_of.size
