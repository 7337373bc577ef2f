"""Eigenvectors of the scaled Hessian as directions in parameter space, and which the data determine."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.normal_matrix import Eigensystem
from homodyne_dask.solver.reduced_problem import ReducedProblem


class Eigendirections(NamedTuple):
    """Eigenvectors of the Hessian of some parameters, scaled to unit diagonal."""

    values: Float[np.ndarray, " m"]
    """Their eigenvalues, the smallest first."""
    vectors: Float[np.ndarray, "m m"]
    along: Float[np.ndarray, " m"]
    """The scaled gradient along each."""
    determined: Bool[np.ndarray, " m"]
    size: Float[np.ndarray, " m"]
    """theta = scaled theta / size."""

    @property
    def reduction(self) -> float:
        """gᵀH⁻¹g: how much lower χ² is at the optimum of the quadratic model."""
        known = self.determined
        return float((self.along**2)[known] @ (1 / self.values[known]))

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of a determined direction, at most 1."""
        return float(self.values[self.determined].min(initial=1.0))

    def without_valley(self) -> "Eigendirections":
        """Return these, the direction of the longest step to the optimum and flatter ones not determined."""
        known = self.determined
        lengths = np.where(known, np.abs(self.along) / np.where(known, self.values, 1.0), 0.0)
        return self._replace(determined=known & (self.values > self.values[lengths.argmax()]))

    def without_unbounded(
        self, scales: Float[np.ndarray, " m"], variance: float
    ) -> "Eigendirections":
        """Return these, those whose error exceeds the scale of a parameter not determined.

        Along these one standard error changes a parameter by more than its scale, and the optimum is within
        three standard errors. scales: `parameter_scales`. variance: of a residual.
        """
        values = np.where(self.determined, self.values, 1.0)
        errors = np.abs(self.vectors) * np.sqrt(variance / values)
        exceeds = (errors > (scales * self.size)[:, None]).any(axis=0)
        near_optimum = self.along**2 <= 9 * variance * values
        return self._replace(determined=self.determined & ~(exceeds & near_optimum))

    def parameters_determined(self) -> Bool[np.ndarray, " m"]:
        """Return the parameters whose variance is mostly that along determined directions."""
        known = self.determined
        variances = self.vectors**2 / np.maximum(self.values, np.finfo(float).eps)
        return variances[:, known].sum(1) > variances[:, ~known].sum(1)

    def step(self, damping: float) -> Float[np.ndarray, " m"]:
        """Return the Gauss-Newton step along the determined directions, with Marquardt's damping."""
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(self.determined, self.along / (self.values + damping), 0.0)
        return self.vectors @ scaled / self.size


def movable(
    search: Search, theta: Float[np.ndarray, " p"], gradient: Float[np.ndarray, " p"]
) -> Bool[np.ndarray, " p"]:
    """Return which parameters may move: not fixed, and no active bound."""
    active = (theta <= search.lower) & (gradient < 0) | (theta >= search.upper) & (gradient > 0)
    return search.free & ~(active & ~np.isfinite(search.period))


def bounded_step(
    search: Search,
    theta: Float[np.ndarray, " p"],
    hessian: Float[np.ndarray, "p p"],
    gradient: Float[np.ndarray, " p"],
    solve: Callable[[Float[np.ndarray, " p"], Bool[np.ndarray, " p"]], Float[np.ndarray, " m"]],
) -> tuple[Float[np.ndarray, " p"], Bool[np.ndarray, " p"]]:
    """Return a step from theta inside the bounds, and the parameters that do not stop at one.

    solve: returns the step of some parameters for a gradient. Those that would pass a bound stop there, and
    the others are solved again.
    """
    free, step = movable(search, theta, gradient), np.zeros_like(theta)
    low, high = search.lower - theta, search.upper - theta
    while free.any():
        step[free] = solve(gradient - hessian @ np.where(free, 0.0, step), free)
        past = free & ~np.isfinite(search.period) & ((step < low) | (step > high))
        if not past.any():
            break
        step = np.where(past, np.clip(step, low, high), step)
        free = free & ~past
    return step, free


def directions_of(
    reduced: ReducedProblem,
    which: Bool[np.ndarray, " p"],
    gradient: Float[np.ndarray, " p"] | None = None,
) -> Eigendirections:
    """Return the directions of some parameters; gradient: another one than that of the problem."""
    H = reduced.hessian[np.ix_(which, which)]
    diagonal = np.diag(H)
    rounding = reduced.relative_hessian_rounding[which]
    absent = ~(rounding < 1)
    size = np.sqrt(np.where(absent, 1.0, diagonal))
    matrix = H / size[:, None] / size[None, :]
    matrix[absent, :] = matrix[:, absent] = 0.0
    scaled = Eigensystem(*np.linalg.eigh(matrix), size)
    right = (reduced.gradient if gradient is None else gradient)[which]
    along = scaled.vectors.T @ (right / size * ~absent)
    known = scaled.above_rounding(np.where(absent, 0.0, rounding))
    return Eigendirections(scaled.values, scaled.vectors, along, known, size)


def parameter_scales(search: Search, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """Return by how much parameters may differ: the value of log-scaled ones, else the width of bounds."""
    return np.where(search.log, np.abs(theta), search.upper - search.lower)
