"""A sample of pairs of frames, each standing for a number of pairs of the record, and f there."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet, Problem
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.machine.cores_and_cgroup_limits import on_cores
from homodyne_dask.models import Convention, Model
from homodyne_dask.store.scan import Scan, q_or_one

SAMPLE = 2500
"""Least number of (bin, pair) in a sample."""
_MIN_PAIRS = 96
"""Least number of pairs of frames in it; all bins share them."""
_LAG_INTERVALS = 24
BATCH = 64
"""Thetas of one call; fewer are padded, so that a kernel is compiled once."""


class PairSample(NamedTuple):
    """Pairs of frames, each with the number of pairs of the record that it stands for."""

    i: Int[np.ndarray, " pair"]
    j: Int[np.ndarray, " pair"]
    number: Float[np.ndarray, " pair"]


def sample_pairs(scan: Scan, min_lag: int, rng: np.random.Generator) -> PairSample:
    """Return selected pairs of frames, as many of short lags as of long ones, half of them of early age.

    Lags are divided into intervals of equal ratio; from each come as many pairs. Half of their ages are
    uniform and half log-uniform: where a rate is a power of age, f changes most in the first frames.
    """
    used = np.flatnonzero(scan.use)
    first, span = used[0], used[-1] - used[0]
    edges = np.unique(np.geomspace(min_lag, span + 1, _LAG_INTERVALS).astype(int))
    count = max(_MIN_PAIRS, -(-SAMPLE // len(scan.bins)))
    each = -(-count // max(len(edges) - 1, 1))
    parts: list[PairSample] = []
    for low, high in pairwise(edges):
        lags = np.arange(low, high)
        there = float((span + 1 - lags).sum())
        lag = rng.choice(lags, each, p=(span + 1 - lags) / there)
        age, share = _ages(span + 1 - lag, rng)
        start = first + age
        known = scan.use[start] & scan.use[start + lag]
        number = np.where(known, there / (each * share), 0.0)
        parts.append(PairSample(start, start + lag, number))
    return PairSample(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _ages(
    n: Int[np.ndarray, " pair"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, " pair"], Float[np.ndarray, " pair"]]:
    """Return an age below each n, and its probability in units of that of uniform ones, 1/n."""
    part, whole = rng.random(len(n)), np.log(n + 1.0)
    early = rng.random(len(n)) < 0.5
    age = np.where(early, np.expm1(part * whole), part * n).astype(int).clip(0, n - 1)
    return age, 0.5 + 0.5 * n * np.log((age + 2) / (age + 1)) / whole


def pair_set(problem: Problem, scan: Scan, *samples: PairSample) -> PairSet:
    """Return the pairs of samples, one after the other, as f of theta takes them."""
    i, j = (np.concatenate([sample[n] for sample in samples]) for n in (0, 1))
    times = backend_of(problem.model).pair_times(problem, scan.time)
    return PairSet(times, i, j, q_or_one(scan), scan.phi, problem.gap or 0.0)


@plain_kernel("f", "model", "convention")
def _at_thetas(
    thetas: Float[Array, "batch p"], of: Any, *, f: Callable[..., Any], model: Model,
    convention: Convention,
) -> Any:  # fmt: skip
    return jax.vmap(lambda theta: f(theta, of, model, convention))(thetas)


def in_batches(
    f: Callable[..., Any], problem: Problem, thetas: Float[np.ndarray, "draw p"], of: Any
) -> Any:
    """Return f(theta, of, model, convention), arrays or tuples of them, at any number of thetas."""
    n, static = len(thetas), {"f": f, "model": problem.model, "convention": problem.convention}

    def part(first: int) -> Any:
        batch = thetas[first : first + BATCH]
        padding = np.repeat(batch[-1:], BATCH - len(batch), axis=0)
        with float64_on_cpu():
            found = _at_thetas(np.concatenate([batch, padding]), of, **static)
            return jax.tree.map(np.asarray, found)

    parts = on_cores(part, range(0, n, BATCH))
    return jax.tree.map(lambda *part: np.concatenate(part)[:n], *parts)


def sampled_f(
    problem: Problem, at: PairSet, thetas: Float[np.ndarray, "draw p"]
) -> Float[np.ndarray, "draw bin pair"]:
    """Return f at thetas."""
    return in_batches(backend_of(problem.model).f_of_theta, problem, thetas, at)


def chisqr_scale(
    scan: Scan, contrast: Float[np.ndarray, " bin"], sample: PairSample
) -> Float[np.ndarray, "bin pair"]:
    """Return contrast·√number/sigma: changes of f times this are in units of √χ²."""
    sigma = scan.sigma_row[:, sample.i] * scan.sigma_row[:, sample.j]
    return np.abs(contrast)[:, None] * np.sqrt(sample.number) / sigma


def rough_chisqr(
    f: Float[np.ndarray, "draw bin pair"], scale: Float[np.ndarray, "bin pair"], free_scaling: bool
) -> Float[np.ndarray, " draw"]:
    """Return roughly χ², less that of the first draw, the optimum, from f on a sample of pairs.

    Near the optimum the residuals are noise, and χ² rises by the square of the change of f that contrast and
    offset do not take. This is enough to place thetas and a proposal. free_scaling: contrast and offset of
    every bin follow theta.
    """
    change = scale * (f - f[0])
    total = (change**2).sum(2)
    if free_scaling:
        weight = (scale**2).sum(1)
        weight = np.where(weight > 0, weight, 1.0)
        centred = scale * (f - ((scale**2 * f).sum(2) / weight)[:, :, None])
        size = (centred**2).sum(2)
        total -= (scale * change).sum(2) ** 2 / weight
        total -= (centred * change).sum(2) ** 2 / np.where(size > 0, size, 1.0)
    return np.maximum(total, 0.0).sum(1)
