"""Coordinates in which χ² is nearly quadratic far around the optimum, and in which a posterior is sampled.

Amplitude, exponent and offset of a rate a t^b + c are replaced by its values at three times: the valley of
χ² that is curved in (a, b, c) is straight in them. Other parameters of logarithmic scale count by their log.

Draws of amplitude a, exponent b and offset c of a rate a t^b + c whose values at three times are normal.

For a known exponent the three values are linear in a and c. So the density over b, with c integrated between
its bounds and a summed over cells, is tabulated, and b drawn from the table. At that b the density over a is
tabulated, and a drawn; and c there, from a truncated normal distribution. The draws are independent, inside
of their bounds, and their density is known, also where the data say little and bounds and priors say most.

From which distribution draws are proposed: a Student's t in the coordinates u, within bounds and priors.

The likelihood is nearly normal in u. A t is a normal distribution whose precision is scaled by a gamma
variate tau. For a given tau coordinates are drawn in turn, each from its conditional distribution given those
before (Geweke 1991), three at a time where they are values of a rate: these with their bounds and priors. The
density of what is drawn, tau included, is known, so that draws can be weighted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lgamma
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.machine.cores_and_cgroup_limits import on_cores
from homodyne_dask.models.parameter_priors import (
    SMALLEST,
    AnyPrior,
    log_probability,
    truncated_normal,
)
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.solver.normal_matrix import inverse_of


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


_EXPONENTS, _AMPLITUDES, _FINE = 48, 16, 64
"""Cells of a table: of exponents, of amplitudes at each, and of amplitudes at the exponent that is drawn."""
_WIDTHS = 6.0
"""Standard deviations to both sides of an amplitude that a table covers, within its bounds."""
_SEARCHED = 32
"""Draws of a batch by which its range of exponents is found."""
_LEAST_MASS = 1e-7
_BATCH = 250
"""Draws that share a range of exponents, of nearly the same tau: cells are then as fine as a density."""


class _Tables(NamedTuple):
    """The densities of some draws over exponent b and amplitude a, c integrated."""

    mass: Float[np.ndarray, "draw b a"]
    """Of every cell, that of the largest being 1."""
    lowest: Float[np.ndarray, "draw b"]
    """Of a; of log a where the prior of a is one of its log."""
    width: Float[np.ndarray, "draw b"]
    """Of a cell, in the same."""


class _Values(NamedTuple):
    """What draws know of the three values: normal, with a prior of c that is normal."""

    law: PowerLaw
    priors: tuple[AnyPrior, AnyPrior, AnyPrior]
    """Of a, b and c."""
    mean: Float[np.ndarray, "draw 3"]
    precision: Float[np.ndarray, "3 3"]
    tau: Float[np.ndarray, " draw"]
    """The precision of a draw is this times that."""
    c: tuple[float, float]
    """Mean and weight 1/sd² of the prior of c; weight 0 for none."""

    def of(self, draws: Int[np.ndarray, " part"]) -> "_Values":
        """Return these of some draws."""
        return self._replace(mean=self.mean[draws], tau=self.tau[draws])


def power_law_draws(
    law: PowerLaw,
    priors: tuple[AnyPrior, AnyPrior, AnyPrior],
    mean: Float[np.ndarray, "draw 3"],
    precision: Float[np.ndarray, "3 3"],
    tau: Float[np.ndarray, " draw"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "draw 3"], Float[np.ndarray, " draw"]]:
    """Return a, b and c for each mean of the three values, and the log of their density.

    priors: of a, b and c; their ends bound the draws. The precision of the values is tau times `precision`.
    """
    of_c = priors[2].normal_part(log=False) or (0.0, 0.0)
    values = _Values(law, priors, mean, precision, tau, of_c)
    x, log_q = np.empty((len(tau), 3)), np.empty(len(tau))
    batches = np.array_split(np.argsort(tau), -(-len(tau) // _BATCH))
    each = zip(batches, rng.spawn(len(batches)), strict=True)
    made = on_cores(lambda of: _drawn(values.of(of[0]), of[1]), each)
    for some, (drawn, density) in zip(batches, made, strict=True):
        x[some], log_q[some] = drawn, density
    return x, log_q


def _range_of_exponents(values: _Values) -> Float[np.ndarray, " edge"]:
    """Return the edges of cells of exponents, over where the density is on average of the draws."""
    n, (low, high) = len(values.tau), values.priors[1].core
    values = values.of(np.linspace(0, n - 1, min(n, _SEARCHED)).astype(int))
    edges = np.linspace(low, high, _EXPONENTS + 1)
    for _ in range(2):
        middles = (edges[1:] + edges[:-1]) / 2
        share = _tables(values, middles, _AMPLITUDES).mass.sum(2)
        share = (share / share.sum(1, keepdims=True)).mean(0)
        some = np.flatnonzero(share > _LEAST_MASS)
        first, last = max(some[0] - 1, 0), min(some[-1] + 2, _EXPONENTS)
        edges = np.linspace(edges[first], edges[last], _EXPONENTS + 1)
    return edges


def _tables(values: _Values, b: Float[np.ndarray, "*b"], cells: int) -> _Tables:
    """Return the tables at exponents b.

    b: exponents for all draws, or of shape (draw, 1) those of each.
    """
    law, priors = values.law, values.priors
    g = law.times ** b[..., None]
    P, tau = values.precision, values.tau[:, None]
    mean_c, weight_c = values.c
    cc = tau * P.sum() + weight_c
    aa, ac = tau * (g @ P * g).sum(-1), tau * (g @ P.sum(1))
    am = tau * ((values.mean @ P)[:, None, :] * g).sum(-1)
    cm = tau * (values.mean @ P.sum(1))[:, None] + weight_c * mean_c
    # near b = 0 amplitude and offset are the same, and what is left of aa is rounding
    curvature = np.maximum(aa - ac**2 / cc, np.finfo(float).eps * aa)
    centre, deviation = (am - ac * cm / cc) / curvature, 1 / np.sqrt(curvature)
    low, high = priors[0].core
    least = low if low > 0 else SMALLEST * high
    lowest = np.clip(centre - _WIDTHS * deviation, least, high * (1 - 1e-3))
    highest = np.clip(centre + _WIDTHS * deviation, lowest * (1 + 1e-3), high)
    if priors[0].log:
        lowest, highest = np.log(lowest), np.log(highest)
    width = (highest - lowest) / cells
    a = lowest[..., None] + width[..., None] * (np.arange(cells) + 0.5)
    # the density at the best a and c of an exponent, but for what all exponents share
    top = centre**2 * curvature / 2 + priors[1].log_density(b)
    log_mass = (top + np.log(width))[..., None]
    if priors[0].log:
        log_mass, a = log_mass + a, np.exp(a)
    log_mass = log_mass - 0.5 * ((a - centre[..., None]) / deviation[..., None]) ** 2
    log_mass += priors[0].log_density(a)
    c = (cm / cc)[..., None] - (ac / cc)[..., None] * a
    ends = ((end - c) * np.sqrt(cc)[..., None] for end in priors[2].support)
    log_mass += log_probability(*ends)
    return _Tables(np.exp(log_mass - log_mass.max((1, 2), keepdims=True)), lowest, width)


def _cell(
    mass: Float[np.ndarray, "draw cell"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, " draw"], Float[np.ndarray, " draw"]]:
    """Return a cell for each draw by the masses of its cells, and the log of its probability."""
    n, cells = mass.shape
    below = mass.cumsum(1)
    chosen = (below < (rng.random(n) * below[:, -1])[:, None]).sum(1).clip(0, cells - 1)
    return chosen, np.log(mass[np.arange(n), chosen] / below[:, -1])


def _drawn(
    values: _Values, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "draw 3"], Float[np.ndarray, " draw"]]:
    edges, law, priors = _range_of_exponents(values), values.law, values.priors
    n, step = len(values.mean), edges[1] - edges[0]
    by_cell = _tables(values, edges[:-1] + step / 2, _AMPLITUDES).mass
    cell, log_q = _cell(by_cell.sum(2), rng)
    b = edges[cell] + step * rng.random(n)
    fine = _tables(values, b[:, None], _FINE)
    cell, log_p = _cell(fine.mass[:, 0], rng)
    width, (mean_c, weight_c) = fine.width[:, 0], values.c
    a = fine.lowest[:, 0] + width * (cell + rng.random(n))
    log_q += log_p - np.log(step * width)
    if priors[0].log:
        log_q, a = log_q - a, np.exp(a)
    left = values.mean - a[:, None] * law.times ** b[:, None]
    cc = values.tau * values.precision.sum() + weight_c
    centre = (values.tau * (left @ values.precision.sum(1)) + weight_c * mean_c) / cc
    ends = [(end - centre) * np.sqrt(cc) for end in priors[2].support]
    z = truncated_normal(rng, n, *ends)
    log_q += -(z**2) / 2 + np.log(cc / (2 * np.pi)) / 2 - log_probability(*ends)
    return np.stack([a, b, centre + z / np.sqrt(cc)], axis=1), log_q


_LEAST_CURVED = 0.05
"""Change of -2 log of a likelihood over the width of draws below which it counts as this."""
_LEAST_SCALE, _MOST_RATE = 0.02, 0.45
"""Mean of tau, and rate of its gamma distribution over dof. Below 1/2, that of a t, weights have a bound."""
_MOST_OF_ONE = 0.5
"""Share of one draw in all weights above which draws do not tell a quadratic form."""

type LogDensity = Callable[[Float[np.ndarray, "n x"]], Float[np.ndarray, " n"]]


class Weighted(NamedTuple):
    """Those draws that have a density, that density, and their log weights."""

    x: Float[np.ndarray, "n x"]
    tau: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"]
    log_weight: Float[np.ndarray, " n"]

    @property
    def effective(self) -> float:
        """The effective number of draws (Kish 1965)."""
        weight = np.exp(self.log_weight - self.log_weight.max(initial=-np.inf))
        return float(weight.sum() ** 2 / (weight**2).sum()) if len(weight) else 0.0


@dataclass(frozen=True)
class Proposal:
    """A t in the coordinates u, times priors of power laws, within the bounds."""

    at: Coordinates
    priors: tuple[AnyPrior, ...]
    """Of the free parameters."""
    centre: Float[np.ndarray, " u"]
    precision: Float[np.ndarray, "u u"]
    dof: float
    """Twice the shape of the gamma distribution of tau."""
    rate: float
    """Of that; dof/2 for a t without bounds and priors."""

    def draws(
        self, n: int, rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, "n x"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return draws of free parameters and of tau, and the log of their joint density."""
        tau = rng.gamma(self.dof / 2, 1 / self.rate, n)
        log_q = _log_gamma(tau, self.dof / 2, self.rate)
        x = np.repeat(self.at.x[None], n, axis=0)
        u = self.at.of(x)
        done: list[int] = []
        for block in self._blocks():
            mean, precision = self._conditional(block, done, u)
            if len(block) == 1:
                found, more = self._one(block[0], mean[:, 0], tau * precision[0, 0], rng)
            else:
                law = next(law for law in self.at.laws if list(law.at) == block)
                a, b, c = (self.priors[n] for n in block)
                found, more = power_law_draws(law, (a, b, c), mean, precision, tau, rng)
            x[:, block] = found
            log_q += more
            done += block
            u = self.at.of(x)
        return x, tau, log_q

    def weighted(self, log_density: LogDensity, n: int, rng: np.random.Generator) -> Weighted:
        """Return draws with the ratio of a density to the one they come from.

        The density of tau, given a draw, is the gamma distribution that makes normal ones a t.
        """
        x, tau, log_q = self.draws(n, rng)
        inside = self.at.inside(x)
        x, tau, log_q = x[inside], tau[inside], log_q[inside]
        away = self.at.of(x) - self.centre
        shape = (self.dof + self.at.size) / 2
        rate = (self.dof + (away @ self.precision * away).sum(1)) / 2
        there = log_density(x)
        log_weight = there + _log_gamma(tau, shape, rate) - log_q
        known = np.isfinite(log_weight)
        return Weighted(x[known], tau[known], there[known], log_weight[known])

    def adapted(self, to: Weighted, q: Float[np.ndarray, " n"]) -> "Proposal":
        """Return it adapted to draws of a density; q: -2 log of the likelihood of each.

        Centre and precision are those of the quadratic form in u that is nearest to q, and the mean of tau
        is that of the draws.
        """
        if len(to.x) < 10 * self.at.size**2:
            return self
        weight = truncated(to.log_weight)
        mean = weight @ to.tau
        # errors of q count by what they change in the log of a t
        near = truncated(to.log_weight / 2) / (1 + q / self.dof) ** 2
        near /= near.sum()
        if near.max() > _MOST_OF_ONE:
            return self
        nearest = _quadratic(self.at.of(to.x), q, near)
        by = proposal(self.at, self.priors, *nearest, self.dof)
        rate = self.dof / (2 * max(mean, _LEAST_SCALE))
        return replace(by, rate=min(rate, _MOST_RATE * self.dof))

    def _blocks(self) -> list[list[int]]:
        rates = [list(law.at) for law in self.at.laws]
        others = set(range(self.at.size)) - {n for of in rates for n in of}
        return rates + [[n] for n in sorted(others)]

    def _conditional(
        self, block: list[int], done: list[int], u: Float[np.ndarray, "n u"]
    ) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "k k"]]:
        """Return mean and precision of some coordinates, given others; those after them are free."""
        covariance = inverse_of(self.precision)
        own = covariance[np.ix_(block, block)]
        mean = np.broadcast_to(self.centre[block], (len(u), len(block)))
        if done:
            cross = covariance[np.ix_(block, done)]
            gain = cross @ inverse_of(covariance[np.ix_(done, done)])
            mean = mean + (u[:, done] - self.centre[done]) @ gain.T
            own = own - gain @ cross.T
        return mean, inverse_of(own)

    def _one(
        self,
        n: int,
        mean: Float[np.ndarray, " n"],
        precision: Float[np.ndarray, " n"],
        rng: np.random.Generator,
    ) -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, " n"]]:
        """Return draws of a parameter of its own, and the log of their density."""
        log, size = bool(self.at.log[n]), np.sqrt(precision)
        low, high = (-np.inf, np.inf) if np.isfinite(self.at.period[n]) else self.priors[n].support
        if log:
            low, high = np.log(low) if low > 0 else -np.inf, np.log(high)
        ends = (low - mean) * size, (high - mean) * size
        z = truncated_normal(rng, len(mean), *ends)
        u = mean + z / size
        log_q = -(z**2) / 2 + np.log(precision / (2 * np.pi)) / 2 - log_probability(*ends)
        return (np.exp(u) if log else u)[:, None], log_q - u if log else log_q


def proposal(
    at: Coordinates,
    priors: tuple[AnyPrior, ...],
    centre: Float[np.ndarray, " u"],
    precision: Float[np.ndarray, "u u"],
    dof: float,
) -> Proposal:
    """Return the proposal for a likelihood that is a t in u of this centre and precision.

    Priors that are normal in coordinates of their own become part of both.
    """
    whole, pull = precision.copy(), precision @ centre
    for n in set(range(at.size)) - {k for law in at.laws for k in law.at}:
        normal = priors[n].normal_part(bool(at.log[n]))
        if normal is not None:
            whole[n, n] += normal[1]
            pull[n] += normal[0] * normal[1]
    return Proposal(at, priors, inverse_of(whole) @ pull, whole, dof, dof / 2)


def _quadratic(
    u: Float[np.ndarray, "n u"], q: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " u"], Float[np.ndarray, "u u"]]:
    """Return centre and matrix of the quadratic form nearest to q.

    Where q is hardly curved, the centre is that of the draws.
    """
    middle, size = weight @ u, np.sqrt(weight @ (u - weight @ u) ** 2)
    z = (u - middle) / size
    i, j = np.triu_indices(u.shape[1])
    columns = np.column_stack([np.ones(len(u)), z, z[:, i] * z[:, j]]) * np.sqrt(weight)[:, None]
    form = np.linalg.lstsq(columns, q * np.sqrt(weight), rcond=None)[0]
    matrix = np.zeros((u.shape[1],) * 2)
    matrix[i, j] = form[1 + u.shape[1] :]
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    curved = np.where(values > _LEAST_CURVED, 1 / np.maximum(values, _LEAST_CURVED), 0.0)
    centre = middle - size * ((vectors * curved) @ vectors.T @ form[1 : 1 + u.shape[1]]) / 2
    matrix = (vectors * np.maximum(values, _LEAST_CURVED)) @ vectors.T
    return centre, matrix / np.outer(size, size)


def _log_gamma(tau: Float[np.ndarray, " n"], shape: float, rate: Any) -> Float[np.ndarray, " n"]:
    """Return the log density of a gamma distribution."""
    return shape * np.log(rate) - lgamma(shape) + (shape - 1) * np.log(tau) - rate * tau


def truncated(log_weight: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return weights that sum to 1, none of them more than √n times their mean (Ionides 2008)."""
    weight = np.exp(log_weight - log_weight.max())
    weight = np.minimum(weight, weight.mean() * np.sqrt(len(weight)))
    return weight / weight.sum()
