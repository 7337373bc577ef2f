"""The loop over the pairs of a block, sub-blocks and bins in turn: fields stay in the cache of a core.

The summand is an argument.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.kernels.backend_interface import Block, SubBlocks, subblock_shape
from homodyne_dask.kernels.gram import Gram

DataSums = Float[np.ndarray, "padded 4"]


class SubBlock(NamedTuple):
    point: Array
    """Which theta, where there are several."""
    i: Array
    j: Array
    counted: Bool[Array, "R S"]
    """Pairs that are at least min_lag apart."""

    def cut(
        self, rows: Float[Array, "*n T"], columns: Float[Array, "*n T"]
    ) -> tuple[Float[Array, "*n R"], Float[Array, "*n S"]]:
        R, S = self.counted.shape
        return (
            lax.dynamic_slice_in_dim(rows, self.i, R, -1),
            lax.dynamic_slice_in_dim(columns, self.j, S, -1),
        )


class BinPairs(NamedTuple):
    bin: Array
    at: SubBlock
    c2: Float32[Array, "R S"]
    w_i: Float[Array, " R"]
    """1/sigma_row² of its rows."""
    w_j: Float[Array, " S"]

    def add_to(
        self, sums: Float[Array, "padded ..."], part: Float[Array, "..."], *at: Array | int
    ) -> Float[Array, "padded ..."]:
        """Return the sums of all bins with a part of those of this bin added, at an index behind its own."""
        return add_at(sums, part, (self.bin, *at))


class MeasuredBlock(NamedTuple):
    c2: Float32[Array | np.ndarray, "padded T T"]
    weight_rows: Float[Array | np.ndarray, "padded T"]
    weight_columns: Float[Array | np.ndarray, "padded T"]
    offsets: Int[Array | np.ndarray, "all 2"]
    n_active: Int[Array, ""] | int
    n_total: Int[Array, ""] | int
    n_bins: Int[Array, ""] | int
    lag: Int[Array, ""] | int
    """From the first row to the first column, in frames."""
    min_lag: Int[Array, ""] | int

    def summed[Sums, Common](
        self,
        span: tuple[Array | int, Array | int],
        start: Sums,
        common: Callable[[SubBlock], Common],
        add: Callable[[Sums, Common, BinPairs], Sums],
        n_points: Array | int | None = None,
        strips: int = 1,
    ) -> Sums:
        """Return `start` with the summand of `add` for every bin of every sub-block in `span`.

        common: what all bins share on a sub-block, computed once. n_points: thetas evaluated on each
        sub-block. strips: a sub-block is taken in so many parts, of equal numbers of rows.
        """
        c2, offsets = jnp.asarray(self.c2), jnp.asarray(self.offsets)
        R, S = subblock_shape(c2.shape[-1])
        R = R // strips

        def of_bin(b: Array, at: SubBlock) -> BinPairs:
            return BinPairs(
                b,
                at,
                lax.dynamic_slice(c2, (b, at.i, at.j), (1, R, S))[0],
                lax.dynamic_slice(jnp.asarray(self.weight_rows), (b, at.i), (1, R))[0],
                lax.dynamic_slice(jnp.asarray(self.weight_columns), (b, at.j), (1, S))[0],
            )

        def on_sub_block(index: Array, sums: Sums) -> Sums:
            i, j = offsets[index // strips, 0], offsets[index // strips, 1]
            i = i + index % strips * R

            def at_point(n: Array, sums: Sums) -> Sums:
                at = SubBlock(n, i, j, self._counted(i, j, R, S))
                shared = common(at)
                return lax.fori_loop(
                    0, self.n_bins, lambda b, sums: add(sums, shared, of_bin(b, at)), sums
                )

            if n_points is None:
                return at_point(jnp.zeros((), int), sums)
            return lax.fori_loop(0, n_points, at_point, sums)

        first, stop = span
        return lax.fori_loop(first * strips, stop * strips, on_sub_block, start)

    def data_sums(self) -> Float[Array, "padded 4"]:
        """Return Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs of every bin, y = c2."""

        def add(sums: Array, counted: Array, on: BinPairs) -> Array:
            known = jnp.isfinite(on.c2) & counted
            y = jnp.where(known, on.c2.astype(jnp.float64) - 1, 0)
            fields = (known.astype(jnp.float64), y, y * y)
            weighted = jnp.stack([on.w_i @ (F @ on.w_j) for F in fields])
            pairs = jnp.sum(known, dtype=jnp.int32).astype(jnp.float64)
            return on.add_to(sums, jnp.append(weighted, pairs))

        start = jnp.zeros((len(self.c2), 4))
        return self.summed((0, self.n_total), start, lambda at: at.counted, add)

    def _counted(self, i: Array, j: Array, R: int, S: int) -> Bool[Array, "R S"]:
        lag = self.lag + (j + jnp.arange(S))[None, :] - (i + jnp.arange(R))[:, None]
        return lag >= self.min_lag


def measured_block(block: Block, cut: SubBlocks, min_lag: int) -> MeasuredBlock:
    return MeasuredBlock(
        block.c2,
        block.weight_rows,
        block.weight_columns,
        cut.offsets,
        cut.n_active,
        cut.n_total,
        len(block.q),
        block.j0 - block.i0,
        min_lag,
    )


def known_sums(block: Block, data: DataSums | None) -> tuple[DataSums, bool]:
    return (np.zeros((len(block.c2), 4)) if data is None else data), data is None


def of_bins(
    block: Block, moments: Float[np.ndarray, "padded m m"], sums: DataSums
) -> tuple[Gram, DataSums]:
    """Return the Gram of the bins of a block from those of padded bins, and the sums of their data."""
    bins = len(block.q)
    return Gram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


def under_loss(
    block: Block, moments: Float[np.ndarray, "padded m m"], loss: Float[np.ndarray, "padded 5"]
) -> Gram:
    loss = loss[: len(block.q)]
    return Gram(moments[: len(loss)], loss[:, 4].astype(np.int64), loss[:, :4])


def add_at(total: Array, part: Array, at: tuple) -> Array:
    part = part.reshape((1,) * (total.ndim - part.ndim) + part.shape)
    at = (*at, *(0,) * (total.ndim - len(at)))
    return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, part.shape) + part, at)
