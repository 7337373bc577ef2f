"""Coordinates in which χ² is nearly quadratic far around the optimum, and in which a posterior is sampled.

Amplitude, exponent and offset of a rate a t^b + c are replaced by its values at three times: the valley of
χ² that is curved in (a, b, c) is straight in them. Other parameters of logarithmic scale count by their log.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.models.rate_forms import PowerLaw


@dataclass(frozen=True)
class Coordinates:
    """u of the free parameters x; functions take arrays of any leading axes."""

    theta: Float[np.ndarray, " p"]
    """The optimum, with the values of fixed parameters."""
    free: Bool[np.ndarray, " p"]
    lower: Float[np.ndarray, " u"]
    """Of x."""
    upper: Float[np.ndarray, " u"]
    period: Float[np.ndarray, " u"]
    """inf where a parameter is not periodic."""
    log: Bool[np.ndarray, " u"]
    laws: tuple[PowerLaw, ...]
    """Rates of three free parameters, by their place in x."""

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return len(self.log)

    @property
    def x(self) -> Float[np.ndarray, " u"]:
        """The free parameters at the optimum."""
        return self.theta[self.free]

    def whole(self, x: Float[np.ndarray, "*at u"]) -> Float[np.ndarray, "*at p"]:
        """Return theta: x, and the values of fixed parameters."""
        theta = np.tile(self.theta, (*x.shape[:-1], 1))
        theta[..., self.free] = x
        return theta

    def of(self, x: Float[np.ndarray, "*at u"]) -> Float[np.ndarray, "*at u"]:
        """Return u at free parameters x."""
        u = np.where(self.log, np.log(np.where(self.log, x, 1.0)), x)
        for law in self.laws:
            a, b, c = (x[..., at] for at in law.at)
            for place, t in zip(law.at, law.times, strict=True):
                u[..., place] = a * t**b + c
        return u

    def slope_at(self, x: Float[np.ndarray, " u"]) -> Float[np.ndarray, "u u"]:
        """Return the matrix ∂u/∂x at x."""
        matrix = np.diag(np.where(self.log, 1 / np.where(self.log, x, 1.0), 1.0))
        for law in self.laws:
            a, b = x[list(law.at[:2])]
            for place, t in zip(law.at, law.times, strict=True):
                power = np.exp(b * np.log(t))
                matrix[place, list(law.at)] = power, a * power * np.log(t), 1.0
        return matrix

    def inside(self, x: Float[np.ndarray, "*at u"]) -> Bool[np.ndarray, "*at"]:
        """Return whether x is within its bounds; periodic parameters are everywhere."""
        return (((x >= self.lower) & (x <= self.upper)) | np.isfinite(self.period)).all(-1)

    def wrapped(self, x: Float[np.ndarray, "*at u"]) -> Float[np.ndarray, "*at u"]:
        """Return free parameters with periodic ones inside their bounds."""
        periodic = np.isfinite(self.period)
        period, lower = np.where(periodic, self.period, 1.0), np.where(periodic, self.lower, 0.0)
        return np.where(periodic, (x - lower) % period + lower, x)


def coordinates(search: Search, theta: Float[np.ndarray, " p"]) -> Coordinates:
    """Return the coordinates of a fit that ended at theta."""
    free, place = search.free, np.cumsum(search.free) - 1
    laws = tuple(law._replace(at=tuple(int(place[n]) for n in law.at)) for law in free_laws(search))
    log = search.log[free] & (search.lower[free] > 0)
    log[[at for law in laws for at in law.at]] = False
    return Coordinates(
        theta, free, search.lower[free], search.upper[free], search.period[free], log, laws
    )


def free_laws(search: Search) -> tuple[PowerLaw, ...]:
    """Return rates of three free parameters, the amplitude not negative, amplitude and exponent bounded."""
    return tuple(
        law
        for law in search.laws
        if search.free[list(law.at)].all()
        and search.lower[law.at[0]] >= 0
        and np.isfinite([search.lower[list(law.at[:2])], search.upper[list(law.at[:2])]]).all()
    )
