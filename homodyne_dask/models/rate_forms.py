"""Forms of a rate of time: power laws a t^b + c, splines, and power laws with deviations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.models.spline_basis import SplineForm

RATES = {
    "J": ("D0", "alpha", "D_offset"),
    "gamma_dot": ("gamma_dot_t0", "beta", "gamma_dot_t_offset"),
}
"""The parameters (a, b, c) of each rate a t^b + c; it has the unit of a."""
EARLY_QUANTILE, LATE_QUANTILE = 0.1, 0.9
"""Shares of the frames before the first and the last of the three times."""
MAX_AMPLITUDE_RATIO = 4.0
"""Largest factor by which an amplitude changes in one step. Near b = 0 a t^b + c is a + c + a·b·log t: for a
rate linear in log t the data determine only a + c, and a and c would diverge."""
ROUNDING = 1e-14
"""Share of a variance in its terms, below which it is rounding."""


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


RateForm = PowerLawForm | SplineForm
POWER_LAW_FORM = PowerLawForm()


def rate(
    t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " 3"], floor: float | None
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "3 n"]]:
    """Return a t^b + c and its gradient by a, b, c; below the floor the floor and zeros."""
    found = POWER_LAW_FORM.at(t, theta, floor)
    return found[0], found[1:]


def integrated(rate: Any, steps: Any) -> Any:
    """Return the integral of rates since the first time, by the trapezoid rule; steps: between times.

    Of arrays of NumPy or JAX, over the last axis.
    """
    xp = rate.__array_namespace__()
    steps_up = xp.cumsum(0.5 * (rate[..., 1:] + rate[..., :-1]) * steps, axis=-1)
    return xp.concatenate([xp.zeros_like(rate[..., :1]), steps_up], axis=-1)


def rate_stderr(
    gradient: Float[np.ndarray, "p n"], covariance: Float[np.ndarray, "p p"]
) -> Float[np.ndarray, " n"]:
    """Return one standard error of a rate by the delta method; 0 where it follows from no parameter.

    NaN where the error of a parameter is, or where rounding leaves nothing of the variance.
    """
    variance = np.einsum("in,ij,jn->n", gradient, covariance, gradient)
    terms = np.einsum("in,ij,jn->n", np.abs(gradient), np.abs(covariance), np.abs(gradient))
    known = (variance > ROUNDING * terms) | ~gradient.any(0)
    return np.sqrt(np.where(known, variance, np.nan))


def some_ages(n: int, most: int) -> Int[np.ndarray, " age"]:
    """Return at most so many of the numbers from 0 to n - 1, both included, denser at the beginning."""
    if n <= most:
        return np.arange(n)
    found = [1]
    for left in range(most - 1, 0, -1):
        last = found[-1]
        found.append(max(last + 1, round(last * (n / last) ** (1 / left))))
    return np.array(found) - 1


class PowerLaw(NamedTuple):
    """A rate a t^b + c, seen at three times each of which is the same multiple of the one before.

    Over less than a decade of time amplitude, exponent and offset are correlated: χ² has a narrow valley,
    curved in (a, b, c) and straight in the values of the rate at three times, where a step can be longer.
    """

    at: tuple[int, int, int]
    """Where a, b and c stand in theta."""
    first: float
    """s."""
    ratio: float

    @property
    def times(self) -> Float[np.ndarray, " 3"]:
        """The three times [s]."""
        return self.first * self.ratio ** np.arange(3)

    def after(
        self, theta: Float[np.ndarray, " p"], step: Float[np.ndarray, " p"], plain: bool = False
    ) -> Float[np.ndarray, " 3"]:
        """Return a, b and c of the rate whose values at the three times are those to which the step
        leads to first order.

        plain: c takes its own step, as it does where that is 0, and only the values at the first and
        the last time are those. NaN where no rate has them, or only one whose a differs by more than
        a factor MAX_AMPLITUDE_RATIO, and where the step does not change a or b: then the step is not curved.
        """
        (a, b, c), (da, db, dc) = theta[list(self.at)], step[list(self.at)]
        if da == 0 or db == 0:
            return np.full(3, np.nan)
        log = np.log(self.ratio)
        t = self.times
        with np.errstate(all="ignore"):  # the result is NaN
            power = t**b
            moved = power * (da + a * np.log(t) * db)
            if plain or dc == 0:
                values = a * power + moved
                exponent = np.log(values[2] / values[0]) / (2 * log)
                return _near(a, np.array([values[0] / t[0] ** exponent, exponent, c + dc]))
            rises = a * power[:2] * np.expm1(b * log) + np.diff(moved)
            exponent = np.log(rises[1] / rises[0]) / log
            amplitude = rises[0] / (t[0] ** exponent * np.expm1(exponent * log))
            first = a * power[0] + c + moved[0] + dc
            offset = first - amplitude * t[0] ** exponent
            return _near(a, np.array([amplitude, exponent, offset]))


def _near(a: float, there: Float[np.ndarray, " 3"]) -> Float[np.ndarray, " 3"]:
    near = 1 / MAX_AMPLITUDE_RATIO < there[0] / a < MAX_AMPLITUDE_RATIO
    return there if near else np.full(3, np.nan)


def power_laws(
    names: Sequence[str], laws: Sequence[tuple[str, str, str]], time: Float[np.ndarray, " n"]
) -> tuple[PowerLaw, ...]:
    """Return the rates whose (a, b, c) have these names, seen at times [s] of which some are above 0."""
    early, late = np.quantile(time[time > 0], [EARLY_QUANTILE, LATE_QUANTILE])
    if not early < late:
        return ()
    ratio = float(np.sqrt(late / early))
    places = [tuple(names.index(name) for name in law) for law in laws]
    return tuple(PowerLaw((a, b, c), float(early), ratio) for a, b, c in places)
