"""Sums of c2 over cells of age and lag of one's choice, where the averages stored with the data do not do."""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from homodyne_dask.kernels.backend import compilations
from homodyne_dask.kernels.gram import CellSums, merge_tree
from homodyne_dask.sweep.block_cache import block, prefetched
from homodyne_dask.sweep.blocks import Cost, Place
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.tasks import Report, Task, TaskContext, report_of


class AgeAndLagEdges(NamedTuple):
    """Argument of a task: the frames between which t1 lies in a cell, and the lags."""

    age: Int[np.ndarray, " age_edge"]
    lag: Int[np.ndarray, " lag_edge"]


def cell_sums_of(context: TaskContext, run: Run, at: AgeAndLagEdges) -> tuple[CellSums, Report]:
    """Return the sums over the known pairs of a run of blocks; cell a·lags + l is that of age a and lag l."""
    began, before = time.perf_counter(), compilations()
    source, size = context.source, (len(at.age) - 1) * (len(at.lag) - 1)
    frame, leaves, reading = np.arange(source.side), [], 0.0
    with prefetched(source, [Place(run.members, tile) for tile in run.tiles]) as turns:
        for place in turns:
            start = time.perf_counter()
            data = block(source, place, context.budget)
            reading += time.perf_counter() - start
            i, j = data.i0 + frame[:, None], data.j0 + frame[None, :]
            cell = _cell(i, j, at, context.problem.min_lag)
            of_bins = [np.asarray(data.c2[b]) for b in range(len(run.members))]
            sums = zip(*(_sums(c2, cell, size) for c2 in of_bins), strict=True)
            leaves.append(CellSums(*map(np.stack, sums)))
    cost = Cost(read=len(run.tiles), blocks=len(run.tiles), reading=reading)
    return merge_tree(leaves), report_of(began, before, cost)


def _sums(
    c2: Float32[np.ndarray, "T T"], cell: Int[np.ndarray, "T T"], size: int
) -> tuple[Float[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
    known = np.isfinite(c2) & (cell < size)
    of = cell[known]
    return np.bincount(of, c2[known].astype(float) - 1, size), np.bincount(of, minlength=size)


def _cell(
    i: Int[np.ndarray, "T 1"], j: Int[np.ndarray, "1 T"], at: AgeAndLagEdges, min_lag: int
) -> Int[np.ndarray, "T T"]:
    """Return the cell of every pair of frames, the number of cells where it is in none."""
    age = np.searchsorted(at.age, i, "right") - 1
    lag = np.searchsorted(at.lag, j - i, "right") - 1
    ages, lags = len(at.age) - 1, len(at.lag) - 1
    inside = (age >= 0) & (age < ages) & (lag >= 0) & (lag < lags) & (j - i >= max(min_lag, 1))
    return np.where(inside, age * lags + lag, ages * lags)


CELL_SUMS = Task(cell_sums_of, "cell_sums", "for the noise")
