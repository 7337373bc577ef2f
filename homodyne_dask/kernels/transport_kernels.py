"""Compiled sums of the transport models over a block: at one theta, under a loss, and at several thetas.

f and v = E·S'(x) are the only derivative fields per pair; `transport_sums` has the sums made of them. All
tables are centred on the block first: the expanded sums would cancel otherwise. Each kernel passes
its summand to the loop of `subblock_loop`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.interface import MAX_CANDIDATES
from homodyne_dask.kernels.losses import robust_terms
from homodyne_dask.kernels.pair_fields import (
    DTYPES,
    CommonFields,
    Waves,
    common_fields,
    field_at_rest,
    fields_of_bin,
    waves,
)
from homodyne_dask.kernels.subblock_loop import (
    BinPairs,
    MeasuredBlock,
    SubBlock,
    add_to_cells,
)
from homodyne_dask.kernels.transport_sums import BlockSums, Fields, fields_of
from homodyne_dask.models.transport import Convention


class TransportTables(NamedTuple):
    """The integrals of theta along a block's rows and columns, and the scales of each bin."""

    rows: Float[Array | np.ndarray, "tables T"]
    """The last is C, under shear G before it."""
    columns: Float[Array | np.ndarray, "tables T"]
    k: Float[Array, ""] | float
    s: Float[Array | np.ndarray, " padded"]
    ds: Float[Array | np.ndarray, " padded"]


class _Sides(NamedTuple):
    """Tables along rows (here) and columns (there) of a sub-block, and what all bins share there."""

    here: Float[Array, "tables R"]
    there: Float[Array, "tables S"]
    on: CommonFields


class _Transport(NamedTuple):
    """f and v of one theta on the sub-blocks of a block."""

    shear: bool
    convention: Convention
    dtype: DTypeLike
    s: Float[Array, " padded"]
    trig: Waves

    def sides(
        self, at: SubBlock, k: Array | float, rows: Array | np.ndarray, columns: Array | np.ndarray
    ) -> _Sides:
        """Return the tables of a sub-block and what all bins share there."""
        here, there = at.cut(jnp.asarray(rows), jnp.asarray(columns))
        on = common_fields(
            self.convention, jnp.asarray(k), here[-2:], there[-2:], at.counted, self.dtype
        )
        return _Sides(here, there, on)

    def fields(
        self, on: CommonFields, pairs: BinPairs, known: Bool[Array, "R S"]
    ) -> tuple[Array, Array]:
        """Return f and v of a bin, 0 where a pair does not count."""
        if not self.shear:
            f = field_at_rest(self.convention, on.E, known)
            return f, f
        between = self.trig.between(pairs.bin, pairs.at)
        return fields_of_bin(self.convention, on, self.s[pairs.bin], between, known)


def _transport(
    shear: bool, convention: Convention, dtype: DTypeLike, tables: TransportTables
) -> _Transport:
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    return _Transport(shear, convention, dtype, s, waves(s, rows[-2], columns[-2], dtype))


@kernel("shear", "convention", "diffusion", "precision")
def gram_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    diffusion: int,
    precision: str,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return Xᵀ W X and the sums of the data of every bin; fresh: the latter are to be computed.

    diffusion: number of parameters of J.
    """
    dtype, fields = DTYPES[precision], _fields(tables, shear, diffusion)
    model, u = _transport(shear, convention, dtype, tables), len(tables.rows) - 1

    def add(sums: BlockSums, sides: _Sides, pairs: BinPairs) -> BlockSums:
        y = pairs.c2.astype(dtype)
        known = jnp.isfinite(y + sides.on.E)
        f, v = lax.optimization_barrier(model.fields(sides.on, pairs, known))
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        part = fields.summed(
            pairs.stored(fields.products(f, v, y)) + fields.single_fields(f, v),
            sides.here[:u] * pairs.w_i,
            sides.there[:u] * pairs.w_j,
            dtype,
        )
        return sums.plus(part, pairs)

    sums = block.summed(
        (0, block.n_active),
        fields.zero(*block.c2.shape[:2]),
        lambda at: model.sides(at, tables.k, tables.rows, tables.columns),
        add,
    )
    data = lax.cond(fresh, block.data_sums, lambda: data)
    return fields.assemble(sums, data, *_without_C(tables)), data


@kernel("shear", "convention", "diffusion")
def cells_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    cell: Int[Array, "T T"],
    sums: Float[Array, "padded cell m"],
    *,
    shear: bool,
    convention: Convention,
    diffusion: int,
) -> Float[Array, "padded cell m"]:
    """Return the sums with f and ∂f/∂theta of every pair added to those of its cell; c2 is not read."""
    model = _transport(shear, convention, jnp.float64, tables)
    C, G = slice(1, 1 + diffusion), slice(1 + diffusion, len(tables.rows) - 1)

    def add(sums: Array, sides: _Sides, pairs: BinPairs) -> Array:
        b = pairs.bin
        f, v = model.fields(sides.on, pairs, jnp.isfinite(sides.on.E))
        change = sides.there[:, None, :] - sides.here[:, :, None]
        columns = [f[None], -tables.k * f * change[C]]
        if shear:
            s, ds = jnp.asarray(tables.s)[b], jnp.asarray(tables.ds)[b]
            n_shear = G.stop - G.start - 1
            columns.append(jnp.stack([*[s] * n_shear, ds])[:, None, None] * v * change[G])
        return add_to_cells(sums, jnp.concatenate(columns), cell, pairs)

    return block.summed(
        (0, block.n_active),
        sums,
        lambda at: model.sides(at, tables.k, tables.rows, tables.columns),
        add,
    )


@kernel("shear", "convention", "diffusion", "loss")
def robust_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    offset: Float[Array, " padded"],
    contrast: Float[Array, " padded"],
    scale: Float[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    diffusion: int,
    loss: str,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 5"]]:
    """Return Xᵀ W X, and the four sums of the loss with the pairs, of every bin.

    offset: the linear parameter, that is less 1. Where f has decayed to zero the residual still
    counts, so that no sub-block is skipped.
    """
    dtype, fields = jnp.float64, _fields(tables, shear, diffusion)
    model, u = _transport(shear, convention, dtype, tables), len(tables.rows) - 1

    def of_data(weight: Array, y: Array, pairs: BinPairs) -> Array:
        by_row = jnp.stack([F @ pairs.w_j for F in (weight, weight * y, weight * y * y)])
        return by_row @ pairs.w_i

    def add(
        sums: tuple[BlockSums, Array], sides: _Sides, pairs: BinPairs
    ) -> tuple[BlockSums, Array]:
        of_f, alone = sums
        b, w_i, w_j = pairs.bin, pairs.w_i, pairs.w_j
        known = jnp.isfinite(pairs.c2) & pairs.at.counted
        f, v = lax.optimization_barrier(model.fields(sides.on, pairs, known))
        y = jnp.where(known, pairs.c2.astype(dtype) - 1, 0)
        r = y - offset[b] - contrast[b] * f
        weight, row = robust_terms(loss, scale, known, r, w_i, w_j)
        weight, y = pairs.stored((weight, y))
        products = [weight * F for F in fields.products(f, v, y) + fields.single_fields(f, v)]
        part = fields.summed(
            pairs.stored(products), sides.here[:u] * w_i, sides.there[:u] * w_j, dtype
        )
        alone = pairs.add_to(alone, jnp.append(of_data(weight, y, pairs), row))
        return of_f.plus(part, pairs), alone

    def add_without_f(alone: Array, counted: Bool[Array, "R S"], pairs: BinPairs) -> Array:
        known = jnp.isfinite(pairs.c2) & counted
        y = jnp.where(known, pairs.c2.astype(dtype) - 1, 0)
        weight, row = robust_terms(loss, scale, known, y - offset[pairs.bin], pairs.w_i, pairs.w_j)
        return pairs.add_to(alone, jnp.append(of_data(weight, y, pairs), row))

    bins, T, _ = block.c2.shape
    of_f, alone = block.summed(
        (0, block.n_active),
        (fields.zero(bins, T), jnp.zeros((bins, 8))),
        lambda at: model.sides(at, tables.k, tables.rows, tables.columns),
        add,
    )
    decayed = block.n_active, block.n_total
    alone = block.summed(decayed, alone, lambda at: at.counted, add_without_f)
    return fields.assemble(of_f, alone[:, :3], *_without_C(tables)), alone[:, 3:]


@kernel("shear", "convention", "precision")
def candidates_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    n_points: Int[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    precision: str,
) -> tuple[Float[Array, "padded point 3 3"], Float[Array, " padded"]]:
    """Return Xᵀ W X of every bin and point, and the pairs of every bin.

    Tables and s have a first axis over points; rows of the tables are those of G and C alone.
    """
    dtype = DTYPES[precision]
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    trig = jax.vmap(lambda s, r, c: waves(s, r[0], c[0], dtype))(s, rows, columns)

    def at_point(n: Array) -> _Transport:
        own = jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, n, keepdims=False), trig)
        return _Transport(shear, convention, dtype, s[n], own)

    def common(at: SubBlock) -> tuple[_Transport, CommonFields]:
        model, n = at_point(at.point), at.point
        two = (lax.dynamic_index_in_dim(part, n, keepdims=False) for part in (rows, columns))
        return model, model.sides(at, tables.k, *two).on

    def add(sums: Array, common: tuple[_Transport, CommonFields], pairs: BinPairs) -> Array:
        model, on = common
        y = pairs.c2.astype(dtype)
        known = jnp.isfinite(y + on.E)
        f = lax.optimization_barrier(model.fields(on, pairs, known)[0])
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        by_row = [(F @ pairs.w_j.astype(F.dtype)).astype(jnp.float64) for F in (f, f * f, f * y)]
        return pairs.add_to(sums, jnp.stack(by_row) @ pairs.w_i, pairs.at.point)

    start = jnp.zeros((len(block.c2), MAX_CANDIDATES, 3))
    of_f = block.summed((0, block.n_active), start, common, add, n_points)
    data = block.data_sums()
    f, ff, fy = (of_f[:, :, n] for n in range(3))
    w, wy, wyy = (jnp.broadcast_to(data[:, None, n], f.shape) for n in range(3))
    lines = [jnp.stack(line, axis=-1) for line in ((w, wy, f), (wy, wyy, fy), (f, fy, ff))]
    return jnp.stack(lines, axis=-2), data[:, 3]


def _fields(tables: TransportTables, shear: bool, diffusion: int) -> Fields:
    """Return the fields that the sums of a model are made of; its tables are 1, C', G' and G, and C."""
    return fields_of(shear=shear, diffusion=diffusion, rates=len(tables.rows) - 2 - shear)


def _without_C(tables: TransportTables) -> tuple[Any, ...]:
    """Return the arguments of `assemble` from the tables: the last row, C itself, is in no derivative."""
    return tables.rows[:-1], tables.columns[:-1], tables.k, tables.s, tables.ds
