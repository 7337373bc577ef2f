"""A trust region: steps limited to where the quadratic model holds, for starts far from the optimum.

Each parameter is scaled by the largest root of the Hessian's diagonal so far, which keeps it from
drifting to where χ² does not depend on it. The radius grows and shrinks with the ratio of the actual to the
predicted reduction of χ² (Moré 1978, as in MINPACK's lmder).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

INITIAL_RADIUS = 100.0
"""Radius of the first step over the length of theta."""
GOOD_RATIO, POOR_RATIO, MIN_RATIO = 0.75, 0.25, 1e-4
"""Actual over predicted reduction: from here on the radius may grow; below this it shrinks; below this
the step is rejected."""
_MAX_ITERATIONS = 60
_RADIUS_TOLERANCE = 0.01
"""Relative difference allowed between the length of a step and the radius."""


class TrustRegion(NamedTuple):
    """Limit of the length of the next step."""

    size: Float[np.ndarray, " p"]
    """Scale of each parameter: the largest root of the Hessian's diagonal so far."""
    radius: float
    """Largest length of a scaled step."""

    def length(self, step: Float[np.ndarray, " p"]) -> float:
        """Return the length of a scaled step."""
        return float(np.linalg.norm(self.size * step))

    def step(
        self,
        hessian: Float[np.ndarray, "p p"],
        gradient: Float[np.ndarray, " p"],
        free: Bool[np.ndarray, " p"],
    ) -> Float[np.ndarray, " m"]:
        """Return the Gauss-Newton step of the free parameters, or one damped to the radius."""
        size = np.where(self.size > 0, self.size, 1.0)[free]
        values, vectors = np.linalg.eigh(hessian[np.ix_(free, free)] / np.outer(size, size))
        values, along = np.maximum(values, 0.0), vectors.T @ (gradient[free] / size)
        damping = max(np.finfo(float).eps * values.max(), np.finfo(float).tiny)
        scaled = along / (values + damping)
        for _ in range(_MAX_ITERATIONS):
            length = np.linalg.norm(scaled)
            if not length > self.radius * (1 + _RADIUS_TOLERANCE):
                break
            slope = scaled @ (scaled / (values + damping))
            damping += length**2 / slope * (length / self.radius - 1)
            scaled = along / (values + damping)
        return vectors @ scaled / size

    def after(
        self, step: Float[np.ndarray, " p"], gain: float, predicted: float, first: bool
    ) -> "TrustRegion":
        """Return the region after a step that reduced χ² by `gain`."""
        length = self.length(step)
        radius = min(self.radius, length) if first else self.radius
        ratio = gain / predicted if predicted > 0 else 0.0
        if not ratio > POOR_RATIO:
            # the minimum of the parabola through both χ² and the slope
            share = 0.5 if gain >= 0 else np.clip(0.5 * predicted / (predicted - gain), 0.1, 0.5)
            return self._replace(radius=float(share * min(radius, length / 0.1)))
        free = length < radius * (1 - 2 * _RADIUS_TOLERANCE)
        return self._replace(radius=2 * length if ratio >= GOOD_RATIO or free else radius)

    def at(self, hessian: Float[np.ndarray, "p p"]) -> "TrustRegion":
        """Return the region with the scales updated by another Hessian."""
        return self._replace(size=np.fmax(self.size, _roots(hessian)))


def trust_region_at(
    theta: Float[np.ndarray, " p"], hessian: Float[np.ndarray, "p p"]
) -> TrustRegion:
    """Return the region of the first step."""
    size = _roots(hessian)
    length = float(np.linalg.norm(size * theta))
    return TrustRegion(size, INITIAL_RADIUS * (length if length > 0 else 1.0))


def _roots(hessian: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    return np.sqrt(np.maximum(np.diag(hessian), 0.0))
