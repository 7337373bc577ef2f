"""The backend of the transport models: tables of one theta, their Grams, and f at any pair of times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Float, Int

from homodyne_dask.kernels.active_subblocks import SubBlocks, sub_blocks
from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.gram import CandidateGrams, Gram, RobustGram
from homodyne_dask.kernels.interface import MAX_CANDIDATES, Backend, RateCurve
from homodyne_dask.kernels.on_cpu import float64_on_cpu
from homodyne_dask.kernels.problem import Problem, coarse_frames, coarse_min_lag
from homodyne_dask.kernels.subblock_loop import MeasuredBlock, measured_block
from homodyne_dask.kernels.transport_kernels import (
    TransportTables,
    candidates_kernel,
    cells_kernel,
    gram_kernel,
    robust_kernel,
)
from homodyne_dask.models.rates import RATES, rate
from homodyne_dask.models.shear_factor import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.transport import (
    RATE_FLOOR,
    BinScales,
    Convention,
    bin_scales,
    frame_spacing,
    tables,
)

MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, k ΔC and s ΔG stay below this: a mean over a
cell then differs from the value at its middle by about (MAX_CHANGE_PER_CELL²/24)."""
Bins = Float[np.ndarray, " bin"]


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

    def scales(self, q: Bins, phi: Bins) -> BinScales:
        """Return the factors k and s of each bin."""
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, self.theta, q, phi, problem.gap, self.spacing
        )

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, active ones first."""
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
    lag = coarse_min_lag(problem.min_lag, factor)
    return TransportPoint(problem, theta, rows, spacing, lag, span)


def transport_gram(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "padded 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "padded 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone.

    `data` are the sums that an earlier call returned for the same block and min_lag: Σ w,
    Σ w(y - 1), Σ w(y - 1)² and the number of pairs do not depend on theta.
    """
    arguments = gram_arguments(at, block, data)
    with float64_on_cpu():
        moments, sums = gram_kernel(*arguments, **gram_static_arguments(at.problem))
        moments, sums = np.asarray(moments), np.asarray(sums)
    bins = len(block.q)
    return Gram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


def gram_arguments(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "padded 4"] | None = None
) -> tuple[Any, ...]:
    """Return the arguments of the Gram's kernel; theta enters as tables and scales."""
    sums = np.zeros((len(block.c2), 4)) if data is None else data
    return *_arguments(at, block), sums, data is None


def gram_static_arguments(problem: Problem) -> dict[str, Any]:
    """Return the static arguments of the Gram's kernel, for which it is compiled."""
    return _family(problem) | {"precision": problem.precision}


def transport_robust_gram(
    at: TransportPoint, block: Block, linear_params: Float[np.ndarray, "bin 2"]
) -> RobustGram:
    """Return the Gram of every bin of the block under the loss of the point's problem.

    linear_params: (offset - 1, contrast) of the bins.
    """
    problem, bins = at.problem, len(block.q)
    offset, contrast = (block.padded(values) for values in linear_params.T)
    arguments = _arguments(at, block)
    with float64_on_cpu():
        moments, loss = robust_kernel(
            *arguments, offset, contrast, problem.loss_scale, **_family(problem), loss=problem.loss
        )
        moments, loss = np.asarray(moments)[:bins], np.asarray(loss)[:bins]
    return RobustGram(moments, loss[:, :4], loss[:, 4].astype(np.int64))


def transport_cell_sums(
    at: TransportPoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    """Return the sums with f and ∂f/∂theta of every pair of a block added to those of its cell."""
    with float64_on_cpu():
        return np.asarray(cells_kernel(*_arguments(at, block), cell, sums, **_family(at.problem)))


def transport_candidate_grams(points: Sequence[TransportPoint], block: Block) -> CandidateGrams:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at up to MAX_CANDIDATES points of one problem."""
    problem, n_points, bins = points[0].problem, len(points), len(block.q)
    points = [*points, *[points[-1]] * (MAX_CANDIDATES - n_points)]
    T = block.c2.shape[-1]
    both = [_centred(at.rows[-2:], block.i0, block.j0, T, ones=False) for at in points]
    scales = [at.scales(block.q, block.phi) for at in points]
    kC = np.array([of.k[0] * at.rows[-1] for of, at in zip(scales, points, strict=True)])
    cut = sub_blocks(block.i0, block.j0, T, points[0].min_lag, kC, points[0].frames)
    tables = TransportTables(
        np.array([rows for rows, _ in both]),
        np.array([columns for _, columns in both]),
        scales[0].k[0],
        np.array([block.padded(of.s) for of in scales]),
        block.padded(scales[0].ds),
    )
    with float64_on_cpu():
        moments, pairs = candidates_kernel(
            measured_block(block, cut, points[0].min_lag), tables, n_points,
            **_family(problem), precision=problem.precision,
        )  # fmt: skip
        moments, pairs = np.asarray(moments), np.asarray(pairs)
    return CandidateGrams(moments[:bins, :n_points], pairs[:bins].astype(np.int64))


def _family(problem: Problem) -> dict[str, Any]:
    return {"shear": problem.model.shear, "convention": problem.convention}


def _arguments(at: TransportPoint, block: Block) -> tuple[MeasuredBlock, TransportTables]:
    rows, columns = _centred(at.rows, block.i0, block.j0, block.c2.shape[-1])
    scales = at.scales(block.q, block.phi)
    cut = at.sub_blocks(block.q[0], block.i0, block.j0, block.c2.shape[-1])
    tables = TransportTables(
        rows, columns, scales.k[0], block.padded(scales.s), block.padded(scales.ds)
    )
    return measured_block(block, cut, at.min_lag), tables


def _centred(
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


def transport_f(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    scales = at.scales(q, phi)
    k, s = (of.reshape(-1, *[1] * np.ndim(t1 + t2)) for of in (scales.k, scales.s))
    between = partial(_between, time=time, t1=t1, t2=t2)
    dC = np.abs(between(at.rows[-1]))
    shear = at.problem.model.shear
    dG = between(at.rows[-2]) if shear else dC
    with float64_on_cpu():
        return np.asarray(_shape(dC, dG, k, s, shear=shear, convention=at.problem.convention))


def _between(values: np.ndarray, time: np.ndarray, t1: np.ndarray, t2: np.ndarray) -> np.ndarray:
    return np.interp(t2, time, values) - np.interp(t1, time, values)


@plain_kernel("shear", "convention")
def _shape(
    dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention
) -> Array:
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


def transport_adequate(
    at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int
) -> bool:
    """Return whether f changes little enough over `factor` frames for block means to show it."""
    first, stop = frames
    steps = np.abs(np.diff(at.rows[-2:, first:stop:factor]))
    if not steps.size:
        return False
    scales = at.scales(q, phi)
    typical = np.quantile(steps, 0.75, axis=1)
    turned = np.abs(scales.s).max() * typical[0] if at.problem.model.shear else 0.0
    return bool(max(turned, scales.k.max() * typical[1]) < MAX_CHANGE_PER_CELL)


def transport_correlation_time(
    at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int]
) -> float:
    """Return the frames in which f decays to 1/e, at the middle of the record, median over the bins."""
    scales = at.scales(q, phi)
    first, stop = frames
    C, middle = at.rows[-1], (first + stop) // 2
    decay = np.median(scales.k) * (C[middle:] - C[middle])
    if at.problem.model.shear:
        G = at.rows[-2]
        decay = decay + (np.median(np.abs(scales.s)) * (G[middle:] - G[middle])) ** 2 / 3
    decayed = np.flatnonzero(decay > 1)
    return float(decayed[0]) if len(decayed) else float(stop - middle)


def transport_rates(
    at: TransportPoint, time: Float[np.ndarray, " n"], frames: tuple[int, int]
) -> dict[str, RateCurve]:
    """Return J(t) [Å²/s], and with shear gamma_dot(t) [1/s] and the strain since the first frame."""
    convention, window = at.problem.convention, slice(*frames)
    homodyne = convention is Convention.HOMODYNE
    spacing = frame_spacing(time, convention)
    t = np.maximum(time, spacing / 2)[window]
    curves = {
        "J": RateCurve(t, *rate(t, at.theta[at.problem.model.diffusion], RATE_FLOOR), RATES["J"])
    }
    if not at.problem.model.shear:
        return curves
    names, floor = RATES["gamma_dot"], RATE_FLOOR if homodyne else None
    curves["gamma_dot"] = RateCurve(
        t, *rate(t, at.theta[at.problem.model.shear_rate], floor), names
    )
    seconds = spacing if homodyne else 1.0  # the sums of that convention carry no Δt
    G = (at.rows[4:8, window] - at.rows[4:8, window][:, :1]) * seconds
    curves["strain"] = RateCurve(t, G[3], G[:3], names)
    return curves


TRANSPORT = Backend(
    transport_point,
    transport_gram,
    transport_robust_gram,
    transport_candidate_grams,
    transport_cell_sums,
    transport_f,
    transport_adequate,
    transport_correlation_time,
    {"gram": gram_kernel, "candidates": candidates_kernel, "robust": robust_kernel,
     "cells": cells_kernel},
    transport_rates,
)  # fmt: skip
