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
    TransportFamily,
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

LinearParams = Float[np.ndarray, "bin 2"]
DataSums = Float[np.ndarray, "padded 4"]

__all__ = ["f_and_derivatives_at", "f_at", "point", "rates", "rates_of_draws", "sign_at"]
MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, k ΔC and s ΔG stay below this: a mean over a
cell then differs from the value at its middle by about (MAX_CHANGE_PER_CELL²/24)."""


def _centred(rows: Float[np.ndarray, "rows n"], block: Block) -> tuple[np.ndarray, np.ndarray]:
    frame = np.arange(block.c2.shape[-1])
    return centred(rows, block.i0 + frame, block.j0 + frame)


def _family(problem: Problem, derivatives: bool = False, mixed: bool = False) -> TransportFamily:
    diffusion = problem.model.diffusion.stop if derivatives else 0
    precision = problem.precision if mixed else "float64"
    return TransportFamily(problem.model.shear, problem.convention, diffusion, precision)


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
    kC = scales[0].k[0] * np.array([at.rows[-1] for at in points])
    cut = sub_blocks(block.i0, block.j0, T, first.min_lag, kC, first.frames)
    s, ds = np.array([block.padded(one.s) for one in scales]), block.padded(scales[0].ds)
    tables = TransportTables(np.array(rows), np.array(columns), scales[0].k[0], s, ds)
    return measured_block(block, cut, first.min_lag), tables


def gram(at: TransportPoint, block: Block, data: DataSums | None = None) -> tuple[Gram, DataSums]:
    """Return the Gram of every bin; data: the sums of a previous call, which do not depend on theta."""
    arguments = *_arguments_at(at, block), *known_sums(block, data)
    family = _family(at.problem, derivatives=True, mixed=True)
    return of_bins(block, *computed(gram_kernel, *arguments, family=family))


def robust_gram(at: TransportPoint, block: Block, linear_params: LinearParams) -> Gram:
    problem, linear = at.problem, (block.padded(values) for values in linear_params.T)
    static = {"family": _family(problem, derivatives=True), "loss": problem.loss}
    arguments = *_arguments_at(at, block), *linear, problem.loss_scale
    return under_loss(block, *computed(robust_kernel, *arguments, **static))


def candidate_grams(points: Sequence[TransportPoint], block: Block) -> Gram:
    n_points, bins, family = len(points), len(block.q), _family(points[0].problem, mixed=True)
    points = [*points, *[points[-1]] * (MAX_CANDIDATES - n_points)]
    arguments = *_arguments_of_points(points, block), n_points
    moments, pairs = computed(candidates_kernel, *arguments, family=family)
    return Gram(moments[:bins, :n_points], pairs[:bins].astype(np.int64))


def wide_gram(
    points: Sequence[TransportPoint], block: Block, data: DataSums | None
) -> tuple[Gram, DataSums]:
    arguments = *_arguments_of_points(points, block), *known_sums(block, data)
    return of_bins(block, *computed(wide_kernel, *arguments, family=_family(points[0].problem)))


def tile_grams(
    points: Sequence[TransportPoint], work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    first, block, derivatives = points[0], work.blocks[0], work.fields == "derivatives"
    problem, scales = first.problem, [at.scales(block.q, block.phi) for at in points]
    mixed = work.fields != "changes" and work.linear_params is None
    rows = first.rows if derivatives else np.array([at.rows[-2:] for at in points])
    s, ds = np.stack([one.s for one in scales], axis=1), scales[0].ds[:, None]
    columns = 2 + (1 + problem.model.size if derivatives else len(points))
    at = AtFrames(rows, scales[0].k[0], (s, ds))
    family = _family(problem, derivatives, mixed)
    return grams_of_tiles(family, at, columns, problem, first.min_lag, work)


def cell_sums(
    at: TransportPoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    arguments, family = _arguments_at(at, block), _family(at.problem, derivatives=True)
    return computed(cells_kernel, *arguments, cell, sums, family=family)[0]


def pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    convention, spacing = problem.convention, frame_spacing(time, problem.convention)
    steps = time_steps(convention, time)
    return PairTimes(positive_times(time, spacing), steps, spacing)


def f_of_theta(theta: Any, at: PairSet, model: TransportModel, convention: Convention) -> Array:
    rows: Any = rows_of(model, convention, theta, at.times.t, at.times.steps)
    scales = bin_scales(model, convention, theta, at.q, at.phi, at.gap, at.times.spacing)
    dC: Any = rows[-1, at.j] - rows[-1, at.i]
    dG: Any = rows[-2, at.j] - rows[-2, at.i] if model.shear else dC
    k, s = jnp.asarray(scales.k)[:, None], jnp.asarray(scales.s)[:, None]
    return f_between(dC, dG, k, s, shear=model.shear, convention=convention)


def adequate(at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int) -> bool:
    first, stop = frames
    steps = np.abs(np.diff(at.rows[-2:, first:stop:factor]))
    if not steps.size:
        return False
    scales = at.scales(q, phi)
    typical = np.quantile(steps, 0.75, axis=1)
    turned = np.abs(scales.s).max() * typical[0] if at.problem.model.shear else 0.0
    return bool(max(turned, scales.k.max() * typical[1]) < MAX_CHANGE_PER_CELL)


def correlation_time(at: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int]) -> float:
    scales = at.scales(q, phi)
    first, stop = frames
    C, middle = at.rows[-1], (first + stop) // 2
    decay = np.median(scales.k) * (C[middle:] - C[middle])
    if at.problem.model.shear:
        G = at.rows[-2]
        decay = decay + (np.median(np.abs(scales.s)) * (G[middle:] - G[middle])) ** 2 / 3
    decayed = np.flatnonzero(decay > 1)
    return float(decayed[0]) if len(decayed) else float(stop - middle)
