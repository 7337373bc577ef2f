"""One block of data and one theta become a Gram per bin.

f and v = E·S'(x) are the only derivative fields on the N×N plane; `assembly` says what is summed of
them. All tables are centred on the block first: the expanded sums would cancel otherwise.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.kernels.assembly import SHEAR_FIELDS, STATIC_FIELDS, PlaneSums
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.pair_fields import (
    COMPILER,
    DTYPES,
    Data,
    counted,
    field_at_rest,
    fields_of_bin,
    shared,
    waves,
)
from homodyne_dask.kernels.problem import Problem, coarse_frames, coarse_min_lag
from homodyne_dask.kernels.subblocks import SubBlocks, sub_blocks, subblock_shape
from homodyne_dask.models.transport import Convention, bin_scales, frame_spacing, tables


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


@dataclass(frozen=True)
class TransportPoint:
    """The integrals at one theta, at all frames of a level: made once, used by every block."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    rows: Float[np.ndarray, "rows n"]
    spacing: float
    """Δt of the full resolution [s]."""
    min_lag: int
    """In frames of the level."""
    frames: tuple[int, int]
    """The first of the level that is selected, and the one after the last."""

    def scales(self, q: Float[np.ndarray, " bin"], phi: Float[np.ndarray, " bin"]):
        """Return how fast each bin sees the sample move."""
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, self.theta, q, phi, problem.gap, self.spacing
        )

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, those with something to compute first."""
        k = self.scales(np.array([q]), np.zeros(1)).k[0]
        return sub_blocks(i0, j0, T, self.min_lag, k * self.rows[-1:], self.frames)


def transport_point(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Float[np.ndarray, " n"],
    factor: int = 1,
    frames: tuple[int, int] | None = None,
) -> TransportPoint:
    """Return the integrals at theta; `time` holds all frame times of the full resolution [s].

    frames: the first selected and the one after the last, of the full resolution; by default
    all. With factor frames averaged into one, as the data of a level are, so are the integrals.
    """
    rows = tables(problem.model, problem.convention, theta, time)
    m = rows.shape[1] // factor
    rows = rows[:, : m * factor].reshape(len(rows), m, factor).mean(axis=2)
    spacing = frame_spacing(time, problem.convention)
    span = coarse_frames(frames or (0, len(time)), factor)
    return TransportPoint(
        problem, theta, rows, spacing, coarse_min_lag(problem.min_lag, factor), span
    )


def transport_gram(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "slot 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "slot 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone.

    `data` are the sums that an earlier call returned for the same block and min_lag: Σ w,
    Σ w(y - 1), Σ w(y - 1)² and the number of pairs do not depend on theta.
    """
    given = arguments(at, block, data)
    with jax.enable_x64(True):
        moments, sums = gram_kernel(*given, **choices(at.problem))
        moments, sums = np.asarray(moments), np.asarray(sums)
    bins = len(block.q)
    return Gram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


def choices(problem: Problem) -> dict[str, Any]:
    """Return what the kernel is compiled for."""
    return {
        "shear": problem.model.shear,
        "convention": problem.convention,
        "precision": problem.precision,
    }


def arguments(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "slot 4"] | None = None
) -> tuple:
    """Return what the compiled kernel is called with; theta is in it as tables and scales."""
    T = block.c2.shape[-1]
    slots, bins = len(block.c2), len(block.q)
    rows, columns = centred(at.rows, block.i0, block.j0, T)
    scales = at.scales(block.q, block.phi)
    cut = at.sub_blocks(block.q[0], block.i0, block.j0, T)
    return (
        block.c2,
        rows,
        columns,
        block.weight_rows,
        block.weight_columns,
        scales.k[0],
        padded_bins(scales.s, slots),
        padded_bins(scales.ds, slots),
        cut.corners,
        cut.live,
        cut.number,
        bins,
        block.j0 - block.i0,
        at.min_lag,
        np.zeros((slots, 4)) if data is None else data,
        data is None,
    )


def centred(
    rows: Float[np.ndarray, "rows n"], i0: int, j0: int, T: int, *, ones: bool = True
) -> tuple[Float[np.ndarray, "rows T"], Float[np.ndarray, "rows T"]]:
    """Return the tables of the block's rows and columns around one common origin.

    `ones` says that the first row is the constant 1, which stays.
    """
    n = rows.shape[1]
    i = np.minimum(np.arange(i0, i0 + T), n - 1)
    j = np.minimum(np.arange(j0, j0 + T), n - 1)
    origin = 0.5 * (rows[:, i[T // 2]] + rows[:, j[T // 2]])
    if ones:
        origin[0] = 0.0
    return rows[:, i] - origin[:, None], rows[:, j] - origin[:, None]


def padded_bins(values: Float[np.ndarray, " bin"], slots: int) -> Float[np.ndarray, " slot"]:
    """Return one value per slot, 0 where there is no bin."""
    return np.pad(values, (0, slots - len(values)))


@partial(jax.jit, static_argnames=("shear", "convention", "precision"), compiler_options=COMPILER)
def gram_kernel(
    c2: Float32[Array, "slot T T"],
    rows: Float[Array, "rows T"],
    columns: Float[Array, "rows T"],
    weight_rows: Float[Array, "slot T"],
    weight_columns: Float[Array, "slot T"],
    k: Float[Array, ""],
    s: Float[Array, " slot"],
    ds: Float[Array, " slot"],
    corners: Int[Array, "all 2"],
    live: Int[Array, ""],
    number: Int[Array, ""],
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
    kind = DTYPES[precision]
    slots, T, _ = c2.shape
    R, S = subblock_shape(T)
    fields = SHEAR_FIELDS if shear else STATIC_FIELDS
    u = len(rows) - 1  # the last row is C itself
    measured = Data(c2, weight_rows, weight_columns)
    trig = waves(s, rows[u - 1], columns[u - 1], kind)

    def sub_block(index: Array, sums: PlaneSums) -> PlaneSums:
        i, j = corners[index, 0], corners[index, 1]
        here = lax.dynamic_slice(rows, (0, i), (u + 1, R))
        there = lax.dynamic_slice(columns, (0, j), (u + 1, S))
        mask = counted(lag, i, j, R, S, min_lag)
        on = shared(convention, k, here[u - 1 :], there[u - 1 :], mask, kind)

        def one_bin(b: Array, sums: PlaneSums) -> PlaneSums:
            y, w_i, w_j = measured.of(b, i, j, R, S)
            y = y.astype(kind)
            known = jnp.isfinite(y + on.E)
            if shear:
                between = trig.between(b, i, j, R, S)
                f, v = fields_of_bin(convention, on, s[b], between, known)
            else:
                f = v = field_at_rest(convention, on.E, known)
            f, v = lax.optimization_barrier((f, v))
            y = jnp.where(jnp.isfinite(y), y - 1, 0)
            part = fields.summed(
                lax.optimization_barrier(fields.products(f, v, y)) + fields.alone(f, v),
                here[:u] * w_i,
                there[:u] * w_j,
                kind,
            )
            return sums.plus(part, b, i, j, w_i, w_j)

        return lax.fori_loop(0, bins, one_bin, sums)

    sums = lax.fori_loop(0, live, sub_block, fields.nothing(slots, T))
    data = lax.cond(
        fresh,
        lambda: measured.sums(corners, number, bins, lag, min_lag, R, S),
        lambda: data,
    )
    return fields.assemble(sums, data, rows[:u], columns[:u], k, s, ds), data
