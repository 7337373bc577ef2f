"""Sums over several tiles, whose data are on a device: one call of a program that all backends share.

The columns of a tile are large arrays, for all of its bins at once. What depends on theta is sent once for all
tiles, and the sums of all tiles are fetched at once.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.kernels.column_kernels import Columns
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.devices import float64_beside
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.losses import robust_fields
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.subblock_loop import BinPairs, SubBlock, add_at

FEW_COLUMNS = 12
"""Of so many columns each sum of a product is one of its own; of more they are products of matrices."""
_STRIP, _PARTS = 2048, 64
"""Rows of a tile times columns that are in memory at once where these are many, and shares of their pairs that
are multiplied beside each other: a single product of matrices so small leaves most of a GPU idle."""


class Tile(NamedTuple):
    """The data of a tile, on a device."""

    c2: Float32[Array, "bin T T"]
    weight_rows: Float[Array, "bin T"]
    """1/sigma_row² of its rows."""
    weight_columns: Float[Array, "bin T"]


class AtFrames(NamedTuple):
    """What a family of models computes f from, one theta or several, for all tiles."""

    tables: Any
    """Arrays whose last axis is that of all frames."""
    common: Any
    """What else all bins share."""
    of_bin: Any
    """Arrays whose first axis is over the bins."""


class Family(Columns, Protocol):
    """A family of models that the program is compiled for."""

    @property
    def dtype(self) -> DTypeLike:
        """That of the columns."""
        ...

    @property
    def finite(self) -> bool:
        """Whether f and ∂f/∂theta are finite of every pair of frames, 0 of those that are too close."""
        ...

    def of_tile(self, at: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]) -> Any:
        """Return the tables of one bin at frames t1 (rows) and t2; past the end the last frame is repeated."""
        ...


class Wanted(NamedTuple):
    """The sums that are wanted: the program is compiled for each."""

    fields: str
    """'derivatives': f and ∂f/∂theta; 'points': f at several thetas; 'changes': f_0, and f_n - f_0 of others."""
    columns: int
    """Number of columns, with 1 and y - 1."""
    loss: str = "linear"


class TileWork(NamedTuple):
    """Tiles of one group, and what is wanted of them."""

    blocks: Sequence[Block]
    known: Sequence[Float[np.ndarray, "padded 4"] | None]
    """The sums of the data of each, where they are known."""
    at_once: int
    """Tiles that the program is made for."""
    n_frames: int
    """Of the full resolution."""
    fields: str
    """As those of `Wanted`."""
    linear_params: Float[np.ndarray, "bin 2"] | None = None
    """Under a loss."""


class Sent(NamedTuple):
    """All that a device is sent for a call."""

    first: Int[Array, "tile 2"]
    """The frames of the first row and the first column of each tile."""
    n_tiles: Any
    min_lag: Any
    scale: Any
    """Of the loss."""
    linear_params: Float[Array, "bin 2"]
    """Of the loss."""
    at: AtFrames


class Packing(NamedTuple):
    """How the leaves of a tree lie in one array for each of their types."""

    structure: Any
    leaves: tuple[tuple[int, tuple[int, ...]], ...]
    """Of each leaf its array and its shape."""


def packed(tree: Any) -> tuple[tuple[np.ndarray, ...], Packing]:
    """Return the arrays of a tree as few long ones, each a single copy to a device."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    dtypes = sorted({array.dtype for array in arrays}, key=str)
    of_dtype = [[a.ravel() for a in arrays if a.dtype == dtype] for dtype in dtypes]
    shapes = tuple((dtypes.index(array.dtype), array.shape) for array in arrays)
    return tuple(np.concatenate(some) for some in of_dtype), Packing(structure, shapes)


def unpacked(arrays: Sequence[Array], packing: Packing) -> Any:
    """Return the tree."""
    leaves, first = [], [0] * len(arrays)
    for which, shape in packing.leaves:
        stop = first[which] + math.prod(shape)
        leaves.append(arrays[which][first[which] : stop].reshape(shape))
        first[which] = stop
    return jax.tree.unflatten(packing.structure, leaves)


@kernel("of", "wanted", "packing")
def tiles_kernel(
    tiles: tuple[Tile, ...],
    sent: tuple[Array, ...],
    *,
    of: Family,
    wanted: Wanted,
    packing: Packing,
) -> Float[Array, "tile bin sum"]:
    """Return Xᵀ W X of every tile and bin, its upper triangle; then the sums of a loss, and the pairs."""
    given: Sent = unpacked(sent, packing)
    stack = Tile(*(jnp.stack(parts) for parts in zip(*tiles, strict=True)))
    bins, T, _ = tiles[0].c2.shape
    R = T
    if wanted.columns > FEW_COLUMNS:
        R = math.gcd(T, 2 ** int(math.log2(max(_STRIP // wanted.columns, 1))))
    start = np.zeros((), int)

    def add(n: Array, sums: Array) -> Array:
        tile, i = n // (T // R), n % (T // R) * R
        c2 = lax.dynamic_slice(stack.c2, (tile, 0, i, 0), (1, bins, R, T))[0]
        w_i = lax.dynamic_slice(stack.weight_rows, (tile, 0, i), (1, bins, R))[0]
        rows = given.first[tile, 0] + i + jnp.arange(R)
        columns = given.first[tile, 1] + jnp.arange(T)
        at = SubBlock(start, start, start, columns - rows[:, None] >= given.min_lag)

        def of_bin(own: Any, linear: Array, c2: Array, w_i: Array, w_j: Array) -> Array:
            tables = of.of_tile(given.at._replace(of_bin=own), rows, columns)
            pairs = BinPairs(start, at, c2, w_i, w_j)
            return _sums(of, wanted, tables, pairs, (*linear, given.scale))

        part = jax.vmap(of_bin)(
            given.at.of_bin, given.linear_params, c2, w_i, stack.weight_columns[tile]
        )
        return add_at(sums, part, (tile,))

    m = wanted.columns
    size = m * (m + 1) // 2 + 1 + (0 if wanted.loss == "linear" else 4)
    zero = jnp.zeros((len(tiles), bins, size))
    return lax.fori_loop(0, given.n_tiles * (T // R), add, zero)


def _sums(
    of: Family, wanted: Wanted, tables: Any, pairs: BinPairs, of_loss: tuple[Array, Array, Array]
) -> Float[Array, " sum"]:
    """Return the sums of one bin over a tile or a strip of it; of_loss: its linear parameters, and the scale."""
    known = jnp.isfinite(pairs.c2) & pairs.at.counted
    y = pairs.c2.astype(of.dtype) - 1
    fields = _fields(of, wanted.fields, tables, pairs, known)
    if not of.finite:
        fields = [jnp.where(known, field, 0) for field in fields]
    X = [jnp.ones_like(y), jnp.where(known, y, 0), *fields]
    W = jnp.where(known, pairs.w_i[:, None] * pairs.w_j, 0.0)
    sums = [jnp.sum(known.astype(jnp.float64))]
    if wanted.loss != "linear":
        offset, contrast, scale = of_loss
        r = X[1] - offset - contrast * X[2]
        weight, terms = robust_fields(wanted.loss, scale, known, r, pairs.w_i, pairs.w_j)
        W, units = W * weight, (scale**2, 1, 1, scale**2)
        sums = [unit * jnp.sum(term) for unit, term in zip(units, terms, strict=True)] + sums
    return jnp.concatenate([_products(X, W), jnp.stack(sums)])


def _fields(
    of: Family, which: str, tables: Any, pairs: BinPairs, known: Bool[Array, "R S"]
) -> list[Float[Array, "R S"]]:
    """Return the columns behind 1 and y - 1."""
    if which == "derivatives":
        common, columns_of = of.columns(tables)
        return [field for part in columns_of(common(pairs.at), pairs) for field in part]
    common, f_of = of.at_points(tables)
    first, *others = f_of(common(pairs.at), pairs, known)
    return [first, *(f - first if which == "changes" else f for f in others)]


def _products(X: list[Float[Array, "R S"]], W: Float[Array, "R S"]) -> Float[Array, " sum"]:
    """Return Σ W x_a x_b of every pair of columns, a <= b."""
    a, b = np.triu_indices(len(X))
    if len(X) <= FEW_COLUMNS:
        return jnp.stack([jnp.sum(W * X[i] * X[j]) for i, j in zip(a, b, strict=True)])
    parts = math.gcd(W.size, _PARTS)
    weighted = (jnp.stack(X) * jnp.sqrt(W)).reshape(len(X), parts, -1)
    return jnp.einsum("apn,bpn->pab", weighted, weighted).sum(0)[a, b]


def grams_of_tiles(
    of: Family, at: AtFrames, columns: int, problem: Problem, min_lag: int, work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    """Return the Gram of every bin of each tile, and the sums of its data alone.

    columns: their number. Fewer tiles than the program is made for are followed by copies that it skips, so
    that it is compiled once, and gives the same bits however tiles are grouped.
    """
    blocks, linear = work.blocks, work.linear_params
    (padded, _, _), bins = blocks[0].c2.shape, len(blocks[0].q)
    loss = "linear" if linear is None else problem.loss
    linear = np.zeros((bins, 2)) if linear is None else linear
    missing = work.at_once - len(blocks)
    first = np.array([(block.i0, block.j0) for block in blocks] + [(0, 0)] * missing)
    tables = jax.tree.map(lambda of: _extended(of, work.n_frames, -1), at.tables)
    of_bin, linear = jax.tree.map(lambda of: _extended(of, padded, 0), (at.of_bin, linear))
    sent, packing = packed(
        Sent(
            first, len(blocks), min_lag, float(problem.loss_scale), linear,
            AtFrames(tables, at.common, of_bin),
        )
    )  # fmt: skip
    tiles = [Tile(block.c2, block.weight_rows, block.weight_columns) for block in blocks]
    tiles += tiles[:1] * missing
    wanted = Wanted(work.fields, columns, loss)
    with float64_beside(blocks[0].c2):
        found = tiles_kernel(tuple(tiles), sent, of=of, wanted=wanted, packing=packing)
        sums = np.asarray(found)[: len(blocks), :bins]
    return [_gram(*of_tile, wanted) for of_tile in zip(sums, work.known, strict=True)]


def _extended(values: Any, length: int, axis: int) -> np.ndarray:
    """Return values with the last one repeated: of padded bins, and of levels, which have fewer frames."""
    return np.asarray(values).take(np.arange(length), axis=axis, mode="clip")


def _gram(
    sums: Float[np.ndarray, "bin sum"], known: Float[np.ndarray, "padded 4"] | None, wanted: Wanted
) -> tuple[Gram, Float[np.ndarray, "bin 4"]]:
    """Return the Gram of a tile from its sums, with those of the data where they are known."""
    m = wanted.columns
    a, b = np.triu_indices(m)
    moments = np.empty((len(sums), m, m))
    moments[:, a, b] = moments[:, b, a] = sums[:, : len(a)]
    if known is None:
        known = np.stack([*moments[:, [0, 0, 1], [0, 1, 1]].T, sums[:, -1]], axis=1)
    known = known[: len(sums)]
    moments[:, [0, 0, 1, 1], [0, 1, 0, 1]] = known[:, [0, 1, 1, 2]]
    if wanted.fields == "points":
        of_point = np.array([(0, 1, n) for n in range(2, m)])
        moments = moments[:, of_point[:, :, None], of_point[:, None, :]]
    loss = None if wanted.loss == "linear" else sums[:, len(a) : -1]
    return Gram(moments, sums[:, -1].astype(np.int64), loss), known
