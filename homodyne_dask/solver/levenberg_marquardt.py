"""Bounded Levenberg-Marquardt, one evaluation per trial point, and endings that say what they are.

Marquardt's scaling (1963) with bounds by an active set. The solver sees numbers only: an
evaluation may come from a cluster or from ten lines of NumPy.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.trust_region import NOT_AT_ALL, Trust, trust_of
from homodyne_dask.solver.variable_projection import Reduced


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
    unseen: float = 0.0
    """Share of χ² below which a gain is rounding, where that is more than the sums alone have."""
    trust: bool = False
    """Keep steps as short as the last ones were foretold right (see `Trust`): for starts far away."""
    max_passes: int = 100
    damping: float = 1e-3
    """The first damping, relative to the Hessian's diagonal."""


class Trial(NamedTuple):
    """A proposed point and the reduction of χ² the quadratic model expects there."""

    theta: Float[np.ndarray, " p"]
    predicted: float
    beta: Float[np.ndarray, "bin 2"] | None = None
    """(offset - 1, contrast) to try with it, where a loss has them carried along."""


@dataclass(frozen=True)
class State:
    """Where a fit stands; the last one says how it ended."""

    theta: Float[np.ndarray, " p"]
    reduced: Reduced
    damping: float
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial has the lowest χ² so far."""
    fallback: "State | None" = None
    """The lowest state so far, while steps above it are being tried (see `judge`)."""
    uphill: int = 0
    """How many such steps lead here."""
    rejections: int = 0
    """Trials given up since the fit began."""
    trust: Trust | None = None
    """How far the next step may go, where that is kept instead of damping."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: expected distance to the optimum in standard errors."""


RESTS = 3
"""Trials given up before a fit may rest along what the data do not determine."""
UPHILL = 3
"""Steps above the lowest χ² that may follow each other before the fit returns to it."""
_SINGULAR = 1e-14
"""Eigenvalue of the scaled Hessian below which a direction is not determined at all."""


def start(
    search: Search, theta: Float[np.ndarray, " p"], reduced: Reduced, options: Options
) -> State:
    """Return the first state of a fit."""
    theta = np.asarray(theta, float)
    trust = trust_of(theta, reduced.hessian) if options.trust else None
    state = State(theta, reduced, options.damping, trust=trust)
    return _ended(search, state, options)


def restored(
    search: Search,
    theta: Float[np.ndarray, " p"],
    reduced: Reduced,
    damping: float,
    passes: int,
    accepted: bool,
    counts: tuple[int, int],
    fallback: State | None,
    options: Options,
    trust: Trust | None = None,
) -> State:
    """Return a state as it was when it was saved; counts are its `uphill` and `rejections`."""
    uphill, rejections = counts
    state = State(
        theta, reduced, damping, passes=passes, accepted=accepted, fallback=fallback,
        uphill=uphill, rejections=rejections, trust=trust,
    )  # fmt: skip
    return state if fallback else _ended(search, state, options)


def propose(search: Search, state: State) -> Trial:
    """Return the next point to evaluate: a damped Gauss-Newton step inside the bounds."""
    step = _bounded_step(search, state)
    theta = search.moved(state.theta, step)
    reduced, damping = state.reduced, state.damping
    return Trial(theta, reduced.gained(step, damping), reduced.followed(step, damping))


def judge(search: Search, state: State, trial: Trial, reduced: Reduced, options: Options) -> State:
    """Return the state after the trial was evaluated: moved there, or damped more.

    In a curved valley an undamped step lands up the far wall and the next one far down the valley,
    while steps kept small enough never to rise creep along. So a few steps may stay above the lowest
    point; if none of them ends below it, the fit returns there with more damping (the watchdog
    technique, Chamberlain et al. 1982).
    """
    if state.trust is not None:
        return _trusted(search, state, state.trust, trial, reduced, options)
    best = state.fallback or state
    passes = state.passes + 1
    gain = best.reduced.chisqr - reduced.chisqr
    unseen, left, variance = _unseen(search, best, gain, options)
    if reduced.finite and (gain > 0 or unseen):
        exact = unseen or trial.predicted <= 0
        damping = _relaxed(state, 1.0 if exact else gain / trial.predicted)
        moved = State(
            trial.theta, reduced, damping, passes=passes, rejections=best.rejections
        )  # fmt: skip
        return _ended(search, moved, options)
    credible = reduced.finite and state.damping <= 1e-2 and -gain < 100 * max(variance, left)
    if credible and state.uphill < UPHILL and passes < options.max_passes:
        return State(
            trial.theta, reduced, state.damping, passes=passes, accepted=False, fallback=best,
            uphill=state.uphill + 1, rejections=best.rejections,
        )  # fmt: skip
    damping = max(best.damping * 10, _weakest(search, best))
    held = replace(
        best, damping=damping, passes=passes, accepted=False, rejections=best.rejections + 1
    )
    if held.damping > 1e12:
        return replace(held, outcome=Outcome.STALLED)
    return _ended(search, held, options)


def _unseen(
    search: Search, best: State, gain: float, options: Options
) -> tuple[bool, float, float]:
    """Return whether a gain is rounding, what is left to gain, and the variance of a residual.

    Below rounding a gain cannot be seen; the decrement alone decides there. What counts is all that
    is left to gain, not what a damped step would: else tiny steps go on for ever and none stalls.
    """
    variance = best.reduced.variance(int(search.free.sum()))
    left = best.decrement**2 * variance
    rounding = max(best.reduced.rounding, options.unseen * best.reduced.chisqr)
    return bool(left <= rounding and abs(gain) <= rounding), left, variance


def _trusted(
    search: Search, state: State, trust: Trust, trial: Trial, reduced: Reduced, options: Options
) -> State:
    """Return the state after the trial was evaluated: moved there, or with a shorter step to come."""
    passes, step = state.passes + 1, trial.theta - state.theta
    gain = state.reduced.chisqr - reduced.chisqr if reduced.finite else -np.inf
    unseen, *_ = _unseen(search, state, gain, options)
    next_ = trust.after(step, trial.predicted if unseen else gain, trial.predicted, passes == 2)
    if unseen or gain > NOT_AT_ALL * max(trial.predicted, 0.0):
        moved = State(
            trial.theta, reduced, state.damping, passes=passes, rejections=state.rejections,
            trust=next_.at(reduced.hessian),
        )  # fmt: skip
        return _ended(search, moved, options)
    held = replace(
        state, passes=passes, accepted=False, rejections=state.rejections + 1, trust=next_
    )
    if next_.radius <= np.finfo(float).eps * trust.length(state.theta):
        return replace(held, outcome=Outcome.STALLED)
    return _ended(search, held, options)


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
    length = np.sqrt(left + state.reduced.remaining)
    variance = state.reduced.variance(int(search.free.sum()))
    decrement = 0.0 if length == 0 else float(length / np.sqrt(max(variance, np.finfo(float).tiny)))
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
    """Return which parameters may move: not fixed, and not pressed against a bound."""
    pressed = (theta <= search.lower) & (gradient < 0) | (theta >= search.upper) & (gradient > 0)
    return search.free & ~(pressed & ~np.isfinite(search.period))


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
    pull = (reduced.gradient if gradient is None else gradient)[which]
    along = vectors.T @ (pull / size * ~absent)
    known = values > _SINGULAR
    if known.any() and state.rejections >= RESTS:
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
        pull = reduced.gradient - reduced.hessian @ np.where(free, 0.0, step)
        if state.trust is not None:
            step[free] = state.trust.step(reduced.hessian, pull, free)
        else:
            step[free] = _solved(_directions(search, state, free, pull), state.damping)
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
