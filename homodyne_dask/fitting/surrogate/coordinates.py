"""Coordinates in which χ² is nearly quadratic far around the optimum, and in which a posterior is sampled.

Amplitude, exponent and offset of a rate a t^b + c are replaced by its values at three times: the valley of
χ² that is curved in (a, b, c) is straight in them. Other parameters of logarithmic scale count by their log.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.models.shear_factor import Array


@dataclass(frozen=True)
class Coordinates:
    """u of the free parameters x, and back; functions take arrays of NumPy or of JAX, of any leading axes."""

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

    def free_of(self, u: Float[Array, "*at u"]) -> Float[Array, "*at u"]:
        """Return x at u; NaN where no rate has such values."""
        xp = u.__array_namespace__()
        x = list(xp.moveaxis(xp.where(self.log, xp.exp(xp.where(self.log, u, 0.0)), u), -1, 0))
        for law in self.laws:
            (a, b, c), times = law.at, law.first * law.ratio ** np.arange(3)
            first, second = u[..., b] - u[..., a], u[..., c] - u[..., b]
            real = (first * second > 0) & (first != second)
            growth = xp.where(real, second / xp.where(real, first, 1.0), 2.0)
            exponent = xp.log(growth) / np.log(law.ratio)
            start = xp.exp(exponent * np.log(times[0]))
            amplitude = first / (start * (growth - 1))
            offset = u[..., a] - amplitude * start
            for place, value in zip(law.at, (amplitude, exponent, offset), strict=True):
                x[place] = xp.where(real, value, np.nan)
        return xp.stack(x, -1)

    @property
    def x(self) -> Float[np.ndarray, " u"]:
        """The free parameters at the optimum."""
        return self.theta[self.free]

    def whole(self, x: Float[Array, "*at u"]) -> Float[Array, "*at p"]:
        """Return theta: x, and the values of fixed parameters."""
        xp = x.__array_namespace__()
        places = np.cumsum(self.free) - 1
        columns = [
            x[..., int(at)] if free else xp.zeros(x.shape[:-1]) + value
            for free, at, value in zip(self.free, places, self.theta, strict=True)
        ]
        return xp.stack(columns, -1)

    def of(self, x: Float[Array, "*at u"]) -> Float[Array, "*at u"]:
        """Return u at free parameters x."""
        xp = x.__array_namespace__()
        u = list(xp.moveaxis(xp.where(self.log, xp.log(xp.where(self.log, x, 1.0)), x), -1, 0))
        for law in self.laws:
            a, b, c = (x[..., at] for at in law.at)
            for place, t in zip(law.at, law.first * law.ratio ** np.arange(3), strict=True):
                u[place] = a * t**b + c
        return xp.stack(u, -1)

    def slope_at(self, x: Float[Array, "*at u"]) -> Float[Array, "*at u u"]:
        """Return the matrix ∂u/∂x at x."""
        xp = x.__array_namespace__()
        diagonal = xp.where(self.log, 1 / xp.where(self.log, x, 1.0), 1.0)
        matrix = diagonal[..., None] * np.eye(self.size)
        rows = list(xp.moveaxis(matrix, -2, 0))
        for law in self.laws:
            a, b = (x[..., at, None] for at in law.at[:2])
            for place, t in zip(law.at, law.first * law.ratio ** np.arange(3), strict=True):
                power = xp.exp(b * np.log(t))
                unit = np.eye(self.size)[list(law.at)]
                rows[place] = power * unit[0] + a * power * np.log(t) * unit[1] + unit[2]
        return xp.stack(rows, -2)

    def log_slope(self, x: Float[Array, "*at u"]) -> Float[Array, "*at"]:
        """Return log |∂x/∂u| at x, by which a density of x becomes one of u."""
        xp = x.__array_namespace__()
        return -xp.linalg.slogdet(self.slope_at(x))[1]

    def inside(self, x: Float[Array, "*at u"]) -> Bool[Array, "*at"]:
        """Return whether x is real and within its bounds; periodic parameters are everywhere."""
        return (((x >= self.lower) & (x <= self.upper)) | np.isfinite(self.period)).all(-1)

    def without_laws(self) -> "Coordinates":
        """Return coordinates in which amplitudes, exponents and offsets stay, amplitudes by their log."""
        log = self.log.copy()
        amplitudes = [law.at[0] for law in self.laws]
        log[amplitudes] = self.lower[amplitudes] > 0
        return replace(self, log=log, laws=())

    def wrapped(self, x: Float[Array, "*at u"]) -> Float[Array, "*at u"]:
        """Return free parameters with periodic ones inside their bounds."""
        xp, periodic = x.__array_namespace__(), np.isfinite(self.period)
        period, lower = np.where(periodic, self.period, 1.0), np.where(periodic, self.lower, 0.0)
        return xp.where(periodic, (x - lower) % period + lower, x)


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
