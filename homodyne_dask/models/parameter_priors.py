"""Priors of parameters: what is known of them before a fit, as distributions by their standard names.

    normal(mean, sd)       lognormal(median, sigma)        halfnormal(sd)
    uniform(low, high)     loguniform(low, high)           truncnormal(mean, sd, low, high)

sigma is the standard deviation of log x, and log(median) its mean: the mu of other packages. All are
normal or flat in x or in log x, between two ends.

A rate a t^b + c of which nothing is known but its bounds has a prior of its own. Log-uniform amplitudes would
give every decade too small to be seen the same weight, and there b means nothing; uniform ones prefer large a
that c takes back, with b near 0. Here the values of the rate at times t1, t2 and t3, each r times the one
before, are uniform but for their size, which is log-uniform. Their density is 1/(J1² + J2² + J3²)^(3/2), and
that of (a, b, c), with the determinant of their derivatives,

    a · (t2^b - t1^b)² · r^b / (J1² + J2² + J3²)^(3/2).

Where the data determine the values it is the prior of Jeffreys (1946).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, nearest, require_type, shown
from homodyne_dask.models.parameters import Parameter, Search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.models.shear_factor import Array
from homodyne_dask.text import with_unit

_CERTAIN = 9.0
"""A normal number is less than this, but for a probability below rounding."""
_NUMBERS = {
    "normal": ("mean", "sd"),
    "lognormal": ("median", "sigma"),
    "halfnormal": ("sd",),
    "truncnormal": ("mean", "sd", "low", "high"),
    "uniform": ("low", "high"),
    "loguniform": ("low", "high"),
}
_POSITIVE = {"normal": "sd", "truncnormal": "sd", "halfnormal": "sd", "lognormal": "sigma"}
_LARGEST = 1e60  # squares of ratios are finite
_LOG = ("lognormal", "loguniform")
_FLAT = ("uniform", "loguniform")
_EXPONENTS, _RATIOS = 400, 801
"""Cells from which draws of the prior are made: of b, and of c/a."""
SMALLEST = 1e-9
"""Amplitude over its upper bound where its lower bound is 0, for draws."""


def log_probability(
    a: float | Float[np.ndarray, "*at"], b: float | Float[np.ndarray, "*at"]
) -> Float[np.ndarray, "*at"]:
    """Return the log of the probability of a standard normal number between a and b, a < b."""
    from scipy.special import log_ndtr  # loads for a fifth of a second

    a, b = np.asarray(a, float), np.asarray(b, float)
    if np.all(a < -_CERTAIN) and np.all(b > _CERTAIN):
        return np.zeros(np.broadcast_shapes(a.shape, b.shape))
    upper = a > 0
    a, b = np.where(upper, -b, a), np.where(upper, -a, b)  # the lower tail keeps its digits
    whole = log_ndtr(b)
    with np.errstate(divide="ignore"):
        return whole + np.log1p(-np.exp(log_ndtr(a) - whole))


def truncated_normal(
    rng: np.random.Generator,
    n: int,
    a: float | Float[np.ndarray, " n"],
    b: float | Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Return n standard normal numbers between a and b: numbers, or arrays of n."""
    from scipy.special import log_ndtr, ndtri_exp  # loads for a fifth of a second

    upper = np.asarray(a) > 0
    low = np.where(upper, -np.asarray(b), a)
    part = np.log1p(-rng.random(n)) + log_probability(a, b)  # log of (0, 1]
    return np.where(upper, -1, 1) * ndtri_exp(np.logaddexp(log_ndtr(low), part))


@dataclass(frozen=True)
class Prior:
    """The prior distribution of one parameter, cut at the parameter's bounds and normalized.

    Raises OptionError for an unknown name, and for numbers that describe no distribution.
    """

    name: str
    """normal, lognormal, halfnormal, truncnormal, uniform or loguniform."""
    numbers: tuple[float, ...]
    """Of the distribution, in the order of the table above; ends of a flat one may be infinite."""
    low: float = -math.inf
    """Lower bound of the parameter."""
    high: float = math.inf
    period: float = math.inf
    """Period of the parameter: a normal prior counts the distance to the nearest of its means."""

    def __post_init__(self) -> None:
        _check(self.name, self.numbers)

    @property
    def support(self) -> tuple[float, float]:
        """The ends of the interval in which the parameter lies; the first is above the second for none."""
        low, high = -math.inf, math.inf
        if "low" in _NUMBERS[self.name]:
            low, high = self.numbers[-2:]
        elif self.name in ("lognormal", "halfnormal"):
            low = 0.0
        return max(low, self.low), min(high, self.high)

    @property
    def core(self) -> tuple[float, float]:
        """The ends of the interval that has nearly all of the probability."""
        low, high = self.support
        if self.name in _FLAT:
            return low, high
        a, b = self._centre - 8 * self._width, self._centre + 8 * self._width
        a, b = (math.exp(a), math.exp(b)) if self.log else (a, b)
        return max(low, a), min(high, b)

    def normal_part(self, log: bool) -> tuple[float, float] | None:
        """Return mean and 1/sd² of a prior that is normal, in log x where asked so; None for another."""
        if self.name in _FLAT or self.log != log:
            return None
        return self._centre, self._width**-2

    @property
    def proper(self) -> bool:
        """Whether it can be normalized: one that is flat needs two ends."""
        return self.name not in _FLAT or all(map(math.isfinite, self.support))

    def log_density(self, x: float | Float[Array, "*at"]) -> Float[Array, "*at"]:
        """Return the logarithm of the probability density at x, of the shape of x; -inf outside.

        x: a number, or an array of NumPy or of JAX, also while JAX traces. A flat prior without ends
        has the density 1; that of a periodic parameter is normalized over one period.
        """
        xp, x, inside = self._of(x)
        z = self._from_centre(xp, x) / self._width
        density = -(z**2) / 2 - self._log_norm()
        return xp.where(inside, density - xp.log(x) if self.log else density, -math.inf)

    def gradient(self, x: float | Float[Array, "*at"]) -> Float[Array, "*at"]:
        """Return the derivative of `log_density` by x, of the shape of x; 0 outside."""
        xp, x, inside = self._of(x)
        slope = -self._from_centre(xp, x) / self._width**2
        return xp.where(inside, (slope - 1) / x if self.log else slope, 0.0)

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
        """Return n independent draws; raises OptionError where the prior cannot be normalized."""
        if not self.proper:
            raise OptionError(
                f"cannot draw from a prior that is {self.text()}: give bounds, or another prior"
            )
        a, b = self._ends()
        if self.name in _FLAT:
            draws = rng.uniform(a, b, n)
        else:
            draws = self._centre + self._width * truncated_normal(
                rng, n, (a - self._centre) / self._width, (b - self._centre) / self._width
            )
        if self._periodic:
            low = self.support[0] if math.isfinite(self.support[0]) else a
            return np.mod(draws - low, self.period) + low
        return np.clip(np.exp(draws) if self.log else draws, *self.support)

    def text(self, unit: str = "") -> str:
        """Return it in words: 'normal, 2500 ± 300 Å²/s'."""
        first, second = (*self.numbers, math.nan)[:2]
        low, high = self.support
        ends = f"{low:g} to {high:g}"
        words = {
            "normal": f"normal, {first:g} ± {second:g}",
            "lognormal": f"lognormal, median {first:g}",
            "halfnormal": f"halfnormal, sd {first:g}",
            "truncnormal": f"truncated normal, {first:g} ± {second:g} within {ends}",
            "uniform": f"uniform, {ends}" if self.proper else f"flat, {ends}",
            "loguniform": f"log-uniform, {ends}" if self.proper else f"flat in the log, {ends}",
        }
        text = with_unit(words[self.name], unit)
        return f"{text}, sigma {second:g}" if self.name == "lognormal" else text

    @property
    def log(self) -> bool:
        """Whether it is normal or flat in log x."""
        return self.name in _LOG

    @property
    def _periodic(self) -> bool:
        return self.name == "normal" and math.isfinite(self.period)

    @property
    def _centre(self) -> float:
        """The mean of the normal distribution in x or in log x; 0 where it is flat."""
        if self.name in (*_FLAT, "halfnormal"):
            return 0.0
        return math.log(self.numbers[0]) if self.log else self.numbers[0]

    @property
    def _width(self) -> float:
        if self.name in _FLAT:
            return math.inf
        return self.numbers[0] if self.name == "halfnormal" else self.numbers[1]

    def _of(self, x: Any) -> tuple[Any, Any, Any]:
        """Return the module of an array, the array with 1 outside of the support, and where it is inside."""
        x = x if hasattr(x, "__array_namespace__") else np.asarray(x, float)
        low, high = self.support
        inside = (x >= low) & (x <= high)
        inside = inside & (x > 0) if self.log else inside
        xp = x.__array_namespace__()
        return xp, xp.where(inside, x, 1.0), inside

    def _from_centre(self, xp: Any, x: Any) -> Any:
        distance = (xp.log(x) if self.log else x) - self._centre
        if self._periodic:
            return (distance + self.period / 2) % self.period - self.period / 2
        return distance

    def _ends(self) -> tuple[float, float]:
        """Return the ends of x, or of log x."""
        if self._periodic:
            return self._centre - self.period / 2, self._centre + self.period / 2
        low, high = self.support
        if not self.log:
            return low, high
        return math.log(low) if low > 0 else -math.inf, math.log(high)

    def _log_norm(self) -> float:
        """Return the log of the integral of exp(-z²/2) between the ends of x, or of log x."""
        a, b = self._ends()
        if self.name in _FLAT:
            return math.log(b - a) if self.proper else 0.0
        a, b = (a - self._centre) / self._width, (b - self._centre) / self._width
        return math.log(self._width) + math.log(2 * math.pi) / 2 + float(log_probability(a, b))


def parsed_prior(parameter: str, given: Any) -> Prior:
    """Return the prior of a parameter from text or numbers.

    given: '2500:300' or (2500, 300), which are normal; 'lognormal:2500:0.3' or ('lognormal', 2500, 0.3);
    or a `Prior`.
    Raises OptionError for what is none.
    """
    if isinstance(given, Prior):
        return given
    parts = given.split(":") if isinstance(given, str) else given
    if not isinstance(parts, Sequence | np.ndarray) or len(parts) == 0:
        raise OptionError(
            f"prior of {parameter} = {shown(given)} cannot be used: give mean and standard deviation, "
            f"such as (2500, 300), or a distribution, such as ('lognormal', 2500, 0.3)"
        )
    name, numbers = "normal", list(parts)
    if isinstance(parts[0], str) and not _is_number(parts[0]):
        name, numbers = parts[0].strip().lower(), numbers[1:]
    try:
        return Prior(name, tuple(map(_number, numbers)))
    except OptionError as e:
        raise OptionError(f"prior of {parameter} = {shown(given)}: {e}") from None


def default_prior(parameter: Parameter, bounds: tuple[float, float] | None = None) -> Prior:
    """Return the prior of a parameter of which nothing else is known: uniform within its bounds.

    It is log-uniform where the scale of the parameter is logarithmic and the bounds are positive.
    bounds: those of a fit, by default the parameter's own; without two of them it is flat and improper.
    """
    low, high = parameter.bounds if bounds is None else bounds
    name = "loguniform" if parameter.scale == "log" and low > 0 else "uniform"
    return Prior(name, (low, high), low, high)


def priors_of(given: Mapping[str, Any] | None, search: Search) -> dict[str, Prior]:
    """Return the priors that a user gave, by parameter, cut at the bounds of a fit.

    given: by name, each as `parsed_prior` takes it.
    Raises OptionError for unknown and fixed parameters, for priors that are none, and for those whose
    support is outside the bounds.
    """
    given = {} if given is None else given
    require_type("prior", given, Mapping, "priors by name, such as prior={'D0': (2500, 300)}")
    return {name: _of_parameter(name, one, search) for name, one in given.items()}


def _of_parameter(name: str, given: Any, search: Search) -> Prior:
    if name not in search.names:
        raise OptionError(f"prior: unknown parameter {name!r}; {nearest(name, search.names)}")
    at = search.names.index(name)
    if not search.free[at]:
        raise OptionError(
            f"prior of {name}: {name} is fixed at {search.start[at]:g}, so a prior would have no effect: "
            f"remove it from prior or from fixed"
        )
    prior = parsed_prior(name, given)
    own, low, high = prior.support, float(search.lower[at]), float(search.upper[at])
    low, high = max(low, prior.low), min(high, prior.high)
    prior = replace(prior, low=low, high=high, period=float(search.period[at]))
    if not prior.support[0] < prior.support[1]:
        raise OptionError(
            f"prior of {name} extends from {own[0]:g} to {own[1]:g}, outside the bounds {low:g} to {high:g}: "
            f"change one of them"
        )
    return prior


def _check(name: str, numbers: tuple[float, ...]) -> None:
    if name not in _NUMBERS:
        raise OptionError(f"unknown distribution {name!r}; {nearest(name, _NUMBERS)}")
    names = _NUMBERS[name]
    if len(numbers) != len(names):
        raise OptionError(
            f"{name} takes {len(names)} number{'s' * (len(names) > 1)}, {', '.join(names)}, "
            f"not {len(numbers)}"
        )
    by_name = dict(zip(names, numbers, strict=True))
    for what, value in by_name.items():
        if math.isnan(value) or (math.isinf(value) and name not in _FLAT):
            raise OptionError(f"{what} = {value} is not a finite number")
        if math.isfinite(value) and not 1 / _LARGEST < abs(value or 1.0) < _LARGEST:
            raise OptionError(f"{what} = {value:g} is not between 1e-60 and 1e60 in magnitude")
    needed = _POSITIVE.get(name), "median", "low" if name == "loguniform" else None
    for what in needed:
        if what in by_name and not by_name[what] > 0:
            raise OptionError(f"{what} = {by_name[what]:g} is not positive")
    if "low" in by_name and not by_name["low"] < by_name["high"]:
        raise OptionError(f"low = {by_name['low']:g} is not below high = {by_name['high']:g}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{shown(value)} is not a number") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise OptionError(f"{shown(value)} is not a finite number")
    return number


FLAT_IN_RATE = "flat in the rate"
"""The words for a prior of amplitude or exponent of a rate that is one of its shape and size."""


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
        return with_unit(f"{FLAT_IN_RATE}, {self.low:g} to {self.high:g}", unit)

    def _inside(self, x: Any) -> tuple[Any, Any, Any]:
        x = x if hasattr(x, "__array_namespace__") else np.asarray(x, float)
        xp, inside = x.__array_namespace__(), (x >= self.low) & (x <= self.high)
        return xp, inside, xp.where(inside, x, self.high)


@dataclass(frozen=True)
class AmplitudePrior(_OfRate):
    """The factor a of that density, between bounds of which none is negative."""

    def log_density(self, x: float | Float[Array, "*at"]) -> Float[Array, "*at"]:
        """Return log a, of the shape of x; -inf outside."""
        xp, inside, x = self._inside(x)
        return xp.where(inside, xp.log(xp.where(x > 0, x, 1e-300)), -np.inf)


@dataclass(frozen=True)
class ExponentPrior(_OfRate):
    """The factor (t2^b - t1^b)² r^b of that density, between bounds."""

    def log_density(self, x: float | Float[Array, "*at"]) -> Float[Array, "*at"]:
        """Return the logarithm of the factor, of the shape of x; -inf outside."""
        xp, inside, b = self._inside(x)
        growth = b * np.log(self.law.ratio)
        change = xp.maximum(xp.abs(xp.expm1(growth)), 1e-150)
        factor = 2 * b * np.log(self.law.first) + 2 * xp.log(change) + growth
        return xp.where(inside, factor, -np.inf)


type AnyPrior = Prior | AmplitudePrior | ExponentPrior


def log_size_prior(law: PowerLaw, x: Float[Array, "*at p"]) -> Float[Array, "*at"]:
    """Return the logarithm of the factor 1/(J1² + J2² + J3²)^(3/2), for arrays of NumPy or of JAX.

    x: (..., p), in which law finds a, b and c.
    """
    xp = x.__array_namespace__()
    a, b, c = (x[..., n] for n in law.at)
    values = (a * t**b + c for t in law.times)
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
