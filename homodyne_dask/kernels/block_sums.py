"""The loop over the pairs of a block, whose summand is an argument, and sums of the columns f and ∂f/∂theta.

On processors sub-blocks and bins take turns: fields stay in the cache of a core. The columns of a tile on a
device are large arrays, for all of its bins at once; what depends on theta is sent once for all tiles, and
the sums of all tiles are fetched at once.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.kernels.backend_interface import (
    Block,
    GramColumns,
    Problem,
    SubBlocks,
    TileWork,
    subblock_shape,
)
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.devices import float64_beside
from homodyne_dask.kernels.gram import DataSums, Gram
from homodyne_dask.kernels.losses import robust_fields

_STRIP_ROWS = 8
"""Rows of a sub-block taken at once: f of 40 thetas there fits the second-level cache."""


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
    sub_block: SubBlock
    c2: Float32[Array, "R S"]
    w_i: Float[Array, " R"]
    """1/sigma_row² of its rows."""
    w_j: Float[Array, " S"]

    def add_to(
        self, sums: Float[Array, "padded ..."], values: Float[Array, "..."], *index: Array | int
    ) -> Float[Array, "padded ..."]:
        """Return the sums of all bins with values of this bin added, at an index behind that of the bin."""
        return add_at(sums, values, (self.bin, *index))


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

        def of_bin(b: Array, sub_block: SubBlock) -> BinPairs:
            return BinPairs(
                b,
                sub_block,
                lax.dynamic_slice(c2, (b, sub_block.i, sub_block.j), (1, R, S))[0],
                lax.dynamic_slice(jnp.asarray(self.weight_rows), (b, sub_block.i), (1, R))[0],
                lax.dynamic_slice(jnp.asarray(self.weight_columns), (b, sub_block.j), (1, S))[0],
            )

        def on_sub_block(index: Array, sums: Sums) -> Sums:
            i, j = offsets[index // strips, 0], offsets[index // strips, 1]
            i = i + index % strips * R

            def at_point(n: Array, sums: Sums) -> Sums:
                sub_block = SubBlock(n, i, j, self._counted(i, j, R, S))
                shared = common(sub_block)
                return lax.fori_loop(
                    0, self.n_bins, lambda b, sums: add(sums, shared, of_bin(b, sub_block)), sums
                )

            if n_points is None:
                return at_point(jnp.zeros((), int), sums)
            return lax.fori_loop(0, n_points, at_point, sums)

        first, stop = span
        return lax.fori_loop(first * strips, stop * strips, on_sub_block, start)

    def data_sums(self) -> Float[Array, "padded 4"]:
        """Return Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs of every bin, y = c2."""

        def add(sums: Array, counted: Array, pairs: BinPairs) -> Array:
            measured = jnp.isfinite(pairs.c2) & counted
            y = jnp.where(measured, pairs.c2.astype(jnp.float64) - 1, 0)
            fields = (measured.astype(jnp.float64), y, y * y)
            weighted = jnp.stack([pairs.w_i @ (F @ pairs.w_j) for F in fields])
            n_pairs = jnp.sum(measured, dtype=jnp.int32).astype(jnp.float64)
            return pairs.add_to(sums, jnp.append(weighted, n_pairs))

        start = jnp.zeros((len(self.c2), 4))
        return self.summed((0, self.n_total), start, lambda sub_block: sub_block.counted, add)

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


def known_sums(block: Block, data_sums: DataSums | None) -> tuple[DataSums, bool]:
    """Return the sums of the data of a block, or zeros, and whether a kernel is to compute them."""
    return (np.zeros((len(block.c2), 4)) if data_sums is None else data_sums), data_sums is None


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


def add_at(total: Array, values: Array, index: tuple) -> Array:
    values = values.reshape((1,) * (total.ndim - values.ndim) + values.shape)
    index = (*index, *(0,) * (total.ndim - len(index)))
    return lax.dynamic_update_slice(
        total, lax.dynamic_slice(total, index, values.shape) + values, index
    )


class AtFrames(NamedTuple):
    tables: Any
    """Arrays whose last axis is that of all frames."""
    common: Any
    of_bin: Any
    """Arrays whose first axis is over the bins."""


class Columns(Protocol):
    """What sums are made of, while JAX traces a kernel: f and ∂f/∂theta, or f at several thetas."""

    def shared(self, sub_block: SubBlock) -> Any:
        """Return what all bins share on a sub-block."""
        ...

    def of_bin(
        self, shared: Any, pairs: BinPairs, measured: Bool[Array, "R S"], /
    ) -> list[Float[Array, "some R S"]]:
        """Return the columns of a bin, in parts; f at several thetas is 0 where a pair has no c2."""
        ...


class Family(Protocol):
    """A family of models that one kernel is compiled for."""

    @property
    def dtype(self) -> DTypeLike:
        """That of the columns of whole tiles."""
        ...

    @property
    def finite(self) -> bool:
        """Whether its columns are finite where a pair has no c2: others are masked after them."""
        ...

    def of_tile(
        self, at_frames: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]
    ) -> Any:
        """Return the tables of one bin at frames t1 (rows) and t2; past the end the last is repeated."""
        ...

    def at_theta(self, tables: Any) -> Columns:
        """Return the columns f and ∂f/∂theta."""
        ...

    def at_points(self, tables: Any) -> Columns:
        """Return the columns f at several thetas, in one part."""
        ...


@kernel("family", counted="wide")
def wide_kernel(
    block: MeasuredBlock,
    tables: Any,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    family: Family,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return Xᵀ W X over 1, y - 1, f_0, f_1 - f_0 ..., and the sums of the data; fresh: to be computed."""
    rows, m = subblock_shape(block.c2.shape[-1])[0], len(tables[0]) + 2
    columns = family.at_points(tables)

    def add(sums: Array, shared: Any, pairs: BinPairs) -> Array:
        measured = jnp.isfinite(pairs.c2) & pairs.sub_block.counted
        root = jnp.where(measured, jnp.sqrt(pairs.w_i)[:, None] * jnp.sqrt(pairs.w_j), 0.0)
        y = jnp.where(measured, pairs.c2.astype(jnp.float64) - 1, 0.0)
        (f,) = lax.optimization_barrier(columns.of_bin(shared, pairs, measured))
        first = jnp.stack([root, y * root, f[0] * root])
        X = lax.optimization_barrier(jnp.concatenate([first, (f[1:] - f[0]) * root]))
        X = X.reshape(m, -1)
        return pairs.add_to(sums, X @ X.T)

    data = lax.cond(fresh, block.data_sums, lambda: data)
    start = jnp.zeros((len(block.c2), m, m))
    strips = rows // math.gcd(rows, _STRIP_ROWS)
    # beyond the active sub-blocks all f are 0, and the sums of the data are known without them
    moments = block.summed((0, block.n_active), start, columns.shared, add, strips=strips)
    w, wy, wyy = data[:, 0], data[:, 1], data[:, 2]
    of_data = jnp.stack([jnp.stack([w, wy], -1), jnp.stack([wy, wyy], -1)], -2)
    return moments.at[:, :2, :2].set(of_data), data


@kernel("family", counted="cells")
def cells_kernel(
    block: MeasuredBlock,
    tables: Any,
    cell: Int[Array, "T T"],
    sums: Float[Array, "padded cell 1+p"],
    *,
    family: Family,
) -> Float[Array, "padded cell 1+p"]:
    """Return the sums with f and ∂f/∂theta of every pair added to those of its cell; c2 is not read."""
    columns = family.at_theta(tables)

    def add(sums: Array, shared: Any, pairs: BinPairs) -> Array:
        counted = pairs.sub_block.counted
        groups = columns.of_bin(shared, pairs, counted)
        fields = jnp.where(counted, jnp.concatenate(groups), 0.0)
        of_pair = lax.dynamic_slice(cell, (pairs.sub_block.i, pairs.sub_block.j), counted.shape)
        values = lax.optimization_barrier(fields.reshape(len(fields), -1).T)
        return sums.at[pairs.bin, of_pair.ravel()].add(values)

    return block.summed((0, block.n_active), sums, columns.shared, add)


FEW_COLUMNS = 12
"""Up to so many columns, each product of two is summed by itself; for more there are matrix products."""
_STRIP, _PARTS = 2048, 64
"""With many columns: rows of a tile times columns that are in memory at once, and the number of shares of the
pairs that are multiplied side by side, since one product of this size leaves most of a GPU idle."""


def packed(tree: Any) -> tuple[np.ndarray, Any]:
    """Return the numbers of a tree as one array, a single copy to a device, and its form."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    form = structure, tuple((array.shape, array.dtype) for array in arrays)
    return np.concatenate([array.ravel() for array in arrays]), form


def unpacked(numbers: Any, form: Any) -> Any:
    (structure, arrays), leaves, first = form, [], 0
    for shape, dtype in arrays:
        values = numbers[first : first + math.prod(shape)].reshape(shape)
        # one complex number makes all of them complex on the way
        leaves.append((values if dtype.kind == "c" else values.real).astype(dtype))
        first += values.size
    return jax.tree.unflatten(structure, leaves)


@kernel("family", "which", "columns", "loss", "form")
def tiles_kernel(
    tiles: tuple[tuple[Array, Array, Array], ...], sent: Array, *,
    family: Family, which: GramColumns, columns: int, loss: str, form: Any,
) -> Float[Array, "tile bin sum"]:  # fmt: skip
    """Return Xᵀ W X of every tile and bin, its upper triangle; then the sums of a loss, and the pairs."""
    firsts, n_tiles, min_lag, scale, linear_params, at_frames = unpacked(sent, form)
    c2, weight_rows, weight_columns = (jnp.stack(parts) for parts in zip(*tiles, strict=True))
    _, bins, T, _ = c2.shape
    R, zero = T, jnp.zeros((), int)
    if columns > FEW_COLUMNS:
        # a strip of few rows: the columns of a whole tile would fill the memory of a GPU
        R = math.gcd(T, 2 ** int(math.log2(max(_STRIP // columns, 1))))

    def add(n: Array, sums: Array) -> Array:
        tile, i = n // (T // R), n % (T // R) * R
        c2_of_strip = lax.dynamic_slice(c2, (tile, 0, i, 0), (1, bins, R, T))[0]
        w_i = lax.dynamic_slice(weight_rows, (tile, 0, i), (1, bins, R))[0]
        t1, t2 = firsts[tile, 0] + i + jnp.arange(R), firsts[tile, 1] + jnp.arange(T)
        sub_block = SubBlock(zero, zero, zero, t2 - t1[:, None] >= min_lag)

        def of_bin(bin_values: Any, linear: Array, *data: Array) -> Array:
            tables = family.of_tile(at_frames._replace(of_bin=bin_values), t1, t2)
            # the tables are of this strip and bin alone: nothing is left to be cut from them
            pairs = BinPairs(zero, sub_block, *data)
            return _sums(family, which, tables, pairs, loss, (*linear, scale))

        data = c2_of_strip, w_i, weight_columns[tile]
        return add_at(sums, jax.vmap(of_bin)(at_frames.of_bin, linear_params, *data), (tile,))

    size = columns * (columns + 1) // 2 + 1 + (0 if loss == "linear" else 4)
    start = jnp.zeros((len(tiles), bins, size))
    return lax.fori_loop(0, n_tiles * (T // R), add, start)


def _sums(
    family: Family, which: GramColumns, tables: Any, pairs: BinPairs, loss: str,
    of_loss: tuple[Array, ...],
) -> Float[Array, " sum"]:  # fmt: skip
    measured = jnp.isfinite(pairs.c2) & pairs.sub_block.counted
    y = pairs.c2.astype(family.dtype) - 1
    derivatives = which is GramColumns.DERIVATIVES
    columns = family.at_theta(tables) if derivatives else family.at_points(tables)
    groups = columns.of_bin(columns.shared(pairs.sub_block), pairs, measured)
    fields = [field for group in groups for field in group]
    if which is GramColumns.CHANGES:
        fields = fields[:1] + [f - fields[0] for f in fields[1:]]
    if not family.finite:  # 0 times NaN in the products below would be NaN
        fields = [jnp.where(measured, field, 0) for field in fields]
    X = [jnp.ones_like(y), jnp.where(measured, y, 0), *fields]
    W = jnp.where(measured, pairs.w_i[:, None] * pairs.w_j, 0.0)
    sums = [jnp.sum(measured.astype(jnp.float64))]
    if loss != "linear":
        offset, contrast, scale = of_loss
        r = X[1] - offset - contrast * X[2]
        weight, terms = robust_fields(loss, scale, measured, r, pairs.w_i, pairs.w_j)
        W, units = W * weight, (scale**2, 1, 1, scale**2)
        sums = [unit * jnp.sum(term) for unit, term in zip(units, terms, strict=True)] + sums
    return jnp.concatenate([_products(X, W), jnp.stack(sums)])


def _products(X: list[Float[Array, "R S"]], W: Float[Array, "R S"]) -> Float[Array, " sum"]:
    """Return Σ W x_a x_b of every pair of columns, a <= b."""
    a, b = np.triu_indices(len(X))
    if len(X) <= FEW_COLUMNS:
        return jnp.stack([jnp.sum(W * X[i] * X[j]) for i, j in zip(a, b, strict=True)])
    parts = math.gcd(W.size, _PARTS)
    weighted = (jnp.stack(X) * jnp.sqrt(W)).reshape(len(X), parts, -1)
    return jnp.einsum("apn,bpn->pab", weighted, weighted).sum(0)[a, b]


def grams_of_tiles(
    family: Family, frames: AtFrames, columns: int, problem: Problem, min_lag: int, work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    """Return Grams and sums of the data of tiles; fewer than `at_once` are followed by skipped copies."""
    first, loss, linear = work.blocks[0], problem.loss, work.linear_params
    bins, n_skipped = len(first.q), work.at_once - len(work.blocks)
    if linear is None:
        loss, linear = "linear", np.zeros((bins, 2))
    tables = jax.tree.map(lambda values: _extended(values, work.n_frames, -1), frames.tables)
    of_bin, linear = jax.tree.map(
        lambda values: _extended(values, len(first.c2), 0), (frames.of_bin, linear)
    )
    firsts = np.array([(block.i0, block.j0) for block in work.blocks] + [(0, 0)] * n_skipped)
    counts = len(work.blocks), min_lag, float(problem.loss_scale)
    sent, form = packed((firsts, *counts, linear, AtFrames(tables, frames.common, of_bin)))
    tiles: Any = [(block.c2, block.weight_rows, block.weight_columns) for block in work.blocks]
    tiles += tiles[:1] * n_skipped  # a program is compiled for one number of tiles
    static = {"family": family, "which": work.columns, "columns": columns, "loss": loss}
    with float64_beside(tiles[0][0]):
        sums = np.asarray(tiles_kernel(tuple(tiles), sent, **static, form=form))
    return [
        _gram(of_tile, data_sums, columns, work.columns)
        for of_tile, data_sums in zip(sums[: len(work.blocks), :bins], work.data_sums, strict=True)
    ]


def _extended(values: Any, length: int, axis: int) -> np.ndarray:
    """Return values with the last one repeated: of padded bins, and of levels, which have fewer frames."""
    return np.asarray(values).take(np.arange(length), axis=axis, mode="clip")


def _gram(
    sums: Float[np.ndarray, "bin sum"], data_sums: DataSums | None, m: int, which: GramColumns
) -> tuple[Gram, Float[np.ndarray, "bin 4"]]:
    a, b = np.triu_indices(m)
    moments = np.empty((len(sums), m, m))
    moments[:, a, b] = moments[:, b, a] = sums[:, : len(a)]
    if data_sums is None:
        data_sums = np.stack([*moments[:, [0, 0, 1], [0, 1, 1]].T, sums[:, -1]], axis=1)
    data_sums = data_sums[: len(sums)]
    moments[:, [0, 0, 1, 1], [0, 1, 0, 1]] = data_sums[:, [0, 1, 1, 2]]
    if which is GramColumns.POINTS:
        of_point = np.array([(0, 1, n) for n in range(2, m)])
        moments = moments[:, of_point[:, :, None], of_point[:, None, :]]
    of_loss = sums[:, len(a) : -1]
    return Gram(moments, sums[:, -1].astype(np.int64), of_loss if of_loss.size else None), data_sums
