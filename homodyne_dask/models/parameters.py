"""The parameters of a fit: names, units, bounds, fixed and initial values, and priors.

A prior is a distribution by its name, and its numbers. A fit takes normal ones, as measurements; `posterior`
knows others.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, require_known, require_type, shown
from homodyne_dask.models.rate_forms import PowerLaw, Smoothness

Theta = Float[np.ndarray, " p"]
Thetas = Float[np.ndarray, "*n p"]

SCALES = ("linear", "log")
_LARGEST = 1e60
"""Of a number of a distribution: the square of a ratio of two such numbers is finite."""


class PriorTerms(NamedTuple):
    """What the priors add to the normal equations at a theta."""

    chisqr: float
    """Σ ((theta - mean)/sd)²."""
    gradient: Theta
    """(mean - theta)/sd²: minus half the derivative of that."""
    weight: Theta
    """1/sd², what they add to the diagonal of the Hessian; 0 where there is no prior."""
    rounding: float

    @property
    def number(self) -> int:
        return int(np.count_nonzero(self.weight))


def shortest(step: Thetas, period: Theta) -> Thetas:
    """Return differences of parameters, of periodic ones by at most half a period."""
    periods = np.where(np.isfinite(period), period, 1.0)
    return np.where(np.isfinite(period), step - periods * np.round(step / periods), step)


@dataclass(frozen=True)
class GaussianPriors:
    """Mean and standard deviation of parameters that are known beforehand."""

    mean: Theta
    """NaN where there is no prior, as in sd."""
    sd: Theta
    period: Theta
    """inf where a parameter is not periodic; else the distance is that to the nearest of its means."""

    def by_name(self, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        pairs = zip(names, self.mean.tolist(), self.sd.tolist(), strict=True)
        return {name: (mean, sd) for name, mean, sd in pairs if math.isfinite(mean)}

    def deviation(self, theta: Thetas) -> Thetas:
        away = shortest(theta - self.mean, self.period) / self.sd
        # NaN, of parameters without a prior, becomes 0: they add nothing to χ²
        return np.nan_to_num(away, posinf=np.inf, neginf=-np.inf)

    def chisqr(self, theta: Thetas) -> Float[np.ndarray, "*n"]:
        return (self.deviation(theta) ** 2).sum(-1)

    def at(self, theta: Theta) -> PriorTerms:
        has_prior = np.isfinite(self.mean)
        inverse, away = np.where(has_prior, 1 / self.sd, 0.0), self.deviation(theta)
        size = np.where(has_prior, np.abs(theta) + np.abs(self.mean), 0.0) * inverse
        eps = float(np.finfo(float).eps)
        return PriorTerms(
            float((away**2).sum()),
            -away * inverse,
            inverse**2,
            eps * float(np.abs(away) @ (np.abs(away) + 2 * size)),
        )


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model; raises OptionError for invalid values, such as empty bounds.

    >>> hd.Parameter("D0", "Å²/s", bounds=(1.0, 1e6), scale="log").bounds
    (1.0, 1000000.0)
    """

    name: str
    unit: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    scale: Literal["linear", "log"] = "linear"
    """Scale of the search for initial values."""
    period: float | None = None
    """Values that differ by a period are equivalent; a fit wraps them into bounds of this width."""
    q_power: int = 0
    """2 for parameters that enter only multiplied by q²: where q is unknown, their product is reported."""
    constant: float | None = None
    """Its value if the definition of the model fixes it, otherwise None."""

    def __post_init__(self) -> None:
        require_type("name of a parameter", self.name, str, "a string, such as 'D0'")
        if not self.name:
            raise OptionError(
                "the name of a parameter must not be empty: give a name, such as 'D0'"
            )
        require_type(f"unit of {self.name}", self.unit, str, "a string, such as '1/s'")
        _checked_bounds(self.name, self.bounds)
        require_known(self.scale, SCALES, f"scale of {self.name}: {shown(self.scale)} is unknown")
        if self.period is not None:
            require_type(f"period of {self.name}", self.period, Real, "a positive number, or None")
            if not 0 < self.period < math.inf:
                raise OptionError(
                    f"period of {self.name} = {self.period:g} is not a positive number"
                )
        require_type(f"q_power of {self.name}", self.q_power, int, "0 or 2")
        if self.constant is not None:
            require_type(f"constant of {self.name}", self.constant, Real, "a number, or None")


@dataclass(frozen=True)
class Search:
    names: tuple[str, ...]
    start: Theta
    """Initial or fixed values; NaN where the user gave none."""
    lower: Theta
    upper: Theta
    free: Bool[np.ndarray, " p"]
    period: Theta
    """inf where a parameter is not periodic."""
    log: Bool[np.ndarray, " p"]
    """Parameters whose scale is their own size."""
    laws: tuple[PowerLaw, ...] = ()
    priors: GaussianPriors | None = None
    smoothness: Smoothness | None = None

    def prior_terms(self, theta: Theta) -> PriorTerms | None:
        return None if self.priors is None else self.priors.at(theta)

    def prior_chisqr(self, theta: Thetas) -> Float[np.ndarray, "*n"]:
        return np.zeros(theta.shape[:-1]) if self.priors is None else self.priors.chisqr(theta)

    def from_prior_means(self) -> Self:
        """Return the search with the means of priors inside the bounds where no initial value is given."""
        if self.priors is None:
            return self
        means = self.inside(self.priors.mean)
        return replace(self, start=np.where(np.isnan(self.start), means, self.start))

    def with_given(self, theta: Thetas) -> Thetas:
        return self.inside(np.where(np.isnan(self.start), theta, self.start))

    def between(self, share: Thetas, lower: Theta, upper: Theta) -> Thetas:
        """Return points at shares of the way from lower to upper, on the scale of each parameter."""
        log = self.log & (lower > 0)
        low, high = (np.where(log, np.log(np.where(log, end, 1)), end) for end in (lower, upper))
        with np.errstate(invalid="ignore"):  # some may be infinite
            points = low + share * (high - low)
        return np.where(log, np.exp(np.where(log, points, 0)), points)

    def without_initial_values(self) -> Self:
        return replace(self, start=np.where(self.free, np.nan, self.start))

    def moved(self, theta: Theta, step: Theta) -> Theta:
        """Return theta after a step, curved along power laws; an offset at its bound stays there."""
        end = theta + step
        for law in self.laws:
            abc, c = list(law.places), law.places[2]
            bounds = np.array([self.lower[c], self.upper[c]])
            bound = self.free[c] & (np.abs(end[c] - bounds) <= 1e-15 * np.abs(end[c]))
            # c at a bound stays there; else the plain curve is tried where the full one is impossible
            for plain in [True] if bound.any() else [False, True]:
                bent = law.after(theta, step, plain)
                allowed = (bent >= self.lower[abc]) & (bent <= self.upper[abc]) | ~self.free[abc]
                if np.isfinite(bent).all() and allowed.all():
                    end[abc] = bent
                    break
        return self.inside(end)

    def free_inside_bounds(self, theta: Theta) -> Bool[np.ndarray, " p"]:
        at_bound = (theta <= self.lower) | (theta >= self.upper)
        return self.free & (np.isfinite(self.period) | ~at_bound)

    def inside(self, theta: Theta) -> Theta:
        periodic = np.isfinite(self.period)
        lower = np.where(periodic, self.lower, 0.0)  # others may be unbounded
        wrapped = np.mod(theta - lower, np.where(periodic, self.period, 1.0)) + lower
        inside = (theta >= self.lower) & (theta <= self.upper)
        clipped = np.clip(theta, self.lower, self.upper)
        moved = np.where(periodic, np.where(inside, theta, wrapped), clipped)
        return np.where(self.free, moved, theta)


def search(
    parameters: tuple[Parameter, ...],
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    laws: tuple[PowerLaw, ...] = (),
) -> Search:
    """Return the search that a user's initial, fixed and bounds describe."""
    names = tuple(p.name for p in parameters)
    constants = {p.name: p.constant for p in parameters if p.constant is not None}
    initial = _checked_names("initial", initial, names, constants)
    fixed = _checked_names("fixed", fixed, names, constants) | constants
    bounds = _checked_names("bounds", bounds, names, constants)
    for name in sorted(set(initial) & set(fixed)):
        raise OptionError(f"{name} is in both initial and fixed: give it in only one of them")
    limits = {p.name: _checked_bounds(p.name, bounds.get(p.name, p.bounds)) for p in parameters}
    start = {name: _value("initial", name, value, limits[name]) for name, value in initial.items()}
    for name, value in fixed.items():
        # the bounds of the model are of values that are searched: fixed ones may lie outside
        start[name] = _value("fixed", name, value, limits[name] if name in bounds else None)
    lower, upper = np.array(list(limits.values())).T.copy()
    period = np.array([math.inf if p.period is None else p.period for p in parameters])
    return Search(
        names=names,
        start=np.array([start.get(name, math.nan) for name in names]),
        lower=lower,
        upper=upper,
        free=~np.isin(names, [*fixed]),
        # none where bounds exclude some of it
        period=np.where(upper - lower >= period, period, math.inf),
        log=np.array([p.scale == "log" for p in parameters]),
        laws=laws,
    )


def _checked_names(
    option: str,
    values: Mapping[str, Any] | None,
    names: tuple[str, ...],
    constants: Mapping[str, float],
) -> dict[str, Any]:
    if values is None:
        return {}
    value = "(0, 1)" if option == "bounds" else "1.0"
    form = f"values by name, such as {option}={{{names[0]!r}: {value}}}"
    require_type(option, values, Mapping, form)
    for name in values:
        require_known(name, names, f"{option}: unknown parameter {name!r}")
        if name in constants:
            raise OptionError(
                f"{option}: {name} is {constants[name]:g} by the definition of this model: leave it "
                f"out, or use a model in which it varies"
            )
    return dict(values)


def _checked_bounds(name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(edge) for edge in bounds)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(
            f"bounds of {name}: {shown(bounds)} is not a pair of numbers (low, high)"
        ) from None
    if not low < high:
        raise OptionError(
            f"bounds of {name}: {low:g} is not below {high:g}; to keep it constant, use fixed"
        )
    return low, high


def _value(option: str, name: str, value: float, limits: tuple[float, float] | None) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{option} {name}: {shown(value)} is not a number") from None
    if not math.isfinite(number):
        raise OptionError(f"{option} {name} = {number} is not a finite number")
    low, high = limits or (number, number)
    if not low <= number <= high:
        raise OptionError(
            f"{option} {name} = {number:g} is outside its bounds {low:g} to {high:g}: "
            f"change the value or widen the bounds"
        )
    return number


class Distribution(NamedTuple):
    """A distribution by its name, and its numbers in their order."""

    name: str
    numbers: tuple[float, ...]
    words: str
    """What a user gave for which parameter, as errors begin."""

    def require(self, names: Sequence[str], positive: Collection[str]) -> None:
        """Raise OptionError unless it has numbers of these names, some of them above 0."""
        if len(self.numbers) != len(names):
            raise OptionError(
                f"{self.words}: {self.name} takes {', '.join(names)}, not {len(self.numbers)} numbers"
            )
        for name, value in zip(names, self.numbers, strict=True):
            if not 1 / _LARGEST < abs(value or 1.0) < _LARGEST:
                raise OptionError(
                    f"{self.words}: {name} = {value:g} is not between 1e-60 and 1e60 in magnitude"
                )
            if name in positive and not value > 0:
                raise OptionError(f"{self.words}: {name} = {value:g} is not positive")
        if "low" in names and not self.numbers[-2] < self.numbers[-1]:
            low, high = self.numbers[-2:]
            raise OptionError(f"{self.words}: low = {low:g} is not below high = {high:g}")


def given_priors(by_name: Mapping[str, Any] | None, search: Search) -> dict[str, Distribution]:
    """Return the priors that a user gave, by parameter.

    given: by name, each as '2500:300' or (2500, 300), which are normal, or beginning with the name of a
    distribution, as 'lognormal:2500:0.3' or ('lognormal', 2500, 0.3).
    Raises OptionError for unknown and fixed parameters, and for what is no prior.
    """
    by_name = {} if by_name is None else by_name
    require_type("prior", by_name, Mapping, "priors by name, such as prior={'D0': (2500, 300)}")
    for name in by_name:
        require_known(name, search.names, f"prior: unknown parameter {name!r}")
        place = search.names.index(name)
        if not search.free[place]:
            raise OptionError(
                f"prior of {name}: {name} is fixed at {search.start[place]:g}, so a prior would have no "
                f"effect: remove it from prior or from fixed"
            )
    return {name: _parsed(name, value) for name, value in by_name.items()}


def _parsed(parameter: str, prior: Any) -> Distribution:
    words = f"prior of {parameter} = {shown(prior)}"
    fields = prior.split(":") if isinstance(prior, str) else prior
    if not isinstance(fields, Sequence | np.ndarray) or len(fields) == 0:
        raise OptionError(
            f"{words} cannot be used: give mean and standard deviation, such as (2500, 300), or a "
            f"distribution, such as ('lognormal', 2500, 0.3)"
        )
    name, fields = "normal", list(fields)
    if isinstance(fields[0], str) and math.isnan(_number(fields[0])):
        name = fields.pop(0).strip().lower()
    for value in fields:
        if not math.isfinite(_number(value)):
            raise OptionError(f"{words}: {shown(value)} is not a finite number")
    return Distribution(name, tuple(map(_number, fields)), words)


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def gaussian_priors(by_name: Mapping[str, Any] | None, search: Search) -> GaussianPriors | None:
    priors = given_priors(by_name, search)
    if not priors:
        return None
    mean, sd = np.full((2, len(search.names)), np.nan)
    for name, prior in priors.items():
        if prior.name != "normal":
            raise OptionError(
                f"prior of {name}: a fit takes only normal priors, as mean and standard deviation, but this "
                f"prior is {prior.name}: give it to posterior instead"
            )
        prior.require(("mean", "sd"), ("sd",))
        n = search.names.index(name)
        mean[n], sd[n] = prior.numbers
        if sd[n] < np.finfo(float).eps * abs(mean[n]):
            raise OptionError(
                f"prior of {name}: sd = {sd[n]:g} is below the rounding of {mean[n]:g}: to keep {name} at "
                f"this value, use fixed"
            )
    return GaussianPriors(mean, sd, search.period)
