"""The parameters of a fit: names, units, bounds, fixed and initial values, and Gaussian priors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.document.blocks import Document, Printed, table_document
from homodyne_dask.errors import OptionError, require_known, require_type, shown
from homodyne_dask.models.rate_forms import PowerLaw, Smoothness, SplineForm

Theta = Float[np.ndarray, " p"]
Thetas = Float[np.ndarray, "*n p"]

SCALES = ("linear", "log")


OPERATORS: dict[str, Callable[[Any, object], Any]] = {}
"""What makes a sum or a product of models; filled when `homodyne_dask.models` is imported."""


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
        return np.nan_to_num(away, posinf=np.inf, neginf=-np.inf)

    def chisqr(self, theta: Thetas) -> Float[np.ndarray, "*n"]:
        return (self.deviation(theta) ** 2).sum(-1)

    def at(self, theta: Theta) -> PriorTerms:
        known = np.isfinite(self.mean)
        inverse, away = np.where(known, 1 / self.sd, 0.0), self.deviation(theta)
        size = np.where(known, np.abs(theta) + np.abs(self.mean), 0.0) * inverse
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
class Beat:
    """Names of the parameters by which fringes of c2 turn and decay, for the search of initial values."""

    speed: str
    """[Å/s] of a motion against a reference; where it has no direction the frequency of fringes [Hz]."""
    exponent: str = ""
    """Of the time in the speed."""
    direction: str = ""
    """[degree]."""
    decays: tuple[str, ...] = ()
    """Rates of decay [1/s], or where there is a direction diffusion coefficients [Å²/s]."""
    fraction: str = ""
    """Share of the moving part in the field."""
    turn: int = 1
    """1 where phases have cos(direction - φ), -1 where they have cos(direction + φ)."""
    law: str = ""
    """Of a speed Σ speed_k B_k(t), the B_k splines over the record: the model in which it is a power law."""
    exchange: str = ""
    """How parameters of both components are exchanged without a change of c2, if both may decay alike."""

    def turns(
        self, theta: dict[str, float], t: Float[np.ndarray, " n"], q: float, phi: float
    ) -> Float[np.ndarray, " n"]:
        """Return the turns of the fringes per second at times above 0 in a bin of q [1/Å] and φ [degree]."""
        if self.law:
            values = [value for name, value in theta.items() if name.startswith(f"{self.speed}_")]
            speed = SplineForm(len(values), t[0], t[-1]).basis(t).T @ values
        else:
            speed = theta[self.speed] * t ** (theta[self.exponent] if self.exponent else 0.0)
        if not self.direction:
            return speed
        away = np.deg2rad(theta[self.direction] - self.turn * phi)
        return np.abs(q * speed * np.cos(away)) / (2 * np.pi)


@dataclass(frozen=True, repr=False)
class Parametrized(Printed):
    """Base of all models: name, parameters and power laws. `print(model)` lists the parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    power_laws: tuple[tuple[str, str, str], ...] = field(default=(), kw_only=True)
    """Names (a, b, c) of parameters that make a rate a t^b + c, t in s: steps are curved along it."""
    simpler: str = field(default="", kw_only=True)
    """The model with fewer parameters that a user may take where the data do not determine all."""
    beat: Beat | None = field(default=None, kw_only=True)
    """Of models whose f has fringes: the parameters that they depend on."""
    isotropic: bool = field(default=False, kw_only=True)
    """Whether f is the same at all φ, and a change with φ may stand for motion in one direction."""
    ordered_times: bool = field(default=False, kw_only=True)
    """Whether f is known at t2 > t1 alone, as that of a user; of others it is 1 at t2 = t1, too."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def size(self) -> int:
        return len(self.parameters)

    @property
    def splines(self) -> Mapping[str, SplineForm]:
        """What has no formula but a sum of splines, by name, such as a rate."""
        return {}

    @property
    def places(self) -> dict[str, slice]:
        """Positions in theta of the coefficients of these, name_1 and so on."""
        first = {name: self.names.index(f"{name}_1") for name in self.splines}
        return {name: slice(at, at + self.splines[name].size) for name, at in first.items()}

    def __add__(self, other: object) -> Any:
        return OPERATORS["+"](self, other)

    def __mul__(self, other: object) -> Any:
        return OPERATORS["*"](self, other)

    def __repr__(self) -> str:
        return f"<model {self.name} of {', '.join(self.names)}>"

    def _document(self) -> Document:
        rows = [["parameter", "unit", "from", "to", "period"]]
        for one in self.parameters:
            ends = (f"{end:g}" if math.isfinite(end) else "unbounded" for end in one.bounds)
            rows.append([one.name, one.unit, *ends, f"{one.period:g}" if one.period else ""])
        return table_document(self.name, rows, left=len(rows[0]))

    def current(self) -> Self:
        return self


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

    def without_initial_values(self) -> Self:
        return replace(self, start=np.where(self.free, np.nan, self.start))

    def moved(self, theta: Theta, step: Theta) -> Theta:
        """Return theta after a step, curved along power laws; an offset at its bound stays there."""
        there = theta + step
        for law in self.laws:
            at, c = list(law.at), law.at[2]
            bounds = np.array([self.lower[c], self.upper[c]])
            bound = self.free[c] & np.isclose(there[c], bounds, rtol=1e-15, atol=0)
            for plain in [True] if bound.any() else [False, True]:
                bent = law.after(theta, step, plain)
                allowed = (bent >= self.lower[at]) & (bent <= self.upper[at]) | ~self.free[at]
                if np.isfinite(bent).all() and allowed.all():
                    there[at] = bent
                    break
        return self.inside(there)

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
    chosen = {p.name: p.bounds for p in parameters} | bounds
    limits = {name: _checked_bounds(name, pair) for name, pair in chosen.items()}
    start = np.full(len(names), np.nan)
    for name, value in initial.items():
        start[names.index(name)] = _value("initial", name, value, limits[name])
    for name, value in fixed.items():
        inside = limits[name] if name in bounds else None
        start[names.index(name)] = _value("fixed", name, value, inside)
    lower, upper = np.array(list(limits.values())).T.copy()
    period = np.array([math.inf if p.period is None else p.period for p in parameters])
    return Search(
        names=names,
        start=start,
        lower=lower,
        upper=upper,
        free=np.array([name not in fixed for name in names]),
        # none where bounds exclude some of it
        period=np.where(upper - lower >= period, period, math.inf),
        log=np.array([p.scale == "log" for p in parameters]),
        laws=laws,
    )


def _checked_names(
    option: str,
    given: Mapping[str, Any] | None,
    names: tuple[str, ...],
    constants: Mapping[str, float],
) -> dict[str, Any]:
    if given is None:
        return {}
    value = "(0, 1)" if option == "bounds" else "1.0"
    form = f"values by name, such as {option}={{{names[0]!r}: {value}}}"
    require_type(option, given, Mapping, form)
    for name in given:
        require_known(name, names, f"{option}: unknown parameter {name!r}")
        if name in constants:
            raise OptionError(
                f"{option}: {name} is {constants[name]:g} by the definition of this model: leave it "
                f"out, or use a model in which it varies"
            )
    return dict(given)


def _checked_bounds(name: str, given: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(edge) for edge in given)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(
            f"bounds of {name}: {shown(given)} is not a pair of numbers (low, high)"
        ) from None
    if not low < high:
        raise OptionError(
            f"bounds of {name}: {low:g} is not below {high:g}; to keep it constant, use fixed"
        )
    return low, high


def _value(what: str, name: str, value: float, limits: tuple[float, float] | None) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{what} {name}: {shown(value)} is not a number") from None
    if not math.isfinite(number):
        raise OptionError(f"{what} {name} = {number} is not a finite number")
    low, high = limits or (number, number)
    if not low <= number <= high:
        raise OptionError(
            f"{what} {name} = {number:g} is outside its bounds {low:g} to {high:g}: "
            f"change the value or widen the bounds"
        )
    return number
