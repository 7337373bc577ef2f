"""Compiled sums of the transport models over a block: at one theta, under a loss, and at several thetas.

f and v = E·S'(x) are the only derivative fields per pair; `transport_sums` has the sums made of them. All
tables are centred on the block first: the expanded sums would cancel otherwise. Each kernel passes
its summand to the loop of `subblock_loop`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES
from homodyne_dask.kernels.compiled import kernel
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
from homodyne_dask.models.transport import Convention


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockSums:
    """Sums over all sub-blocks of a block, per bin."""

    by_tables: tuple[Float[Array, "padded u u"], ...]
    """Uᵀ F U of every field of second order, U the rows of the tables."""
    by_row: Float[Array, "padded F T"]
    """Weighted row sums of every field."""
    by_column: Float[Array, "padded F T"]

    def plus(self, part: "SubBlockSums", on: BinPairs) -> "BlockSums":
        """Return the sums with those of a bin on one sub-block added."""
        i, j, w_i, w_j = on.at.i, on.at.j, on.w_i, on.w_j
        return BlockSums(
            by_tables=tuple(
                on.add_to(t, p) for t, p in zip(self.by_tables, part.by_tables, strict=True)
            ),
            by_row=on.add_to(self.by_row, part.by_row * w_i, 0, i),
            by_column=on.add_to(self.by_column, part.by_column * w_j, 0, j),
        )


class SubBlockSums(NamedTuple):
    """Sums over one sub-block of one bin; by_row and by_column lack the weight of their own axis."""

    by_tables: list[Float[Array, "u u"]]
    by_row: Float[Array, "F R"]
    by_column: Float[Array, "F S"]


@dataclass(frozen=True)
class Fields:
    """The fields summed by a kernel: products of f, v and y. Those of second order come first."""

    second_order: tuple[slice, ...]
    """The rows of the tables that each field of second order is multiplied by, on both sides."""
    n_fields: int
    products: Callable[[Array, Array, Array], list[Array]]
    single_fields: Callable[[Array, Array], list[Array]]
    """f and v themselves, last in the order."""
    assemble: Callable[..., Array]

    def zero(self, bins: int, T: int) -> BlockSums:
        """Return the sums before the first sub-block."""
        sizes = [among.stop - among.start for among in self.second_order]
        by_frame = jnp.zeros((bins, self.n_fields, T))
        return BlockSums(tuple(jnp.zeros((bins, u, u)) for u in sizes), by_frame, by_frame)

    def summed(
        self, fields: list[Array], here: Array, there: Array, dtype: DTypeLike
    ) -> SubBlockSums:
        """Return the sums of the fields on a sub-block, the tables of both sides weighted already."""
        left, right = here.astype(dtype), there[0].astype(dtype)
        by_tables, by_column = [], []
        for n, F in enumerate(fields):
            if n < len(self.second_order):
                among = self.second_order[n]
                projected = (left[among] @ F).astype(jnp.float64)
                by_tables.append(projected @ there[among].T)
                by_column.append(projected[0] if among.start == 0 else left[0] @ F)
            else:
                by_column.append(left[0] @ F)
        by_row = jnp.stack([F @ right for F in fields])
        by_column = jnp.stack([c.astype(jnp.float64) for c in by_column])
        return SubBlockSums(by_tables, by_row.astype(jnp.float64), by_column)


def fields_of(*, shear: bool, diffusion: int, rates: int) -> Fields:
    """Return the fields of a model with so many parameters of J, and of J and γ̇ together.

    The rows of the tables are 1, one for each parameter of J and, under shear, one for each of γ̇, then G.
    """
    C, last = slice(1, 1 + diffusion), 1 + rates
    if not shear:
        return Fields(
            second_order=(slice(0, 1 + diffusion),),
            n_fields=3,
            products=lambda f, v, y: [f * f, f * y],
            single_fields=lambda f, v: [f],
            assemble=partial(_assemble_static, C),
        )
    G = slice(C.stop, last + 1)
    return Fields(
        second_order=(slice(0, C.stop), slice(0, G.stop), G),
        n_fields=7,
        products=lambda f, v, y: [f * f, f * v, v * v, f * y, v * y],
        single_fields=lambda f, v: [f, v],
        assemble=partial(_assemble_shear, C, G),
    )


def _assemble_shear(
    C: slice, G: slice, sums: BlockSums, data: Array, tables: "TransportTables"
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C', G', G, and phi0 goes with G."""
    rows, columns, k, s, ds = tables.without_C
    n_c, n_g = C.stop - C.start, G.stop - G.start - 1
    to_c = -jnp.ones((len(s), n_c)) * k
    to_g = jnp.stack([*[s] * n_g, ds], axis=1)
    ff = (
        _second_order_sums(sums, rows, columns, 0, slice(0, C.stop))[:, 1:, 1:]
        * to_c[:, :, None]
        * to_c[:, None, :]
    )
    fv = (
        _second_order_sums(sums, rows, columns, 1, slice(0, G.stop))[:, C, G]
        * to_c[:, :, None]
        * to_g[:, None, :]
    )
    vv = _second_order_sums(sums, rows, columns, 2, G) * to_g[:, :, None] * to_g[:, None, :]
    gradient = jnp.block([[ff, fv], [fv.transpose(0, 2, 1), vv]])
    first = _first_order_sums(sums, rows, columns)
    f = sums.by_row.sum(2)
    to_all = jnp.concatenate([to_c, to_g], axis=1)

    def with_gradient(of_f: int, of_v: int) -> Array:
        return jnp.concatenate([first[:, of_f, C], first[:, of_v, G]], axis=1) * to_all

    head = f[:, 5], f[:, 0], f[:, 3]
    border = with_gradient(5, 6), with_gradient(3, 4), with_gradient(0, 1)
    return _moments(data, *head, *border, gradient)


def _assemble_static(C: slice, sums: BlockSums, data: Array, tables: "TransportTables") -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'."""
    rows, columns, k, *_ = tables.without_C
    first = _first_order_sums(sums, rows, columns)[:, :, C] * -k
    f = sums.by_row.sum(2)
    gradient = _second_order_sums(sums, rows, columns, 0, slice(0, C.stop))[:, C, C] * k * k
    return _moments(
        data, f[:, 2], f[:, 0], f[:, 1], first[:, 2], first[:, 1], first[:, 0], gradient
    )


def _second_order_sums(
    sums: BlockSums, rows: Array, columns: Array, field: int, among: slice
) -> Array:
    """Return Σ w F (u_j - u_i)(v_j - v_i) of a field of second order for every u, v of its rows."""
    by_tables, rows, columns = sums.by_tables[field], rows[among], columns[among]
    at_i = jnp.einsum("si,ui,vi->suv", sums.by_row[:, field], rows, rows)
    at_j = jnp.einsum("sj,uj,vj->suv", sums.by_column[:, field], columns, columns)
    return at_i + at_j - by_tables - by_tables.transpose(0, 2, 1)


def _first_order_sums(sums: BlockSums, rows: Array, columns: Array) -> Array:
    """Return Σ w F (u_j - u_i) for every field and every u."""
    at_i = jnp.einsum("sfi,ui->sfu", sums.by_row, rows)
    return jnp.einsum("sfj,uj->sfu", sums.by_column, columns) - at_i


def _moments(
    data: Array, f: Array, ff: Array, fy: Array, d: Array, dy: Array, df: Array, dd: Array
) -> Array:
    """Return the symmetric matrix over the columns 1, y - 1, f, ∂f/∂theta from its parts."""
    head = jnp.stack(
        [
            jnp.stack([data[:, 0], data[:, 1], f], axis=1),
            jnp.stack([data[:, 1], data[:, 2], fy], axis=1),
            jnp.stack([f, fy, ff], axis=1),
        ],
        axis=1,
    )
    border = jnp.stack([d, dy, df], axis=1)
    return jnp.block([[head, border], [border.transpose(0, 2, 1), dd]])


class TransportTables(NamedTuple):
    """The integrals of theta along a block's rows and columns, and the scales of each bin."""

    rows: Float[Array | np.ndarray, "tables T"]
    """The last is C, under shear G before it."""
    columns: Float[Array | np.ndarray, "tables T"]
    k: Float[Array, ""] | float
    s: Float[Array | np.ndarray, " padded"]
    ds: Float[Array | np.ndarray, " padded"]

    @property
    def without_C(self) -> tuple[Any, ...]:
        """The same without the last row, C itself, which is in no derivative."""
        return self.rows[:-1], self.columns[:-1], *self[2:]


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
) -> tuple[_Transport, Callable[[SubBlock], _Sides]]:
    """Return the model of one theta, and what gives the tables of a sub-block."""
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    model = _Transport(shear, convention, dtype, s, waves(s, rows[-2], columns[-2], dtype))
    return model, lambda at: model.sides(at, tables.k, tables.rows, tables.columns)


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
    (model, sides_at), u = _transport(shear, convention, dtype, tables), len(tables.rows) - 1

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

    start = fields.zero(*block.c2.shape[:2])
    sums = block.summed((0, block.n_active), start, sides_at, add)
    data = lax.cond(fresh, block.data_sums, lambda: data)
    return fields.assemble(sums, data, tables), data


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
    model, sides_at = _transport(shear, convention, jnp.float64, tables)
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

    return block.summed((0, block.n_active), sums, sides_at, add)


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
    (model, sides_at), u = _transport(shear, convention, dtype, tables), len(tables.rows) - 1

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
    start = fields.zero(bins, T), jnp.zeros((bins, 8))
    of_f, alone = block.summed((0, block.n_active), start, sides_at, add)
    decayed = block.n_active, block.n_total
    alone = block.summed(decayed, alone, lambda at: at.counted, add_without_f)
    return fields.assemble(of_f, alone[:, :3], tables), alone[:, 3:]


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
