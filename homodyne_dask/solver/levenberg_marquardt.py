"""Levenberg-Marquardt inside bounds: one evaluation per trial point, and an outcome in words.

The loop over four decisions: the problem at a point (`reduce`), the next point (`next_trial`, whose length
damping or a trust region limits), whether the fit moves there (`after_trial`), and whether it has ended
(`with_outcome`). The caller passes the function that evaluates a trial: a pass on a cluster, or NumPy.

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
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.read_only import HandedOut
from homodyne_dask.solver.array_shapes import LinearParams, Moved, Theta, ThetaMatrix, Which
from homodyne_dask.solver.normal_matrix import (
    SINGULAR,
    Eigendirections,
    bounded_step,
    directions_of,
    eigensystem,
    movable,
    parameter_scales,
    sizes,
)
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import ReducedProblem


class Outcome(Enum):
    RUNNING = "the fit is still running"
    CONVERGED = "converged: the estimated distance to the minimum is far below a standard error"
    STALLED = "stalled: no step reduces χ² further, but the gradient is not zero"
    MAX_PASSES = "stopped at the limit of passes before converging"
    SINGULAR = "the data do not determine all parameters"
    NO_DECAY = "no decay seen: contrast times f describes the data no better than a constant"
    NONFINITE = "the model or the data gave a value that is not a number"
    INTERRUPTED = "interrupted before converging"


@dataclass(frozen=True)
class SolverOptions:
    decrement: float = 1e-4
    """Converged when the estimated distance to the minimum is below this many standard errors."""
    relative_step: float = 0.0
    """Converged, too, when the next undamped step changes no parameter by more than this share of it."""
    relative_rounding: float = 0.0
    """Share of χ² below which a gain counts as rounding, if it is more than the rounding of sums."""
    trust_region: bool = False
    """Limit the length of steps by how well the last one was predicted: for starts far away."""
    max_passes: int = 100
    damping: float = 1e-3
    """The first damping, relative to the Hessian's diagonal."""


class Trial(NamedTuple):
    theta: Theta
    linear_params: LinearParams | None = None
    """(offset - 1, contrast) to try with it, where they are not eliminated: under a loss."""
    predicted: float = np.nan
    """The reduction of χ² that the quadratic model expects of a step there."""


GOOD_RATIO, POOR_RATIO, MIN_RATIO = 0.75, 0.25, 1e-4
"""Ratios of actual to predicted reduction: above GOOD_RATIO damping falls and the radius may grow, below
POOR_RATIO the radius shrinks, and below MIN_RATIO a trust region rejects the step."""
MAX_DAMPING = 1e12
MAX_DAMPING_OF_RISE = 1e-2
"""Damping up to which a step may raise χ² for a while: steps damped more are short enough to lower it."""
INITIAL_RADIUS = 100.0
"""Radius of the first step over the length of theta."""
_MAX_ITERATIONS = 60
_RADIUS_TOLERANCE = 0.01
"""Relative difference allowed between the length of a step and the radius."""
MIN_REJECTED_STEPS = 3
"""Rejected steps after which directions whose error exceeds every scale count as undetermined."""


class StepResult(NamedTuple):
    trial: Trial
    reduced: ReducedProblem
    step: Theta
    reduction: float
    """How much lower χ² is than at the lowest point before; -inf where it is not finite."""
    below_rounding: bool
    """Whether both the reduction and all that is possible are rounding."""
    possible: float
    """The reduction that is possible, at least the variance of a residual."""
    first: bool
    after_failure: bool
    """Whether the step before it did not lower χ²."""

    @property
    def ratio(self) -> float:
        """Actual over predicted reduction; 1 where they are rounding."""
        if self.below_rounding or self.trial.predicted <= 0:
            return 1.0
        return self.reduction / self.trial.predicted


class Damping(NamedTuple):
    damping: float
    """Relative to the Hessian's diagonal."""
    second_order: bool = True
    """Whether the second-order term is estimated after slow and failed steps."""

    def step(
        self, hessian: ThetaMatrix, gradient: Theta, free: Which, directions: Eigendirections
    ) -> Moved:
        return directions.step(self.damping)

    def accepts(self, result: StepResult) -> bool:
        return result.reduction > 0

    def allows_rise(self, result: StepResult) -> bool:
        """Return whether χ² rose little, with little damping."""
        little = self.damping <= MAX_DAMPING_OF_RISE
        return little and -result.reduction < 100 * result.possible

    def after_accepted(self, result: StepResult) -> "Damping":
        """Return the next damping: it falls to zero once the model predicts well."""
        damping, ratio = self.damping, result.ratio
        if result.after_failure:
            return Damping(damping * 0.3)  # a step with less damping has just failed
        if abs(ratio - 1) < 0.1:
            return Damping(damping * 1e-3 if damping > 1e-7 else 0.0)
        if ratio > GOOD_RATIO:
            return Damping(damping * 0.1)
        return self if ratio > POOR_RATIO else Damping(max(damping * 4, 1e-4))

    def after_rejected(self, result: StepResult, smallest: float) -> "Damping":
        """Return ten times the damping, at least the smallest eigenvalue: less would change nothing."""
        return Damping(max(self.damping * 10, smallest))

    def exhausted(self, theta: Theta) -> bool:
        return self.damping > MAX_DAMPING


class TrustRegion(NamedTuple):
    """A trust region: steps are limited to where the quadratic model holds.

    Each parameter is scaled by the largest root of the Hessian's diagonal so far, which keeps it from
    drifting to where χ² does not depend on it. The radius grows and shrinks with the ratio of the actual to
    the predicted reduction of χ² (Moré 1978, as in MINPACK's lmder).
    """

    size: Theta
    radius: float
    damping: float
    second_order: bool = False
    """Whether the second-order term is estimated: it changes too much far from a minimum."""

    def length(self, step: Theta) -> float:
        return float(np.linalg.norm(self.size * step))

    def step(
        self, hessian: ThetaMatrix, gradient: Theta, free: Which, directions: Eigendirections
    ) -> Moved:
        size = np.where(self.size > 0, self.size, 1.0)[free]
        scaled = eigensystem(hessian[np.ix_(free, free)], size)
        values, vectors = np.maximum(scaled.values, 0.0), scaled.vectors
        along = vectors.T @ (gradient[free] / size)
        damping = max(np.finfo(float).eps * values.max(), np.finfo(float).tiny)
        steps = along / (values + damping)
        for _ in range(_MAX_ITERATIONS):
            length = np.linalg.norm(steps)
            if not length > self.radius * (1 + _RADIUS_TOLERANCE):
                break
            slope = steps @ (steps / (values + damping))
            damping += length**2 / slope * (length / self.radius - 1)
            steps = along / (values + damping)
        return vectors @ steps / size

    def accepts(self, result: StepResult) -> bool:
        return result.reduction > MIN_RATIO * max(result.trial.predicted, 0.0)

    def allows_rise(self, result: StepResult) -> bool:
        return False

    def after_accepted(self, result: StepResult) -> "TrustRegion":
        size = np.fmax(self.size, _roots(result.reduced.hessian))
        return self._replace(size=size, radius=self._next_radius(result))

    def after_rejected(self, result: StepResult, smallest: float) -> "TrustRegion":
        return self._replace(radius=self._next_radius(result))

    def _next_radius(self, result: StepResult) -> float:
        length, predicted = self.length(result.step), result.trial.predicted
        reduction = predicted if result.below_rounding else result.reduction
        radius = min(self.radius, length) if result.first else self.radius
        ratio = reduction / predicted if predicted > 0 else 0.0
        if not ratio > POOR_RATIO:
            # the minimum of the parabola through both χ² and the slope
            rose = reduction < 0
            share = np.clip(0.5 * predicted / (predicted - reduction), 0.1, 0.5) if rose else 0.5
            return float(share * min(radius, length / 0.1))
        free = length < radius * (1 - 2 * _RADIUS_TOLERANCE)
        return 2 * length if ratio >= GOOD_RATIO or free else radius

    def exhausted(self, theta: Theta) -> bool:
        return bool(self.radius <= np.finfo(float).eps * self.length(theta))


type StepControl = Damping | TrustRegion


def trust_region_at(theta: Theta, hessian: ThetaMatrix, damping: float) -> TrustRegion:
    size = _roots(hessian)
    length = float(np.linalg.norm(size * theta))
    return TrustRegion(size, INITIAL_RADIUS * (length if length > 0 else 1.0), damping)


def _roots(hessian: ThetaMatrix) -> Theta:
    return np.sqrt(np.maximum(np.diag(hessian), 0.0))


@dataclass(frozen=True)
class State(HandedOut):
    """The state of a fit after a pass; the last one has the outcome. Users and callbacks have it while the
    fit goes on: its arrays are read-only."""

    theta: Theta
    reduced: ReducedProblem
    control: StepControl
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial had the lowest χ² so far."""
    best: "State | None" = None
    """The lowest state so far, while steps above it are being tried."""
    nonmonotone_steps: int = 0
    rejected_steps: int = 0
    slow_steps: int = 0
    """Accepted steps in a row that hardly came closer to an optimum less than a standard error away."""
    second_order_term: ThetaMatrix | None = None
    """S, what the Hessian has beside that of Gauss and Newton, once steps have failed or were slow."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: estimated distance to the minimum in standard errors."""

    def __repr__(self) -> str:
        theta, chisqr = ", ".join(f"{value:.6g}" for value in self.theta), self.reduced.chisqr
        return f"<pass {self.passes}: χ² {chisqr:.8g} at ({theta}), {self.outcome.value}>"

    @property
    def lowest(self) -> "State":
        return self.best or self

    @property
    def damping(self) -> float:
        return self.control.damping

    def movable(self, search: Search) -> Which:
        return movable(search, self.theta, self.reduced.gradient)

    def directions(
        self, search: Search, which: Which, gradient: Theta | None = None
    ) -> Eigendirections:
        """Return directions; after MIN_REJECTED_STEPS those with errors above all scales are undetermined."""
        directions = directions_of(self.reduced, which, gradient)
        if not directions.determined.any() or self.rejected_steps < MIN_REJECTED_STEPS:
            return directions
        variance = self.reduced.variance(int(search.free.sum()))
        return directions.without_unbounded(parameter_scales(search, self.theta)[which], variance)


FIXED_STRENGTHS = 1.0
"""Distance to the minimum in standard errors, from which on strengths of penalties stay."""
FREE_EXPONENTS = 4
"""Passes after which exponents of penalties stay, and strengths where others would lead uphill."""


def initial_state(
    search: Search, theta: Theta, reduced: ReducedProblem, options: SolverOptions
) -> State:
    theta = np.asarray(theta, float)
    reduced = penalized(search, theta, reduced)
    control = Damping(options.damping)
    if options.trust_region:
        control = trust_region_at(theta, reduced.hessian, options.damping)
    return with_outcome(search, State(theta, reduced, control), options)


Evaluate = Callable[[Trial], ReducedProblem]


def iterate(
    search: Search, evaluate: Evaluate, start: Trial, options: SolverOptions
) -> Iterator[State]:
    """Yield the states of a fit, one for each evaluation; the last one says how it ended."""
    state = initial_state(search, start.theta, evaluate(start), options)
    yield state
    yield from iterate_from(search, evaluate, state, options)


def iterate_from(
    search: Search, evaluate: Evaluate, state: State, options: SolverOptions
) -> Iterator[State]:
    while state.outcome is Outcome.RUNNING:
        trial = next_trial(search, state)
        state = _next_state(search, state, trial, evaluate(trial), options)
        yield state


def iterate_below(
    search: Search, evaluate: Evaluate, end: State, trial: Trial, options: SolverOptions
) -> Iterator[State]:
    """Yield the states of a fit that has ended, from a trial of lower χ²; none where it is not."""
    fixed = replace(search, free=np.zeros_like(search.free), smoothness=None)
    *_, last = iterate(fixed, evaluate, trial, options)  # one, but under a loss
    penalty, variance = end.reduced.penalty, residual_variance(search, end.reduced)
    lower = penalized(search, trial.theta, last.reduced, penalty and penalty.strengths)
    near = max(end.reduced.rounding, options.decrement**2 * variance)
    if not lower.finite or end.reduced.chisqr - lower.chisqr <= near:
        return
    start = initial_state(search, trial.theta, last.reduced, options)
    state = with_outcome(search, replace(start, passes=end.passes + 1), options)
    yield state
    yield from iterate_from(search, evaluate, state, options)


def iterate_several(
    search: Search,
    evaluate: Callable[[Sequence[Trial]], Sequence[ReducedProblem]],
    states: Sequence[State],
    options: SolverOptions,
) -> Iterator[list[State]]:
    """Yield the states of several fits after each joint evaluation, until all of them have ended."""
    states = list(states)
    while running := [n for n, state in enumerate(states) if state.outcome is Outcome.RUNNING]:
        trials = [next_trial(search, states[n]) for n in running]
        for n, trial, reduced in zip(running, trials, evaluate(trials), strict=True):
            states[n] = _next_state(search, states[n], trial, reduced, options)
        yield list(states)


def _next_state(
    search: Search, state: State, trial: Trial, evaluated: ReducedProblem, options: SolverOptions
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


def _after_move(search: Search, before: State, state: State, options: SolverOptions) -> State:
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
    with_term = replace(state, reduced=reduced)

    def damped(gradient: Theta, free: Which) -> np.ndarray:
        directions = with_term.directions(search, free, gradient)
        return state.control.step(reduced.hessian, gradient, free, directions)

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
    search: Search, state: State, theta: Theta, following: ReducedProblem
) -> ThetaMatrix | None:
    """Return S; None where directions are undetermined, after a step to or from a bound, and under a loss."""
    far = state.second_order_term is None and state.lowest.decrement > MAX_DECREMENT
    if far or following.linear_step is not None or not following.finite:
        return state.second_order_term
    if not state.directions(search, state.movable(search)).determined.all():
        return None
    inside = search.free_inside_bounds(state.theta) == search.free_inside_bounds(theta)
    if not inside.all():
        return None
    step = shortest(theta - state.theta, search.period)
    hessian = with_second_order_term(search, state).hessian
    change = state.reduced.gradient - following.gradient
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
    search: Search, state: State, trial: Trial, reduced: ReducedProblem, options: SolverOptions
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
    had_term, S = state.second_order_term is not None, None
    if had_term or poor:
        S = second_order_term_after(search, state, result.trial.theta, result.reduced)
    only_missing = S is not None and not had_term
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
    search: Search, state: State, options: SolverOptions, before: State | None = None
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
    search: Search, state: State, directions: Eigendirections, options: SolverOptions
) -> Outcome:
    if not state.accepted and state.control.exhausted(state.theta):
        return Outcome.STALLED
    reduced = state.reduced
    decrement = options.decrement * (1.0 if reduced.penalty is None else SMOOTHED)
    least = max(decrement, reduced.decrement_rounding(residual_variance(search, reduced)))
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
