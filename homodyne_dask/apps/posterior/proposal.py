"""From which distribution draws are proposed: a Student's t in the coordinates u, within bounds and priors.

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
from jaxtyping import Float

from homodyne_dask.apps.posterior.coordinates import Coordinates
from homodyne_dask.apps.posterior.power_law_draws import power_law_draws
from homodyne_dask.models.parameter_priors import AnyPrior, log_probability, truncated_normal
from homodyne_dask.solver.normal_matrix import inverse_of

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
