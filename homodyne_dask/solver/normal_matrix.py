"""The algebra of normal matrices: symmetric, positive semidefinite, of parameters in any units.

All of it is that of the matrix of unit diagonal, H / (s sᵀ) with s the roots of the diagonal of H: what is
rounding then does not depend on units. A matrix that is not finite has an inverse that is not finite and no
determined parameter, or raises numpy.linalg.LinAlgError.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

SINGULAR = 1e-14
"""Eigenvalue at unit diagonal below which it is rounding, however accurate the sums: that of float64."""
SINGULAR_REST = 1e-13
"""The same where most of a matrix was subtracted: that of all bins without one, or of some of its columns."""
SINGULAR_OF_MEANS = 1e-10
"""The same of averages over cells and their noise, and of what is only predicted or starts a search."""
INVOLVED = 1e-6
"""Component of a parameter in a null direction, from which on it is not determined: less is rounding."""


def sizes(normal: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Return the roots of the diagonal; 1 where it is not positive."""
    diagonal = np.diag(normal)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


class Eigensystem(NamedTuple):
    """Eigenvalues and eigenvectors of a normal matrix that was scaled to unit diagonal."""

    values: Float[np.ndarray, " n"]
    """The smallest first; their sum is n, but for rows of zeros."""
    vectors: Float[np.ndarray, "n n"]
    """In columns."""
    size: Float[np.ndarray, " n"]
    """A parameter is its scaled value over this."""

    @property
    def positive(self) -> Float[np.ndarray, " n"]:
        """The eigenvalues, none of them less than rounding."""
        return np.maximum(self.values, SINGULAR)

    @property
    def inverse(self) -> Float[np.ndarray, "n n"]:
        """The inverse of the matrix, with `positive` eigenvalues."""
        return (self.vectors / self.positive) @ self.vectors.T / np.outer(self.size, self.size)

    @property
    def inverse_root(self) -> Float[np.ndarray, "n n"]:
        """R with R Rᵀ the inverse of the matrix."""
        return self.vectors / np.sqrt(self.positive) / self.size[:, None]

    def above(self, singular: float) -> Bool[np.ndarray, " n"]:
        """Return which eigenvalues are more than this share of the largest: the rank is their number."""
        return self.values > singular * self.values.max(initial=0.0)

    def above_rounding(self, relative_rounding: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Return which eigenvalues are more than rounding; relative_rounding: of the diagonal, over it."""
        largest = len(self.values)  # no eigenvalue is more
        rounding = np.sqrt(np.minimum(relative_rounding, largest)) @ np.abs(self.vectors)
        return self.values > np.maximum(SINGULAR, rounding**2)

    def determined(self, singular: float) -> Bool[np.ndarray, " n"]:
        """Return which parameters have no part in a null direction."""
        null = ~self.above(singular)
        return np.abs(self.vectors[:, null]).max(axis=1, initial=0.0) < INVOLVED

    def pseudoinverse(self, singular: float) -> Float[np.ndarray, "n n"]:
        """Return the inverse in the space without null directions, 0 along these."""
        kept = self.above(singular) | np.isnan(self.values)
        values = np.where(kept, self.values, np.inf)
        return self.vectors / values @ self.vectors.T / np.outer(self.size, self.size)


def eigensystem(
    normal: Float[np.ndarray, "n n"], size: Float[np.ndarray, " n"] | None = None
) -> Eigensystem:
    """Return eigenvalues and eigenvectors at unit diagonal; size: another scale than `sizes`, positive."""
    size = sizes(normal) if size is None else size
    with np.errstate(invalid="ignore"):
        scaled = normal / np.outer(size, size)
    return Eigensystem(*np.linalg.eigh(scaled), size)


def inverse_of(normal: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return the inverse; eigenvalues at unit diagonal count as no less than SINGULAR."""
    return eigensystem(normal).inverse


def pseudoinverse(
    normal: Float[np.ndarray, "n n"], singular: float = SINGULAR_OF_MEANS
) -> Float[np.ndarray, "n n"]:
    """Return the inverse in the space without null directions, 0 along these."""
    return eigensystem(normal).pseudoinverse(singular)


def solved(
    normal: Float[np.ndarray, "n n"], right: Float[np.ndarray, "n ..."]
) -> Float[np.ndarray, "n ..."]:
    """Return the inverse times right-hand sides; SINGULAR is added to the diagonal at unit diagonal."""
    size = sizes(normal)
    scaled = normal / np.outer(size, size) + SINGULAR * np.eye(len(normal))
    across = size.reshape((-1,) + (1,) * (right.ndim - 1))
    return np.linalg.solve(scaled, right / across) / across


def root_of(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return R with R Rᵀ a positive semidefinite matrix, such as a covariance."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))
