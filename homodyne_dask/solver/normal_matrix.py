"""The algebra of normal matrices: symmetric, positive semidefinite, of parameters in any units.

All of it is that of the matrix of unit diagonal, H / (s sᵀ) with s the roots of the diagonal of H: what is
rounding then does not depend on units. A matrix that is not finite has an inverse that is not finite and no
determined parameter, or raises numpy.linalg.LinAlgError.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.array_shapes import (
    Matrix,
    Moved,
    MovedMatrix,
    Theta,
    ThetaMatrix,
    Vector,
    Which,
)
from homodyne_dask.solver.reduce import ReducedProblem

SINGULAR = 1e-14
"""Eigenvalue at unit diagonal below which it is rounding, however accurate the sums: that of float64."""
SINGULAR_REST = 1e-13
"""The same where most of a matrix was subtracted: that of all bins without one, or of some of its columns."""
SINGULAR_OF_MEANS = 1e-10
"""The same of averages over cells and their noise, and of what is only predicted or starts a search."""
INVOLVED = 1e-6
"""Component of a parameter in a null direction, from which on it is not determined: less is rounding."""


def sizes(normal: Matrix) -> Vector:
    diagonal = np.diagonal(normal, axis1=-2, axis2=-1)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


class Eigensystem(NamedTuple):
    values: Vector
    """The smallest first; their sum is n, but for rows of zeros."""
    vectors: Matrix
    size: Vector
    """A parameter is its scaled value over this."""

    @property
    def positive(self) -> Vector:
        return np.maximum(self.values, SINGULAR)

    @property
    def inverse(self) -> Matrix:
        return (self.vectors / self.positive) @ self.vectors.T / np.outer(self.size, self.size)

    @property
    def inverse_root(self) -> Matrix:
        return self.vectors / np.sqrt(self.positive) / self.size[:, None]

    def above(self, singular: float) -> Bool[np.ndarray, " n"]:
        """Return which eigenvalues are more than this share of the largest: the rank is their number."""
        return self.values > singular * self.values.max(-1, initial=0.0, keepdims=True)

    def above_rounding(self, relative_rounding: Vector) -> Bool[np.ndarray, " n"]:
        """Return which eigenvalues are more than rounding; relative_rounding: of the diagonal, over it."""
        largest = len(self.values)  # no eigenvalue is more
        rounding = np.sqrt(np.minimum(relative_rounding, largest)) @ np.abs(self.vectors)
        return self.values > np.maximum(SINGULAR, rounding**2)

    def determined(self, singular: float) -> Bool[np.ndarray, " n"]:
        """Return which parameters have no part in a null direction."""
        null = ~self.above(singular)[..., None, :]
        return np.where(null, np.abs(self.vectors), 0.0).max(axis=-1, initial=0.0) < INVOLVED

    def pseudoinverse(self, singular: float) -> Matrix:
        inverted = self.above(singular) | np.isnan(self.values)
        values, size = np.where(inverted, self.values, np.inf), self.size
        inverse = self.vectors / values[..., None, :] @ np.swapaxes(self.vectors, -1, -2)
        return inverse / (size[..., :, None] * size[..., None, :])


def eigensystem(normal: Matrix, size: Vector | None = None) -> Eigensystem:
    """Return eigenvalues and eigenvectors at unit diagonal; size: another scale than `sizes`, positive."""
    size = sizes(normal) if size is None else size
    with np.errstate(invalid="ignore"):
        scaled = normal / (size[..., :, None] * size[..., None, :])
    return Eigensystem(*np.linalg.eigh(scaled), size)


def inverse_of(normal: Matrix) -> Matrix:
    """Return the inverse; eigenvalues at unit diagonal count as no less than SINGULAR."""
    return eigensystem(normal).inverse


def pseudoinverse(normal: Matrix, singular: float = SINGULAR_OF_MEANS) -> Matrix:
    """Return the inverse in the space without null directions, 0 along these; also of several at once."""
    return eigensystem(normal).pseudoinverse(singular)


def solved(normal: Matrix, right: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
    """Return the inverse times right-hand sides; SINGULAR is added to the diagonal at unit diagonal."""
    size = sizes(normal)
    scaled = normal / np.outer(size, size) + SINGULAR * np.eye(len(normal))
    across = size.reshape((-1,) + (1,) * (right.ndim - 1))
    return np.linalg.solve(scaled, right / across) / across


def root_of(matrix: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


class Eigendirections(NamedTuple):
    values: Moved
    vectors: MovedMatrix
    along: Moved
    determined: Bool[np.ndarray, " m"]
    size: Moved
    """theta = scaled theta / size."""

    @property
    def reduction(self) -> float:
        """gᵀH⁻¹g: how much lower χ² is at the optimum of the quadratic model."""
        determined = self.determined
        return float((self.along**2)[determined] @ (1 / self.values[determined]))

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of a determined direction, at most 1."""
        return float(self.values[self.determined].min(initial=1.0))

    def without_valley(self) -> "Eigendirections":
        """Return these, the direction of the longest step to the optimum and flatter ones not determined."""
        determined = self.determined
        values = np.where(determined, self.values, 1.0)
        lengths = np.where(determined, np.abs(self.along) / values, 0.0)
        return self._replace(determined=determined & (self.values > self.values[lengths.argmax()]))

    def without_unbounded(self, scales: Moved, variance: float) -> "Eigendirections":
        """Return these, not determined along which an error near the optimum exceeds a scale."""
        values = np.where(self.determined, self.values, 1.0)
        errors = np.abs(self.vectors) * np.sqrt(variance / values)
        exceeds = (errors > (scales * self.size)[:, None]).any(axis=0)
        near_optimum = self.along**2 <= 9 * variance * values
        return self._replace(determined=self.determined & ~(exceeds & near_optimum))

    def parameters_determined(self) -> Bool[np.ndarray, " m"]:
        """Return the parameters whose variance is mostly that along determined directions."""
        variances = self.vectors**2 / np.maximum(self.values, np.finfo(float).eps)
        return variances[:, self.determined].sum(1) > variances[:, ~self.determined].sum(1)

    def step(self, damping: float) -> Moved:
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(self.determined, self.along / (self.values + damping), 0.0)
        return self.vectors @ scaled / self.size


def movable(search: Search, theta: Theta, gradient: Theta) -> Which:
    active = (theta <= search.lower) & (gradient < 0) | (theta >= search.upper) & (gradient > 0)
    return search.free & ~(active & ~np.isfinite(search.period))


def bounded_step(
    search: Search,
    theta: Theta,
    hessian: ThetaMatrix,
    gradient: Theta,
    solve: Callable[[Theta, Which], Moved],
) -> tuple[Theta, Which]:
    """Return a step inside the bounds, and what does not stop at one; solve: the step of some parameters."""
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
    reduced: ReducedProblem, which: Which, gradient: Theta | None = None
) -> Eigendirections:
    H = reduced.hessian[np.ix_(which, which)]
    diagonal = np.diag(H)
    rounding = reduced.relative_hessian_rounding[which]
    absent = ~(rounding < 1)
    size = np.sqrt(np.where(absent, 1.0, diagonal))
    matrix = H / size[:, None] / size[None, :]
    matrix[absent, :] = matrix[:, absent] = 0.0
    scaled = Eigensystem(*np.linalg.eigh(matrix), size)
    gradient_of_which = (reduced.gradient if gradient is None else gradient)[which]
    along = scaled.vectors.T @ (gradient_of_which / size * ~absent)
    determined = scaled.above_rounding(np.where(absent, 0.0, rounding))
    return Eigendirections(scaled.values, scaled.vectors, along, determined, size)


def parameter_scales(search: Search, theta: Theta) -> Theta:
    """Return by how much parameters may differ: the value of log-scaled ones, else the width of bounds."""
    return np.where(search.log, np.abs(theta), search.upper - search.lower)
