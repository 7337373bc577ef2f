"""User-defined models at many thetas: the wide Gram, and f as a function that JAX traces."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float

from homodyne_dask.kernels.autodiff import SeparablePoint, Tables, of_frames, sides_of
from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.gram import WideGram
from homodyne_dask.kernels.interface import PairSet, PairTimes
from homodyne_dask.kernels.on_cpu import float64_beside
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.subblock_loop import BinPairs, MeasuredBlock, measured_block
from homodyne_dask.kernels.wide_sums import wide_moments
from homodyne_dask.models.separable import Bin, SeparableModel
from homodyne_dask.models.transport import Convention

Bins = Float[np.ndarray, " bin"]


def separable_wide_gram(
    points: Sequence[SeparablePoint], block: Block, data: Float[np.ndarray, "padded 4"] | None
) -> tuple[WideGram, Float[np.ndarray, "padded 4"]]:
    """Return the wide Gram of every bin of the block, and the sums of the data alone."""
    at, T = points[0], block.c2.shape[-1]
    sums = np.zeros((len(block.c2), 4)) if data is None else data
    every = jax.tree.map(lambda *values: np.stack(values), *(of.tables for of in points))
    with float64_beside(block.c2):
        moments, sums = separable_wide_kernel(
            measured_block(block, at.sub_blocks(0.0, block.i0, block.j0, T), at.min_lag),
            np.stack([of.theta for of in points]),
            of_frames(every, at.n, block.i0, T),
            of_frames(every, at.n, block.j0, T),
            Bin(block.padded(block.q), block.padded(block.phi)),
            sums,
            data is None,
            model=at.problem.model,
        )
        moments, sums = np.asarray(moments), np.asarray(sums)
    bins = len(block.q)
    return WideGram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


@kernel("model")
def separable_wide_kernel(
    block: MeasuredBlock,
    thetas: Float[Array, "point p"],
    rows: Tables,
    columns: Tables,
    bins: Bin,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    model: SeparableModel,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return the wide moments and the sums of the data of every bin; tables have an axis of points first."""

    def f_of(sides: tuple[Tables, Tables], pairs: BinPairs, known: Bool[Array, "R S"]) -> Array:
        bin = Bin(bins.q[pairs.bin], bins.phi[pairs.bin])

        def at_point(theta: Array, t1: Tables, t2: Tables) -> Array:
            f = jnp.asarray(model.f(theta, t1, t2, bin), float)
            return jnp.where(known, jnp.broadcast_to(f, known.shape), 0.0)

        return jax.vmap(at_point)(thetas, *sides)

    data = lax.cond(fresh, block.data_sums, lambda: data)
    return wide_moments(block, data, len(thetas), partial(sides_of, rows, columns), f_of), data


def separable_pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    """Return the times that `separable_f_of_theta` takes."""
    return PairTimes(time, np.empty(0), 0.0)


def separable_f_of_theta(theta: Any, at: PairSet, model: Any, convention: Convention) -> Array:
    """Return f at theta of bins at pairs of frames, (bin, pair), for JAX to trace."""
    time = at.times.t
    tables = time if model.precompute is None else model.precompute(theta, time)
    t1 = jax.tree.map(lambda v: jnp.asarray(v)[..., at.i], tables)
    t2 = jax.tree.map(lambda v: jnp.asarray(v)[..., at.j], tables)

    def of_bin(q: Array, phi: Array) -> Array:
        f = jnp.asarray(model.f(theta, t1, t2, Bin(q, phi)), float)
        return jnp.broadcast_to(f, at.i.shape)

    return jax.vmap(of_bin)(jnp.asarray(at.q), jnp.asarray(at.phi))
