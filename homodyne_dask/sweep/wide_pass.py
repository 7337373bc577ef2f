"""A pass at many thetas: the wide Gram, from which χ² follows at any theta near them."""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.cell_grams import wide_cell_gram
from homodyne_dask.kernels.gram import WideGram, merge_tree, moments_of_data
from homodyne_dask.store.allocator import set_allocator_thresholds
from homodyne_dask.store.scan import open_selection, q_or_one
from homodyne_dask.sweep.block_cache import SUMS, block, in_turn
from homodyne_dask.sweep.blocks import Place, stored_sums
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.cost import NO_COST
from homodyne_dask.sweep.tasks import Report, Run, Task, TaskContext, metered, report_of


class ManyThetas(NamedTuple):
    """Argument of a task: the thetas at which f is a column, less that at the first of them."""

    thetas: Float[np.ndarray, "point p"]


def wide_gram_of(context: TaskContext, run: Run, at: ManyThetas) -> tuple[WideGram, Report]:
    """Return the merged wide Gram of a run of blocks; a block in which f has decayed at all is not read."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    if cells_of(context.source) is not None:
        means, cost = means_over_cells(*context, run, list(at.thetas))
        return wide_cell_gram(means), report_of(began, before, cost)
    source, problem = context.source, context.problem
    scan, backend = open_selection(source.selection), backend_of(problem.model)
    q = q_or_one(scan)[run.members[0]]
    points = [
        backend.point(problem, theta, scan.time, source.factor, scan.frames) for theta in at.thetas
    ]
    places, known, needed = [Place(run.members, tile) for tile in run.tiles], [], []
    for place in places:
        i, j = (side * source.side for side in place.tile)
        sums = stored_sums(source, place, problem.min_lag)
        known.append(SUMS.get((source, place, problem.min_lag)) if sums is None else sums)
        active = any(at.sub_blocks(q, i, j, source.side).n_active for at in points)
        needed.append(active or known[-1] is None)
    leaves = []
    with in_turn(source, places, needed) as turns:
        for place, sums, read in zip(turns, known, needed, strict=True):
            if not read:
                some = sums[: len(run.members)]
                moments = moments_of_data(some, len(points) + 2)
                leaves.append(WideGram(moments, some[:, 3].astype(np.int64)))
                continue
            data = block(source, place, context.budget)
            with metered("gram"):
                leaves.append(backend.wide_gram(points, data, sums)[0])
    return merge_tree(leaves), report_of(began, before, NO_COST)


WIDE_GRAM = Task(wide_gram_of, "wide_gram", "at many parameters")
