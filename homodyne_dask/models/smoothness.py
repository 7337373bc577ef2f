"""Smoothness of rates of free form: the penalty on second differences of their coefficients."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Smoothness:
    """Which parameters are coefficients of rates of free form, and how smooth these are to be."""

    places: Mapping[str, slice]
    """Of the coefficients of each rate in theta."""
    given: Mapping[str, float]
    """Strengths λ that a user gave, by rate; the others are chosen from the data."""
    clusters: Int[np.ndarray, " bin"]
    """A number per bin; bins that see the same speckle share one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The rates of free form."""
        return tuple(self.places)

    def matrices(self, p: int) -> Float[np.ndarray, "rate p p"]:
        """Return S of each rate, over p parameters: its penalty is λ thetaᵀ S theta."""
        found = np.zeros((len(self.places), p, p))
        for S, at in zip(found, self.places.values(), strict=True):
            S[at, at] = second_differences(at.stop - at.start)
        return found

    def penalties(self, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " rate"]:
        """Return thetaᵀ S theta of each rate, to rounding of the differences."""
        return np.array([(np.diff(theta[at], 2) ** 2).sum() for at in self.places.values()])

    def slope(
        self, strengths: Float[np.ndarray, " rate"], theta: Float[np.ndarray, " p"]
    ) -> Float[np.ndarray, " p"]:
        """Return Σ λ S theta, to rounding of the differences."""
        found = np.zeros_like(theta)
        for strength, at in zip(strengths, self.places.values(), strict=True):
            found[at] = strength * np.convolve(np.diff(theta[at], 2), [1, -2, 1])
        return found

    def rounding(
        self, strengths: Float[np.ndarray, " rate"], theta: Float[np.ndarray, " p"]
    ) -> float:
        """Return the accuracy of Σ λ thetaᵀ S theta."""
        sizes = [
            np.abs(np.diff(theta[at], 2)).sum() * np.abs(theta[at]).max()
            for at in self.places.values()
        ]
        return 8 * float(np.finfo(float).eps * (strengths @ np.array(sizes)))


def second_differences(size: int) -> Float[np.ndarray, "size size"]:
    """Return DᵀD, D the second differences: cᵀDᵀDc is 0 where coefficients are on a straight line."""
    D = np.diff(np.eye(size), 2, axis=0)
    return D.T @ D
