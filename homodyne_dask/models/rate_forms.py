"""The spline basis of rates of free form, and the penalty on second differences of its coefficients.

Eilers and Marx (1996), "Flexible smoothing with B-splines and penalties".

Forms of a rate of time: power laws a t^b + c, splines, and power laws with deviations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int

Times = Float[np.ndarray, " n"]
Theta = Float[np.ndarray, " p"]
OfRates = Float[np.ndarray, " rate"]
Coefficients = Float[np.ndarray, " size"]

RATE, LOG_DENSITY = "rate", "log_density"
"""What the splines of a model given as f are: a rate [1/s] of age [s], or a density over ln Γ."""
DEFAULT_KNOTS = 20
"""Coefficients of a free form, where nobody says how many."""
MIN_KNOTS = 4
"""Of one cubic piece."""
FRAMES_PER_SPLINE = 3
"""Fewest frames of a record for each spline by default."""
SLOWEST, FASTEST = 0.3, 1.0
"""Rates of a distribution: from SLOWEST over the longest lag to FASTEST over the shortest one. Slower and
faster ones look like a change of the offset and the contrast."""
SPLINES_PER_DECADE, MAX_SPLINES = 6, 40
"""Of the logarithm of a distribution of rates, by default."""
_DIFFERENCE, _PER_DIFFERENCE = 8, 1 / 1000
"""Error of the splines nearest to a sharp bend over the eighth differences of their coefficients: of those
around kinks and ramps 85 to 91 % were below twice that. Fourth differences told kinks as well, but of sines
of 2 to 4 periods in a record 10 times their error or more; eighth ones tell 0.2 to 1.7 times that."""
_STEEP, _SURE = 2.5, 3.0
"""The change of a rate from an end to the next knot over those to the two knots after it, and over its error,
above which it is not known how the rate changes there."""


@dataclass(frozen=True)
class SplineForm:
    """A rate Σ c_k B_k(t), B_k cubic B-splines at equal distances of sum 1; constant beyond its ends [s]."""

    size: int = DEFAULT_KNOTS
    first: float = 0.0
    last: float = 1.0
    third: ClassVar[float] = 0.0
    """Weight of third differences of the coefficients beside second ones in the penalty."""
    least_strength: ClassVar[float] = 0.0
    """Smallest λ/φ of the penalty."""

    @classmethod
    def over(cls, time: Times, knots: int | None) -> Self:
        """Return the splines spread over times [s]: so many, or by default as many as suit them."""
        number = knots or max(MIN_KNOTS, min(DEFAULT_KNOTS, len(time) // FRAMES_PER_SPLINE))
        return cls(number, float(time[0]), float(time[-1]))

    @property
    def step(self) -> float:
        return (self.last - self.first) / (self.size - 3)

    @property
    def centres(self) -> Coefficients:
        """Where each spline has its maximum [s]; the first is before `first`, and the last after `last`."""
        return self.first + (np.arange(self.size) - 1) * self.step

    @property
    def ages(self) -> Float[np.ndarray, " size-2"]:
        """The time of each second difference of the coefficients over `last`, above 0."""
        return np.maximum(self.centres[1:-1], self.step / 2) / self.last

    def basis(self, t: Any) -> Any:
        """Return the splines at times [s] of any shape, (size, ...), of NumPy or JAX as t is."""
        xp = t.__array_namespace__()
        centres = self.centres.reshape(-1, *[1] * t.ndim)
        away = xp.abs((xp.clip(t, self.first, self.last) - centres) / self.step)
        inner = 2 / 3 - away**2 + away**3 / 2
        return xp.where(away < 1, inner, xp.maximum(2 - away, 0.0) ** 3 / 6)

    def at(
        self, t: Times, theta: Coefficients, floor: float | None
    ) -> Float[np.ndarray, "1+size n"]:
        xp = theta.__array_namespace__()
        basis = xp.asarray(self.basis(t))
        rate = theta @ basis
        rate = rate if floor is None else xp.maximum(rate, floor)
        return xp.concatenate([rate[None], basis])

    def projected(self, t: Times, rate: Times) -> Coefficients:
        """Return the coefficients nearest to a rate at times [s], as smooth as that allows."""
        basis = self.basis(t)
        normal = basis @ basis.T
        D = np.diff(np.eye(self.size), 2, axis=0)  # 0 of coefficients on a straight line
        smooth = 1e-3 * np.trace(normal) / self.size * (D.T @ D)
        return np.linalg.solve(normal + smooth, basis @ rate)


@dataclass(frozen=True)
class LogDensityForm(SplineForm):
    """The logarithm of a density over x = ln Γ, Γ in 1/s, in the same splines from `first` to `last`.

    Without third differences, distributions have tails that are powers of the rate, and wrong means. Data of
    a single rate fit all narrow peaks alike, and λ fell without end: a peak as narrow as the distance of two
    nodes has second differences of 16.
    """

    third: ClassVar[float] = 10.0
    least_strength: ClassVar[float] = 1 / 256

    @classmethod
    def over(cls, time: Times, knots: int | None) -> Self:
        """Return the splines over the rates that lags between these times [s] show."""
        shortest, longest = float(np.diff(time).min()), float(time[-1] - time[0])
        ends = np.log([SLOWEST / longest, FASTEST / shortest])
        number = knots or round(SPLINES_PER_DECADE * np.ptp(ends) / np.log(10)) + 3
        return cls(knots or min(number, MAX_SPLINES), float(ends[0]), float(ends[1]))

    @property
    def ages(self) -> Float[np.ndarray, " size-2"]:
        """1: bends of the logarithm count alike at all rates."""
        return np.ones(self.size - 2)

    @property
    def nodes(self) -> Float[np.ndarray, " node"]:
        """Values of x at equal distances, a quarter of that of the splines, at which it is summed."""
        return np.linspace(self.first, self.last, 4 * (self.size - 3) + 1)


def basis_error(coefficients: Coefficients) -> Coefficients:
    """Return the bend between splines that these leave out, one standard deviation, by their roughness."""
    size = len(coefficients)
    if size <= _DIFFERENCE:
        return np.zeros(size)
    rough = np.abs(np.diff(coefficients, _DIFFERENCE))
    return _PER_DIFFERENCE * np.pad(rough, _DIFFERENCE // 2, "edge")


def unresolved_ends(
    form: SplineForm, coefficients: Coefficients, covariance: Float[np.ndarray, "size size"]
) -> list[tuple[float, float]]:
    """Return the times [s] of end pieces where a rate changes too fast for its splines."""
    pieces = []
    for end, step in ((form.first, form.step), (form.last, -form.step)):
        slopes = np.diff(form.basis(end + step * np.arange(4)), axis=1)
        first, *after = np.abs(coefficients @ slopes)
        is_sure = first > _SURE * np.sqrt(slopes[:, 0] @ covariance @ slopes[:, 0])
        # fewer than 6 splines have no three pieces
        if form.size > 5 and is_sure and first > _STEEP * max(after):
            pieces.append((min(end, end + step), max(end, end + step)))
    return pieces


@dataclass(frozen=True)
class Smoothness:
    """Which parameters are coefficients of rates of free form, and how smooth these are to be."""

    places: Mapping[str, slice]
    """Of the coefficients of each rate in theta."""
    forms: Mapping[str, SplineForm]
    given: Mapping[str, float]
    """Strengths λ that a user gave, by rate; the others are chosen from the data."""
    clusters: Int[np.ndarray, " bin"]
    """A number per bin; bins that see the same speckle share one."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.places)

    def matrices(self, p: int, exponents: OfRates) -> Float[np.ndarray, "rate p p"]:
        """Return S of each rate: its penalty is λ thetaᵀ S theta; differences weigh their age ** exponent."""
        of_rates = np.zeros((len(self.places), p, p))
        for S, (c, terms) in zip(of_rates, self._terms(exponents), strict=True):
            for order, weight in terms:
                D = weight[:, None] * np.diff(np.eye(c.stop - c.start), order, axis=0)
                S[c, c] += D.T @ D
        return of_rates

    def penalties(self, theta: Theta, exponents: OfRates) -> OfRates:
        """Return thetaᵀ S theta of each rate, to rounding of the differences."""
        squares = [
            sum(float(((weight * np.diff(theta[c], order)) ** 2).sum()) for order, weight in terms)
            for c, terms in self._terms(exponents)
        ]
        return np.array(squares)

    def slope(self, strengths: OfRates, exponents: OfRates, theta: Theta) -> Theta:
        total = np.zeros_like(theta)
        for strength, (c, terms) in zip(strengths, self._terms(exponents), strict=True):
            for order, weight in terms:
                d = weight**2 * np.diff(theta[c], order)
                total[c] += strength * np.convolve(d, np.diff(np.eye(order + 1), order, axis=0)[0])
        return total

    def _terms(
        self, exponents: OfRates
    ) -> list[tuple[slice, list[tuple[int, Float[np.ndarray, " difference"]]]]]:
        """Return the place of the coefficients of each rate; orders of differences, and weights of these."""
        terms = []
        for (name, place), exponent in zip(self.places.items(), exponents, strict=True):
            form = self.forms[name]
            differences = [(2, form.ages**exponent)]
            if form.third:
                differences.append((3, np.full(form.size - 3, form.third)))
            terms.append((place, differences))
        return terms

    def rounding(self, strengths: OfRates, exponents: OfRates, theta: Theta) -> float:
        """Return the accuracy of Σ λ thetaᵀ S theta."""
        sizes = [
            sum(np.abs(weight * np.diff(theta[c], order)).sum() for order, weight in terms)
            * np.abs(theta[c]).max()
            for c, terms in self._terms(exponents)
        ]
        return 8 * float(np.finfo(float).eps * (strengths @ np.array(sizes)))


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
    size = 3

    def at(
        self, t: Times, theta: Float[np.ndarray, " 3"], floor: float | None
    ) -> Float[np.ndarray, "4 n"]:
        xp = theta.__array_namespace__()
        amplitude, exponent, offset = theta
        power = t**exponent
        rate = xp.stack(
            [amplitude * power + offset, power, amplitude * power * xp.log(t), xp.ones_like(power)]
        )
        if floor is None:
            return rate
        # there no parameter changes the rate
        at_floor = np.array([floor, 0.0, 0.0, 0.0])[:, None]
        return xp.where(rate[0] < floor, at_floor, rate)


RateForm = PowerLawForm | SplineForm
POWER_LAW_FORM = PowerLawForm()


def rate(
    t: Times, theta: Float[np.ndarray, " 3"], floor: float | None
) -> tuple[Times, Float[np.ndarray, "3 n"]]:
    values = POWER_LAW_FORM.at(t, theta, floor)
    return values[0], values[1:]


def from_half_a_frame(time: Any) -> Any:
    """Return frame times, at least half of the median step: a power of 0 s may be infinite; for JAX, too."""
    xp = time.__array_namespace__()
    return xp.maximum(time, xp.median(time[1:] - time[:-1]) / 2)


def integrated(rate: Any, steps: Any) -> Any:
    xp = rate.__array_namespace__()
    steps_up = xp.cumsum(0.5 * (rate[..., 1:] + rate[..., :-1]) * steps, axis=-1)
    return xp.concatenate([xp.zeros_like(rate[..., :1]), steps_up], axis=-1)


def rate_stderr(gradient: Float[np.ndarray, "p n"], covariance: Float[np.ndarray, "p p"]) -> Times:
    """Return one standard error of a rate by the delta method; NaN where rounding leaves nothing."""
    variance = np.einsum("in,ij,jn->n", gradient, covariance, gradient)
    terms = np.einsum("in,ij,jn->n", np.abs(gradient), np.abs(covariance), np.abs(gradient))
    above_rounding = (variance > ROUNDING * terms) | ~gradient.any(0)
    return np.sqrt(np.where(above_rounding, variance, np.nan))


def some_ages(n: int, most: int) -> Int[np.ndarray, " age"]:
    """Return at most so many of the numbers from 0 to n - 1, both included, denser at the beginning."""
    if n <= most:
        return np.arange(n)
    ages = [1]
    for steps_left in range(most - 1, 0, -1):
        last = ages[-1]
        # rounded, the even growth of small numbers would leave them where they are
        ages.append(max(last + 1, round(last * (n / last) ** (1 / steps_left))))
    return np.array(ages) - 1


class PowerLaw(NamedTuple):
    """A rate a t^b + c, seen at three times each of which is the same multiple of the one before.

    Over less than a decade of time amplitude, exponent and offset are correlated: χ² has a narrow valley,
    curved in (a, b, c) and straight in the values of the rate at three times, where a step can be longer.
    """

    places: tuple[int, int, int]
    """Where a, b and c stand in theta."""
    first: float
    """s."""
    ratio: float

    @property
    def times(self) -> Float[np.ndarray, " 3"]:
        return self.first * self.ratio ** np.arange(3)

    def after(self, theta: Theta, step: Theta, plain: bool = False) -> Float[np.ndarray, " 3"]:
        """Return a, b, c whose rate at the three times changes as the step leads to, to first order.

        plain: c takes its own step, as it does where that is 0, and only the first and the last time count.
        NaN where no rate has these values, or a differs by more than a factor MAX_AMPLITUDE_RATIO.
        """
        (a, b, c), (da, db, dc) = theta[list(self.places)], step[list(self.places)]
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
            # expm1: near b = 0 the power of the ratio is near 1, and its distance from 1 is what counts
            rises = a * power[:2] * np.expm1(b * log) + np.diff(moved)
            exponent = np.log(rises[1] / rises[0]) / log
            amplitude = rises[0] / (t[0] ** exponent * np.expm1(exponent * log))
            first = a * power[0] + c + moved[0] + dc
            offset = first - amplitude * t[0] ** exponent
            return _near(a, np.array([amplitude, exponent, offset]))


def _near(a: float, abc: Float[np.ndarray, " 3"]) -> Float[np.ndarray, " 3"]:
    is_near = 1 / MAX_AMPLITUDE_RATIO < abc[0] / a < MAX_AMPLITUDE_RATIO
    return abc if is_near else np.full(3, np.nan)


def power_laws(
    names: Sequence[str], laws: Sequence[tuple[str, str, str]], time: Times
) -> tuple[PowerLaw, ...]:
    """Return the rates whose (a, b, c) have these names, seen at times [s] of which some are above 0."""
    early, late = np.quantile(time[time > 0], [EARLY_QUANTILE, LATE_QUANTILE])
    if not early < late:
        return ()
    ratio = float(np.sqrt(late / early))
    places = [tuple(names.index(name) for name in law) for law in laws]
    return tuple(PowerLaw((a, b, c), float(early), ratio) for a, b, c in places)
