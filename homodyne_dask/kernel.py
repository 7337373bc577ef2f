"""One block of data and one theta become a Gram per bin.

f and v = E·S'(x) are the only derivative fields on the N×N plane; ∂f/∂theta is one of them times a
difference u(t2) - u(t1) of a row of `transport.tables`. So sums like Σ w F (u_j - u_i)(v_j - v_i)
follow from F's row sums, its column sums and the thin product Uᵀ F V; no Jacobian is formed. All
tables are centred on the block first: the expanded sums would cancel otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from homodyne_dask.gram import Gram
from homodyne_dask.models.transport import (
    Convention,
    TransportModel,
    bin_scales,
    decay,
    frame_spacing,
    sheared,
    strain,
    tables,
    unsheared,
)

SUB = 64
"""Rows and columns of the sub-blocks a block is worked in."""
PRECISIONS = {"float64": jnp.float64, "mixed": jnp.float32}


@dataclass(frozen=True)
class Problem:
    """What f is and which pairs count: all a worker must know beside the data and theta."""

    model: TransportModel
    convention: Convention = Convention.PHYSICAL
    gap: float | None = None
    """Å."""
    min_lag: int = 1
    """Frames; pairs closer than this are left out."""
    precision: str = "float64"


@dataclass(frozen=True)
class Block:
    """Some bins of one q on one (t1, t2) tile; frames outside the data or the selection are NaN."""

    c2: Float32[np.ndarray, "slot T T"]
    """Slots beyond the number of bins are never read."""
    weight_rows: Float[np.ndarray, "slot T"]
    """1/sigma_row² of the frames of t1."""
    weight_columns: Float[np.ndarray, "slot T"]
    q: Float[np.ndarray, " bin"]
    """1/Å."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    i0: int
    """The frame of the first row."""
    j0: int
    """The frame of the first column."""
    factor: int = 1
    """Frames of the full resolution averaged into one."""


def coarse_min_lag(min_lag: int, factor: int) -> int:
    """Return the lag in coarse frames from which all fine pairs of a cell are min_lag apart."""
    return min_lag if factor == 1 else -(-(min_lag + factor - 1) // factor)


def block_gram(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Float[np.ndarray, " n"],
    block: Block,
) -> Gram:
    """Return the Gram of every bin of the block at theta.

    `time` holds all frame times of the full resolution [s], on which the integrals are made.
    """
    model, convention = problem.model, problem.convention
    T = block.c2.shape[-1]
    slots, bins = len(block.c2), len(block.q)
    rows = tables(model, convention, theta, time)
    rows, columns = _centred(_coarse(rows, block.factor), block.i0, block.j0, T)
    spacing = frame_spacing(time, convention)
    scales = bin_scales(model, convention, theta, block.q, block.phi, problem.gap, spacing)
    min_lag = coarse_min_lag(problem.min_lag, block.factor)
    n = len(time) // block.factor
    sub, n_sub = _sub_blocks(block.i0, block.j0, T, n, min_lag)
    with jax.enable_x64(True):
        moments, count = _gram(
            block.c2,
            rows,
            columns,
            block.weight_rows,
            block.weight_columns,
            scales.k[0],
            _padded(scales.s, slots),
            _padded(scales.ds, slots),
            sub,
            n_sub,
            bins,
            block.j0 - block.i0,
            min_lag,
            shear=model.shear,
            convention=convention,
            precision=problem.precision,
        )
        moments, count = np.asarray(moments), np.asarray(count)
    return Gram(moments[:bins], count[:bins].astype(np.int64))


def compilations() -> int:
    """Return how many times this process has compiled the Gram kernel."""
    return _gram._cache_size()  # pyright: ignore[reportAttributeAccessIssue]


def _coarse(rows: Float[np.ndarray, "rows n"], factor: int) -> Float[np.ndarray, "rows m"]:
    """Return the tables at the coarse frames: the integrals averaged as the data were."""
    m = rows.shape[1] // factor
    return rows[:, : m * factor].reshape(len(rows), m, factor).mean(axis=2)


def _centred(
    rows: Float[np.ndarray, "rows n"], i0: int, j0: int, T: int
) -> tuple[Float[np.ndarray, "rows T"], Float[np.ndarray, "rows T"]]:
    """Return the tables of the block's rows and columns around one common origin."""
    n = rows.shape[1]
    i = np.minimum(np.arange(i0, i0 + T), n - 1)
    j = np.minimum(np.arange(j0, j0 + T), n - 1)
    origin = 0.5 * (rows[:, i[T // 2]] + rows[:, j[T // 2]])
    origin[0] = 0.0  # the row of ones stays
    return rows[:, i] - origin[:, None], rows[:, j] - origin[:, None]


@cache
def _sub_blocks(
    i0: int, j0: int, T: int, n: int, min_lag: int
) -> tuple[Int[np.ndarray, "all 2"], int]:
    """Return the corners of the sub-blocks that hold a pair, padded to all, and their number."""
    starts = range(0, T, SUB)
    corners = [
        (i, j)
        for i in starts
        for j in starts
        if i0 + i < n and j0 + j < n and j0 + j + SUB - 1 - (i0 + i) >= min_lag
    ]
    table = np.zeros((len(starts) ** 2, 2), np.int64)
    table[: len(corners)] = np.array(corners, np.int64).reshape(-1, 2)
    return table, len(corners)


def _padded(values: Float[np.ndarray, " bin"], slots: int) -> Float[np.ndarray, " slot"]:
    return np.pad(values, (0, slots - len(values)))


@partial(jax.jit, static_argnames=("shear", "convention", "precision"))
def _gram(
    c2: Float32[Array, "slot T T"],
    rows: Float[Array, "rows T"],
    columns: Float[Array, "rows T"],
    weight_rows: Float[Array, "slot T"],
    weight_columns: Float[Array, "slot T"],
    k: Float[Array, ""],
    s: Float[Array, " slot"],
    ds: Float[Array, " slot"],
    sub: Int[Array, "all 2"],
    n_sub: Int[Array, ""],
    bins: Int[Array, ""],
    lag: Int[Array, ""],
    min_lag: Int[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    precision: str,
) -> tuple[Float[Array, "slot m m"], Float[Array, " slot"]]:
    """Return Xᵀ W X and the number of pairs of every slot."""
    kind = PRECISIONS[precision]
    slots, T, _ = c2.shape
    fields = _SHEAR_FIELDS if shear else _STATIC_FIELDS
    u = len(rows) - 1  # the last row is C itself
    start = _Sums(
        thin=jnp.zeros((slots, fields.first + fields.second, u, u)),
        by_row=jnp.zeros((slots, fields.second, T)),
        by_column=jnp.zeros((slots, fields.second, T)),
        data=jnp.zeros((slots, 4)),
    )

    def sub_block(index: Array, sums: _Sums) -> _Sums:
        i, j = sub[index, 0], sub[index, 1]
        here = lax.dynamic_slice(rows, (0, i), (u + 1, SUB))
        there = lax.dynamic_slice(columns, (0, j), (u + 1, SUB))
        apart = lag + (j + jnp.arange(SUB))[None, :] - (i + jnp.arange(SUB))[:, None]
        E = decay(convention, k, there[u][None, :] - here[u][:, None])
        # NaN marks pairs that do not count; it reaches every field once and is taken out once
        E = jnp.where(apart >= min_lag, E, jnp.nan).astype(kind)
        dG, sign = strain(convention, there[u - 1][None, :] - here[u - 1][:, None])
        E, dG, sign = lax.optimization_barrier((E, dG.astype(kind), sign.astype(kind)))

        def one_bin(b: Array, sums: _Sums) -> _Sums:
            y = lax.dynamic_slice(c2, (b, i, j), (1, SUB, SUB))[0].astype(kind)
            known = jnp.isfinite(y + E)
            y = jnp.where(known, y - 1, 0)
            ones = known.astype(kind)
            if shear:
                f, v = sheared(convention, E, s[b].astype(kind) * dG)
                f, v = jnp.where(known, f, 0), jnp.where(known, v * sign, 0)
            else:
                f = v = jnp.where(known, unsheared(convention, E), 0)
            f, v, y, ones = lax.optimization_barrier((f, v, y, ones))
            products = lax.optimization_barrier(fields.products(f, v, y))
            w_i = lax.dynamic_slice(weight_rows, (b, i), (1, SUB))[0]
            w_j = lax.dynamic_slice(weight_columns, (b, j), (1, SUB))[0]
            left = (here[:u] * w_i).astype(kind)
            projected = jnp.stack([left @ F for F in products]).astype(jnp.float64)
            thin = jnp.einsum("fuj,vj->fuv", projected, there[:u] * w_j)
            second = products[: fields.second]
            by_row = jnp.stack([F @ w_j.astype(kind) for F in second]).astype(jnp.float64) * w_i
            by_column = projected[: fields.second, 0] * w_j
            data = jnp.stack([F @ w_j.astype(kind) for F in (ones, y, y * y)])
            data = jnp.append(data.astype(jnp.float64) @ w_i, jnp.sum(ones).astype(jnp.float64))
            return _Sums(
                thin=_add_at(sums.thin, thin, (b,)),
                by_row=_add_at(sums.by_row, by_row, (b, 0, i)),
                by_column=_add_at(sums.by_column, by_column, (b, 0, j)),
                data=_add_at(sums.data, data, (b,)),
            )

        return lax.fori_loop(0, bins, one_bin, sums)

    sums = lax.fori_loop(0, n_sub, sub_block, start)
    moments = fields.assemble(sums, rows[:u], columns[:u], k, s, ds)
    return moments, sums.data[:, 3]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Sums:
    """What the loop over sub-blocks carries, per slot."""

    thin: Float[Array, "slot F u u"]
    """Uᵀ F V of every product field."""
    by_row: Float[Array, "slot F2 T"]
    """Weighted row sums of the fields of second order."""
    by_column: Float[Array, "slot F2 T"]
    data: Float[Array, "slot 4"]
    """Σ w, Σ w(y-1), Σ w(y-1)², number of pairs."""


def _add_at(total: Array, part: Array, at: tuple) -> Array:
    part = part.reshape((1, *part.shape))
    at = (*at, *(0,) * (total.ndim - len(at)))
    return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, part.shape) + part, at)


@dataclass(frozen=True)
class _Fields:
    """Which products of f, v and y are summed, those of second order first."""

    second: int
    first: int
    products: Callable[[Array, Array, Array], list[Array]]
    assemble: Callable[..., Array]


def _assemble_shear(
    sums: _Sums, rows: Array, columns: Array, k: Array, s: Array, ds: Array
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'×3, G'×3, G, and phi0 goes with G."""
    C, G = slice(1, 4), slice(4, 8)
    to_c = -jnp.ones((len(s), 3)) * k
    to_g = jnp.stack([s, s, s, ds], axis=1)
    second = _second_order(sums, rows, columns)
    ff = second[:, 0, C, C] * to_c[:, :, None] * to_c[:, None, :]
    fv = second[:, 1, C, G] * to_c[:, :, None] * to_g[:, None, :]
    vv = second[:, 2, G, G] * to_g[:, :, None] * to_g[:, None, :]
    gradient = jnp.block([[ff, fv], [fv.transpose(0, 2, 1), vv]])
    first = _first_order(sums.thin)
    f, y = sums.thin[:, :, 0, 0], sums.data
    to_all = jnp.concatenate([to_c, to_g], axis=1)

    def with_gradient(of_f: int, of_v: int) -> Array:
        return jnp.concatenate([first[:, of_f, C], first[:, of_v, G]], axis=1) * to_all

    return _moments(
        y, f[:, 3], f[:, 0], f[:, 5],
        with_gradient(3, 4), with_gradient(5, 6), with_gradient(0, 1), gradient,
    )  # fmt: skip


def _assemble_static(
    sums: _Sums, rows: Array, columns: Array, k: Array, s: Array, ds: Array
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'×3."""
    C = slice(1, 4)
    first = _first_order(sums.thin)[:, :, C] * -k
    f = sums.thin[:, :, 0, 0]
    gradient = _second_order(sums, rows, columns)[:, 0, C, C] * k * k
    return _moments(
        sums.data, f[:, 1], f[:, 0], f[:, 2], first[:, 1], first[:, 2], first[:, 0], gradient
    )


_SHEAR_FIELDS = _Fields(
    second=3,
    first=4,
    products=lambda f, v, y: [f * f, f * v, v * v, f, v, f * y, v * y],
    assemble=_assemble_shear,
)
_STATIC_FIELDS = _Fields(
    second=1,
    first=2,
    products=lambda f, v, y: [f * f, f, f * y],
    assemble=_assemble_static,
)


def _second_order(sums: _Sums, rows: Array, columns: Array) -> Array:
    """Return Σ w F (u_j - u_i)(v_j - v_i) for every field of second order and every u, v."""
    thin = sums.thin[:, : sums.by_row.shape[1]]
    at_i = jnp.einsum("sfi,ui,vi->sfuv", sums.by_row, rows, rows)
    at_j = jnp.einsum("sfj,uj,vj->sfuv", sums.by_column, columns, columns)
    return at_i + at_j - thin - thin.transpose(0, 1, 3, 2)


def _first_order(thin: Array) -> Array:
    """Return Σ w F (u_j - u_i) for every field and every u."""
    return thin[:, :, 0, :] - thin[:, :, :, 0]


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
