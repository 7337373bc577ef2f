"""Sums of c2 over cells of age and lag of one's choice, where the averages stored with the data do not do."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import Block
from homodyne_dask.kernels.gram import CellSums
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep.blocks import Cost
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.tasks import Leaf, Task, TaskContext, merged


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
    age, lag = (np.unique([x[:-1], (x[:-1] + x[1:]) // 2, x[1:]]) for x in edges)
    return AgeAndLagEdges(age, lag)


def cell_sums_of(context: TaskContext, run: Run, edges: AgeAndLagEdges) -> tuple[CellSums, Cost]:
    scan, min_lag = open_selection(context.source.selection), context.problem.min_lag

    def sums_of(leaves: Sequence[Leaf]) -> list[tuple[CellSums, None]]:
        return [(_sums(leaf.data, scan.time, scan.use, edges, min_lag), None) for leaf in leaves]

    return merged(context, run, sums_of)


def _sums(
    data: Block,
    times: Float[np.ndarray, " t"],
    use: Bool[np.ndarray, " t"],
    edges: AgeAndLagEdges,
    min_lag: int,
) -> CellSums:
    """Return the sums of a block: first over intervals of lag in each row, then over rows."""
    c2, of_rows, of_columns = map(np.asarray, (data.c2, data.weight_rows, data.weight_columns))
    bins, side = len(data.q), data.c2.shape[-1]
    frame = np.stack([data.i0 + np.arange(side), data.j0 + np.arange(side)])
    inside, frame_at = frame < len(times), np.minimum(frame, len(times) - 1)
    (t1, t2), used = times[frame_at], use[frame_at] & inside
    i, lag = frame[0][:, None], frame[1] - frame[0][:, None]
    ages, lags = len(edges.age) - 1, len(edges.lag) - 1
    age = np.searchsorted(edges.age, frame[0], "right") - 1
    interval = np.searchsorted(edges.lag, lag, "right") - 1
    interval[(interval < 0) | (lag < max(min_lag, 1))] = lags
    group = np.minimum(interval, lags) + np.arange(side)[:, None] * (lags + 1)

    def over(groups: np.ndarray, values: np.ndarray | None = None) -> Float[np.ndarray, "T lag"]:
        return np.bincount(groups, values, side * (lags + 1)).reshape(side, -1)[:, :lags]

    total, possible = np.zeros((bins, ages, lags, 12)), over(group[np.outer(*used)])
    for b in range(bins):
        measured = np.isfinite(c2[b])
        y, far, cells = c2[b][measured] - 1.0, lag[measured], group[measured]
        w, later = (np.broadcast_to(row, lag.shape)[measured] for row in (of_columns[b], t2))
        first, weight = of_rows[b][:, None], over(cells, w)
        pairs, of_far = over(cells), over(cells, far)
        sums = (
            first * weight, first * over(cells, w * y), first * t1[:, None] * weight,
            first * over(cells, w * later), over(cells, y), i * pairs, of_far, i**2 * pairs,
            i * of_far, over(cells, far**2), pairs, possible,
        )  # fmt: skip
        rows = np.stack(sums, axis=-1)
        total[b] = [rows[age == a].sum(0) for a in range(ages)]  # no BLAS, with its threads
    total = total.reshape(bins, ages * lags, 12)
    counts = total[..., 10:].astype(np.int64)
    return CellSums(total[..., :4], total[..., 4:10], counts[..., 0], counts[..., 1])


CELL_SUMS = Task(cell_sums_of, "cell_sums", "over ages and lags")
