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
    ages: Mapping[str, Float[np.ndarray, " size-2"]]
    """Time of each second difference of the coefficients, over that of the end of the record."""
    given: Mapping[str, float]
    """Strengths λ that a user gave, by rate; the others are chosen from the data."""
    clusters: Int[np.ndarray, " bin"]
    """A number per bin; bins that see the same speckle share one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The rates of free form."""
        return tuple(self.places)

    def matrices(
        self, p: int, exponents: Float[np.ndarray, " rate"]
    ) -> Float[np.ndarray, "rate p p"]:
        """Return S of each rate, over p parameters: its penalty is λ thetaᵀ S theta.

        exponents: each second difference is weighted by its age to that power.
        """
        found = np.zeros((len(self.places), p, p))
        each = zip(found, self.places.values(), self._weights(exponents), strict=True)
        for S, at, weight in each:
            D = weight[:, None] * np.diff(np.eye(at.stop - at.start), 2, axis=0)
            S[at, at] = D.T @ D
        return found

    def penalties(
        self, theta: Float[np.ndarray, " p"], exponents: Float[np.ndarray, " rate"]
    ) -> Float[np.ndarray, " rate"]:
        """Return thetaᵀ S theta of each rate, to rounding of the differences."""
        return np.array([d @ d for d in self._differences(theta, exponents)])

    def slope(
        self,
        strengths: Float[np.ndarray, " rate"],
        exponents: Float[np.ndarray, " rate"],
        theta: Float[np.ndarray, " p"],
    ) -> Float[np.ndarray, " p"]:
        """Return Σ λ S theta, to rounding of the differences."""
        found = np.zeros_like(theta)
        weights, differences = self._weights(exponents), self._differences(theta, exponents)
        for strength, at, weight, d in zip(
            strengths, self.places.values(), weights, differences, strict=True
        ):
            found[at] = strength * np.convolve(weight * d, [1, -2, 1])
        return found

    def _weights(self, exponents: Float[np.ndarray, " rate"]) -> list[Float[np.ndarray, " size-2"]]:
        each = zip(self.places, exponents, strict=True)
        return [self.ages[name] ** exponent for name, exponent in each]

    def _differences(
        self, theta: Float[np.ndarray, " p"], exponents: Float[np.ndarray, " rate"]
    ) -> list[Float[np.ndarray, " size-2"]]:
        """Return the weighted second differences of the coefficients of each rate."""
        each = zip(self.places.values(), self._weights(exponents), strict=True)
        return [weight * np.diff(theta[at], 2) for at, weight in each]

    def rounding(
        self,
        strengths: Float[np.ndarray, " rate"],
        exponents: Float[np.ndarray, " rate"],
        theta: Float[np.ndarray, " p"],
    ) -> float:
        """Return the accuracy of Σ λ thetaᵀ S theta."""
        each = zip(self._differences(theta, exponents), self.places.values(), strict=True)
        sizes = [np.abs(d).sum() * np.abs(theta[at]).max() for d, at in each]
        return 8 * float(np.finfo(float).eps * (strengths @ np.array(sizes)))


def second_differences(size: int) -> Float[np.ndarray, "size size"]:
    """Return DᵀD, D the second differences: cᵀDᵀDc is 0 where coefficients are on a straight line."""
    D = np.diff(np.eye(size), 2, axis=0)
    return D.T @ D
