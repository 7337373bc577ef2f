"""The prior of a rate a t^b + c of which nothing is known but its bounds.

Log-uniform amplitudes would give every decade too small to be seen the same weight, and there b means
nothing; uniform ones prefer large a that c takes back, with b near 0. Here the values of the rate at times
t1, t2 and t3, each r times the one before, are uniform but for their size, which is log-uniform. Their
density is 1/(J1² + J2² + J3²)^(3/2), and that of (a, b, c), with the determinant of their derivatives,

    a · (t2^b - t1^b)² · r^b / (J1² + J2² + J3²)^(3/2).

Where the data determine the values it is the prior of Jeffreys (1946).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameter_priors import Prior
from homodyne_dask.models.power_law_step import PowerLaw

_EXPONENTS, _RATIOS = 400, 801
"""Cells from which draws of the prior are made: of b, and of c/a."""
SMALLEST = 1e-9
"""Amplitude over its upper bound where its lower bound is 0, for draws."""


@dataclass(frozen=True)
class _OfRate:
    low: float
    high: float
    law: PowerLaw

    proper = True
    log = False

    @property
    def support(self) -> tuple[float, float]:
        """The bounds."""
        return self.low, self.high

    core = support

    def normal_part(self, log: bool) -> None:
        """It is nowhere a normal one."""

    def text(self, unit: str = "") -> str:
        """Return it in words."""
        return f"flat in the rate, {self.low:g} to {self.high:g} {unit}".rstrip()

    def _inside(self, x: Any) -> tuple[Any, Any, Any]:
        x = x if hasattr(x, "__array_namespace__") else np.asarray(x, float)
        xp, inside = x.__array_namespace__(), (x >= self.low) & (x <= self.high)
        return xp, inside, xp.where(inside, x, self.high)


@dataclass(frozen=True)
class AmplitudePrior(_OfRate):
    """The factor a of that density, between bounds of which none is negative."""

    def log_density(self, x: Any) -> Any:
        """Return log a, of the shape of x; -inf outside."""
        xp, inside, x = self._inside(x)
        return xp.where(inside, xp.log(xp.where(x > 0, x, 1e-300)), -np.inf)


@dataclass(frozen=True)
class ExponentPrior(_OfRate):
    """The factor (t2^b - t1^b)² r^b of that density, between bounds."""

    def log_density(self, x: Any) -> Any:
        """Return the logarithm of the factor, of the shape of x; -inf outside."""
        xp, inside, b = self._inside(x)
        growth = b * np.log(self.law.ratio)
        change = xp.maximum(xp.abs(xp.expm1(growth)), 1e-150)
        factor = 2 * b * np.log(self.law.first) + 2 * xp.log(change) + growth
        return xp.where(inside, factor, -np.inf)


type AnyPrior = Prior | AmplitudePrior | ExponentPrior


def log_size_prior(law: PowerLaw, x: Any) -> Any:
    """Return the logarithm of the factor 1/(J1² + J2² + J3²)^(3/2), for arrays of NumPy or of JAX.

    x: (..., p), in which law finds a, b and c.
    """
    xp = x.__array_namespace__()
    a, b, c = (x[..., n] for n in law.at)
    values = (a * t**b + c for t in law.first * law.ratio ** np.arange(3))
    return -1.5 * xp.log(sum(value**2 for value in values))


def rate_draws(
    amplitude: AmplitudePrior,
    exponent: ExponentPrior,
    offset: Prior,
    n: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "n 3"]:
    """Return n independent draws of (a, b, c) from the prior.

    In a, b and c/a the density is 1/a times a function of the other two: a is log-uniform.
    """
    law = exponent.law
    edges = np.linspace(*exponent.support, _EXPONENTS + 1)
    ratios = np.sinh(np.linspace(-8, 8, _RATIOS + 1))
    b, ratio = (edges[1:] + edges[:-1]) / 2, (ratios[1:] + ratios[:-1]) / 2
    unit = np.stack(np.broadcast_arrays(1.0, b[:, None], ratio), -1)
    density = exponent.log_density(b)[:, None] + log_size_prior(law._replace(at=(0, 1, 2)), unit)
    mass = np.cumsum(np.exp(density - density.max()) * np.diff(ratios))
    low, high = max(amplitude.low, SMALLEST * amplitude.high), amplitude.high
    found = np.empty((0, 3))
    while len(found) < n:
        cell = np.searchsorted(mass, rng.random(n) * mass[-1]).clip(0, len(mass) - 1)
        at_b, at_ratio = np.divmod(cell, _RATIOS)
        a = np.exp(rng.uniform(np.log(low), np.log(high), n))
        c = a * rng.uniform(ratios[at_ratio], ratios[at_ratio + 1])
        draws = np.stack([a, rng.uniform(edges[at_b], edges[at_b + 1]), c], axis=1)
        inside = (c >= offset.support[0]) & (c <= offset.support[1])
        found = np.concatenate([found, draws[inside]])
    return found[:n]
