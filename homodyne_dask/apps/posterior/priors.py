"""Priors of a posterior, cut at the bounds of the fit.

    normal(mean, sd)       lognormal(median, sigma)        halfnormal(sd)
    uniform(low, high)     loguniform(low, high)           truncnormal(mean, sd, low, high)

sigma is the standard deviation of log x, and log(median) its mean: the mu of other packages. All are normal
or flat in x or in log x, between two ends.

A rate a t^b + c of which nothing is known but its bounds has a prior of its own. Log-uniform amplitudes would
give every decade too small to be seen the same weight, and there b means nothing; uniform ones prefer large a
that c takes back, with b near 0. Here the values J of the rate at times t1, t2 and t3, each r times the one
before, are uniform but for their size, which is log-uniform: their density is 1/(J1² + J2² + J3²)^(3/2).
Where the data determine the values it is the prior of Jeffreys (1946).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from homodyne_dask.errors import OptionError, require_known
from homodyne_dask.models.parameters import Distribution, Parameter, Search, given_priors
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.text import with_unit


class _Form(NamedTuple):
    numbers: str
    """The names of the numbers of a distribution."""
    positive: str
    """Those that must be above 0."""
    words: str
    log: bool = False
    """Whether it is one of log x: normal or flat in that."""
    least: float = -np.inf
    """The end of x, where it is none of the numbers."""

    def shape(self, numbers: tuple[float, ...]) -> tuple[float, float, float, float]:
        """Return mean and standard deviation, inf for a flat one, of x or of log x; the ends of x."""
        named = dict(zip(self.numbers.split(), numbers, strict=True))
        mean = np.log(named["median"]) if "median" in named else named.get("mean", 0.0)
        sd = named.get("sd", named.get("sigma", np.inf))
        return mean, sd, named.get("low", self.least), named.get("high", np.inf)


_FORMS = {
    "normal": _Form("mean sd", "sd", "normal, {0:g} ± {1:g}"),
    "lognormal": _Form(
        "median sigma", "sigma median", "lognormal, sigma {1:g}, median {0:g}", True, 0.0
    ),
    "halfnormal": _Form("sd", "sd", "halfnormal, sd {0:g}", least=0.0),
    "truncnormal": _Form("mean sd low high", "sd", "truncated normal, {0:g} ± {1:g} within {ends}"),
    "uniform": _Form("low high", "", "uniform, {ends}"),
    "loguniform": _Form("low high", "low", "log-uniform, {ends}", True),
}
FLAT_IN_RATE = "flat in the rate"
"""The words for a prior of amplitude or exponent of a rate that is one of its shape and size."""
_TRIED, _SMALLEST = 200_000, 1e-9
"""Rates of which those of the prior are chosen; their amplitude over its bound where the lower one is 0."""


class Prior(NamedTuple):
    """The prior of one parameter between two ends: normal or flat in y, which is x or log x."""

    text: str
    """In words: 'normal, 2500 ± 300 Å²/s'."""
    low: float
    high: float
    log: bool
    mean: float
    """Of y, without the ends."""
    sd: float
    """Of y; inf where it is flat."""
    origin: float
    """A periodic parameter is counted from here."""
    period: float

    def log_density(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the logarithm of the density at x, up to a constant; -inf outside."""
        if np.isfinite(self.period):
            x = (x - self.origin) % self.period + self.origin
        with np.errstate(all="ignore"):  # of x outside
            y = np.log(x) if self.log else x
            density = -(((y - self.mean) / self.sd) ** 2) / 2 - (y if self.log else 0.0)
        return np.where((x >= self.low) & (x <= self.high), density, -np.inf)

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
        ends = np.array([self.low, self.high])
        if self.log:
            ends = np.log(np.maximum(ends, np.finfo(float).tiny))
        if np.isinf(self.sd):
            y = rng.uniform(ends[0], ends[1], n)
        else:
            within = (ends - self.mean) / self.sd
            y = stats.truncnorm.rvs(*within, self.mean, self.sd, size=n, random_state=rng)
        return np.clip(np.exp(y) if self.log else y, self.low, self.high)


def _prior_of(parameter: Parameter, density: Distribution | None, search: Search) -> Prior:
    """Return a prior cut at the bounds of a fit; without ends the data need not bound it, either."""
    place = search.names.index(parameter.name)
    low, high, period = (float(x[place]) for x in (search.lower, search.upper, search.period))
    if density is None:
        log = parameter.scale == "log" and low > 0
        if not np.isfinite(high - low):
            raise OptionError(
                f"the prior of {parameter.name} is flat{' in the log' * log}, {low:g} to {high:g}, so its "
                f"posterior may be unbounded: give it bounds in the fit, or a prior"
            )
        density = Distribution("loguniform" if log else "uniform", (low, high), "")
    else:
        unknown = f"{density.words}: unknown distribution {density.name!r}"
        require_known(density.name, _FORMS, unknown)
        form = _FORMS[density.name]
        density.require(form.numbers.split(), form.positive.split())
    form, origin = _FORMS[density.name], low
    mean, sd, start, end = form.shape(density.numbers)
    if density.name == "normal" and np.isfinite(period):  # of each of its means
        origin, low, high = mean - period / 2, mean - period / 2, mean + period / 2
    inside = max(low, start), min(high, end)
    if not inside[0] < inside[1]:
        raise OptionError(
            f"prior of {parameter.name} extends from {start:g} to {end:g}, outside the bounds {low:g} to "
            f"{high:g}: change one of them"
        )
    words = form.words.format(*density.numbers, ends="{:g} to {:g}".format(*inside))
    return Prior(with_unit(words, parameter.unit), *inside, form.log, mean, sd, origin, period)


def posterior_priors(
    parameters: tuple[Parameter, ...], search: Search, by_user: Mapping[str, Any]
) -> tuple[dict[str, Prior], tuple[PowerLaw, ...]]:
    """Return the prior of every free parameter, and the rates that have one of their own: none was given."""
    given_by_user = given_priors(by_user, search)
    named = {law: {search.names[n] for n in law.places} for law in free_laws(search)}
    laws = tuple(law for law, names in named.items() if not names & given_by_user.keys())
    free = [parameters[n] for n in np.flatnonzero(search.free)]
    priors = {p.name: _prior_of(p, given_by_user.get(p.name), search) for p in free}
    for n in (n for law in laws for n in law.places[:2]):
        p, prior = parameters[n], priors[parameters[n].name]
        words = with_unit(f"{FLAT_IN_RATE}, {prior.low:g} to {prior.high:g}", p.unit)
        priors[p.name] = prior._replace(text=words)
    return priors, laws


def free_laws(search: Search) -> tuple[PowerLaw, ...]:
    """Return rates of three free parameters, the amplitude not negative, amplitude and exponent bounded."""
    bounds = np.stack([search.lower, search.upper])
    return tuple(
        law
        for law in search.laws
        if search.free[list(law.places)].all()
        and search.lower[law.places[0]] >= 0
        and np.isfinite(bounds[:, list(law.places[:2])]).all()
    )


def rate_draws(
    law: PowerLaw, priors: tuple[Prior, Prior, Prior], n: int, rng: np.random.Generator
) -> Float[np.ndarray, "n 3"]:
    """Return draws of (a, b, c) from the prior of a rate, chosen by its density from others.

    The values of the rate are a times those of t^b + c/a: the density of a, b and c/a is 1/a times one of
    the other two.
    """
    amplitude, exponent, offset = priors
    smallest = max(amplitude.low, _SMALLEST * amplitude.high)
    a = np.exp(rng.uniform(np.log(smallest), np.log(amplitude.high), _TRIED))
    b, ratio = rng.uniform(exponent.low, exponent.high, _TRIED), rng.uniform(-8, 8, _TRIED)
    x = np.stack([a, b, a * np.sinh(ratio)], axis=1)
    powers = law.times ** b[:, None]
    size = ((powers + np.sinh(ratio)[:, None]) ** 2).sum(1) ** 1.5
    density = np.diff(powers, axis=1).prod(1) / size * np.cosh(ratio)
    density *= (x[:, 2] >= offset.low) & (x[:, 2] <= offset.high)
    return x[rng.choice(_TRIED, n, p=density / density.sum())]
