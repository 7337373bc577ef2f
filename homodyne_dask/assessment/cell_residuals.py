"""Residuals of a fit averaged over cells of age and lag, from the averages stored with the data.

The mean of f over the pairs of a cell is a quadrature that is exact for polynomials in age and lag over its
frames, so a cell may be cut by the end of the record. Where some of its pairs are unknown, it is that over
those that are known, which one pass over the data finds.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.array_shapes import PerCell, Values
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.cell_sums import AgeAndLagEdges, edges_inside, halved
from homodyne_dask.sweep.sweep import Sweep

NODES, NODES_OF_FRINGES = 5, 64
"""Frames, not necessarily whole, that stand for an interval along age and along lag; fringes may turn by half
a turn between two frames."""
FEWEST_AGES = 8
"""With fewer stored intervals of age inside the selected frames, c2 is averaged over other cells."""
LEAST_COVERED, LEAST_OF_PAIRS = 0.98, 0.5
"""Stored cells are used where they hold more than this part of the selected pairs, on average over intervals
of lag: in a weighted fit, and in a fit of all pairs without some frames."""
LEAST_KNOWN = 0.999
"""Pairs are read where a bin knows less than this part of the pairs of an interval of lag."""
MAX_RUNS = 200
"""A cell that more pairs of runs of used frames have a part in is not used."""


class Interval(NamedTuple):
    """A cell: t1 from frame `first` up to before `stop`, lags from `shortest` up to before `end`."""

    first: int
    stop: int
    shortest: int
    end: int


def means_of_cells(
    cells: list[Interval], weight: PerCell, pairs: Int[np.ndarray, " cell"], least: int
) -> tuple[np.ndarray, list[Int[np.ndarray, " some"]], Float[np.ndarray, "cell mean"]]:
    """Return cells with enough pairs alone; those of means, of all ages at a lag, all lags at an age, and
    all; and their shares in these."""
    weighted = np.flatnonzero(weight)
    ages, _, lags, _ = np.array(cells).reshape(-1, 4)[weighted].T
    several = []
    for key in (lags, ages):
        order = np.argsort(key, kind="stable")
        several += np.split(weighted[order], np.flatnonzero(np.diff(key[order])) + 1)
    several = [
        of_set
        for of_set in (*several, weighted)
        if len(of_set) > 1 and pairs[of_set].sum() >= least
    ]
    mix = np.zeros((len(cells), len(several)))
    for n, of_set in enumerate(several):
        mix[of_set, n] = weight[of_set] / weight[of_set].sum()
    return weighted[pairs[weighted] >= least], several, mix


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


def cell_points(
    cells: list[Interval], use: Bool[np.ndarray, " t"], nodes: int = NODES
) -> CellPoints:
    """Return pairs that stand for the pairs of used frames in each cell; none where there are too many."""
    last = int(np.flatnonzero(use)[-1])
    if not cells:
        return CellPoints(*_NONE, np.zeros(0, int))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], use, [False]]).astype(int)))
    # of used frames: the first, and the one after the last
    runs = list(pairwise(edges.tolist()))[::2]
    parts = [_points(cell, runs, last, nodes) for cell in cells]
    lengths = [len(i) for i, *_ in parts]
    i, j, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CellPoints(i, j, weight, np.repeat(np.arange(len(cells)), lengths))


def _points(
    cell: Interval, runs: list[tuple[int, int]], last: int, most: int
) -> tuple[Float[np.ndarray, " point"], ...]:
    stop = min(cell.stop, last + 1 - cell.shortest)
    firsts = [run for run in runs if run[0] < stop and run[1] > cell.first]
    parts = []
    for a, b in firsts:
        a, b = max(a, cell.first), min(b, stop)
        seconds = [run for run in runs if run[0] - cell.end < b - 1 and run[1] - cell.shortest > a]
        if len(firsts) * len(seconds) > MAX_RUNS:
            return _NONE
        for run in seconds:
            parts += _points_of_runs(cell, (a, b), run, most)
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True)) or _NONE


_NONE: tuple[np.ndarray, np.ndarray, np.ndarray] = (np.empty(0), np.empty(0), np.empty(0))


def _points_of_runs(
    cell: Interval, firsts: tuple[int, int], seconds: tuple[int, int], most: int
) -> list[tuple[Float[np.ndarray, " point"], ...]]:
    """Return points; between edges over t1 both limits of the lag are constant or change evenly with it."""
    (a, b), (c, d) = firsts, seconds
    low, high = max(a, c - cell.end + 1), min(b, d - cell.shortest)
    if low >= high:
        return []
    kinks = c - cell.shortest, d - cell.end + 1  # where a limit of the lag begins to change
    edges, parts = sorted({low, high, *(edge for edge in kinks if low < edge < high)}), []
    for start, end in pairwise(edges):
        i, weight = _gauss(float(end - start), most)
        i = i + start
        shortest, stop = np.maximum(cell.shortest, c - i), np.minimum(cell.end, d - i)
        if (shortest == shortest[0]).all() and (stop == stop[0]).all():
            shortest, stop = shortest[:1], stop[:1]
        lags = zip(shortest.tolist(), stop.tolist(), strict=True)
        rules = [
            (low + nodes, rule)
            for low, high in lags
            for nodes, rule in [_gauss(float(high - low), most)]
        ]
        if len(rules) == len(i):
            number = [len(of_lag) for _, of_lag in rules]
            lag, of_lag = (np.concatenate(column) for column in zip(*rules, strict=True))
        else:
            number = len(rules[0][0])
            lag, of_lag = (np.tile(column, len(i)) for column in rules[0])
        i, weight = np.repeat(i, number), np.repeat(weight, number)
        parts.append((i, i + lag, weight * of_lag))
    return parts


@lru_cache(maxsize=4096)
def _gauss(n: float, most: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return nodes and weights for a sum over 0, 1, ... up to before n, exact to the degree 2·most - 1."""
    k = np.arange(1, min(most, int(np.ceil(n))))
    # the Jacobi matrix of the discrete Chebyshev polynomials (Golub and Welsch 1969)
    off_diagonal = np.sqrt(np.maximum(k**2 * (n**2 - k**2) / (4 * (4.0 * k**2 - 1)), 0))
    nodes, vectors = np.linalg.eigh(np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
    return nodes + (n - 1) / 2, n * vectors[0] ** 2


def _points_of_sums(
    pairs: Int[np.ndarray, " half"],
    moments: Float[np.ndarray, "half 5"],
    cell: Int[np.ndarray, " half"],
) -> CellPoints:
    """Return four pairs for each half of a cell, with its moments: sums of i, lag, i², i·lag and lag²."""
    some = pairs > 0
    i, lag, i2, both, lag2 = (moments[some] / pairs[some, None]).T
    of_i, of_lag = np.sqrt(np.maximum(i2 - i**2, 0)), np.sqrt(np.maximum(lag2 - lag**2, 0))
    size = of_i * of_lag
    # from differences of large sums: rounding may leave a correlation beyond 1, or a negative variance
    slope = np.clip((both - i * lag) / np.where(size > 0, size, 1.0), -1, 1)
    across = np.sqrt(1 - slope**2)
    first = [i + a * of_i for a in (-1, -1, 1, 1)]
    far = [lag + of_lag * (a * slope + b * across) for a in (-1, 1) for b in (-1, 1)]
    i, weight, cells = np.concatenate(first), np.tile(pairs[some] / 4, 4), np.tile(cell[some], 4)
    return CellPoints(i, i + np.concatenate(far), weight, cells)


class KnownShare(NamedTuple):
    edges: AgeAndLagEdges
    share: Float[np.ndarray, "age lag"]

    def at(self, i: Values, lag: Values) -> Values:
        age, of_lag = (
            np.clip(np.searchsorted(edges, to + 0.5, "right") - 1, 0, len(edges) - 2)
            for edges, to in zip(self.edges, (i, lag), strict=True)
        )
        return self.share[age, of_lag]


class AveragedCells(NamedTuple):
    """The averages of c2 over cells that lie inside the selected frames."""

    intervals: list[Interval]
    c2: Float[np.ndarray, "bin cell"]
    pairs: Int[np.ndarray, "bin cell"]
    points: list[CellPoints]
    """Those of all bins, or of each where these know other pairs."""
    age_edges: Int[np.ndarray, " a"]
    """Of the intervals of age inside the selected frames."""
    lag_edges: Int[np.ndarray, " l"]
    known_shares: list[KnownShare] | None = None
    """Of each bin; None where pairs were not read."""

    def points_of(self, bin: int) -> CellPoints:
        return self.points[bin if len(self.points) > 1 else 0]

    def of_bins(self, bins: Sequence[int]) -> "AveragedCells":
        some = list(bins)
        return self._replace(
            c2=self.c2[some],
            pairs=self.pairs[some],
            points=[self.points[b] for b in some] if len(self.points) > 1 else self.points,
            known_shares=self.known_shares and [self.known_shares[b] for b in some],
        )


def averaged_cells(sweep: Sweep, request: Request) -> AveragedCells:
    """Return the averages stored with the data, or of one pass where these are too few or lack pairs."""
    scan, min_lag = request.scan, request.problem.min_lag
    stored = stored_cells(scan, min_lag, nodes_of(request.problem))
    if scan.cells is not None or (_enough(stored, request) and _all_known(stored)):
        return stored
    return _cells_of_pass(sweep, edges_inside(scan.frames, min_lag), min_lag)


def _cells_of_pass(sweep: Sweep, edges: AgeAndLagEdges, min_lag: int) -> AveragedCells:
    # f is looked at in halves of a cell, of which different bins may know different pairs
    parts = halved(edges)
    sums, lags = sweep.cells(parts), list(pairwise(edges.lag.tolist()))
    cells = [
        Interval(first, stop, max(shortest, 1), end)
        for first, stop in pairwise(edges.age.tolist())
        for shortest, end in lags
    ]
    age, lag = (
        np.searchsorted(whole, half[:-1], "right") - 1
        for whole, half in zip(edges, parts, strict=True)
    )
    cell = (age[:, None] * len(lags) + lag).ravel()
    pairs, total = np.zeros((2, len(sums.pairs), len(cells)))
    np.add.at(pairs.T, cell, sums.pairs.T)
    np.add.at(total.T, cell, sums.moments[..., 0].T)
    some = (pairs > 0).any(0)
    some &= np.array([cell.shortest >= min_lag and cell.end > 1 for cell in cells])
    pairs_of_halves, moments = np.where(some[cell], sums.pairs, 0), sums.moments[..., 1:]
    alike = all((array == array[0]).all() for array in (pairs_of_halves, moments))
    place = (np.cumsum(some) - 1)[cell]
    points = [
        _points_of_sums(pairs_of_halves[b], moments[b], place)
        for b in range(1 if alike else len(moments))
    ]
    with np.errstate(invalid="ignore"):  # 0/0 of a bin without a pair in a cell
        c2 = 1 + total[:, some] / pairs[:, some]
    intervals = list(compress(cells, some))
    share = sums.pairs / np.maximum(sums.possible, 1)
    shape = len(parts.age) - 1, len(parts.lag) - 1
    shares = [KnownShare(parts, of_bin.reshape(shape)) for of_bin in share]
    return AveragedCells(intervals, c2, pairs[:, some].astype(int), points, *edges, shares)


def _all_known(stored: AveragedCells) -> bool:
    lags, of_lag = np.unique([cell.shortest for cell in stored.intervals], return_inverse=True)
    (points,) = stored.points
    expected = np.round(np.bincount(points.cell, points.weight, len(stored.intervals)))
    # a bin without any pair is not fitted: what it lacks is no reason for a pass
    missing = np.where(stored.pairs.any(1)[:, None], expected - stored.pairs, 0)
    unknown = np.maximum(missing, 0) @ np.eye(len(lags))[of_lag]
    return bool((unknown <= (1 - LEAST_KNOWN) * np.bincount(of_lag, expected, len(lags))).all())


def _enough(stored: AveragedCells, request: Request) -> bool:
    scan, min_lag = request.scan, request.problem.min_lag
    least = LEAST_COVERED
    if request.options.weighting == PAIRS:
        few = scan.frames != (0, scan.n_frames) and len(stored.age_edges) <= FEWEST_AGES
        if few or not scan.excluded_frames:
            return not few
        least = LEAST_OF_PAIRS
    use = scan.use[slice(*scan.frames)]
    n = int(use.sum())
    (points,) = stored.points
    if round(points.weight.sum()) == n * (n - 1) // 2:
        return True  # every pair of used frames is in a stored cell
    selected = np.correlate(use.astype(float), use.astype(float), "full")[len(use) - 1 :].round()
    selected[:min_lag] = 0
    edges = np.append(stored.lag_edges[stored.lag_edges < len(use)], len(use))
    expected = np.add.reduceat(selected, edges[:-1])
    shortest = np.array([cell.shortest for cell in stored.intervals], int)[points.cell]
    of_lag = np.searchsorted(edges, shortest, "right") - 1
    pairs = np.bincount(of_lag, points.weight, len(expected))
    covered = pairs[expected > 0] / expected[expected > 0]
    return bool(len(covered)) and float(covered.mean()) > least


def nodes_of(problem: Problem) -> int:
    return NODES if problem.model.beat is None else NODES_OF_FRINGES


def stored_cells(scan: Scan, min_lag: int, nodes: int = NODES) -> AveragedCells:
    cuts, (start, stop) = scan.cuts(min_lag), scan.frames
    first, after = cuts.age_edges[cuts.age], cuts.age_edges[cuts.age + 1]
    shortest, end = cuts.lag_edges[cuts.lag], cuts.lag_edges[cuts.lag + 1]
    inside = (first >= start) & (after <= stop) & (end > 1)
    if stop < scan.n_frames:
        inside &= after + end - 2 < stop
    edges = zip(first, after, np.maximum(shortest, 1), end, strict=True)
    intervals = [Interval(*map(int, cell)) for cell in compress(edges, inside)]
    points = cell_points(intervals, scan.use, nodes)
    ages = cuts.age_edges[(cuts.age_edges >= start) & (cuts.age_edges <= stop)]
    return AveragedCells(
        intervals, cuts.c2[:, inside], cuts.count[:, inside], [points], ages, cuts.lag_edges
    )
