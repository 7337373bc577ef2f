"""States and outcomes of a fit, what limits its steps (damping or trust region), and states as plain data."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import Search
from homodyne_dask.read_only import make_read_only
from homodyne_dask.solver.array_shapes import LinearParams, Moved, Theta, ThetaMatrix, Which
from homodyne_dask.solver.normal_matrix import (
    Eigendirections,
    directions_of,
    eigensystem,
    movable,
    parameter_scales,
)
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import ReducedProblem, Strengths, reduce
from homodyne_dask.solver.scaling_modes import Scaling

GOOD_RATIO, POOR_RATIO, MIN_RATIO = 0.75, 0.25, 1e-4
"""Actual over predicted reduction: from here on damping falls and the radius may grow; below this the radius
shrinks; below this a step in a trust region is rejected."""
MAX_DAMPING = 1e12
MAX_DAMPING_OF_RISE = 1e-2
"""Damping up to which a step may raise χ² for a while: steps damped more are short enough to lower it."""
INITIAL_RADIUS = 100.0
"""Radius of the first step over the length of theta."""
_MAX_ITERATIONS = 60
_RADIUS_TOLERANCE = 0.01
"""Relative difference allowed between the length of a step and the radius."""


class StepResult(NamedTuple):
    trial: "Trial"
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


Number = Annotated[float, Field(ge=-1e100, le=1e100)]
"""One whose square is a number, too."""
MIN_REJECTED_STEPS = 3
"""Rejected steps after which directions whose error exceeds every scale count as undetermined."""


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
class Options:
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


class SavedState(NamedTuple):
    theta: list[Number]
    damping: Number
    accepted: bool
    gram: Gram
    nonmonotone_steps: int = 0
    rejected_steps: int = 0
    slow_steps: int = 0
    linear_params: list[list[Number]] | None = None
    trust_region: tuple[list[Number], Number] | None = None
    strengths: list[list[Number]] | None = None
    secant: list[list[Number]] | None = None


@dataclass(frozen=True)
class State:
    """The state of a fit after a pass; the last one has the outcome. Its arrays are read-only."""

    theta: Theta
    reduced: ReducedProblem
    control: StepControl
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial had the lowest χ² so far."""
    best: "State | None" = None
    """The lowest state so far, while steps above it are being tried (`solver.levenberg_marquardt`)."""
    nonmonotone_steps: int = 0
    rejected_steps: int = 0
    slow_steps: int = 0
    """Accepted steps in a row that hardly came closer to an optimum less than a standard error away."""
    second_order_term: ThetaMatrix | None = None
    """S, what the Hessian has beside that of Gauss and Newton, once steps have failed or were slow."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: estimated distance to the minimum in standard errors."""

    def __post_init__(self) -> None:
        make_read_only(self)  # users and callbacks have it while the fit goes on

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

    def saved(self) -> SavedState:
        reduced, S, penalty = self.reduced, self.second_order_term, self.reduced.penalty
        control, region = self.control, None
        if isinstance(control, TrustRegion):
            region = control.size.tolist(), control.radius
        return SavedState(
            self.theta.tolist(), self.damping, self.accepted, reduced.gram,
            self.nonmonotone_steps, self.rejected_steps, self.slow_steps,
            None if reduced.linear_step is None else reduced.linear_params.tolist(),
            region,
            penalty and [each.tolist() for each in penalty.strengths],
            None if S is None else S.tolist(),
        )  # fmt: skip

    @classmethod
    def restored(
        cls,
        saved: SavedState,
        search: Search,
        scaling: Scaling,
        sum_rounding: float,
        passes: int,
        best: Self | None = None,
    ) -> Self:
        """Return the state that was saved, without its decrement and outcome; best: another lowest state."""
        theta, S = np.array(saved.theta), saved.secant
        linear_params = None if saved.linear_params is None else np.array(saved.linear_params)
        prior = search.prior_terms(theta)
        reduced = reduce(saved.gram, scaling, sum_rounding, prior, linear_params)
        if saved.strengths is not None:
            strengths = Strengths(*map(np.array, saved.strengths))
            reduced = penalized(search, theta, reduced, strengths)
        control: StepControl = Damping(saved.damping)
        if saved.trust_region is not None:
            size, radius = saved.trust_region
            control = TrustRegion(np.array(size), radius, saved.damping)
        return cls(
            theta, reduced, control, passes=passes,
            accepted=saved.accepted, best=best, nonmonotone_steps=saved.nonmonotone_steps,
            rejected_steps=saved.rejected_steps, slow_steps=saved.slow_steps,
            second_order_term=None if S is None else np.array(S),
        )  # fmt: skip
