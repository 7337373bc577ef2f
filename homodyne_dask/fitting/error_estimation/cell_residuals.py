"""Residuals of a fit averaged over cells of age and lag, from the averages stored with the data.

The mean of f over the pairs of a cell is a quadrature that is exact for polynomials in age and lag over its
frames, so a cell may be cut by the end of the record.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.request import Request
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.cell_sums import CELL_SUMS, AgeAndLagEdges
from homodyne_dask.sweep.sweep import Sweep

NODES = 5
"""Frames, not necessarily whole, that stand for an interval along age and along lag."""
FEWEST_AGES = 8
"""Stored intervals of age inside the selected frames, with fewer of which others are averaged over."""
MAX_PAIRS = 40_000
"""Pairs of a cell with masked frames up to which f is evaluated at all of them; a larger one is not used."""


class Interval(NamedTuple):
    """A cell: t1 from frame `first` up to before `stop`, lags from `shortest` up to before `end`."""

    first: int
    stop: int
    shortest: int
    end: int


class CellPoints(NamedTuple):
    """Pairs of frames that stand for cells."""

    i: Float[np.ndarray, " point"]
    j: Float[np.ndarray, " point"]
    weight: Float[np.ndarray, " point"]
    """Sums to the pairs of the cell."""
    cell: Int[np.ndarray, " point"]

    def mean(self, values: Float[np.ndarray, "*n point"], number: int) -> np.ndarray:
        """Return the means over each of `number` cells; NaN without pairs."""
        flat = values.reshape(int(np.prod(values.shape[:-1])), len(self.cell))
        total = np.bincount(self.cell, self.weight, number)
        means = np.full((len(flat), number), np.nan)
        for mean, row in zip(means, flat, strict=True):
            sums = np.bincount(self.cell, self.weight * row, number)
            np.divide(sums, total, out=mean, where=total > 0)
        return means.reshape(*values.shape[:-1], number)


def cell_points(cells: list[Interval], use: Bool[np.ndarray, " t"]) -> CellPoints:
    """Return pairs that stand for the pairs of used frames in each cell; none where there are too many.

    use: frames of the record that are used.
    """
    last = int(np.flatnonzero(use)[-1])
    if not cells:
        none = np.zeros(0)
        return CellPoints(none, none, none, np.zeros(0, int))
    parts = [_points(cell, use, last) for cell in cells]
    lengths = [len(part[0]) for part in parts]
    i, j, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CellPoints(i, j, weight, np.repeat(np.arange(len(cells)), lengths))


def _points(cell: Interval, use: Bool[np.ndarray, " t"], last: int) -> tuple[np.ndarray, ...]:
    stop = min(cell.stop, last + 1 - cell.shortest)
    if stop <= cell.first:
        return (np.empty(0),) * 3
    reach = min(stop - 1 + cell.end, last + 1)
    whole = use[cell.first : stop].all() and use[cell.first + cell.shortest : reach].all()
    if not whole:
        return _every_pair(cell, use, last)
    cut = np.clip(
        last + 1 - cell.end + 1, cell.first, stop
    )  # from there on the record ends the lags
    parts = []
    for first, end in ((cell.first, cut), (cut, stop)):
        if end <= first:
            continue
        for i, weight in zip(*_gauss(first, end), strict=True):
            after = min(cell.end, last + 1 - i)
            lag, of_lag = _gauss(cell.shortest, after)
            parts.append((np.full(len(lag), i), i + lag, weight * of_lag))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _every_pair(cell: Interval, use: Bool[np.ndarray, " t"], last: int) -> tuple[np.ndarray, ...]:
    if (cell.stop - cell.first) * (cell.end - cell.shortest) > MAX_PAIRS:
        return (np.empty(0),) * 3
    i = np.arange(cell.first, cell.stop)[:, None]
    j = i + np.arange(cell.shortest, cell.end)
    known = (j <= last) & use[i] & use[np.minimum(j, last)]
    i, j = np.broadcast_to(i, j.shape)[known], j[known]
    return i.astype(float), j.astype(float), np.ones(len(i))


def _gauss(first: float, stop: float) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return nodes and weights for a sum over first, first + 1, ... up to before stop.

    Exact for polynomials up to the degree 2·NODES - 1 (Gauss quadrature of discrete Chebyshev polynomials); a
    length that is not whole interpolates between those that are.
    """
    nodes, weights = _rule(float(stop - first))
    return nodes + first, weights


@lru_cache(maxsize=4096)
def _rule(n: float) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    k = np.arange(1, min(NODES, int(np.ceil(n))))
    beside = k**2 * (n**2 - k**2) / (4 * (4.0 * k**2 - 1))
    beside = np.sqrt(np.maximum(beside, 0))
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return nodes + (n - 1) / 2, n * vectors[0] ** 2


class AveragedCells(NamedTuple):
    """The averages of c2 over cells that lie inside the selected frames."""

    intervals: list[Interval]
    c2: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no pair."""
    pairs: Int[np.ndarray, "bin cell"]
    """How many are averaged."""
    points: CellPoints
    age_edges: Int[np.ndarray, " a"]
    """Of the intervals of age inside the selected frames."""
    lag_edges: Int[np.ndarray, " l"]


def averaged_cells(sweep: Sweep, request: Request) -> AveragedCells:
    """Return the averages of the selected bins, and the pairs that stand for their cells.

    Those stored with the data; where too few of them lie inside the selected frames, others from one pass
    over the data.
    """
    scan, min_lag = request.scan, request.problem.min_lag
    stored = stored_cells(scan, min_lag)
    whole = scan.frames == (0, scan.n_frames)
    if whole or scan.cells is not None or len(stored.age_edges) > FEWEST_AGES:
        return stored
    first, stop = scan.frames
    edges = AgeAndLagEdges(first + age_edges(stop - first), lag_edges(stop - first))
    sums = sweep.over(CELL_SUMS, edges)
    ages, lags = (list(pairwise(of.tolist())) for of in edges)
    cells = [Interval(*age, max(lag[0], 1), lag[1]) for age in ages for lag in lags]
    some = (sums.pairs > 0).any(0)
    some &= np.array([cell.shortest >= min_lag and cell.end > 1 for cell in cells])
    intervals = [cell for cell, one in zip(cells, some, strict=True) if one]
    pairs = sums.pairs[:, some]
    with np.errstate(invalid="ignore"):
        c2 = 1 + sums.total[:, some] / pairs
    return AveragedCells(intervals, c2, pairs, cell_points(intervals, scan.use), *edges)


def stored_cells(scan: Scan, min_lag: int) -> AveragedCells:
    """Return the stored averages of the selected bins, and the pairs that stand for their cells."""
    cuts, (start, stop) = scan.cuts(min_lag), scan.frames
    first, after = cuts.age_edges[cuts.age], cuts.age_edges[cuts.age + 1]
    shortest, end = cuts.lag_edges[cuts.lag], cuts.lag_edges[cuts.lag + 1]
    inside = (first >= start) & (after <= stop) & (end > 1)
    if stop < scan.n_frames:
        inside &= after + end - 2 < stop
    edges = zip(first, after, np.maximum(shortest, 1), end, strict=True)
    intervals = [Interval(*map(int, one)) for one, used in zip(edges, inside, strict=True) if used]
    points = cell_points(intervals, scan.use)
    ages = cuts.age_edges[(cuts.age_edges >= start) & (cuts.age_edges <= stop)]
    return AveragedCells(
        intervals, cuts.c2[:, inside], cuts.count[:, inside], points, ages, cuts.lag_edges
    )
