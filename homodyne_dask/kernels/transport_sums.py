"""Sums over a (t1, t2) block for the transport models, and the Gram assembled from them.

∂f/∂theta is a field (f or v) times a difference u(t2) - u(t1) of a row of the tables, so that
Σ w F (u_j - u_i)(v_j - v_i) = Σ_j c_j u_j v_j + Σ_i r_i u_i v_i - Σ_ij w F (u_i v_j + v_i u_j)
with F's weighted column sums c and row sums r: no Jacobian is ever formed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from homodyne_dask.kernels.subblock_loop import BinPairs


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
    C: slice, G: slice, sums: BlockSums, data: Array, rows: Array, columns: Array,
    k: Array, s: Array, ds: Array,
) -> Array:  # fmt: skip
    """Return Xᵀ W X from the sums; table rows are 1, C', G', G, and phi0 goes with G."""
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

    return _moments(
        data, f[:, 5], f[:, 0], f[:, 3],
        with_gradient(5, 6), with_gradient(3, 4), with_gradient(0, 1), gradient,
    )  # fmt: skip


def _assemble_static(
    C: slice, sums: BlockSums, data: Array, rows: Array, columns: Array,
    k: Array, s: Array, ds: Array,
) -> Array:  # fmt: skip
    """Return Xᵀ W X from the sums; table rows are 1, C'."""
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
