"""What limits the steps of a fit: Marquardt's damping, or a trust region for starts far from the optimum.

Each is a value that gives the step, says whether a trial is accepted, and returns its successor.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.solver.eigendirections import Eigendirections
from homodyne_dask.solver.normal_matrix import eigensystem
from homodyne_dask.solver.reduced_problem import ReducedProblem

GOOD_RATIO, POOR_RATIO, MIN_RATIO = 0.75, 0.25, 1e-4
"""Actual over predicted reduction: from here on damping falls and the radius may grow; below this the radius
shrinks; below this a step in a trust region is rejected."""
MAX_DAMPING = 1e12
"""Damping above which a fit has stalled."""
MAX_DAMPING_OF_RISE = 1e-2
"""Damping up to which a step may raise χ² for a while: steps damped more are short enough to lower it."""
INITIAL_RADIUS = 100.0
"""Radius of the first step over the length of theta."""
_MAX_ITERATIONS = 60
_RADIUS_TOLERANCE = 0.01
"""Relative difference allowed between the length of a step and the radius."""


class StepResult(NamedTuple):
    """What a step to a trial did to χ²."""

    theta: Float[np.ndarray, " p"]
    """The trial."""
    reduced: ReducedProblem
    """The problem there."""
    step: Float[np.ndarray, " p"]
    reduction: float
    """How much lower χ² is than at the lowest point before; -inf where it is not finite."""
    predicted: float
    """The reduction that the quadratic model expected."""
    below_rounding: bool
    """Whether both the reduction and all that is possible are rounding."""
    possible: float
    """The reduction that is possible, at least the variance of a residual."""
    first: bool
    """Whether it is the first step of the fit."""
    after_failure: bool
    """Whether the step before it did not lower χ²."""

    @property
    def ratio(self) -> float:
        """Actual over predicted reduction; 1 where they are rounding."""
        if self.below_rounding or self.predicted <= 0:
            return 1.0
        return self.reduction / self.predicted


class Damping(NamedTuple):
    """Marquardt's damping (1963)."""

    damping: float
    """Relative to the Hessian's diagonal."""
    second_order: bool = True
    """Whether the second-order term is estimated after slow and failed steps."""

    def step(
        self,
        hessian: Float[np.ndarray, "p p"],
        gradient: Float[np.ndarray, " p"],
        free: Bool[np.ndarray, " p"],
        directions: Eigendirections,
    ) -> Float[np.ndarray, " m"]:
        """Return the damped Gauss-Newton step of the free parameters, from their directions."""
        return directions.step(self.damping)

    def accepts(self, result: StepResult) -> bool:
        """Return whether χ² fell."""
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

    def exhausted(self, theta: Float[np.ndarray, " p"]) -> bool:
        """Return whether the damping is too large for any step."""
        return self.damping > MAX_DAMPING


class TrustRegion(NamedTuple):
    """A trust region: steps are limited to where the quadratic model holds.

    Each parameter is scaled by the largest root of the Hessian's diagonal so far, which keeps it from
    drifting to where χ² does not depend on it. The radius grows and shrinks with the ratio of the actual to
    the predicted reduction of χ² (Moré 1978, as in MINPACK's lmder).
    """

    size: Float[np.ndarray, " p"]
    """Scale of each parameter: the largest root of the Hessian's diagonal so far."""
    radius: float
    """Largest length of a scaled step."""
    damping: float
    """That of the linear parameters' step."""
    second_order: bool = False
    """Whether the second-order term is estimated: it changes too much far from a minimum."""

    def length(self, step: Float[np.ndarray, " p"]) -> float:
        """Return the length of a scaled step."""
        return float(np.linalg.norm(self.size * step))

    def step(
        self,
        hessian: Float[np.ndarray, "p p"],
        gradient: Float[np.ndarray, " p"],
        free: Bool[np.ndarray, " p"],
        directions: Eigendirections,
    ) -> Float[np.ndarray, " m"]:
        """Return the Gauss-Newton step of the free parameters, or one damped to the radius."""
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
        """Return whether χ² fell by some of what was predicted."""
        return result.reduction > MIN_RATIO * max(result.predicted, 0.0)

    def allows_rise(self, result: StepResult) -> bool:
        """Return that χ² may not rise."""
        return False

    def after_accepted(self, result: StepResult) -> "TrustRegion":
        """Return the region with the next radius, and the scales updated by the Hessian there."""
        size = np.fmax(self.size, _roots(result.reduced.hessian))
        return self._replace(size=size, radius=self._next_radius(result))

    def after_rejected(self, result: StepResult, smallest: float) -> "TrustRegion":
        """Return the region with a smaller radius."""
        return self._replace(radius=self._next_radius(result))

    def _next_radius(self, result: StepResult) -> float:
        length, predicted = self.length(result.step), result.predicted
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

    def exhausted(self, theta: Float[np.ndarray, " p"]) -> bool:
        """Return whether the radius is rounding of theta."""
        return bool(self.radius <= np.finfo(float).eps * self.length(theta))


type StepControl = Damping | TrustRegion
"""What limits the next step."""


def trust_region_at(
    theta: Float[np.ndarray, " p"], hessian: Float[np.ndarray, "p p"], damping: float
) -> TrustRegion:
    """Return the region of the first step."""
    size = _roots(hessian)
    length = float(np.linalg.norm(size * theta))
    return TrustRegion(size, INITIAL_RADIUS * (length if length > 0 else 1.0), damping)


def _roots(hessian: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    return np.sqrt(np.maximum(np.diag(hessian), 0.0))
