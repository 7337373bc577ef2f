"""Dyadic-robust errors for fits with too few bins, from a pass that sums blocks of frames separately.

The kernel is that of every pass, on smaller tiles: a pair of frames belongs to the block of its
first frame and to that of its second.
"""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.cell_grams import cell_block_grams
from homodyne_dask.kernels.gram import BlockGrams, merge_tree
from homodyne_dask.kernels.problem import Block
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.speckle import nearest_correlation
from homodyne_dask.solver.state import State
from homodyne_dask.store.scan import open_selection, q_or_one
from homodyne_dask.sweep.block_cache import block, prefetched
from homodyne_dask.sweep.blocks import NO_COST, Place
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.sweep import Sweep, at_point
from homodyne_dask.sweep.tasks import (
    AtTheta,
    AtThetaAndLinear,
    Report,
    Task,
    TaskContext,
    report_of,
)

TARGET_BLOCKS = 16
"""Approximate number of blocks of frames; each pair of blocks has a score."""
MIN_BLOCKS = 6
"""With fewer blocks no error is estimated."""
_CORRELATION_TIMES = 5
"""Correlation times in a block, where the record is long enough."""


class FrameBlocks(NamedTuple):
    """Argument of a task: where the Gram is evaluated, and the blocks of the selected frames."""

    at: AtTheta | AtThetaAndLinear
    length: int
    """Frames of a block."""
    first: int
    """Blocks before the first selected frame."""
    number: int
    """Of blocks that hold selected frames."""


def frame_grams_of(
    context: TaskContext, run: Run, blocks: FrameBlocks
) -> tuple[BlockGrams, Report]:
    """Return the Grams of all pairs of blocks of frames in a run of blocks of data."""
    began, before = time.perf_counter(), compilations()
    scan = open_selection(context.source.selection)
    at, problem = blocks.at, context.problem
    linear_params = None
    if isinstance(at, AtThetaAndLinear):
        linear_params = at.linear_params[list(run.members)]
    cells = cells_of(context.source)
    if cells is not None:
        [means], cost = means_over_cells(*context, run, [at.theta])
        # cells outside the selected frames have no weight, wherever they go
        place = np.clip(cells.middle // blocks.length - blocks.first, 0, blocks.number - 1)
        of_blocks = cell_block_grams(means, problem, linear_params, place, blocks.number)
        return of_blocks, report_of(began, before, cost)
    here = backend_of(problem.model).point(problem, at.theta, scan.time, 1, scan.frames)
    places = [Place(run.members, tile) for tile in run.tiles]
    with prefetched(context.source, places) as turns:
        leaves = (
            _leaf(here, block(context.source, place, context.budget), linear_params, blocks)
            for place in turns
        )
        return merge_tree(leaves), report_of(began, before, NO_COST)


FRAME_GRAMS = Task(frame_grams_of, "frame_grams", "for the errors, over blocks of frames")


def _leaf(
    at: ModelPoint,
    data: Block,
    linear_params: Float[np.ndarray, "bin 2"] | None,
    blocks: FrameBlocks,
) -> BlockGrams:
    backend, number, length = backend_of(at.problem.model), blocks.number, blocks.length
    c2 = np.asarray(data.c2)  # small parts are computed on processors
    bins, T, k = len(data.q), c2.shape[-1], at.problem.model.size + 3
    side = min(length, T)
    first, stop = blocks.first * length, (blocks.first + number) * length
    moments, pairs = np.zeros((bins, number, number, 3, k)), np.zeros(bins, np.int64)
    for i in range(0, T, side):
        for j in range(0, T, side):
            rows, columns = slice(i, i + side), slice(j, j + side)
            i0, j0 = data.i0 + i, data.j0 + j
            if not first <= i0 <= j0 < stop:
                continue
            part = Block(
                np.ascontiguousarray(c2[:, rows, columns]),
                np.ascontiguousarray(data.weight_rows[:, rows]),
                np.ascontiguousarray(data.weight_columns[:, columns]),
                data.q, data.phi, i0, j0,
            )  # fmt: skip
            if linear_params is None:
                gram = backend.gram(at, part, None)[0]
            else:
                gram = backend.robust_gram(at, part, linear_params)
            a, b = i0 // length - blocks.first, j0 // length - blocks.first
            moments[:, a, b] += gram.moments[:, :3]
            pairs += gram.pairs
    return BlockGrams(moments, pairs)


def block_length(request: Request, theta: Float[np.ndarray, " p"], side: int) -> int:
    """Return the frames of a block: some correlation times, if that leaves MIN_BLOCKS blocks.

    It is `side` times a power of two.
    """
    first, stop = request.scan.frames
    wanted = max(
        (stop - first) / TARGET_BLOCKS, _CORRELATION_TIMES * _correlation_time(request, theta), 2
    )
    wanted = min(wanted, max((stop - first) / MIN_BLOCKS, 2))
    return int(side * 2.0 ** np.floor(np.log2(wanted / side)))


def _correlation_time(request: Request, theta: Float[np.ndarray, " p"]) -> float:
    """Return the frames in which f decays to 1/e, at the middle of the record, median over the bins."""
    scan, backend = request.scan, backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time)
    return backend.correlation_time(at, q_or_one(scan), scan.phi, scan.frames)


def frame_scores(
    sweep: Sweep, request: Request, state: State
) -> Float[np.ndarray, "bin block block 3 k"]:
    """Return the moments of every pair of blocks of frames: one pass over the data."""
    first, stop = request.scan.frames
    length = block_length(request, state.theta, sweep.layout.side)
    blocks = first // length, -(-stop // length) - first // length
    linear_params = None if state.reduced.linear_step is None else state.reduced.linear_params
    at = at_point(state.theta, linear_params)
    return sweep.over(FRAME_GRAMS, FrameBlocks(at, length, *blocks)).moments


def dyadic(
    reduced: ReducedProblem,
    moments: Float[np.ndarray, "bin block block 3 k"],
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
) -> Float[np.ndarray, "p p"] | None:
    """Return the dyadic-robust covariance: pairs of blocks that share a block are correlated.

    With s_ab the score of blocks a and b and T_a = Σ_b s_ab, the meat is
    Σ_a T_a T_aᵀ - Σ_(a<b) s_ab s_abᵀ, summed over clusters of bins (Aronow, Samii and Assenova 2015).
    Correlations between blocks that share none are neglected, so it is a lower bound, and the sum need not be
    positive semidefinite: its correlations are then the nearest that are. A prior adds its known variance
    (`cluster_robust`). None with fewer than MIN_BLOCKS blocks that hold data, or where it
    is not positive.
    """
    joint = joint_equations(reduced, moved)
    used = reduced.count > 0
    contrast = np.where(used & ~reduced.undetermined, reduced.contrast, 0.0)
    offset = np.where(used, reduced.offset - 1, 0.0)
    x = np.stack([-offset, np.ones(len(used)), -contrast], axis=1)
    score = np.einsum("kz,kabzy->kaby", x, moments)
    own = contrast[:, None, None, None] * score[..., 3:]
    own = own - np.einsum("kzp,kabz->kabp", reduced.projection, score[..., [0, 2]])
    own = own[..., moved] / joint.size[: joint.moved]
    with_data = moments[..., 0, 0].sum(0)
    if ((with_data.sum(0) + with_data.sum(1)) > 0).sum() < MIN_BLOCKS:
        return None
    meat = np.zeros((joint.moved, joint.moved))
    for cluster in np.unique(clusters[used]):
        s = own[used & (clusters == cluster)].sum(0)
        alone = np.einsum("aap->ap", s)
        of_block = s.sum(0) + s.sum(1) - alone
        of_two = s * ~np.eye(len(s), dtype=bool)[:, :, None]
        meat += of_block.T @ of_block - np.einsum("abp,abq->pq", of_two, of_two)
    inverse = joint.inverse[: joint.moved, : joint.moved]
    covariance = np.full((len(moved), len(moved)), np.nan)
    covariance[np.ix_(moved, moved)] = joint.of_theta(inverse @ meat @ inverse)
    known = joint.of_theta(joint.known)
    # of what a prior alone determines, that of the data is zero but for rounding
    positive = np.diag(covariance)[moved] + 1e-6 * np.diag(known) > 0
    if not positive.all():
        return None
    covariance[np.ix_(moved, moved)] = _nearest_covariance(covariance[np.ix_(moved, moved)])
    if joint.prior is not None:
        covariance[np.ix_(moved, moved)] += known
    return covariance


def _nearest_covariance(of: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m m"]:
    """Return a positive semidefinite matrix with the same variances; those below zero are rounding."""
    size = np.sqrt(np.maximum(np.diag(of), np.finfo(float).tiny))
    nearest, _ = nearest_correlation(of / np.outer(size, size))
    return nearest * np.outer(size, size)
