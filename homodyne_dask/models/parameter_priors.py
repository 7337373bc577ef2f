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
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, require_known, require_type, shown
from homodyne_dask.models.parameters import Parameter, Search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.text import with_unit

_CERTAIN = 9.0
"""A normal number is less than this, but for a probability below rounding."""


class _Form(NamedTuple):
    """The numbers of a distribution, those above 0, its words, and whether it is flat, or one of log x."""

    numbers: tuple[str, ...]
    positive: tuple[str, ...]
    words: str
    flat: bool = False
    log: bool = False


_ENDS = ("low", "high")
_FORMS = {
    "normal": _Form(("mean", "sd"), ("sd",), "normal, {0:g} ± {1:g}"),
    "lognormal": _Form(
        ("median", "sigma"), ("sigma", "median"), "lognormal, sigma {1:g}, median {0:g}", log=True
    ),
    "halfnormal": _Form(("sd",), ("sd",), "halfnormal, sd {0:g}"),
    "truncnormal": _Form(
        ("mean", "sd", *_ENDS), ("sd",), "truncated normal, {0:g} ± {1:g} within {ends}"
    ),
    "uniform": _Form(_ENDS, (), "uniform, {ends}", flat=True),
    "loguniform": _Form(_ENDS, ("low",), "log-uniform, {ends}", flat=True, log=True),
}
_LARGEST = 1e60  # squares of ratios are finite
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
    def flat(self) -> bool:
        """Whether it is flat, in x or in log x."""
        return _FORMS[self.name].flat

    @property
    def log(self) -> bool:
        """Whether it is normal or flat in log x."""
        return _FORMS[self.name].log

    @property
    def support(self) -> tuple[float, float]:
        """The ends of the interval in which the parameter lies; the first is above the second for none."""
        low, high = -math.inf, math.inf
        if "low" in _FORMS[self.name].numbers:
            low, high = self.numbers[-2:]
        elif self.name in ("lognormal", "halfnormal"):
            low = 0.0
        return max(low, self.low), min(high, self.high)

    @property
    def core(self) -> tuple[float, float]:
        """The ends of the interval that has nearly all of the probability."""
        low, high = self.support
        if self.flat:
            return low, high
        centre, width = self._normal
        a, b = centre - 8 * width, centre + 8 * width
        a, b = (math.exp(a), math.exp(b)) if self.log else (a, b)
        return max(low, a), min(high, b)

    def normal_part(self, log: bool) -> tuple[float, float] | None:
        """Return mean and 1/sd² of a prior that is normal, in log x where asked so; None for another."""
        centre, width = self._normal
        return None if self.flat or self.log != log else (centre, width**-2)

    @property
    def proper(self) -> bool:
        """Whether it can be normalized: one that is flat needs two ends."""
        return not self.flat or all(map(math.isfinite, self.support))

    def log_density(self, x: float | Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return the logarithm of the probability density at x; -inf outside.

        A flat prior without ends has the density 1; that of a periodic parameter is normalized over one
        period.
        """
        inside, x = _inside(x, self.support, 1.0, positive=self.log)
        centre, width = self._normal
        distance = (np.log(x) if self.log else x) - centre
        if self._periodic:
            distance = (distance + self.period / 2) % self.period - self.period / 2
        density = -((distance / width) ** 2) / 2 - self._log_norm()
        return np.where(inside, density - np.log(x) if self.log else density, -math.inf)

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
        """Return n independent draws; raises OptionError where the prior cannot be normalized."""
        if not self.proper:
            raise OptionError(
                f"cannot draw from a prior that is {self.text()}: give bounds, or another prior"
            )
        (a, b), (centre, width) = self._ends(), self._normal
        if self.flat:
            draws = rng.uniform(a, b, n)
        else:
            within = (a - centre) / width, (b - centre) / width
            draws = centre + width * truncated_normal(rng, n, *within)
        if self._periodic:
            low = self.support[0] if math.isfinite(self.support[0]) else a
            return np.mod(draws - low, self.period) + low
        return np.clip(np.exp(draws) if self.log else draws, *self.support)

    def text(self, unit: str = "") -> str:
        """Return it in words: 'normal, 2500 ± 300 Å²/s'."""
        flat = "flat in the log, {ends}" if self.log else "flat, {ends}"
        words = _FORMS[self.name].words if self.proper else flat
        return with_unit(
            words.format(*self.numbers, ends="{:g} to {:g}".format(*self.support)), unit
        )

    @property
    def _periodic(self) -> bool:
        return self.name == "normal" and math.isfinite(self.period)

    @property
    def _normal(self) -> tuple[float, float]:
        """Mean and standard deviation in x or in log x; a flat distribution is infinitely wide."""
        if self.flat:
            return 0.0, math.inf
        if self.name == "halfnormal":
            return 0.0, self.numbers[0]
        first, second = self.numbers[:2]
        return (math.log(first) if self.log else first), second

    def _ends(self) -> tuple[float, float]:
        """Return the ends of x, or of log x."""
        if self._periodic:
            centre = self._normal[0]
            return centre - self.period / 2, centre + self.period / 2
        low, high = self.support
        if not self.log:
            return low, high
        return math.log(low) if low > 0 else -math.inf, math.log(high)

    def _log_norm(self) -> float:
        """Return the log of the integral of exp(-z²/2) between the ends of x, or of log x."""
        (a, b), (centre, width) = self._ends(), self._normal
        if self.flat:
            return math.log(b - a) if self.proper else 0.0
        a, b = (a - centre) / width, (b - centre) / width
        return math.log(width) + math.log(2 * math.pi) / 2 + float(log_probability(a, b))


def _inside(
    x: Any, support: tuple[float, float], other: float, *, positive: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return where an array is inside a support, and the array with another value elsewhere."""
    x, (low, high) = np.asarray(x, float), support
    inside = (x >= low) & (x <= high) & (x > 0 if positive else True)
    return inside, np.where(inside, x, other)


def parsed_prior(parameter: str, given: Any) -> Prior:
    """Return the prior of a parameter from text or numbers.

    given: '2500:300' or (2500, 300), which are normal; 'lognormal:2500:0.3' or ('lognormal', 2500, 0.3);
    or a `Prior`. Raises OptionError for what is none.
    """
    if isinstance(given, Prior):
        return given
    parts = given.split(":") if isinstance(given, str) else given
    if not isinstance(parts, Sequence | np.ndarray) or len(parts) == 0:
        raise OptionError(
            f"prior of {parameter} = {shown(given)} cannot be used: give mean and standard deviation, "
            f"such as (2500, 300), or a distribution, such as ('lognormal', 2500, 0.3)"
        )
    name, parts = "normal", list(parts)
    if isinstance(parts[0], str) and math.isnan(_number(parts[0])):
        name = parts.pop(0).strip().lower()
    try:
        for part in parts:
            if not math.isfinite(_number(part)):
                raise OptionError(f"{shown(part)} is not a finite number")
        return Prior(name, tuple(map(_number, parts)))
    except OptionError as e:
        raise OptionError(f"prior of {parameter} = {shown(given)}: {e}") from None


def _number(value: Any) -> float:
    """Return a number, NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


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
    require_known(name, search.names, f"prior: unknown parameter {name!r}")
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
    require_known(name, _FORMS, f"unknown distribution {name!r}")
    form = _FORMS[name]
    if len(numbers) != len(form.numbers):
        raise OptionError(f"{name} takes {', '.join(form.numbers)}, not {len(numbers)} numbers")
    by_name = dict(zip(form.numbers, numbers, strict=True))
    for what, value in by_name.items():
        if math.isnan(value) or (math.isinf(value) and not form.flat):
            raise OptionError(f"{what} = {value} is not a finite number")
        if math.isfinite(value) and not 1 / _LARGEST < abs(value or 1.0) < _LARGEST:
            raise OptionError(f"{what} = {value:g} is not between 1e-60 and 1e60 in magnitude")
        if what in form.positive and not value > 0:
            raise OptionError(f"{what} = {value:g} is not positive")
    if "low" in by_name and not by_name["low"] < by_name["high"]:
        raise OptionError(f"low = {by_name['low']:g} is not below high = {by_name['high']:g}")


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


@dataclass(frozen=True)
class AmplitudePrior(_OfRate):
    """The factor a of that density, between bounds of which none is negative."""

    def log_density(self, x: float | Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return log a; -inf outside."""
        inside, x = _inside(x, self.support, self.high)
        return np.where(inside, np.log(np.where(x > 0, x, 1e-300)), -np.inf)


@dataclass(frozen=True)
class ExponentPrior(_OfRate):
    """The factor (t2^b - t1^b)² r^b of that density, between bounds."""

    def log_density(self, x: float | Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return the logarithm of the factor; -inf outside."""
        inside, b = _inside(x, self.support, self.high)
        growth = b * np.log(self.law.ratio)
        change = np.maximum(np.abs(np.expm1(growth)), 1e-150)
        factor = 2 * b * np.log(self.law.first) + 2 * np.log(change) + growth
        return np.where(inside, factor, -np.inf)


type AnyPrior = Prior | AmplitudePrior | ExponentPrior


def log_size_prior(law: PowerLaw, x: Float[np.ndarray, "*at p"]) -> Float[np.ndarray, "*at"]:
    """Return the logarithm of the factor 1/(J1² + J2² + J3²)^(3/2); law finds a, b and c in x."""
    a, b, c = (x[..., n] for n in law.at)
    values = (a * t**b + c for t in law.times)
    return -1.5 * np.log(sum(value**2 for value in values))


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
