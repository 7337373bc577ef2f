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
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.gram import Gram
from homodyne_dask.models.primitives import sin_cos
from homodyne_dask.models.transport import (
    Convention,
    TransportModel,
    Wave,
    bin_scales,
    decay,
    frame_spacing,
    sheared,
    strain,
    tables,
    unsheared,
    wave,
)

SUB = {"float64": (128, 128), "mixed": (64, 128)}
"""Rows and columns of the sub-blocks a block is worked in: what the second-level cache holds."""
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
    data: Float[np.ndarray, "slot 4"] | None = None,
) -> tuple[Gram, Float[np.ndarray, "slot 4"]]:
    """Return the Gram of every bin of the block at theta, and the sums of the data alone.

    `time` holds all frame times of the full resolution [s], on which the integrals are made.
    `data` are the sums that an earlier call returned for the same block and min_lag: Σ w,
    Σ w(y - 1), Σ w(y - 1)² and the number of pairs do not depend on theta.
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
    side = _side(T, problem.precision)
    sub, n_sub = _sub_blocks(block.i0, block.j0, T, side, n, min_lag)
    with jax.enable_x64(True):
        moments, sums = _gram(
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
            np.zeros((slots, 4)) if data is None else data,
            data is None,
            shear=model.shear,
            convention=convention,
            precision=problem.precision,
        )
        moments, sums = np.asarray(moments), np.asarray(sums)
    return Gram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


def _side(T: int, precision: str) -> tuple[int, int]:
    rows, columns = SUB[precision]
    return min(rows, T), min(columns, T)


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
    i0: int, j0: int, T: int, side: tuple[int, int], n: int, min_lag: int
) -> tuple[Int[np.ndarray, "all 2"], int]:
    """Return the corners of the sub-blocks that hold a pair, padded to all, and their number."""
    grid = [(i, j) for i in range(0, T, side[0]) for j in range(0, T, side[1])]
    corners = [
        (i, j)
        for i, j in grid
        if i0 + i < n and j0 + j < n and j0 + j + side[1] - 1 - (i0 + i) >= min_lag
    ]
    table = np.zeros((len(grid), 2), np.int64)
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
    data: Float[Array, "slot 4"],
    fresh: Bool[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    precision: str,
) -> tuple[Float[Array, "slot m m"], Float[Array, "slot 4"]]:
    """Return Xᵀ W X and the sums of the data of every slot."""
    kind = PRECISIONS[precision]
    slots, T, _ = c2.shape
    R, S = _side(T, precision)
    fields = _SHEAR_FIELDS if shear else _STATIC_FIELDS
    u = len(rows) - 1  # the last row is C itself
    waves = _waves(s, rows[u - 1], columns[u - 1], kind)
    empty = _Sums(
        thin=jnp.zeros((slots, fields.number, u, u)),
        by_row=jnp.zeros((slots, fields.second, T)),
        by_column=jnp.zeros((slots, fields.second, T)),
    )

    def values(b: Array, i: Array, j: Array) -> Array:
        return lax.dynamic_slice(c2, (b, i, j), (1, R, S))[0].astype(kind)

    def allowed(i: Array, j: Array) -> Array:
        return lag + (j + jnp.arange(S))[None, :] - (i + jnp.arange(R))[:, None] >= min_lag

    def sub_block(index: Array, sums: _Sums) -> _Sums:
        i, j = sub[index, 0], sub[index, 1]
        here = lax.dynamic_slice(rows, (0, i), (u + 1, R))
        there = lax.dynamic_slice(columns, (0, j), (u + 1, S))
        E = decay(convention, k, there[u][None, :] - here[u][:, None])
        # NaN marks pairs that do not count; it reaches f and v once and is taken out once
        E = jnp.where(allowed(i, j), E, jnp.nan).astype(kind)
        dG, sign = strain(convention, there[u - 1][None, :] - here[u - 1][:, None])
        shared = E, dG.astype(kind), sign.astype(kind), (1 / dG).astype(kind)
        E, dG, sign, inverse = lax.optimization_barrier(shared)

        def one_bin(b: Array, sums: _Sums) -> _Sums:
            y = values(b, i, j)
            known = jnp.isfinite(y + E)
            if shear:
                x = s[b].astype(kind) * dG
                if convention is Convention.PHYSICAL:
                    at = Wave(x, *waves.between(b, i, j, R, S), inverse / s[b].astype(kind))
                else:
                    at = wave(x)
                f, v = sheared(convention, E, at)
                f, v = jnp.where(known, f, 0), jnp.where(known, v * sign, 0)
            else:
                f = v = jnp.where(known, unsheared(convention, E), 0)
            f, v = lax.optimization_barrier((f, v))
            y = jnp.where(jnp.isfinite(y), y - 1, 0)
            products = [*lax.optimization_barrier(fields.products(f, v, y)), *fields.alone(f, v)]
            w_i = lax.dynamic_slice(weight_rows, (b, i), (1, R))[0]
            w_j = lax.dynamic_slice(weight_columns, (b, j), (1, S))[0]
            left = (here[:u] * w_i).astype(kind)
            projected = jnp.stack([left @ F for F in products]).astype(jnp.float64)
            thin = jnp.einsum("fuj,vj->fuv", projected, there[:u] * w_j)
            second = products[: fields.second]
            by_row = jnp.stack([F @ w_j.astype(kind) for F in second]).astype(jnp.float64) * w_i
            by_column = projected[: fields.second, 0] * w_j
            return _Sums(
                thin=_add_at(sums.thin, thin, (b,)),
                by_row=_add_at(sums.by_row, by_row, (b, 0, i)),
                by_column=_add_at(sums.by_column, by_column, (b, 0, j)),
            )

        return lax.fori_loop(0, bins, one_bin, sums)

    def data_of(index: Array, sums: Array) -> Array:
        i, j = sub[index, 0], sub[index, 1]
        mask = allowed(i, j)

        def one_bin(b: Array, sums: Array) -> Array:
            y = values(b, i, j).astype(jnp.float64)
            known = jnp.isfinite(y) & mask
            y = jnp.where(known, y - 1, 0)
            w_i = lax.dynamic_slice(weight_rows, (b, i), (1, R))[0]
            w_j = lax.dynamic_slice(weight_columns, (b, j), (1, S))[0]
            weighted = jnp.stack([w_i @ (F @ w_j) for F in (known.astype(jnp.float64), y, y * y)])
            pairs = jnp.sum(known).astype(jnp.float64)
            return _add_at(sums, jnp.append(weighted, pairs), (b,))

        return lax.fori_loop(0, bins, one_bin, sums)

    sums = lax.fori_loop(0, n_sub, sub_block, empty)
    data = lax.cond(
        fresh, lambda: lax.fori_loop(0, n_sub, data_of, jnp.zeros((slots, 4))), lambda: data
    )
    return fields.assemble(sums, data, rows[:u], columns[:u], k, s, ds), data


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Waves:
    """sin and cos of s·G along rows and columns: those of s·ΔG follow by the sum formulas."""

    rows: tuple[Array, Array]
    columns: tuple[Array, Array]

    def between(self, b: Array, i: Array, j: Array, R: int, S: int) -> tuple[Array, Array]:
        """Return sin and cos of s·(G_j - G_i) on a sub-block, with their common sign."""
        si, ci = (lax.dynamic_slice(w, (b, i), (1, R))[0][:, None] for w in self.rows)
        sj, cj = (lax.dynamic_slice(w, (b, j), (1, S)) for w in self.columns)
        return sj * ci - cj * si, cj * ci + sj * si


def _waves(s: Array, rows: Array, columns: Array, kind: DTypeLike) -> _Waves:
    of = [sin_cos(s[:, None] * G[None, :]) for G in (rows, columns)]
    rounded = [tuple(part.astype(kind) for part in pair) for pair in of]
    return _Waves(*lax.optimization_barrier(rounded))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Sums:
    """What the loop over sub-blocks carries, per slot."""

    thin: Float[Array, "slot F u u"]
    """Uᵀ F V of every product field."""
    by_row: Float[Array, "slot F2 T"]
    """Weighted row sums of the fields of second order."""
    by_column: Float[Array, "slot F2 T"]


def _add_at(total: Array, part: Array, at: tuple) -> Array:
    part = part.reshape((1, *part.shape))
    at = (*at, *(0,) * (total.ndim - len(at)))
    return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, part.shape) + part, at)


@dataclass(frozen=True)
class _Fields:
    """Which products of f, v and y are summed, those of second order first."""

    second: int
    number: int
    products: Callable[[Array, Array, Array], list[Array]]
    alone: Callable[[Array, Array], list[Array]]
    """Fields that are summed as they are, last in the order."""
    assemble: Callable[..., Array]


def _assemble_shear(
    sums: _Sums, data: Array, rows: Array, columns: Array, k: Array, s: Array, ds: Array
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
    f = sums.thin[:, :, 0, 0]
    to_all = jnp.concatenate([to_c, to_g], axis=1)

    def with_gradient(of_f: int, of_v: int) -> Array:
        return jnp.concatenate([first[:, of_f, C], first[:, of_v, G]], axis=1) * to_all

    return _moments(
        data, f[:, 5], f[:, 0], f[:, 3],
        with_gradient(5, 6), with_gradient(3, 4), with_gradient(0, 1), gradient,
    )  # fmt: skip


def _assemble_static(
    sums: _Sums, data: Array, rows: Array, columns: Array, k: Array, s: Array, ds: Array
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'×3."""
    C = slice(1, 4)
    first = _first_order(sums.thin)[:, :, C] * -k
    f = sums.thin[:, :, 0, 0]
    gradient = _second_order(sums, rows, columns)[:, 0, C, C] * k * k
    return _moments(
        data, f[:, 2], f[:, 0], f[:, 1], first[:, 2], first[:, 1], first[:, 0], gradient
    )


_SHEAR_FIELDS = _Fields(
    second=3,
    number=7,
    products=lambda f, v, y: [f * f, f * v, v * v, f * y, v * y],
    alone=lambda f, v: [f, v],
    assemble=_assemble_shear,
)
_STATIC_FIELDS = _Fields(
    second=1,
    number=3,
    products=lambda f, v, y: [f * f, f * y],
    alone=lambda f, v: [f],
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
