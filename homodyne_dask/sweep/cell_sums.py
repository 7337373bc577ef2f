"""Sums of c2 over cells of age and lag of one's choice, where the averages stored with the data do not do."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import Block
from homodyne_dask.kernels.gram import CellSums
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.tasks import Task, TaskContext, merged


class AgeAndLagEdges(NamedTuple):
    """Argument of a task: the frames between which t1 lies in a cell, and the lags."""

    age: Int[np.ndarray, " age_edge"]
    lag: Int[np.ndarray, " lag_edge"]


def edges_inside(frames: tuple[int, int], min_lag: int) -> AgeAndLagEdges:
    """Return edges of cells as those that are stored, but of some frames: the first, and after the last."""
    first, stop = frames
    lags = np.unique([*lag_edges(stop - first), min(min_lag, stop - first)])
    return AgeAndLagEdges(first + age_edges(stop - first), lags)


def halved(edges: AgeAndLagEdges) -> AgeAndLagEdges:
    age, lag = (np.unique([of[:-1], (of[:-1] + of[1:]) // 2, of[1:]]) for of in edges)
    return AgeAndLagEdges(age, lag)


def cell_sums_of(context: TaskContext, run: Run, at: AgeAndLagEdges) -> tuple[CellSums, Cost]:
    scan, lowest = open_selection(context.source.selection), context.problem.min_lag
    more = scan.time, scan.use, at, lowest
    sums = merged(context, run, lambda read: [(_sums(leaf.data, *more), None) for leaf in read])
    return sums[0], NO_COST


def _sums(
    data: Block,
    times: Float[np.ndarray, " t"],
    use: Bool[np.ndarray, " t"],
    at: AgeAndLagEdges,
    min_lag: int,
) -> CellSums:
    """Return the sums of a block: first over intervals of lag in each row, then over rows."""
    c2, of_rows, of_columns = map(np.asarray, (data.c2, data.weight_rows, data.weight_columns))
    bins, side = len(data.q), data.c2.shape[-1]
    frame = np.stack([data.i0 + np.arange(side), data.j0 + np.arange(side)])
    inside, frame_at = frame < len(times), np.minimum(frame, len(times) - 1)
    (t1, t2), used = times[frame_at], use[frame_at] & inside
    i, lag = frame[0][:, None], frame[1] - frame[0][:, None]
    ages, lags = (len(of) - 1 for of in at)
    age, of_lag = (
        np.searchsorted(of, to, "right") - 1 for of, to in zip(at, (frame[0], lag), strict=True)
    )
    of_lag[(of_lag < 0) | (lag < max(min_lag, 1))] = lags
    group = np.minimum(of_lag, lags) + np.arange(side)[:, None] * (lags + 1)

    def over(at: np.ndarray, values: np.ndarray | None = None) -> Float[np.ndarray, "T lag"]:
        return np.bincount(at, values, side * (lags + 1)).reshape(side, -1)[:, :lags]

    found, possible = np.zeros((bins, ages, lags, 12)), over(group[np.outer(*used)])
    for b in range(bins):
        known = np.isfinite(c2[b])
        y, far, at_known = c2[b][known] - 1.0, lag[known], group[known]
        w, later = (np.broadcast_to(of, lag.shape)[known] for of in (of_columns[b], t2))
        first, weight = of_rows[b][:, None], over(at_known, w)
        pairs, of_far = over(at_known), over(at_known, far)
        sums = (
            first * weight, first * over(at_known, w * y), first * t1[:, None] * weight,
            first * over(at_known, w * later), over(at_known, y), i * pairs, of_far, i**2 * pairs,
            i * of_far, over(at_known, far**2), pairs, possible,
        )  # fmt: skip
        rows = np.stack(sums, axis=-1)
        found[b] = [rows[age == a].sum(0) for a in range(ages)]  # no BLAS, with its threads
    found = found.reshape(bins, ages * lags, 12)
    counts = found[..., 10:].astype(np.int64)
    return CellSums(found[..., :4], found[..., 4:10], counts[..., 0], counts[..., 1])


CELL_SUMS = Task(cell_sums_of, "cell_sums", "over ages and lags")
