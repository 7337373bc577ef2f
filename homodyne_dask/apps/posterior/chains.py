"""Draws of any density by chains that move together.

Half of the chains move by differences of the other half (differential evolution, ter Braak 2006), then the
other half; and all of them by independent proposals of a Student's t that was fitted to chains before. Each
move is accepted by the rule of Metropolis and Hastings, so that all chains have the density. A fifth of the
differences is taken whole, and the t has a copy at each mode that is known: so chains jump between modes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps.posterior.r_hat_and_ess import MAX_R_HAT, r_hat_and_ess

_INDEPENDENT = 3
"""Independent proposals of each chain in a cycle."""
_WHOLE, _NOISE = 0.2, 1e-3
"""Share of differences taken whole; what is added to differences, over the standard deviation."""
_MOST_DOF, _ITERATIONS = 5.0, 20
_SHORTEST, _MOST = 25, 24
"""Cycles of the first chains; cycles of all over those needed, or over 100, after which chains end."""
_ENOUGH = 0.75
"""Effective draws for each that is kept."""

type LogDensity = Callable[[Float[np.ndarray, "n u"]], Float[np.ndarray, " n"]]


class Chains(NamedTuple):
    """Draws, and how well chains agree."""

    z: Float[np.ndarray, "step chain u"]
    r_hat: float
    effective: float


class StudentT(NamedTuple):
    """The same t about several modes."""

    mean: Float[np.ndarray, " u"]
    root: Float[np.ndarray, "u u"]
    """Lower triangle; times its transpose it is the scale."""
    modes: Float[np.ndarray, "mode u"]
    """Distances from the first mode."""
    dof: float

    def draws(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, "n u"]:
        """Return n independent draws."""
        normal = rng.standard_normal((n, len(self.mean)))
        wide = np.sqrt(self.dof / rng.chisquare(self.dof, (n, 1)))
        return self.mean + wide * normal @ self.root.T + rng.choice(self.modes, n)

    def log_density(self, z: Float[np.ndarray, "n u"]) -> Float[np.ndarray, " n"]:
        """Return the logarithm of the density, up to a constant."""
        kernel = 1 + self.distances(z) / self.dof
        return np.log((kernel ** (-(self.dof + len(self.mean)) / 2)).sum(1))

    def distances(self, z: Float[np.ndarray, "n u"]) -> Float[np.ndarray, "n mode"]:
        """Return squared distances from each mode in units of the scale."""
        away = z[:, None] - self.mean - self.modes
        return ((away @ np.linalg.inv(self.root).T) ** 2).sum(-1)

    def fitted(self, z: Float[np.ndarray, "n u"]) -> "StudentT":
        """Return the t of largest likelihood for draws, each of its nearest mode (Liu and Rubin 1995)."""
        by = self
        z = z - self.modes[self.distances(z).argmin(1)]
        for _ in range(_ITERATIONS):
            weight = (self.dof + z.shape[1]) / (self.dof + by.distances(z)[:, 0])
            mean = weight @ z / weight.sum()
            away = z - mean
            scale = (weight * away.T) @ away / len(z)
            by = by._replace(mean=mean, root=root_of(scale))
        return by


def root_of(scale: Float[np.ndarray, "u u"]) -> Float[np.ndarray, "u u"]:
    """Return the Cholesky factor, also where some directions have no width."""
    size = np.sqrt(np.diag(scale)) + np.finfo(float).tiny
    return size[:, None] * np.linalg.cholesky(
        scale / np.outer(size, size) + 1e-10 * np.eye(len(size))
    )


def walk(
    log_density: LogDensity,
    z: Float[np.ndarray, "chain u"],
    by: StudentT,
    cycles: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "step chain u"]:
    """Return the places of chains after each cycle; z: where they start."""
    z, there, (n, p) = z.copy(), log_density(z), z.shape
    halves = np.arange(0, n, 2), np.arange(1, n, 2)
    kept = np.empty((cycles, n, p))
    for cycle in range(cycles):
        for moving, others in (halves, halves[::-1]):
            first = rng.integers(len(others), size=len(moving))
            second = (first + rng.integers(1, len(others), size=len(moving))) % len(others)
            share = rng.uniform(0.5, 1.0, len(moving)) * 2.38 / np.sqrt(2 * p)
            share = np.where(rng.random(len(moving)) < _WHOLE, 1.0, share)[:, None]
            noise = _NOISE * rng.standard_normal((len(moving), p)) @ by.root.T
            tried = z[moving] + share * (z[others[first]] - z[others[second]]) + noise
            found = log_density(tried)
            taken = np.log(rng.random(len(moving))) < found - there[moving]
            z[moving[taken]], there[moving[taken]] = tried[taken], found[taken]
        tried = by.draws(_INDEPENDENT * n, rng)
        found, proposed = log_density(tried), by.log_density(tried)
        for some in np.split(np.arange(_INDEPENDENT * n), _INDEPENDENT):
            gain = found[some] - proposed[some] - there + by.log_density(z)
            taken = np.log(rng.random(n)) < gain
            z[taken], there[taken] = tried[some[taken]], found[some[taken]]
        kept[cycle] = z
    return kept


def chains_of(
    log_density: LogDensity,
    z: Float[np.ndarray, "chain u"],
    by: StudentT,
    draws: int,
    rng: np.random.Generator,
) -> tuple[Chains, StudentT]:
    """Return chains that agree, or the longest that may be had, and the t fitted to them.

    They are begun anew, twice as long, where those before ended, until they agree and have as many effective
    draws as are wanted; so the first ones only find the way and the t.
    """
    needed = -(-draws // len(z))
    cycles, spent = max(_SHORTEST, needed // 4), 0
    while True:
        kept = walk(log_density, z, by, cycles, rng)
        r_hat, effective = r_hat_and_ess(kept)
        spent += cycles
        done = cycles >= needed and r_hat < MAX_R_HAT and effective > _ENOUGH * draws
        if done or spent > _MOST * max(needed, 100):
            return Chains(kept, r_hat, effective), by
        z, by = kept[-1], by.fitted(kept[cycles // 2 :].reshape(-1, z.shape[1]))
        cycles *= 2
