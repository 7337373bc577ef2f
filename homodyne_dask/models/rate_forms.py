"""Forms of a rate of time: a t^b + c, or a free form of cubic B-splines.

Eilers and Marx (1996), "Flexible smoothing with B-splines and penalties", for the latter.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

DEFAULT_KNOTS = 20
"""Coefficients of a free form, where nobody says how many."""
MIN_KNOTS = 4
"""Of one cubic piece."""
LEAST_SCALE = 0.1
"""Of the root mean square of a rate: less of it does not count as what a deviation is relative to."""


@dataclass(frozen=True)
class PowerLawForm:
    """A rate a t^b + c."""

    size = 3
    """Number of parameters."""

    def at(
        self, t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " 3"], floor: float | None
    ) -> Float[np.ndarray, "4 n"]:
        """Return the rate and its derivatives by a, b, c; below the floor the floor and zeros.

        t: above 0 [s]. Arrays of NumPy or, where theta is one, of JAX.
        """
        xp = theta.__array_namespace__()
        amplitude, exponent, offset = theta
        power = t**exponent
        rate = xp.stack(
            [amplitude * power + offset, power, amplitude * power * xp.log(t), xp.ones_like(power)]
        )
        if floor is None:
            return rate
        at_floor = np.array([floor, 0.0, 0.0, 0.0])[:, None]
        return xp.where(rate[0] < floor, at_floor, rate)


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
        from homodyne_dask.models.smoothness import second_differences

        basis = self.basis(t)
        normal = basis @ basis.T
        smooth = 1e-3 * np.trace(normal) / self.size * second_differences(self.size)
        return np.linalg.solve(normal + smooth, basis @ rate)


@dataclass(frozen=True)
class DeviatingForm:
    """A rate a t^b + c + s(t) Σ d_k B_k(t), s the size of the power law and B_k splines that sum to 1.

    d_k is the relative deviation from the law around the time of B_k.
    """

    splines: SplineForm

    @property
    def size(self) -> int:
        """Number of parameters."""
        return 3 + self.splines.size

    def at(
        self, t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " p"], floor: float | None
    ) -> Float[np.ndarray, "1+p n"]:
        """Return the rate, not below the floor, and its derivatives."""
        rate, *slopes = PowerLawForm().at(t, theta[:3], floor)
        size = np.sqrt(rate**2 + LEAST_SCALE**2 * np.mean(rate**2))
        mean_slopes = np.mean(rate * slopes, axis=1, keepdims=True)
        size_slopes = (rate * slopes + LEAST_SCALE**2 * mean_slopes) / size
        basis = self.splines.basis(t)
        deviation = theta[3:] @ basis
        whole = rate + size * deviation
        whole = whole if floor is None else np.maximum(whole, floor)
        return np.concatenate([whole[None], slopes + size_slopes * deviation, size * basis])


RateForm = PowerLawForm | SplineForm | DeviatingForm
POWER_LAW_FORM = PowerLawForm()


RATES = {
    "J": ("D0", "alpha", "D_offset"),
    "gamma_dot": ("gamma_dot_t0", "beta", "gamma_dot_t_offset"),
}
"""The parameters (a, b, c) of each rate a t^b + c; it has the unit of a."""


def rate(
    t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " 3"], floor: float | None
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "3 n"]]:
    """Return a t^b + c and its gradient by a, b, c; below the floor the floor and zeros."""
    amplitude, exponent, offset = theta
    power = t**exponent
    value = amplitude * power + offset
    gradient = np.stack([power, amplitude * power * np.log(t), np.ones_like(t)])
    if floor is None:
        return value, gradient
    return np.maximum(value, floor), np.where(value < floor, 0.0, gradient)


def rate_stderr(
    gradient: Float[np.ndarray, "p n"], covariance: Float[np.ndarray, "p p"]
) -> Float[np.ndarray, " n"]:
    """Return one standard error of a rate by the delta method; NaN in the covariance counts as 0."""
    known = np.nan_to_num(covariance)
    return np.sqrt(np.maximum(np.einsum("in,ij,jn->n", gradient, known, gradient), 0.0))


def some_ages(n: int, most: int) -> Int[np.ndarray, " age"]:
    """Return at most so many of the numbers from 0 to n - 1, both included, denser at the beginning."""
    if n <= most:
        return np.arange(n)
    found = [1]
    for left in range(most - 1, 0, -1):
        last = found[-1]
        found.append(max(last + 1, round(last * (n / last) ** (1 / left))))
    return np.array(found) - 1
