"""The sum of a wide Gram over a block: many thetas at once, as products of matrices."""

from collections.abc import Callable
from math import gcd

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from homodyne_dask.kernels.active_subblocks import subblock_shape
from homodyne_dask.kernels.subblock_loop import BinPairs, MeasuredBlock, SubBlock

_STRIP_ROWS = 8
"""Rows of a sub-block taken at once: f of 40 thetas there fits the second-level cache."""


def wide_moments[Common](
    block: MeasuredBlock,
    data: Float[Array, "padded 4"],
    points: int,
    common: Callable[[SubBlock], Common],
    f_of: Callable[[Common, BinPairs, Bool[Array, "R S"]], Float[Array, "point R S"]],
) -> Float[Array, "padded m m"]:
    """Return Xᵀ W X, X = [1, y - 1, f_0, f_1 - f_0, ...], of every bin.

    data: Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs of every bin. f_of: f at every point, 0 where a pair does
    not count, from what all bins share on a sub-block.
    """
    rows, m = subblock_shape(block.c2.shape[-1])[0], points + 2

    def add(sums: Array, shared: Common, pairs: BinPairs) -> Array:
        known = jnp.isfinite(pairs.c2) & pairs.at.counted
        root = jnp.where(known, jnp.sqrt(pairs.w_i)[:, None] * jnp.sqrt(pairs.w_j), 0.0)
        y = jnp.where(known, pairs.c2.astype(jnp.float64) - 1, 0.0)
        f = lax.optimization_barrier(f_of(shared, pairs, known))
        first = jnp.stack([root, y * root, f[0] * root])
        X = lax.optimization_barrier(jnp.concatenate([first, (f[1:] - f[0]) * root]))
        X = X.reshape(m, -1)
        return pairs.add_to(sums, X @ X.T)

    start = jnp.zeros((len(block.c2), m, m))
    strips = rows // gcd(rows, _STRIP_ROWS)
    moments = block.summed((0, block.n_active), start, common, add, strips=strips)
    w, wy, wyy = data[:, 0], data[:, 1], data[:, 2]
    of_data = jnp.stack([jnp.stack([w, wy], -1), jnp.stack([wy, wyy], -1)], -2)
    return moments.at[:, :2, :2].set(of_data)
