"""The backend of the transport models: their Grams from the integrals of one theta or several."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend_interface import (
    MAX_CANDIDATES,
    Block,
    PairSet,
    PairTimes,
    Problem,
    sub_blocks,
)
from homodyne_dask.kernels.column_sums import (
    AtFrames,
    TileWork,
    cells_kernel,
    grams_of_tiles,
    wide_kernel,
)
from homodyne_dask.kernels.devices import computed
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.subblock_loop import (
    MeasuredBlock,
    known_sums,
    measured_block,
    of_bins,
    under_loss,
)
from homodyne_dask.kernels.transport_evaluation import (
    Bins,
    TransportPoint,
    f_and_derivatives_at,
    f_at,
    f_between,
    point,
    rates,
    rates_of_draws,
    sign_at,
)
from homodyne_dask.kernels.transport_kernels import (
    Family,
    TransportTables,
    candidates_kernel,
    centred,
    gram_kernel,
    robust_kernel,
)
from homodyne_dask.models.transport import (
    Convention,
    TransportModel,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
    time_steps,
)

__all__ = ["f_and_derivatives_at", "f_at", "point", "rates", "rates_of_draws", "sign_at"]
MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, k ΔC and s ΔG stay below this: a mean over a
cell then differs from the value at its middle by about (MAX_CHANGE_PER_CELL²/24)."""


def _centred(rows: Float[np.ndarray, "rows n"], block: Block) -> tuple[np.ndarray, np.ndarray]:
    frame = np.arange(block.c2.shape[-1])
    return centred(rows, block.i0 + frame, block.j0 + frame)


def _family(problem: Problem, *, derivatives: bool = False, precision: str = "float64") -> Family:
    diffusion = problem.model.diffusion.stop if derivatives else 0
    return Family(problem.model.shear, problem.convention, diffusion, precision)


def _arguments_at(at: TransportPoint, block: Block) -> tuple[MeasuredBlock, TransportTables]:
    scales = at.scales(block.q, block.phi)
    cut = at.sub_blocks(block.q[0], block.i0, block.j0, block.c2.shape[-1])
    s, ds = block.padded(scales.s), block.padded(scales.ds)
    tables = TransportTables(*_centred(at.rows, block), scales.k[0], s, ds)
    return measured_block(block, cut, at.min_lag), tables


def _arguments_of_points(
    points: Sequence[TransportPoint], block: Block
) -> tuple[MeasuredBlock, TransportTables]:
    T, first = block.c2.shape[-1], points[0]
    rows, columns = zip(*(_centred(at.rows[-2:], block) for at in points), strict=True)
    scales = [at.scales(block.q, block.phi) for at in points]
    kC = np.array([of.k[0] * at.rows[-1] for of, at in zip(scales, points, strict=True)])
    cut = sub_blocks(block.i0, block.j0, T, first.min_lag, kC, first.frames)
    s, ds = np.array([block.padded(of.s) for of in scales]), block.padded(scales[0].ds)
    tables = TransportTables(np.array(rows), np.array(columns), scales[0].k[0], s, ds)
    return measured_block(block, cut, first.min_lag), tables


def gram(
    at: TransportPoint, block: Block, data: Float[np.ndarray, "padded 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "padded 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone.

    `data` are the sums that a previous call returned for the same block and min_lag: Σ w,
    Σ w(y - 1), Σ w(y - 1)² and the number of pairs do not depend on theta.
    """
    of = _family(at.problem, derivatives=True, precision=at.problem.precision)
    arguments = *_arguments_at(at, block), *known_sums(block, data)
    return of_bins(block, *computed(gram_kernel, *arguments, of=of))


def robust_gram(
    at: TransportPoint, block: Block, linear_params: Float[np.ndarray, "bin 2"]
) -> Gram:
    """Return the Gram of every bin of the block under the loss of the point's problem."""
    problem, each = at.problem, [block.padded(values) for values in linear_params.T]
    of, arguments = _family(problem, derivatives=True), _arguments_at(at, block)
    more = {"of": of, "loss": problem.loss}
    found = computed(robust_kernel, *arguments, *each, problem.loss_scale, **more)
    return under_loss(block, *found)


def candidate_grams(points: Sequence[TransportPoint], block: Block) -> Gram:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at up to MAX_CANDIDATES points of one problem."""
    problem, n_points, bins = points[0].problem, len(points), len(block.q)
    points = [*points, *[points[-1]] * (MAX_CANDIDATES - n_points)]
    arguments = _arguments_of_points(points, block)
    of = _family(problem, precision=problem.precision)
    moments, pairs = computed(candidates_kernel, *arguments, n_points, of=of)
    return Gram(moments[:bins, :n_points], pairs[:bins].astype(np.int64))


def wide_gram(
    points: Sequence[TransportPoint], block: Block, data: Float[np.ndarray, "padded 4"] | None
) -> tuple[Gram, Float[np.ndarray, "padded 4"]]:
    """Return the wide Gram of every bin of the block, and the sums of the data alone."""
    arguments = *_arguments_of_points(points, block), *known_sums(block, data)
    return of_bins(block, *computed(wide_kernel, *arguments, of=_family(points[0].problem)))


def tile_grams(
    points: Sequence[TransportPoint], work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    """Return the Gram of every bin of several tiles, and the sums of the data of each."""
    first, block, one = points[0], work.blocks[0], work.fields == "derivatives"
    problem, scales = first.problem, [at.scales(block.q, block.phi) for at in points]
    in_float64 = work.fields == "changes" or work.linear_params is not None
    precision = "float64" if in_float64 else problem.precision
    of = _family(problem, derivatives=one, precision=precision)
    rows = first.rows if one else np.array([at.rows[-2:] for at in points])
    s, ds = np.stack([of.s for of in scales], axis=1), scales[0].ds[:, None]
    columns = 2 + (1 + problem.model.size if one else len(points))
    at = AtFrames(rows, scales[0].k[0], (s, ds))
    return grams_of_tiles(of, at, columns, problem, first.min_lag, work)


def cell_sums(
    at: TransportPoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    """Return the sums with f and ∂f/∂theta of every pair of a block added to those of its cell."""
    arguments, of = _arguments_at(at, block), _family(at.problem, derivatives=True)
    return computed(cells_kernel, *arguments, cell, sums, of=of)[0]


def pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    """Return the times from which `f_of_theta` integrates."""
    convention, spacing = problem.convention, frame_spacing(time, problem.convention)
    steps = time_steps(convention, time)
    return PairTimes(positive_times(time, spacing), steps, spacing)


def f_of_theta(theta: Any, at: PairSet, model: TransportModel, convention: Convention) -> Array:
    """Return f at theta of bins at pairs of frames, (bin, pair), for JAX to trace."""
    rows: Any = rows_of(model, convention, theta, at.times.t, at.times.steps)
    scales = bin_scales(model, convention, theta, at.q, at.phi, at.gap, at.times.spacing)
    dC: Any = rows[-1, at.j] - rows[-1, at.i]
    dG: Any = rows[-2, at.j] - rows[-2, at.i] if model.shear else dC
    k, s = jnp.asarray(scales.k)[:, None], jnp.asarray(scales.s)[:, None]
    return f_between(dC, dG, k, s, shear=model.shear, convention=convention)


def adequate(at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int) -> bool:
    """Return whether f changes little enough over `factor` frames for block means to show it."""
    first, stop = frames
    steps = np.abs(np.diff(at.rows[-2:, first:stop:factor]))
    if not steps.size:
        return False
    scales = at.scales(q, phi)
    typical = np.quantile(steps, 0.75, axis=1)
    turned = np.abs(scales.s).max() * typical[0] if at.problem.model.shear else 0.0
    return bool(max(turned, scales.k.max() * typical[1]) < MAX_CHANGE_PER_CELL)


def correlation_time(at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int]) -> float:
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
