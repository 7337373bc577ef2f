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
    stiffness: Mapping[str, Float[np.ndarray, " size-2"]]
    """Weight of each second difference of the coefficients."""
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
        for S, (name, at) in zip(found, self.places.items(), strict=True):
            D = self.stiffness[name][:, None] * np.diff(np.eye(at.stop - at.start), 2, axis=0)
            S[at, at] = D.T @ D
        return found

    def penalties(self, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " rate"]:
        """Return thetaᵀ S theta of each rate, to rounding of the differences."""
        return np.array([d @ d for d in self._differences(theta)])

    def slope(
        self, strengths: Float[np.ndarray, " rate"], theta: Float[np.ndarray, " p"]
    ) -> Float[np.ndarray, " p"]:
        """Return Σ λ S theta, to rounding of the differences."""
        found = np.zeros_like(theta)
        each = zip(strengths, self.places.items(), self._differences(theta), strict=True)
        for strength, (name, at), d in each:
            found[at] = strength * np.convolve(self.stiffness[name] * d, [1, -2, 1])
        return found

    def _differences(self, theta: Float[np.ndarray, " p"]) -> list[Float[np.ndarray, " size-2"]]:
        """Return the weighted second differences of the coefficients of each rate."""
        return [self.stiffness[name] * np.diff(theta[at], 2) for name, at in self.places.items()]

    def rounding(
        self, strengths: Float[np.ndarray, " rate"], theta: Float[np.ndarray, " p"]
    ) -> float:
        """Return the accuracy of Σ λ thetaᵀ S theta."""
        sizes = [
            np.abs(d).sum() * np.abs(theta[at]).max()
            for d, at in zip(self._differences(theta), self.places.values(), strict=True)
        ]
        return 8 * float(np.finfo(float).eps * (strengths @ np.array(sizes)))


def second_differences(size: int) -> Float[np.ndarray, "size size"]:
    """Return DᵀD, D the second differences: cᵀDᵀDc is 0 where coefficients are on a straight line."""
    D = np.diff(np.eye(size), 2, axis=0)
    return D.T @ D
