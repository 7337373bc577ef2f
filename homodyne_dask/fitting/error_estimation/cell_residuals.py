"""Residuals of a fit averaged over cells of age and lag, from the averages stored with the data.

The mean of f over the pairs of a cell is a quadrature that is exact for polynomials in age and lag over its
frames, so a cell may be cut by the end of the record.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.options import PAIRS
from homodyne_dask.fitting.request import Request
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.cell_sums import CELL_SUMS, edges_inside
from homodyne_dask.sweep.sweep import Sweep

NODES = 5
"""Frames, not necessarily whole, that stand for an interval along age and along lag."""
FEWEST_AGES = 8
"""Stored intervals of age inside the selected frames, with fewer of which others are averaged over."""
LEAST_COVERED = 0.98
"""Part of the selected pairs, a mean over intervals of lag, in the stored cells of a weighted fit."""
MAX_RUNS = 200
"""Pairs of runs of used frames in a cell, with more of which it is not used."""


class Interval(NamedTuple):
    """A cell: t1 from frame `first` up to before `stop`, lags from `shortest` up to before `end`."""

    first: int
    stop: int
    shortest: int
    end: int


def means_of_cells(
    cells: list[Interval],
    weight: Float[np.ndarray, " cell"],
    pairs: Int[np.ndarray, " cell"],
    least: int,
) -> tuple[list[Int[np.ndarray, " some"]], Float[np.ndarray, "cell mean"]]:
    """Return the means of each cell, of all ages at each lag, of all lags at each age, and of all.

    Their cells, and the shares of these. least: pairs of a mean. Cells of weight 0 are in none.
    """
    known = np.flatnonzero(weight)
    ages, lags = (
        np.array([getattr(cell, name) for cell in cells]) for name in ("first", "shortest")
    )
    sets = [known[key[known] == value] for key in (lags, ages) for value in np.unique(key[known])]
    sets = [np.array([n]) for n in known] + [of_set for of_set in (*sets, known) if len(of_set) > 1]
    sets = [of_set for of_set in sets if pairs[of_set].sum() >= least]
    mix = np.zeros((len(cells), len(sets)))
    for n, of_set in enumerate(sets):
        mix[of_set, n] = weight[of_set] / weight[of_set].sum()
    return sets, mix


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
    runs = _runs(use)
    parts = [_points(cell, runs, last) for cell in cells]
    lengths = [len(part[0]) for part in parts]
    i, j, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CellPoints(i, j, weight, np.repeat(np.arange(len(cells)), lengths))


def _runs(use: Bool[np.ndarray, " t"]) -> list[tuple[int, int]]:
    """Return the first frame of every run of used ones, and the one after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], use, [False]]).astype(int)))
    return list(pairwise(edges.tolist()))[::2]


def _points(
    cell: Interval, runs: list[tuple[int, int]], last: int
) -> tuple[Float[np.ndarray, " point"], ...]:
    """Return the pairs that stand for those of a cell whose frames are both in runs of used frames."""
    stop = min(cell.stop, last + 1 - cell.shortest)
    firsts = [run for run in runs if run[0] < stop and run[1] > cell.first]
    parts = []
    for a, b in firsts:
        a, b = max(a, cell.first), min(b, stop)
        seconds = [run for run in runs if run[0] - cell.end < b - 1 and run[1] - cell.shortest > a]
        if len(firsts) * len(seconds) > MAX_RUNS:
            return _NONE
        for run in seconds:
            parts += _points_of_runs(cell, (a, b), run)
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True)) or _NONE


_NONE = (np.empty(0),) * 3


def _points_of_runs(
    cell: Interval, firsts: tuple[int, int], seconds: tuple[int, int]
) -> list[tuple[Float[np.ndarray, " point"], ...]]:
    """Return points for pairs of a cell from one run of frames to another.

    Between edges over t1 the shortest and longest lag are constant or change with it, evenly.
    """
    (a, b), (c, d) = firsts, seconds
    low, high = max(a, c - cell.end + 1), min(b, d - cell.shortest)
    edges = [c - cell.shortest, d - cell.end + 1]
    edges = (
        sorted({low, high, *(edge for edge in edges if low < edge < high)}) if low < high else []
    )
    parts = []
    for start, end in pairwise(edges):
        for i, weight in zip(*_gauss(start, end), strict=True):
            shortest = max(cell.shortest, c - i)
            lag, of_lag = _gauss(shortest, min(cell.end, d - i))
            parts.append((np.full(len(lag), i), i + lag, weight * of_lag))
    return parts


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
    read: bool = False
    """Whether pairs were read for them."""


def averaged_cells(sweep: Sweep, request: Request) -> AveragedCells:
    """Return the averages of the selected bins, and the pairs that stand for their cells.

    Those stored with the data; where too few of them lie inside the selected frames, or a weighted fit would
    lose pairs of the selection, others from one pass over the data.
    """
    scan, min_lag = request.scan, request.problem.min_lag
    stored = stored_cells(scan, min_lag)
    if scan.cells is not None or _enough(stored, request):
        return stored
    edges = edges_inside(scan.frames, min_lag)
    sums = sweep.over(CELL_SUMS, edges)
    ages, lags = (list(pairwise(of.tolist())) for of in edges)
    cells = [Interval(*age, max(lag[0], 1), lag[1]) for age in ages for lag in lags]
    some = (sums.pairs > 0).any(0)
    some &= np.array([cell.shortest >= min_lag and cell.end > 1 for cell in cells])
    intervals = [cell for cell, one in zip(cells, some, strict=True) if one]
    pairs = sums.pairs[:, some]
    with np.errstate(invalid="ignore"):
        c2 = 1 + sums.total[:, some] / pairs
    return AveragedCells(intervals, c2, pairs, cell_points(intervals, scan.use), *edges, True)


def _enough(stored: AveragedCells, request: Request) -> bool:
    """Return whether the stored averages do for the selected frames."""
    scan, min_lag = request.scan, request.problem.min_lag
    if request.options.weighting == PAIRS:
        whole = scan.frames == (0, scan.n_frames)
        return whole or len(stored.age_edges) > FEWEST_AGES
    use = scan.use[slice(*scan.frames)]
    n = int(use.sum())
    if round(stored.points.weight.sum()) == n * (n - 1) // 2:
        return True
    selected = np.correlate(use.astype(float), use.astype(float), "full")[len(use) - 1 :].round()
    selected[:min_lag] = 0
    edges = np.append(stored.lag_edges[stored.lag_edges < len(use)], len(use))
    expected = np.add.reduceat(selected, edges[:-1])
    shortest = np.array([cell.shortest for cell in stored.intervals], int)[stored.points.cell]
    of_lag = np.searchsorted(edges, shortest, "right") - 1
    found = np.bincount(of_lag, stored.points.weight, len(expected))
    covered = found[expected > 0] / expected[expected > 0]
    return bool(len(covered)) and float(covered.mean()) > LEAST_COVERED


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
