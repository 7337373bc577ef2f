"""Curved steps of the parameters of rates a t^b + c: straight in the values of the rate.

Over less than a decade of time amplitude, exponent and offset are correlated: χ² has a narrow valley,
curved in (a, b, c) and straight in the values of the rate at three times, where a step can be longer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

EARLY_QUANTILE, LATE_QUANTILE = 0.1, 0.9
"""Shares of the frames before the first and the last of the three times."""
MAX_AMPLITUDE_RATIO = 4.0
"""Largest factor by which an amplitude changes in one step. Near b = 0 a t^b + c is a + c + a·b·log t: for a
rate linear in log t the data determine only a + c, and a and c would diverge."""


class PowerLaw(NamedTuple):
    """A rate a t^b + c, seen at three times each of which is the same multiple of the one before."""

    at: tuple[int, int, int]
    """Where a, b and c stand in theta."""
    first: float
    """s."""
    ratio: float

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
        t = self.first * self.ratio ** np.arange(3)
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
