"""One block of data and one theta become a Gram per bin.

f and v = E·S'(x) are the only derivative fields on the N×N plane; `assembly` says what is summed of
them. All tables are centred on the block first: the expanded sums would cancel otherwise.
"""

from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.assembly import SHEAR_FIELDS, STATIC_FIELDS, PlaneSums
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

SUB = {"float64": (128, 128), "mixed": (128, 256)}
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
    fields = SHEAR_FIELDS if shear else STATIC_FIELDS
    u = len(rows) - 1  # the last row is C itself
    waves = _waves(s, rows[u - 1], columns[u - 1], kind)
    empty = PlaneSums(
        thin=jnp.zeros((slots, fields.number, u, u)),
        by_row=jnp.zeros((slots, fields.second, T)),
        by_column=jnp.zeros((slots, fields.second, T)),
    )

    def values(b: Array, i: Array, j: Array) -> Array:
        return lax.dynamic_slice(c2, (b, i, j), (1, R, S))[0].astype(kind)

    def allowed(i: Array, j: Array) -> Array:
        return lag + (j + jnp.arange(S))[None, :] - (i + jnp.arange(R))[:, None] >= min_lag

    def sub_block(index: Array, sums: PlaneSums) -> PlaneSums:
        i, j = sub[index, 0], sub[index, 1]
        here = lax.dynamic_slice(rows, (0, i), (u + 1, R))
        there = lax.dynamic_slice(columns, (0, j), (u + 1, S))
        E = decay(convention, k, there[u][None, :] - here[u][:, None])
        # NaN marks pairs that do not count; it reaches f and v once and is taken out once
        E = jnp.where(allowed(i, j), E, jnp.nan).astype(kind)
        dG, sign = strain(convention, there[u - 1][None, :] - here[u - 1][:, None])
        shared = E, dG.astype(kind), sign.astype(kind), (1 / dG).astype(kind)
        E, dG, sign, inverse = lax.optimization_barrier(shared)

        def one_bin(b: Array, sums: PlaneSums) -> PlaneSums:
            y = values(b, i, j)
            known = jnp.isfinite(y + E)
            if shear:
                x = s[b].astype(kind) * dG
                if convention is Convention.PHYSICAL:
                    at = Wave(x, *waves.between(b, i, j, R, S), inverse * (1 / s[b]).astype(kind))
                else:
                    at = wave(x)
                f, v = sheared(convention, E, at)
                v = v * sign if convention is Convention.HOMODYNE else v  # else 1
                f, v = jnp.where(known, f, 0), jnp.where(known, v, 0)
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
            return PlaneSums(
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


def _add_at(total: Array, part: Array, at: tuple) -> Array:
    part = part.reshape((1, *part.shape))
    at = (*at, *(0,) * (total.ndim - len(at)))
    return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, part.shape) + part, at)
