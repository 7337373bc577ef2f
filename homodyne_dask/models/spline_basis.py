"""The spline basis of rates of free form, and the penalty on second differences of its coefficients.

Eilers and Marx (1996), "Flexible smoothing with B-splines and penalties".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

DEFAULT_KNOTS = 20
"""Coefficients of a free form, where nobody says how many."""
MIN_KNOTS = 4
"""Of one cubic piece."""
_DIFFERENCE, _PER_DIFFERENCE = 8, 1 / 1000
"""Error of the splines nearest to a sharp bend over the eighth differences of their coefficients: of those
around kinks and ramps 85 to 91 % were below twice that. Fourth differences told kinks as well, but of sines
of 2 to 4 periods in a record 10 times their error or more; eighth ones tell 0.2 to 1.7 times that."""


@dataclass(frozen=True)
class SplineForm:
    """A rate Σ c_k B_k(t), the B_k cubic B-splines at equal distances that sum to 1.

    Before `first` and after `last` it is constant.
    """

    size: int = DEFAULT_KNOTS
    """Number of coefficients."""
    first: float = 0.0
    """s."""
    last: float = 1.0
    """s."""

    @property
    def step(self) -> float:
        """From one spline to the next [s]."""
        return (self.last - self.first) / (self.size - 3)

    @property
    def centres(self) -> Float[np.ndarray, " size"]:
        """Where each spline has its maximum [s]; the first is before `first`, and the last after `last`."""
        return self.first + (np.arange(self.size) - 1) * self.step

    @property
    def ages(self) -> Float[np.ndarray, " size-2"]:
        """The time of each second difference of the coefficients over `last`, above 0."""
        return np.maximum(self.centres[1:-1], self.step / 2) / self.last

    def basis(self, t: Any) -> Any:
        """Return the splines at times [s], (size, n), of NumPy or JAX as t is."""
        xp = t.__array_namespace__()
        away = xp.abs((xp.clip(t, self.first, self.last) - self.centres[:, None]) / self.step)
        inner = 2 / 3 - away**2 + away**3 / 2
        return xp.where(away < 1, inner, xp.maximum(2 - away, 0.0) ** 3 / 6)

    def at(
        self, t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " size"], floor: float | None
    ) -> Float[np.ndarray, "1+size n"]:
        """Return the rate, not below the floor, and the splines: its derivatives by the coefficients."""
        xp = theta.__array_namespace__()
        basis = xp.asarray(self.basis(t))
        rate = theta @ basis
        rate = rate if floor is None else xp.maximum(rate, floor)
        return xp.concatenate([rate[None], basis])

    def projected(
        self, t: Float[np.ndarray, " n"], rate: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " size"]:
        """Return the coefficients nearest to the values of a rate at times [s], as smooth as that allows."""
        basis = self.basis(t)
        normal = basis @ basis.T
        D = np.diff(np.eye(self.size), 2, axis=0)  # 0 of coefficients on a straight line
        smooth = 1e-3 * np.trace(normal) / self.size * (D.T @ D)
        return np.linalg.solve(normal + smooth, basis @ rate)


def basis_error(coefficients: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
    """Return by how much a rate differs from its splines around each, one standard deviation.

    It is what a bend sharper than their distance leaves, and is told by the roughness of the coefficients.
    """
    size = len(coefficients)
    if size <= _DIFFERENCE:
        return np.zeros(size)
    rough = np.abs(np.diff(coefficients, _DIFFERENCE))
    return _PER_DIFFERENCE * np.pad(rough, _DIFFERENCE // 2, "edge")


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
        for S, (at, weight) in zip(found, self._weights(exponents), strict=True):
            D = weight[:, None] * np.diff(np.eye(at.stop - at.start), 2, axis=0)
            S[at, at] = D.T @ D
        return found

    def penalties(
        self, theta: Float[np.ndarray, " p"], exponents: Float[np.ndarray, " rate"]
    ) -> Float[np.ndarray, " rate"]:
        """Return thetaᵀ S theta of each rate, to rounding of the differences."""
        weighted = (w * np.diff(theta[at], 2) for at, w in self._weights(exponents))
        return np.array([d @ d for d in weighted])

    def slope(
        self,
        strengths: Float[np.ndarray, " rate"],
        exponents: Float[np.ndarray, " rate"],
        theta: Float[np.ndarray, " p"],
    ) -> Float[np.ndarray, " p"]:
        """Return Σ λ S theta, to rounding of the differences."""
        found = np.zeros_like(theta)
        for strength, (at, weight) in zip(strengths, self._weights(exponents), strict=True):
            d = weight * np.diff(theta[at], 2)
            found[at] = strength * np.convolve(weight * d, [1, -2, 1])
        return found

    def _weights(
        self, exponents: Float[np.ndarray, " rate"]
    ) -> list[tuple[slice, Float[np.ndarray, " size-2"]]]:
        """Return the place of the coefficients of each rate, and the weight of each second difference."""
        each = zip(self.places.items(), exponents, strict=True)
        return [(at, self.ages[name] ** exponent) for (name, at), exponent in each]

    def rounding(
        self,
        strengths: Float[np.ndarray, " rate"],
        exponents: Float[np.ndarray, " rate"],
        theta: Float[np.ndarray, " p"],
    ) -> float:
        """Return the accuracy of Σ λ thetaᵀ S theta."""
        sizes = [
            np.abs(weight * np.diff(theta[at], 2)).sum() * np.abs(theta[at]).max()
            for at, weight in self._weights(exponents)
        ]
        return 8 * float(np.finfo(float).eps * (strengths @ np.array(sizes)))
