"""Sums of c2 over cells of age and lag of one's choice, where the averages stored with the data do not do."""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend import compilations
from homodyne_dask.kernels.gram import CellSums, merge_tree
from homodyne_dask.kernels.problem import Block
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep.block_cache import block, prefetched
from homodyne_dask.sweep.blocks import NO_COST, Place
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.tasks import Report, Task, TaskContext, report_of


class AgeAndLagEdges(NamedTuple):
    """Argument of a task: the frames between which t1 lies in a cell, and the lags."""

    age: Int[np.ndarray, " age_edge"]
    lag: Int[np.ndarray, " lag_edge"]


def edges_inside(frames: tuple[int, int], min_lag: int) -> AgeAndLagEdges:
    """Return edges of cells as those that are stored, but of some frames: the first, and after the last."""
    first, stop = frames
    lags = np.unique([*lag_edges(stop - first), min(min_lag, stop - first)])
    return AgeAndLagEdges(first + age_edges(stop - first), lags)


def cell_sums_of(context: TaskContext, run: Run, at: AgeAndLagEdges) -> tuple[CellSums, Report]:
    """Return the sums over the known pairs of a run of blocks; cell a·lags + l is that of age a and lag l."""
    began, before = time.perf_counter(), compilations()
    source, lowest = context.source, context.problem.min_lag
    times = open_selection(source.selection).time
    places = [Place(run.members, tile) for tile in run.tiles]
    with prefetched(source, places) as turns:
        blocks = (block(source, place, context.budget) for place in turns)
        sums = merge_tree(_sums(data, times, at, lowest) for data in blocks)
    return sums, report_of(began, before, NO_COST)


def _sums(
    data: Block, times: Float[np.ndarray, " t"], at: AgeAndLagEdges, min_lag: int
) -> CellSums:
    c2 = np.asarray(data.c2)
    i, j = data.i0 + np.arange(c2.shape[-1])[:, None], data.j0 + np.arange(c2.shape[-1])[None, :]
    first, second = (times[np.minimum(frame, len(times) - 1)] for frame in (i, j))
    cells, size = _cell(i, j, at, min_lag), (len(at.age) - 1) * (len(at.lag) - 1)
    weighted, total = np.zeros((len(data.q), size, 4)), np.zeros((len(data.q), size))
    pairs = np.zeros((len(data.q), size), np.int64)
    for b in range(len(data.q)):
        known = np.isfinite(c2[b]) & (cells < size)
        cell, y = cells[known], c2[b][known] - 1.0
        w = (data.weight_rows[b][:, None] * data.weight_columns[b])[known]
        t1, t2 = (np.broadcast_to(t, known.shape)[known] for t in (first, second))
        for n, value in enumerate((np.ones_like(w), y, t1, t2)):
            weighted[b, :, n] = np.bincount(cell, w * value, size)
        total[b], pairs[b] = np.bincount(cell, y, size), np.bincount(cell, minlength=size)
    return CellSums(weighted, total, pairs)


def _cell(
    i: Int[np.ndarray, "T 1"], j: Int[np.ndarray, "1 T"], at: AgeAndLagEdges, min_lag: int
) -> Int[np.ndarray, "T T"]:
    """Return the cell of every pair of frames, the number of cells where it is in none."""
    age = np.searchsorted(at.age, i, "right") - 1
    lag = np.searchsorted(at.lag, j - i, "right") - 1
    ages, lags = len(at.age) - 1, len(at.lag) - 1
    inside = (age >= 0) & (age < ages) & (lag >= 0) & (lag < lags) & (j - i >= max(min_lag, 1))
    return np.where(inside, age * lags + lag, ages * lags)


CELL_SUMS = Task(cell_sums_of, "cell_sums", "over ages and lags")
