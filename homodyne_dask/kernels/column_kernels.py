"""Compiled sums of the columns f and ∂f/∂theta over a block, written once for all families of models."""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.decayed_subblocks import subblock_shape
from homodyne_dask.kernels.subblock_loop import BinPairs, MeasuredBlock, SubBlock

_STRIP_ROWS = 8
"""Rows of a sub-block taken at once: f of 40 thetas there fits the second-level cache."""
type Common = Callable[[SubBlock], Any]
"""Returns what all bins share on a sub-block."""


class AtFrames(NamedTuple):
    """What f is computed from, at one theta or several, for all tiles."""

    tables: Any
    """Arrays whose last axis is that of all frames."""
    common: Any
    """What else all bins share."""
    of_bin: Any
    """Arrays whose first axis is over the bins."""


class Columns(Protocol):
    """A family of models that one kernel is compiled for."""

    @property
    def dtype(self) -> DTypeLike:
        """That of the columns of whole tiles."""
        ...

    @property
    def finite(self) -> bool:
        """Whether f and ∂f/∂theta are finite of every pair of frames, 0 of those that are too close."""
        ...

    def of_tile(self, at: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]) -> Any:
        """Return the tables of one bin at frames t1 (rows) and t2; past the end the last is repeated."""
        ...

    def at_points(
        self, tables: Any
    ) -> tuple[Common, Callable[[Any, BinPairs, Array], Float[Array, "point R S"]]]:
        """Return what all bins share on a sub-block, and f of a bin at each of several thetas.

        tables: the first has an axis of thetas first. f is 0 where a pair is not known.
        """
        ...

    def columns(
        self, tables: Any
    ) -> tuple[Common, Callable[[Any, BinPairs], list[Float[Array, "some R S"]]]]:
        """Return what all bins share on a sub-block, and f and ∂f/∂theta of a bin at one theta, in parts."""
        ...


@kernel("of", counted="wide")
def wide_kernel(
    block: MeasuredBlock,
    tables: Any,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    of: Columns,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return Xᵀ W X, X = [1, y - 1, f_0, f_1 - f_0, ...], and the sums of the data of every bin.

    It is compiled for each number of points. fresh: the sums of the data are to be computed.
    """
    rows, m = subblock_shape(block.c2.shape[-1])[0], len(tables[0]) + 2
    common, f_of = of.at_points(tables)

    def add(sums: Array, shared: Any, pairs: BinPairs) -> Array:
        known = jnp.isfinite(pairs.c2) & pairs.at.counted
        root = jnp.where(known, jnp.sqrt(pairs.w_i)[:, None] * jnp.sqrt(pairs.w_j), 0.0)
        y = jnp.where(known, pairs.c2.astype(jnp.float64) - 1, 0.0)
        f = lax.optimization_barrier(f_of(shared, pairs, known))
        first = jnp.stack([root, y * root, f[0] * root])
        X = lax.optimization_barrier(jnp.concatenate([first, (f[1:] - f[0]) * root]))
        X = X.reshape(m, -1)
        return pairs.add_to(sums, X @ X.T)

    data = lax.cond(fresh, block.data_sums, lambda: data)
    start = jnp.zeros((len(block.c2), m, m))
    strips = rows // gcd(rows, _STRIP_ROWS)
    moments = block.summed((0, block.n_active), start, common, add, strips=strips)
    w, wy, wyy = data[:, 0], data[:, 1], data[:, 2]
    of_data = jnp.stack([jnp.stack([w, wy], -1), jnp.stack([wy, wyy], -1)], -2)
    return moments.at[:, :2, :2].set(of_data), data


@kernel("of", counted="cells")
def cells_kernel(
    block: MeasuredBlock,
    tables: Any,
    cell: Int[Array, "T T"],
    sums: Float[Array, "padded cell 1+p"],
    *,
    of: Columns,
) -> Float[Array, "padded cell 1+p"]:
    """Return the sums with f and ∂f/∂theta of every pair added to those of its cell; c2 is not read."""
    common, columns_of = of.columns(tables)

    def add(sums: Array, shared: Any, pairs: BinPairs) -> Array:
        counted = pairs.at.counted
        fields = jnp.where(counted, jnp.concatenate(columns_of(shared, pairs)), 0.0)
        of_pair = lax.dynamic_slice(cell, (pairs.at.i, pairs.at.j), counted.shape)
        values = lax.optimization_barrier(fields.reshape(len(fields), -1).T)
        return sums.at[pairs.bin, of_pair.ravel()].add(values)

    return block.summed((0, block.n_active), sums, common, add)
