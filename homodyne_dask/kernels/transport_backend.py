"""The backend of the transport models: their Grams from the integrals of one theta or several."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES, Backend, PairSet, PairTimes
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.decayed_subblocks import sub_blocks
from homodyne_dask.kernels.devices import computed
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.pair_fields import (
    CommonFields,
    common_fields,
    field_at_rest,
    waves,
)
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.subblock_loop import (
    BinPairs,
    MeasuredBlock,
    SubBlock,
    known_sums,
    measured_block,
    of_bins,
    under_loss,
    wide_moments,
)
from homodyne_dask.kernels.transport_evaluation import (
    TRANSPORT_EVALUATION,
    Bins,
    TransportPoint,
    f_at,
)
from homodyne_dask.kernels.transport_kernels import (
    TransportTables,
    candidates_kernel,
    cells_kernel,
    gram_kernel,
    robust_kernel,
)
from homodyne_dask.models.shear_factor import sheared, wave
from homodyne_dask.models.transport import (
    Convention,
    TransportModel,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
    time_steps,
)

_NEAR = 1e-4
"""|x| below which sin x / x is 1 - x²/6 to rounding; above, sin x is known to 1e-12 of itself."""
MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, k ΔC and s ΔG stay below this: a mean over a
cell then differs from the value at its middle by about (MAX_CHANGE_PER_CELL²/24)."""


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


def family(problem: Problem, *, derivatives: bool = False) -> dict[str, Any]:
    """Return the static arguments of all kernels, and that of those that take the tables of derivatives."""
    options = {"shear": problem.model.shear, "convention": problem.convention}
    diffusion = problem.model.diffusion
    return options | ({"diffusion": diffusion.stop - diffusion.start} if derivatives else {})


def arguments_at(at: TransportPoint, block: Block) -> tuple[MeasuredBlock, TransportTables]:
    """Return the arguments of kernels at one theta."""
    rows, columns = centred(at.rows, block.i0, block.j0, block.c2.shape[-1])
    scales = at.scales(block.q, block.phi)
    cut = at.sub_blocks(block.q[0], block.i0, block.j0, block.c2.shape[-1])
    tables = TransportTables(
        rows, columns, scales.k[0], block.padded(scales.s), block.padded(scales.ds)
    )
    return measured_block(block, cut, at.min_lag), tables


def arguments_of_points(
    points: Sequence[TransportPoint], block: Block
) -> tuple[MeasuredBlock, TransportTables]:
    """Return the arguments of kernels at several thetas: tables of G and C alone, an axis of points first."""
    T = block.c2.shape[-1]
    both = [centred(at.rows[-2:], block.i0, block.j0, T, ones=False) for at in points]
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
    return measured_block(block, cut, points[0].min_lag), tables


def transport_wide_gram(
    points: Sequence[TransportPoint], block: Block, data: Float[np.ndarray, "padded 4"] | None
) -> tuple[Gram, Float[np.ndarray, "padded 4"]]:
    """Return the wide Gram of every bin of the block, in float64, and the sums of the data alone.

    It is compiled for each number of points. data: as in `transport_gram`.
    """
    arguments = *arguments_of_points(points, block), *known_sums(block, data)
    return of_bins(block, *computed(wide_kernel, block, *arguments, **family(points[0].problem)))


@kernel("shear", "convention")
def wide_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    shear: bool,
    convention: Convention,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return the wide moments and the sums of the data of every bin; tables as in `candidates_kernel`."""
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    trig = jax.vmap(lambda s, r, c: waves(s, r[0], c[0], jnp.float64))(s, rows, columns)

    def common(at: SubBlock) -> CommonFields:
        def of_point(here: Array, there: Array) -> CommonFields:
            k = jnp.asarray(tables.k)
            return common_fields(convention, k, here, there, at.counted, jnp.float64)

        return jax.vmap(of_point)(*at.cut(rows, columns))

    def f_of(on: CommonFields, pairs: BinPairs, known: Bool[Array, "R S"]) -> Array:
        if not shear:
            return field_at_rest(convention, on.E, known)
        scale = s[:, pairs.bin, None, None]
        x, sine = scale * on.strain, trig.between(pairs.bin, pairs.at)[0]
        if convention is Convention.PHYSICAL:
            sinc = jnp.where(jnp.abs(x) < _NEAR, 1 - x * x / 6, sine * on.inverse * (1 / scale))
            return jnp.where(known, on.E * sinc * sinc, 0)
        return jnp.where(known, sheared(convention, on.E, wave(x))[0], 0)

    data = lax.cond(fresh, block.data_sums, lambda: data)
    return wide_moments(block, data, len(rows), common, f_of), data


def transport_pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    """Return the times from which `transport_f_of_theta` integrates."""
    convention, spacing = problem.convention, frame_spacing(time, problem.convention)
    steps = time_steps(convention, time)
    return PairTimes(positive_times(convention, time, spacing), steps, spacing)


def transport_f_of_theta(
    theta: Any, at: PairSet, model: TransportModel, convention: Convention
) -> Array:
    """Return f at theta of bins at pairs of frames, (bin, pair), for JAX to trace."""
    rows: Any = rows_of(model, convention, theta, at.times.t, at.times.steps)
    scales = bin_scales(model, convention, theta, at.q, at.phi, at.gap, at.times.spacing)
    dC: Any = rows[-1, at.j] - rows[-1, at.i]
    dG: Any = rows[-2, at.j] - rows[-2, at.i] if model.shear else dC
    k, s = jnp.asarray(scales.k)[:, None], jnp.asarray(scales.s)[:, None]
    return f_at(dC, dG, k, s, shear=model.shear, convention=convention)


def transport_gram(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "padded 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "padded 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone.

    `data` are the sums that a previous call returned for the same block and min_lag: Σ w,
    Σ w(y - 1), Σ w(y - 1)² and the number of pairs do not depend on theta.
    """
    options = family(at.problem, derivatives=True) | {"precision": at.problem.precision}
    arguments = *arguments_at(at, block), *known_sums(block, data)
    return of_bins(block, *computed(gram_kernel, block, *arguments, **options))


def transport_robust_gram(
    at: TransportPoint, block: Block, linear_params: Float[np.ndarray, "bin 2"]
) -> Gram:
    """Return the Gram of every bin of the block under the loss of the point's problem.

    linear_params: (offset - 1, contrast) of the bins.
    """
    problem, each = at.problem, [block.padded(values) for values in linear_params.T]
    options = family(problem, derivatives=True) | {"loss": problem.loss}
    arguments = *arguments_at(at, block), *each, problem.loss_scale
    return under_loss(block, *computed(robust_kernel, block, *arguments, **options))


def transport_cell_sums(
    at: TransportPoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    """Return the sums with f and ∂f/∂theta of every pair of a block added to those of its cell."""
    arguments = *arguments_at(at, block), cell, sums
    options = family(at.problem, derivatives=True)
    return computed(cells_kernel, block, *arguments, **options)[0]


def transport_candidate_grams(points: Sequence[TransportPoint], block: Block) -> Gram:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at up to MAX_CANDIDATES points of one problem."""
    problem, n_points, bins = points[0].problem, len(points), len(block.q)
    points = [*points, *[points[-1]] * (MAX_CANDIDATES - n_points)]
    options = family(problem) | {"precision": problem.precision}
    arguments = *arguments_of_points(points, block), n_points
    moments, pairs = computed(candidates_kernel, block, *arguments, **options)
    return Gram(moments[:bins, :n_points], pairs[:bins].astype(np.int64))


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


TRANSPORT = Backend(
    **vars(TRANSPORT_EVALUATION),
    gram=transport_gram,
    robust_gram=transport_robust_gram,
    candidate_grams=transport_candidate_grams,
    wide_gram=transport_wide_gram,
    cell_sums=transport_cell_sums,
    pair_times=transport_pair_times,
    f_of_theta=transport_f_of_theta,
    adequate=transport_adequate,
    correlation_time=transport_correlation_time,
    kernels={
        "gram": gram_kernel,
        "candidates": candidates_kernel,
        "robust": robust_kernel,
        "wide": wide_kernel,
        "cells": cells_kernel,
    },
)
