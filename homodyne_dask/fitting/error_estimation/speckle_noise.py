"""The noise of each bin of a fit: what its speckle and counts give, on the frames that were fitted.

A record is divided into blocks of frames that see one speckle pattern. One that is long against its decay is
represented by a stretch in the middle of each interval of age: its other pairs are as noisy, and pairs far
apart hardly matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.error_estimation.cell_residuals import (
    AveragedCells,
    Interval,
)
from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans, RobustGram
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.speckle import (
    CellPairs,
    NoiseCovariance,
    NoiseFit,
    Record,
    cell_noise,
    field_noise,
    fit_noise,
    nearest_correlation,
    pair_variance,
    regular,
    sum_over_stretches,
)
from homodyne_dask.solver.state import State
from homodyne_dask.store.scan import q_or_one

PER_DECAY = 8
"""Blocks of frames in which f falls to 1/e, where frames are short enough; half with more than MANY_BINS."""
MANY_BINS = 7
FEWEST_BLOCKS = 80
"""Blocks of a record, where it has as many frames."""
MOST_BLOCKS = 400
"""A record that needs more is represented by stretches."""
CORE, MARGIN, REACH = 10.0, 2.0, 9.0
"""Decay times of a stretch: of its first frames that count, of more on both sides of these, and of lags."""
MOST_AGES, FEWER_AGES, FEW_BINS = 8, 5, 2
"""Intervals of age of up to FEW_BINS bins, and of more: P and μ need fewer cells of each."""
MIN_PAIRS = 16
"""Fewest pairs of a cell: the noise of means over fewer is not normal."""
STEP = 0.1
"""Step of a numerical derivative by a parameter, in its error for white noise with all others known."""
SCATTERS = 2.5
"""Standard deviations by which the scatter of single pairs may be below that of the noise, by chance."""
MOST_BELOW = 5.0
"""Logarithm of the likelihood below its largest, at which counts that are known do not explain the noise."""
MAX_EXCESS = 2.0
"""χ² per pair of σ from counts up to which the excess is taken for noise: speckle may exceed pixels."""
ALLOWED = 0.1
"""Likelihood of a μ over the largest, from which on residuals do not speak against it."""
UNLIKELY = 1e-3
"""Share of the likelihood below which a μ does not matter."""
SMALLEST_CONTRAST = 1e-4
FEWEST_CELLS = 6
"""More cells than columns, with fewer of which P is not estimated."""


class CellGrid(NamedTuple):
    """How finely a record is divided into cells of age and lag."""

    ages: int
    """Most intervals of age."""
    min_pairs: int
    """Fewest pairs of a cell."""


def grid_of_errors(bins: int) -> CellGrid:
    """Return the cells from which P and μ follow: means over fewer pairs are not normal."""
    return CellGrid(MOST_AGES if bins <= FEW_BINS else FEWER_AGES, MIN_PAIRS)


class Averages(NamedTuple):
    """c2, f and its derivatives averaged over cells of a bin."""

    intervals: list[Interval]
    c2: Float[np.ndarray, " cell"]
    pairs: Int[np.ndarray, " cell"]
    f: Float[np.ndarray, " cell"]
    slopes: Float[np.ndarray, "m cell"]
    """Derivatives of f by the scaled parameters that moved."""
    share: Float[np.ndarray, "cell fine"]
    """Each as a mean over the finest cells."""


@dataclass(frozen=True)
class BinNoise:
    """The noise of one bin, and the residuals it was measured with."""

    cells: Averages
    residual: Float[np.ndarray, " cell"]
    of_cells: NoiseCovariance
    of_fields: NoiseCovariance
    """Of Σ w ψ, Σ w f ψ and Σ w ∂f/∂θ ψ, θ scaled."""
    weights: Float[np.ndarray, "column column"]
    """Σ w times the products of the same fields."""
    distance: float
    """Of g from a correlation, relative; 0 where the model gives g."""
    fit: NoiseFit
    expected: NoiseFit
    """The same with the counts that are known, whatever the residuals say of them."""
    least_pixels: Float[np.ndarray, " mu"]
    """The fewest pixels at each μ of `expected` with which single pairs scatter no more than they do. 0 under
    a loss, where χ² is no sum of squares, and where averages or cells are fitted: pairs are not known."""

    @property
    def covariance(self) -> Float[np.ndarray, "cell cell"]:
        """Of the means over cells, of the expected noise, and no more of it than single pairs show."""
        total = np.zeros_like(self.of_cells.constant)
        for weight, mu, pixels in zip(*self._likely, strict=True):
            if weight > UNLIKELY:
                total += weight / pixels * self.of_cells.at(float(mu))
        return total

    @property
    def inverse(self) -> Float[np.ndarray, "cell cell"]:
        """The inverse covariance of the means over cells, of the noise that the residuals show."""
        total = np.zeros_like(self.of_cells.constant)
        for weight, mu, pixels in zip(
            self.fit.weight, self.fit.mean_counts, self.fit.pixels, strict=True
        ):
            if weight > UNLIKELY:
                total += weight / pixels * self.of_cells.at(float(mu))
        return np.linalg.inv(regular(total))

    @property
    def chisqr(self) -> float:
        """χ² of the whitened residuals with no more of the expected noise than single pairs show.

        The least at any μ that the residuals allow: the scatter of pairs tells more of μ.
        """
        weight, _, pixels = self._likely
        allowed = weight >= ALLOWED * weight.max()
        return float((pixels * self.expected.square)[allowed].min())

    @property
    def _likely(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """μ with its share of the likelihood and P."""
        pixels = np.maximum(self.expected.pixels, self.least_pixels)
        return self.expected.weight, self.expected.mean_counts, pixels


class _FrameStretch(NamedTuple):
    """Frames whose noise is computed together, in blocks."""

    edges: Int[np.ndarray, " edge"]
    core: tuple[int, int]
    """First frames that count, from the first to before the last."""
    represents: tuple[int, int]
    """The first frames they stand for."""


class _BinModel:
    """f and its derivatives of one bin at pairs of frames, and g."""

    def __init__(self, request: Request, state: State, joint: JointEquations, bin: int) -> None:
        self.evaluation = evaluation_of(request.problem.model)
        self.time, self.frames = request.scan.time, np.arange(request.scan.n_frames)
        self.q = q_or_one(request.scan)[bin : bin + 1]
        self.phi = request.scan.phi[bin : bin + 1]
        self.at = self._point(request, state.theta)
        steps = STEP / joint.size[: joint.moved]
        self.beside = []
        for n, step in zip(np.flatnonzero(joint.which), steps, strict=True):
            ends = [state.theta.copy(), state.theta.copy()]
            ends[0][n] -= step
            ends[1][n] += step
            self.beside.append([self._point(request, end) for end in ends])

    def _point(self, request: Request, theta: Float[np.ndarray, " p"]):
        return self.evaluation.point(request.problem, theta, self.time)

    def _times(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.interp(i, self.frames, self.time), np.interp(j, self.frames, self.time)

    def _at_times(self, of: Callable, at, times: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return of(at, self.time, self.q, self.phi, *times)[0]

    def f(self, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, "..."]:
        """Return f of pairs of frames, which need not be whole."""
        return self._at_times(self.evaluation.f_at, self.at, self._times(i, j))

    def g(self, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, "..."]:
        """Return g; the root of f where the model gives f alone."""
        if self.evaluation.g_at is None:
            return np.sqrt(np.clip(self.f(i, j), 0, 1))
        return self._at_times(self.evaluation.g_at, self.at, self._times(i, j))

    def slopes(self, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, "m ..."]:
        """Return the derivatives of f by the scaled parameters that moved."""
        found, times = np.empty((len(self.beside), *np.shape(i))), self._times(i, j)
        for n, (low, high) in enumerate(self.beside):
            found[n] = self._at_times(self.evaluation.f_at, high, times)
            found[n] -= self._at_times(self.evaluation.f_at, low, times)
        return found / (2 * STEP)

    def decay(self, frame: int, last: int) -> float:
        """Return the frames after `frame` in which f falls to 1/e, at most those up to `last`."""
        lag = np.unique(np.geomspace(1, max(last - frame, 2), 60).round()).astype(int)
        lag = lag[frame + lag <= last]
        if not len(lag):
            return float(max(last - frame, 1))
        f = self.f(np.full(len(lag), frame), frame + lag)
        below = np.flatnonzero(f < np.exp(-1))
        return float(lag[below[0]]) if len(below) else float(lag[-1])


def bin_noise(
    request: Request,
    state: State,
    joint: JointEquations,
    bin: int,
    grid: CellGrid,
    averaged: AveragedCells,
    means: CellMeans | None,
    of_pairs: bool = True,
) -> BinNoise | None:
    """Return the noise of a bin at the end of a fit; None with too few cells, or where the model is exact.

    means: of data that are means over cells of age and lag. of_pairs: whether the noise of sums over pairs
    is wanted, too; else it is empty.
    """
    scan, model = request.scan, _BinModel(request, state, joint, bin)
    contrast = float(np.clip(state.reduced.contrast[bin], SMALLEST_CONTRAST, 1.0))
    ages = _ages(request, averaged, grid)
    decay = np.array([model.decay(int(frame), scan.frames[1] - 1) for frame in ages[:-1]])
    per_decay = PER_DECAY if len(scan.bins) <= MANY_BINS else PER_DECAY / 2
    stretches = _stretches(scan.frames, ages, decay, per_decay)
    if means is None:
        fine = _averages(averaged, bin, model)
    else:
        fine = _averages_of_means(request, joint, bin, means)
    lags = [_lags(request, averaged, stretches, ages, a, one) for a, one in enumerate(decay)]
    cells = _merged(fine, ages, lags, grid.min_pairs)
    columns = np.column_stack([np.ones(len(cells.f)), cells.f, contrast * cells.slopes.T])
    exact = state.reduced.chisqr_per_bin[bin] <= state.reduced.rounding_per_bin[bin]
    if exact or len(columns) < columns.shape[1] + FEWEST_CELLS:
        return None
    parts = [_blocks(request, model, stretch, contrast, bin) for stretch in stretches]
    of_cells = sum_over_stretches([_noise_of_cells(part, cells.intervals) for part in parts])
    of_fields, weights = NoiseCovariance(*np.zeros((3, 0, 0))), np.zeros((0, 0))
    if of_pairs:
        noises, squares = zip(
            *(_noise_of_fields(request, model, part) for part in parts), strict=True
        )
        of_fields, weights = sum_over_stretches(list(noises)), np.sum(squares, axis=0)
    residual = cells.c2 - state.reduced.offset[bin] - contrast * cells.f
    fit, expected = _fits(residual, columns, of_cells, _mean_counts(request, bin))
    least = np.zeros(len(expected.mean_counts))
    if of_pairs and means is None and not isinstance(state.reduced.gram, RobustGram):
        least = _least_pixels(request, state, bin, contrast, of_fields, weights, expected)
    distance = max(part.distance for part in parts)
    return BinNoise(cells, residual, of_cells, of_fields, weights, distance, fit, expected, least)


def _fits(
    residual: Float[np.ndarray, " cell"],
    columns: Float[np.ndarray, "cell column"],
    noise: NoiseCovariance,
    mean_counts: float | None,
) -> tuple[NoiseFit, NoiseFit]:
    """Return what residuals say of the noise: by the counts that are known unless ruled out, and by these."""
    free = fit_noise(residual, columns, noise)
    if mean_counts is None:
        return free, free
    expected = fit_noise(residual, columns, noise, np.array([mean_counts]))
    ruled_out = expected.log_likelihood < free.log_likelihood - MOST_BELOW
    return free if ruled_out else expected, expected


def _least_pixels(
    request: Request,
    state: State,
    bin: int,
    contrast: float,
    noise: NoiseCovariance,
    weights: Float[np.ndarray, "column column"],
    fit: NoiseFit,
) -> Float[np.ndarray, " mu"]:
    """Return the pixels at each μ whose noise gives single pairs the scatter that they have, and no less.

    No more than MAX_EXCESS times that of counts, and less by SCATTERS of its standard deviations: it is that
    of ½ (Σ K)²/Σ K² independent squares, K the covariance of the counts of two frames.
    """
    gram, mu = state.reduced.gram, fit.mean_counts
    M, frames = gram.moments[bin], int(request.scan.use.sum())
    variance = pair_variance(contrast, np.array([M[0, 0], M[0, 2], M[2, 2]]))
    size = np.sqrt(np.maximum(np.diag(weights), np.finfo(float).tiny))
    inverse = np.linalg.pinv(weights / np.outer(size, size), 1e-9, hermitian=True)
    inverse /= np.outer(size, size)
    left = np.array([variance.at(one)[0, 0] - np.trace(inverse @ noise.at(one)) for one in mu])
    correlated = (contrast / (contrast + 1 / mu)) ** 2 * M[2, 2] / M[0, 0]
    independent = 0.5 / (correlated + 1 / frames) ** 2
    scatter = 1 + SCATTERS * np.sqrt(2 / independent)
    chisqr, most = state.reduced.chisqr_per_bin[bin], MAX_EXCESS * state.reduced.count[bin]
    if request.scan.attrs["sigma_source"] == "counts":
        chisqr = min(chisqr, most)
    return np.maximum(left, 0) / chisqr / scatter


def _mean_counts(request: Request, bin: int) -> float | None:
    """Return μ of a bin where counts are known."""
    if request.scan.attrs["sigma_source"] != "counts":
        return None
    first, stop = request.scan.frames
    mean = float(np.nanmean(request.scan.all_bins["intensity"][request.scan.bins[bin], first:stop]))
    return mean if mean > 0 else None


def _ages(request: Request, averaged: AveragedCells, grid: CellGrid) -> Int[np.ndarray, " edge"]:
    """Return edges of intervals of age, of those of the averages inside the selected frames."""
    first, stop = request.scan.frames
    n, lags = stop - first, int((averaged.lag_edges < stop - first).sum())
    enough = n**2 // (2 * grid.min_pairs * max(lags, 1))
    wanted = int(np.clip(enough, 2, grid.ages))
    at = first + np.concatenate([[0.0], np.geomspace(max(2, n / 32, n / wanted**2), n, wanted)])
    edges = averaged.age_edges
    return np.unique(edges[np.abs(edges[:, None] - at).argmin(0)])


def _lags(
    request: Request,
    averaged: AveragedCells,
    stretches: list[_FrameStretch],
    ages: Int[np.ndarray, " edge"],
    age: int,
    decay: float,
) -> Int[np.ndarray, " edge"]:
    """Return edges of intervals of lags for an interval of age: none shorter than two blocks."""
    stretch = stretches[min(age, len(stretches) - 1)]
    of_age = stretch.edges[(stretch.edges >= ages[age]) & (stretch.edges <= ages[age + 1])]
    block = (
        int(np.diff(of_age).max(initial=1))
        if len(of_age) > 1
        else int(np.diff(stretch.edges).max())
    )
    edges = averaged.lag_edges
    longest = request.scan.n_frames if len(stretches) == 1 else REACH * decay
    lowest = max(request.problem.min_lag, 1)
    least = max(lowest, 2 * block if block > 1 else lowest)
    chosen = [lowest]
    for edge in edges[(edges > least) & (edges <= longest)]:
        if edge - chosen[-1] >= block:
            chosen.append(int(edge))
    return np.array(chosen)


def _stretches(
    frames: tuple[int, int],
    ages: Int[np.ndarray, " edge"],
    decay: Float[np.ndarray, " age"],
    per_decay: float,
) -> list[_FrameStretch]:
    """Return the whole record in blocks, or where these are too many a stretch for each interval of age."""
    first, stop = frames
    # Pairs before the first cell and after the last have noise, too.
    bounds = np.concatenate([[first], ages[1:-1], [stop]])
    block = np.clip(decay / per_decay, 1, max(1, (stop - first) / FEWEST_BLOCKS)).astype(int)
    parts = [
        np.arange(low, high, k) for (low, high), k in zip(pairwise(bounds), block, strict=True)
    ]
    edges = np.concatenate([*parts, bounds[-1:]])
    if len(edges) <= MOST_BLOCKS + 1:
        return [_FrameStretch(edges, (first, stop), (first, stop))]
    found = []
    for (low, high), k, one in zip(pairwise(bounds), block, decay, strict=True):
        core = int(min(high - low, max(CORE * one, 4 * k)))
        start = low + (high - low - core) // 2
        begin = max(first, start - int(MARGIN * one))
        end = min(stop, start + core + int((MARGIN + REACH) * one))
        before = np.arange(start, begin, -k)[::-1]
        after = np.arange(start, end, k)
        edges = np.unique(np.concatenate([[begin], before, after, [start + core, end]]))
        found.append(_FrameStretch(edges, (start, start + core), (int(low), int(high))))
    return found


def _averages(averaged: AveragedCells, bin: int, model: _BinModel) -> Averages:
    """Return c2 and the model averaged over the cells of a bin."""
    points, number = averaged.points, len(averaged.intervals)
    f = points.mean(model.f(points.i, points.j), number)
    slopes = points.mean(model.slopes(points.i, points.j), number)
    known = (averaged.pairs[bin] > 0) & np.isfinite(f)
    intervals = [one for one, some in zip(averaged.intervals, known, strict=True) if some]
    return Averages(
        intervals, averaged.c2[bin, known], averaged.pairs[bin, known], f[known], slopes[:, known],
        np.eye(number)[known],
    )  # fmt: skip


def _averages_of_means(
    request: Request, joint: JointEquations, bin: int, means: CellMeans
) -> Averages:
    """Return the same of data that are means over cells: over those whose middle lies in a stored cell."""
    scan, cuts = request.scan, request.scan.cuts(request.problem.min_lag)
    assert scan.cells is not None
    t1, t2 = scan.cells.middle
    number = np.full((len(cuts.age_edges) + 1, len(cuts.lag_edges) + 1), len(cuts.t1))
    number[cuts.age, cuts.lag] = np.arange(len(cuts.t1))
    place = number[
        np.searchsorted(cuts.age_edges, t1, "right") - 1,
        np.searchsorted(cuts.lag_edges, t2 - t1, "right") - 1,
    ]
    pairs = np.where(means.weight[bin] > 0, scan.cells.pairs, 0)
    count = np.bincount(place, pairs, len(cuts.t1) + 1)[:-1]
    columns = means.columns[bin].T
    total = np.stack([np.bincount(place, pairs * one, len(cuts.t1) + 1)[:-1] for one in columns])
    first, stop = cuts.age_edges[cuts.age], cuts.age_edges[cuts.age + 1]
    shortest, end = cuts.lag_edges[cuts.lag], cuts.lag_edges[cuts.lag + 1]
    some = (count > 0) & (first >= scan.frames[0]) & (stop <= scan.frames[1])
    y, f, *slopes = total[1:, some] / count[some]
    scaled = np.array(slopes)[joint.which] / joint.size[: joint.moved, None]
    edges = zip(first[some], stop[some], shortest[some], end[some], strict=True)
    intervals = [Interval(*map(int, one)) for one in edges]
    share = np.eye(len(intervals))
    return Averages(intervals, 1 + y, count[some].astype(np.int64), f, scaled, share)


def _merged(
    fine: Averages,
    ages: Int[np.ndarray, " edge"],
    lags: list[Int[np.ndarray, " edge"]],
    min_pairs: int,
) -> Averages:
    """Return the averages over larger cells: of `ages`, each with lags of its own."""
    members: dict[Interval, list[int]] = {}
    for n, cell in enumerate(fine.intervals):
        a = int(np.searchsorted(ages, cell.first, "right")) - 1
        k = int(np.searchsorted(lags[a], cell.shortest, "right")) - 1
        if 0 <= k < len(lags[a]) - 1 and cell.end <= lags[a][k + 1]:
            edges = ages[a], ages[a + 1], lags[a][k], lags[a][k + 1]
            members.setdefault(Interval(*map(int, edges)), []).append(n)
    members = {cell: of for cell, of in members.items() if fine.pairs[of].sum() >= min_pairs}
    share = np.zeros((len(members), len(fine.pairs)))
    for row, of in zip(share, members.values(), strict=True):
        row[of] = fine.pairs[of] / fine.pairs[of].sum()
    count = np.array([fine.pairs[of].sum() for of in members.values()], np.int64)
    return Averages(
        list(members), share @ fine.c2, count, share @ fine.f, fine.slopes @ share.T,
        share @ fine.share,
    )  # fmt: skip


class _Blocks(NamedTuple):
    """The blocks of frames of a stretch that hold used ones."""

    stretch: _FrameStretch
    record: Record
    middle: Float[np.ndarray, " block"]
    """Mean of their used frames."""
    inverse: Float[np.ndarray, " block"]
    """Mean of 1/sigma_row² over these."""
    rows: Bool[np.ndarray, " block"]
    """Whether their pairs count as first frames."""
    share: float
    """Of the first frames for which the stretch stands, those that count."""
    distance: float
    """Of g from a correlation, relative."""


def _blocks(
    request: Request, model: _BinModel, stretch: _FrameStretch, contrast: float, bin: int
) -> _Blocks:
    scan, first = request.scan, stretch.edges[:-1]
    used = np.add.reduceat(scan.use[: stretch.edges[-1]].astype(int), first)
    total = np.add.reduceat((np.arange(scan.n_frames) * scan.use)[: stretch.edges[-1]], first)
    inverse = np.where(scan.use, 1 / scan.sigma_row[bin] ** 2, 0.0)
    weight = np.add.reduceat(inverse[: stretch.edges[-1]], first)
    some = used > 0
    used, middle, weight = used[some], total[some] / used[some], weight[some] / used[some]
    i, j = np.triu_indices(len(middle))
    g, distance = _symmetric(model.g(middle[i], middle[j]), len(middle)), 0.0
    if model.evaluation.g_at is None:
        g, distance = nearest_correlation(g)
    rows = (middle >= stretch.core[0]) & (middle < stretch.core[1])
    low, high = stretch.represents
    share = (stretch.core[1] - stretch.core[0]) / (high - low)
    record = Record(g, contrast, used)
    return _Blocks(stretch, record, middle, weight, rows, share, distance)


def _noise_of_cells(blocks: _Blocks, intervals: list[Interval]) -> NoiseCovariance:
    """Return the noise of the cells that a stretch represents; 0 for the others."""
    low, high = blocks.stretch.represents
    mine = np.array(
        [n for n, cell in enumerate(intervals) if low <= cell.first and cell.stop <= high], int
    )
    found = NoiseCovariance(*np.zeros((3, len(intervals), len(intervals))))
    if len(mine):
        cells = _cells(blocks, [intervals[n] for n in mine])
        for whole, part in zip(found, cell_noise(blocks.record, cells), strict=True):
            whole[np.ix_(mine, mine)] = part * blocks.share
    return found


def _noise_of_fields(
    request: Request, model: _BinModel, blocks: _Blocks
) -> tuple[NoiseCovariance, Float[np.ndarray, "column column"]]:
    """Return the noise of Σ w ψ, Σ w f ψ and Σ w ∂f/∂θ ψ, and Σ w of the products of these fields."""
    middle, used, lowest = blocks.middle, blocks.record.frames, request.problem.min_lag
    far = middle[None, :] - middle[:, None] >= lowest - 0.5
    far |= np.eye(len(middle), dtype=bool) & (used > lowest)
    scale = np.outer(blocks.inverse, blocks.inverse) * np.triu(far)
    i, j = np.triu_indices(len(middle))
    plain = np.zeros((2 + len(model.beside), *far.shape))
    plain[0] = 1
    plain[1][i, j] = model.f(middle[i], middle[j])
    for n, slope in enumerate(model.slopes(middle[i], middle[j])):
        plain[2 + n][i, j] = slope
    plain *= scale > 0
    fields = plain * scale
    noise = field_noise(blocks.record, fields, blocks.rows)
    counted = fields * (blocks.record.pairs * blocks.rows[:, None])
    weights = np.tensordot(counted, plain, ((1, 2), (1, 2))) / blocks.share
    return NoiseCovariance(*(part / blocks.share for part in noise)), weights


def _symmetric(upper: Float[np.ndarray, " pair"], n: int) -> Float[np.ndarray, "n n"]:
    full = np.zeros((n, n))
    full[np.triu_indices(n)] = upper
    full += np.triu(full, 1).T
    np.fill_diagonal(full, 1.0)
    return full


def _cells(blocks: _Blocks, intervals: list[Interval]) -> CellPairs:
    """Return cells as sums over blocks; those of a stretch that stands for more are of its core alone."""
    middle, used, rows = blocks.middle, blocks.record.frames, blocks.rows
    whole = blocks.stretch.core == blocks.stretch.represents
    ages = sorted({(cell.first, cell.stop) for cell in intervals})
    slots = [
        [n for n, cell in enumerate(intervals) if (cell.first, cell.stop) == age] for age in ages
    ]
    most = max(len(of_age) for of_age in slots)
    number = np.full((len(ages), most), -1)
    block = np.arange(len(middle))
    start, end = (np.zeros((most, len(middle)), int) for _ in range(2))
    first, stop = [], 0
    for a, (age, of_age) in enumerate(zip(ages, slots, strict=True)):
        own = (middle >= age[0]) & (middle < age[1]) if whole else rows
        first.append(int(np.flatnonzero(own)[0]))
        stop = int(np.flatnonzero(own)[-1]) + 1
        for slot, n in enumerate(of_age):
            cell = intervals[n]
            number[a, slot] = n
            low = np.searchsorted(middle, middle[own] + cell.shortest - 0.5)
            inside = (slot == 0) & (used[own] > cell.shortest)
            start[slot, own] = np.where(inside, block[own], np.maximum(low, block[own] + 1))
            end[slot, own] = np.searchsorted(middle, middle[own] + cell.end - 0.5)
    return CellPairs(np.array(first), stop, start, np.maximum(end, start), number)
