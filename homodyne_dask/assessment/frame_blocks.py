"""Moments of pairs of blocks of frames, by which the test for a decay allows for correlated pairs of frames.

A pair belongs to the blocks of its two frames. The kernel is that of every pass, on smaller tiles.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.cell_grams import cell_block_grams
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.problem import Block
from homodyne_dask.request.request import Request
from homodyne_dask.solver.limits import MIN_BLOCKS
from homodyne_dask.store.scan import open_selection, q_or_one
from homodyne_dask.sweep import tasks
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.sweep import Sweep

TARGET_BLOCKS, CORRELATION_TIMES = 16, 5
"""Approximate number of blocks; correlation times that each of them has, if MIN_BLOCKS allow it."""


class FrameBlocks(NamedTuple):
    """Argument of a task: where the Gram is evaluated, and the blocks of the selected frames."""

    at: tasks.AtTheta
    length: int
    """Frames of a block."""
    first: int
    number: int
    """The first block that holds selected frames, and how many do."""


def frame_grams_of(context: tasks.TaskContext, run: Run, blocks: FrameBlocks) -> tuple[Gram, Cost]:
    """Return the Grams of all pairs of blocks of frames in a run of blocks of data."""
    at, problem = blocks.at, context.problem
    linear = None if at.linear_params is None else at.linear_params[list(run.members)]
    cells = cells_of(context.source)
    if cells is not None:
        [means], cost = means_over_cells(*context, run, [at.theta])
        # cells outside the selected frames have no weight, wherever they go
        place = np.clip(cells.middle // blocks.length - blocks.first, 0, blocks.number - 1)
        return cell_block_grams(means, problem, linear, place, blocks.number), cost
    scan = open_selection(context.source.selection)
    point = backend_of(problem.model).point(problem, at.theta, scan.time, 1, scan.frames)
    grams = tasks.merged(
        context,
        run,
        lambda read: [(_leaf(point, leaf.data, linear, blocks), None) for leaf in read],
    )
    return grams[0], NO_COST


FRAME_GRAMS = tasks.Task(frame_grams_of, "frame_grams", "for the test for a decay")


def _leaf(
    at: ModelPoint, data: Block, linear: Float[np.ndarray, "bin 2"] | None, blocks: FrameBlocks
) -> Gram:
    backend, number = backend_of(at.problem.model), blocks.number
    c2, *sides = map(np.asarray, (data.c2, data.weight_rows, data.weight_columns))
    bins, side = len(data.q), min(blocks.length, c2.shape[-1])
    moments, pairs = np.zeros((bins, number, number, 3, 3)), np.zeros(bins, np.int64)
    for i, j in product(range(0, c2.shape[-1], side), repeat=2):
        i0, j0 = data.i0 + i, data.j0 + j
        a, b = (frame // blocks.length - blocks.first for frame in (i0, j0))
        if i0 > j0 or a < 0 or b >= number:
            continue
        rows, columns = slice(i, i + side), slice(j, j + side)
        weights = sides[0][:, rows], sides[1][:, columns]
        own, *weights = map(np.ascontiguousarray, (c2[:, rows, columns], *weights))
        part = Block(own, weights[0], weights[1], data.q, data.phi, i0, j0)
        if linear is None:
            gram = backend.gram(at, part, None)[0]
        else:
            gram = backend.robust_gram(at, part, linear)
        pairs += gram.pairs
        moments[:, a, b] += gram.moments[:, :3, :3]
    return Gram(moments, pairs)


def frame_moments(
    sweep: Sweep,
    request: Request,
    theta: Float[np.ndarray, " p"],
    linear: Float[np.ndarray, "bin 2"] | None,
) -> Float[np.ndarray, "bin block block 3 3"]:
    """Return the moments of every pair of blocks of frames: one pass over the data.

    linear: offsets and contrasts of a fit with a loss.
    """
    scan, backend, side = request.scan, backend_of(request.problem.model), sweep.layout.side
    (first, stop), at = scan.frames, backend.point(request.problem, theta, scan.time)
    correlation = backend.correlation_time(at, q_or_one(scan), scan.phi, scan.frames)
    wanted = max((stop - first) / TARGET_BLOCKS, CORRELATION_TIMES * correlation, 2)
    wanted = min(wanted, max((stop - first) / MIN_BLOCKS, 2))
    length = int(side * 2.0 ** np.floor(np.log2(wanted / side)))  # of whole tiles or parts of one
    blocks = first // length, -(-stop // length) - first // length
    argument = FrameBlocks(tasks.AtTheta(theta, linear), length, *blocks)
    return sweep.over(FRAME_GRAMS, argument).moments
