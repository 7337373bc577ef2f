"""Draws of any density by chains that move together, and whether these agree.

Half of the chains move by differences of the other half (differential evolution, ter Braak 2006), then the
other half; and all of them by independent proposals from a mixture of Student's t that was fitted to chains
before. Each move is accepted by the rule of Metropolis and Hastings, so that all chains have the density. A
fifth of the differences is taken whole, so that chains jump between modes in which some of them are.
Whether chains agree is told by the rank-normalized R-hat and the effective sample size (Vehtari et al. 2021).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MAX_R_HAT = 1.01
"""Above which draws are unreliable."""
_INDEPENDENT = 3
"""Independent proposals of each chain in a cycle."""
_WHOLE, _NOISE = 0.2, 1e-3
"""Share of differences taken whole; what is added to differences, over the standard deviation."""
_PARTS, _SHRUNK, _ITERATIONS = 5, 3, 30
"""Of a mixture; draws for each direction by which scales are drawn together."""
_SHORTEST, _SHORT, _MOST = 25, 200, 24
"""Cycles of the first chains; cycles of all over those needed, or over 100, after which chains end."""
_ENOUGH = 0.75
"""Effective draws for each that is kept."""

type Values = Float[np.ndarray, " n"]
type Places = Float[np.ndarray, "n u"]
type Steps = Float[np.ndarray, "step chain u"]
type Roots = Float[np.ndarray, "*k u u"]
type LogDensity = Callable[[Places], Values]


class Chains(NamedTuple):
    z: Steps
    r_hat: float
    effective: float


class Mixture(NamedTuple):
    """A mixture of distributions of Student's t."""

    share: Values
    mean: Places
    root: Roots
    """Lower triangles; times their transposes they are the scales."""
    dof: float

    def draws(self, n: int, rng: np.random.Generator) -> Places:
        k = rng.choice(len(self.share), n, p=self.share)
        wide = np.sqrt(self.dof / rng.chisquare(self.dof, (n, 1)))
        normal = rng.standard_normal((n, 1, self.mean.shape[1]))
        return self.mean[k] + wide * (normal @ self.root[k].swapaxes(1, 2))[:, 0]

    def distances(self, z: Places) -> Float[np.ndarray, "k n"]:
        """Return squared distances from each middle in units of its scale."""
        deviation = z - self.mean[:, None]
        return ((deviation @ np.linalg.inv(self.root).swapaxes(1, 2)) ** 2).sum(-1)

    def densities(self, z: Places) -> Float[np.ndarray, "k n"]:
        """Return the logarithm of the density of each t with its share, up to a constant."""
        size = np.log(np.diagonal(self.root, axis1=1, axis2=2)).sum(1)
        kernel = np.log1p(self.distances(z) / self.dof) * (self.dof + self.mean.shape[1]) / 2
        return (np.log(self.share) - size)[:, None] - kernel

    def log_density(self, z: Places) -> Values:
        return np.logaddexp.reduce(self.densities(z), axis=0)

    def fitted_to(self, z: Places, rng: np.random.Generator) -> "Mixture":
        """Return the mixture of large likelihood for draws, by expectation and maximization.

        Each scale is drawn toward their mean as by draws for each direction: none is degenerate.
        """
        n, p = z.shape
        middles = z[rng.choice(n, _PARTS, replace=False)]
        root = np.repeat(root_of(np.cov(z.T).reshape(p, p))[None], _PARTS, axis=0)
        mixture = Mixture(np.full(_PARTS, 1 / _PARTS), middles, root, self.dof)
        for _ in range(_ITERATIONS):
            belongs = mixture.densities(z)
            belongs = np.exp(belongs - np.logaddexp.reduce(belongs, axis=0))
            weight = belongs * (self.dof + p) / (self.dof + mixture.distances(z))
            number = belongs.sum(1) + 1e-3
            mean = (weight @ z + 1e-3 * mixture.mean) / (weight.sum(1) + 1e-3)[:, None]
            deviation = z - mean[:, None]
            scale = (weight[..., None] * deviation).swapaxes(1, 2) @ deviation
            mean_scale = scale.sum(0) / n
            scale = (scale + _SHRUNK * p * mean_scale) / (number + _SHRUNK * p)[:, None, None]
            mixture = Mixture(number / number.sum(), mean, root_of(scale), self.dof)
        return mixture


def root_of(scale: Roots) -> Roots:
    """Return Cholesky factors, also where some directions have no width."""
    size = np.sqrt(np.diagonal(scale, axis1=-2, axis2=-1))[..., None] + np.finfo(float).tiny
    unit = scale / (size * size.swapaxes(-2, -1))
    return size * np.linalg.cholesky(unit + 1e-10 * np.eye(unit.shape[-1]))


def r_hat_and_ess(draws: Steps) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective sample size, of bulk and tails, of all u."""
    from arviz_stats.base.array import array_stats  # lazy: it loads for a second

    chains_of_u = draws.transpose(2, 1, 0)
    with np.errstate(all="ignore"):  # NaN of chains that did not move
        r_hat = [array_stats.rhat(u) for u in chains_of_u]
        bulk = [array_stats.ess(u) for u in chains_of_u]
        tail = [array_stats.ess(u, method="tail", prob=(0.05, 0.95)) for u in chains_of_u]
    return float(np.max(r_hat)), float(np.min([bulk, tail]))


def walk(
    log_density: LogDensity, z: Places, mixture: Mixture, cycles: int, rng: np.random.Generator
) -> Steps:
    """Return the places of chains after each cycle; z: where they start."""
    z, density_at_z, (n, p) = z.copy(), log_density(z), z.shape
    halves = np.arange(0, n, 2), np.arange(1, n, 2)
    steps = np.empty((cycles, n, p))
    for cycle in range(cycles):
        for moving, others in (halves, halves[::-1]):
            minuend = rng.integers(len(others), size=len(moving))
            second = (minuend + rng.integers(1, len(others), size=len(moving))) % len(others)
            share = rng.uniform(0.5, 1.0, len(moving)) * 2.38 / np.sqrt(2 * p)
            share = np.where(rng.random(len(moving)) < _WHOLE, 1.0, share)[:, None]
            noise = _NOISE * rng.standard_normal((len(moving), p)) @ mixture.root[0].T
            tried = z[moving] + share * (z[others[minuend]] - z[others[second]]) + noise
            density = log_density(tried)
            accepted = np.log(rng.random(len(moving))) < density - density_at_z[moving]
            z[moving[accepted]], density_at_z[moving[accepted]] = tried[accepted], density[accepted]
        tried = mixture.draws(_INDEPENDENT * n, rng)
        density, proposed = log_density(tried), mixture.log_density(tried)
        for places in np.split(np.arange(_INDEPENDENT * n), _INDEPENDENT):
            gain = density[places] - proposed[places] - density_at_z + mixture.log_density(z)
            accepted = np.log(rng.random(n)) < gain
            z[accepted], density_at_z[accepted] = tried[places[accepted]], density[places[accepted]]
        steps[cycle] = z
    return steps


def chains_of(
    log_density: LogDensity, z: Places, mixture: Mixture, draws: int, rng: np.random.Generator
) -> tuple[Chains, Mixture]:
    """Return chains that agree, or the longest that may be had, and the mixture they took.

    They are begun anew, longer, where those before ended, until they agree and have as many effective draws
    as are wanted; so the first ones only find the way and the mixture.
    """
    cycles_needed = -(-draws // len(z))
    cycles, spent = min(max(cycles_needed // 4, _SHORTEST), _SHORT), 0
    while True:
        steps = walk(log_density, z, mixture, cycles, rng)
        r_hat, effective = r_hat_and_ess(steps)
        spent += cycles
        agree = r_hat < MAX_R_HAT
        enough = agree and cycles >= cycles_needed and effective > _ENOUGH * draws
        if enough or spent > _MOST * max(cycles_needed, 100):
            return Chains(steps, r_hat, effective), mixture
        z = steps[-1]
        mixture = mixture.fitted_to(steps[cycles // 2 :].reshape(-1, z.shape[1]), rng)
        cycles = max(2 * cycles, cycles_needed if agree else 0)
