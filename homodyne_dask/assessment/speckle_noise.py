"""The noise of each bin of a fit: what its speckle and counts give, on the frames that were fitted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval, KnownShare
from homodyne_dask.assessment.speckle_blocks import (
    BinFrames,
    BinModel,
    Blocks,
    CellGrid,
    Division,
    FittedPoint,
    blocks_of,
    divided,
    noise_of_cells,
    noise_of_fields,
)
from homodyne_dask.assessment.speckle_covariance import (
    MEAN_COUNTS,
    NoiseCovariance,
    NoiseFit,
    left_by_fit,
    likely_noise,
    pair_variance,
    regular,
    sum_over_stretches,
    whitened,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.models.derived_models import FROZEN_FRACTION
from homodyne_dask.request.request import Request
from homodyne_dask.solver.array_shapes import PerBin, PerCell, PerCounts, PerFrame
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.state import State
from homodyne_dask.store.scan import Scan, q_or_one

AGES = 12
"""Intervals of age: what lasts for a tenth of a record shows in them."""
FEW_BINS, MANY_BINS = 2, 7
OF_FEW, OF_SOME, OF_MANY = (8, 80, 400), (5, 60, 400), (3, 50, 160)
"""Blocks per decay and of a record, at least and at most, of up to FEW_BINS bins, up to MANY_BINS and more: P
and μ need fewer cells of each where there are several, at a third to a seventh of the time."""
MIN_PAIRS = 16
"""Fewest pairs of a cell: the noise of means over fewer is not normal."""
SCATTERS = 2.5
"""Standard deviations by which the scatter of single pairs may be below that of the noise, by chance."""
MOST_BELOW = 5.0
"""Logarithm of the likelihood below its largest, at which counts that are known do not explain the noise."""
MAX_EXCESS = 2.0
"""Reduced χ² of σ from counts up to which the excess is taken for noise: speckle may exceed pixels."""
ALLOWED = 0.1
"""Likelihood of a μ over the largest, from which on residuals do not speak against it."""
SMALLEST_CONTRAST = 1e-4
SMALLEST_WEIGHT = 1e-30
"""Of a μ in the likelihood, below which it is taken for 0."""
ALIKE = 0.03
"""Relative difference of contrasts, and in the mean of σ, up to which bins of two scans share their noise:
P of each takes up twice that of the contrast, and P is known to some 10 %."""
F_ALIKE = 0.005
"""Difference of f in any cell, up to which bins of scans with parameters of their own share their noise."""
COUNTS_ALIKE = 0.02
"""Relative width of the intervals of known counts in which bins that share their noise have one μ."""
OF_DATA = 0.5
"""Share of what determines a combination of parameters that is of the data, above which it is effective."""
FEWEST_CELLS = 6
"""More cells than columns, with fewer of which P is not estimated."""


def grid_of_errors(bins: int) -> CellGrid:
    some = OF_SOME if bins <= MANY_BINS else OF_MANY
    return CellGrid(AGES, MIN_PAIRS, *(OF_FEW if bins <= FEW_BINS else some))


class Averages(NamedTuple):
    intervals: list[Interval]
    c2: PerCell
    pairs: Int[np.ndarray, " cell"]
    f: PerCell
    slopes: Float[np.ndarray, "m cell"]
    """Derivatives of f by the scaled parameters that moved."""
    place: Int[np.ndarray, " fine"]
    """In which of them each of the finest cells is; -1 for none."""
    fine_pairs: Int[np.ndarray, " fine"]

    @property
    def share(self) -> Float[np.ndarray, "cell fine"]:
        inside = np.flatnonzero(self.place >= 0)
        found = np.zeros((len(self.pairs), len(self.place)))
        found[self.place[inside], inside] = self.fine_pairs[inside]
        return found / self.pairs[:, None]

    def with_noise(self, blocks: list[Blocks]) -> "tuple[Averages, NoiseCovariance]":
        """Return the cells that hold a pair of blocks, with their noise: others hold few pairs."""
        noise = sum_over_stretches([noise_of_cells(part, self.intervals) for part in blocks])
        known = np.diag(noise.counted_twice) > 0
        return self.at(known), NoiseCovariance(*(part[np.ix_(known, known)] for part in noise))

    def at(self, known: Bool[np.ndarray, " cell"]) -> "Averages":
        number = np.append(np.where(known, np.cumsum(known) - 1, -1), -1)
        intervals = [one for one, some in zip(self.intervals, known, strict=True) if some]
        return Averages(
            intervals, self.c2[known], self.pairs[known], self.f[known], self.slopes[:, known],
            number[self.place], self.fine_pairs,
        )  # fmt: skip


@dataclass(frozen=True)
class BinNoise:
    """The noise of one bin: what the model gives, and what the residuals it was measured with say of it."""

    cells: Averages
    of_cells: NoiseCovariance
    of_fields: NoiseCovariance
    """Of Σ w ψ, Σ w f ψ and Σ w ∂f/∂θ ψ, θ scaled."""
    weights: Float[np.ndarray, "column column"]
    """Σ w times the products of the same fields."""
    distance: float
    """Of g from a correlation, relative; 0 where the model gives g."""

    residual: PerCell
    columns: Float[np.ndarray, "cell column"]
    """Derivatives of c2 by offset, contrast and the scaled parameters that moved."""
    fit: NoiseFit
    expected: NoiseFit
    """`fit` with the counts that are known, whatever the residuals say of them."""
    least_pixels: PerCounts
    """The fewest pixels at each μ of `expected` with which single pairs scatter no more than they do. 0 under
    a loss, where χ² is no sum of squares, and where averages or cells are fitted: pairs are not known."""
    of_each: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Of a mean over bins that repeat each other their residuals, shares and `least_pixels`."""

    @cached_property
    def covariance(self) -> Float[np.ndarray, "cell cell"]:
        """Of the means over cells, of the expected noise, and no more of it than single pairs show."""
        return self._covariance(self.expected)

    def beside(
        self, more: Float[np.ndarray, "cell column"]
    ) -> tuple[Float[np.ndarray, "cell cell"], NoiseFit]:
        """Return it with what more columns explain of the residuals taken for no noise, and P and μ."""
        own, expected = np.column_stack([self.columns, more]), self.expected
        if len(own) >= own.shape[1] + FEWEST_CELLS:
            residuals, *of_mean = self.of_each or (self.residual[:, None],)
            fits = likely_noise(*left_by_fit(residuals, own, self.of_cells), expected.mean_counts)
            expected = noise_of_mean(fits, *of_mean) if of_mean else fits[0]
        return self._covariance(expected), expected

    def shared_with(self, other: "BinNoise") -> Float[np.ndarray, "cell other"]:
        """Return the covariance with the means over cells of a bin that sees the same speckle."""
        place = {cell: n for n, cell in enumerate(self.cells.intervals)}
        both = [(n, place[of]) for n, of in enumerate(other.cells.intervals) if of in place]
        here, there = np.array(both, int).reshape(-1, 2)[:, ::-1].T
        found = np.zeros((len(place), len(other.cells.intervals)))
        found[:, there] = self.of_cells.constant[:, here]
        return found * self.shared_size(other)

    def shared_size(self, other: "BinNoise") -> float:
        """Return the size of the noise that a bin of the same speckle has, too: 1/P of more pixels."""
        return float(min(of.fit.weight @ (1 / of.fit.pixels) for of in (self, other)))

    def _covariance(self, expected: NoiseFit) -> Float[np.ndarray, "cell cell"]:
        pixels = np.maximum(expected.pixels, self.least_pixels)
        return self.of_cells.mean(expected.weight / pixels, expected.mean_counts)

    @cached_property
    def measured(self) -> Float[np.ndarray, "cell cell"]:
        """The covariance of the means over cells, of the noise that the residuals show."""
        return regular(self.of_cells.mean(self.fit.weight / self.fit.pixels, self.fit.mean_counts))

    @cached_property
    def inverse(self) -> Float[np.ndarray, "cell cell"]:
        return np.linalg.inv(self.measured)

    @property
    def chisqr(self) -> float:
        """χ² of whitened residuals, the least at any μ that they allow: the scatter of pairs tells more."""
        weight, pixels = self.expected.weight, np.maximum(self.expected.pixels, self.least_pixels)
        allowed = weight >= ALLOWED * weight.max()
        return float((pixels * self.expected.square)[allowed].min())


def noise_of_mean(
    fits: list[NoiseFit], share: PerBin, least: Float[np.ndarray, "bin mu"]
) -> NoiseFit:
    """Return μ of bins that have the same, and P of a mean over them with shares; least: fewest pixels."""
    log = np.sum([np.log(np.maximum(one.weight, SMALLEST_WEIGHT)) for one in fits], axis=0)
    weight = np.exp(log - log.max())
    weight = np.where(weight > SMALLEST_WEIGHT, weight, 0.0)
    freedom = sum(one.freedom for one in fits)
    of_mean = share**2 @ (1 / np.maximum([one.pixels for one in fits], least))
    square = np.where(weight > 0, freedom * of_mean, 1.0)
    return NoiseFit(
        fits[0].mean_counts, weight / weight.sum(), square, sum(one.log_likelihood for one in fits),
        freedom, np.concatenate([one.whitened for one in fits]),
    )  # fmt: skip


class BinData(NamedTuple):
    bin: int
    place: tuple[float, float]
    """q [1/Å], 1 where the model has none, and φ [degree]."""
    offset: float
    contrast: float
    frames: BinFrames
    averaged: AveragedCells
    sigma: Float[np.ndarray, " used"]
    mean_counts: float
    """NaN where it is not known."""
    scatter: tuple[Float[np.ndarray, " 3"], float] | None = None
    """Of single pairs: Σ w, Σ w f and Σ w f², and χ², no more of it than can be noise. None under a loss,
    where χ² is no sum of squares, and where averages or cells are fitted."""
    means: Averages | None = None
    """Over the finest cells, of data that are means over cells of age and lag."""
    weights: Float[np.ndarray, "column column"] | None = None
    """`NoiseOfModel.weights` over single pairs, of a model with a frozen part: the noise of it that all pairs
    have is far larger than that of other parameters, and is not to look like them in blocks of frames."""

    @property
    def of_noise(self) -> float:
        return float(np.clip(self.contrast, SMALLEST_CONTRAST, 1.0))

    def alike(self, other: "BinData") -> bool:
        """Return whether pairs are the same, and contrast and σ all but the same."""
        return (
            abs(self.of_noise / other.of_noise - 1) < ALIKE
            and np.array_equal(self.averaged.pairs, other.averaged.pairs)
            and len(self.sigma) == len(other.sigma)
            and float(np.abs(self.sigma / other.sigma - 1).mean()) < ALIKE
        )


class NoiseOfModel(NamedTuple):
    """The noise of a bin before its residuals are looked at, and what says for which other bins it holds."""

    cells: Averages
    of_cells: NoiseCovariance
    of_fields: NoiseCovariance
    weights: Float[np.ndarray, "column column"]
    distance: float
    bin: BinData
    at: FittedPoint
    division: Division
    fine: Float[np.ndarray, " fine"]
    """f of the finest cells."""

    def holds_for(self, bin: BinData, at: FittedPoint, fine: Float[np.ndarray, " fine"]) -> bool:
        """Return whether it is that of another bin of the same q, too, where f is all but the same."""
        turned = at.point.problem.model.isotropic and bin.place[0] == self.bin.place[0]
        return (
            (turned or bin.place == self.bin.place)
            and len(fine) == len(self.fine)
            # first: of hundreds of scans few pass
            and bool(np.abs(fine - self.fine).max() < F_ALIKE)
            and bin.alike(self.bin)
            and np.array_equal(at.which, self.at.which)
        )

    def at_point(self, at: FittedPoint, own: Averages) -> "NoiseOfModel":
        """Return it with the averages of another bin, for which it holds, and its units of parameters."""
        size = np.concatenate([np.ones(2), at.units / self.at.units])[: len(self.weights)]
        both, some = np.outer(size, size), set(self.cells.intervals)
        of_fields = NoiseCovariance(*(part * both for part in self.of_fields))
        cells = own.at(np.array([cell in some for cell in own.intervals], bool))
        return self._replace(cells=cells, of_fields=of_fields, weights=self.weights * both)


OfGroup = Callable[[list[BinData]], list[BinNoise] | None]
"""From bins that share one noise of the model to the noise of each: `noise_of_bin` at a point and a grid."""
Compute = Callable[[OfGroup, list[list[BinData]]], Iterable[list[BinNoise] | None]]
"""Applies such a function to groups of bins, in their order."""


def noise_of_bins(
    request: Request,
    state: State,
    at: FittedPoint,
    bins: Sequence[int],
    averaged: AveragedCells,
    means: CellMeans | None,
    of_group: OfGroup,
    compute: Compute = map,
) -> dict[int, BinNoise] | None:
    """Return the noise of bins at the end of a fit; None with too few cells, or where the model is exact."""
    reduced, at_place = state.reduced, dict[object, list[list[BinData]]]()
    if (reduced.chisqr_per_bin[bins] <= reduced.rounding_per_bin[bins]).any():
        return None
    several = means is None and len(np.unique(request.scan.scan_number)) > 1
    for data in _data_of_bins(request, state, at, bins, averaged, means):
        there = at_place.setdefault(data.place if several else data.bin, [])
        group = next((group for group in there if data.alike(group[0])), None)
        if group is None:
            there.append(group := [])
        group.append(data)
    groups, noises = [group for there in at_place.values() for group in there], {}
    for group, of_each in zip(groups, compute(of_group, groups), strict=True):
        if of_each is None:
            return None
        noises |= {data.bin: noise for data, noise in zip(group, of_each, strict=True)}
    return {b: noises[b] for b in bins}


def _data_of_bins(
    request: Request,
    state: State,
    at: FittedPoint,
    bins: Sequence[int],
    averaged: AveragedCells,
    means: CellMeans | None,
) -> Iterator[BinData]:
    scan, reduced, min_lag = request.scan, state.reduced, request.problem.min_lag
    sigma_row, mean_counts, q = scan.sigma_row, scan.mean_counts, q_or_one(scan)  # read once
    grouped = None if means is None else grouped_means(scan, min_lag, means)
    units, columns = (
        np.append([1.0, 1.0], at.units),
        np.append([0, 2], 3 + np.flatnonzero(at.which)),
    )
    for b in bins:
        scatter = weights = of_means = None
        if grouped is not None:
            (_, y, f, *slopes), count = grouped.columns[b].T, grouped.pairs[b]
            scaled, place = np.array(slopes)[at.which] * at.units[:, None], np.arange(len(f))
            of_means = Averages(grouped.intervals, 1 + y, count, f, scaled, place, count)
            of_means = of_means.at(count > 0)
        elif reduced.gram.loss is None:
            M, chisqr = reduced.gram.moments[b], float(reduced.chisqr_per_bin[b])
            if scan.attrs["sigma_source"] == "counts":
                chisqr = min(chisqr, MAX_EXCESS * float(reduced.count[b]))
            scatter = np.array([M[0, 0], M[0, 2], M[2, 2]]), chisqr
            if FROZEN_FRACTION in request.problem.model.names:
                weights = M[np.ix_(columns, columns)] * np.outer(units, units)
        known = None if averaged.known is None else averaged.known[b]
        place = float(q[b]), float(scan.phi[b])
        params = float(reduced.offset[b]), float(reduced.contrast[b])
        pairs = bin_frames(scan, sigma_row[b], min_lag, known), averaged.of_bins([b])
        sigma, counts = sigma_row[b, scan.use], float(mean_counts[b])
        yield BinData(b, place, *params, *pairs, sigma, counts, scatter, of_means, weights)


def bin_frames(
    scan: Scan, sigma: PerFrame, min_lag: int, known: KnownShare | None = None
) -> BinFrames:
    """Return the frames of a bin that are fitted; sigma: of each frame of the record."""
    weight = np.where(scan.use, sigma**-2.0, 0.0)
    return BinFrames(scan.frames, scan.use, weight, min_lag, known)


def noise_of_bin(
    at: FittedPoint,
    grid: CellGrid,
    repeats: Sequence[BinData],
    of_pairs: bool = True,
    made: list[NoiseOfModel] | None = None,
) -> list[BinNoise] | None:
    """Return the noise of bins that repeat each other, with `of_pairs` of sums over pairs, too; None with too
    few cells. made: a cache of the noise of the model of other scans, which is used where it holds."""
    model = noise_of_model(at, repeats[0], grid, of_pairs, made)
    cells, slopes = model.cells, model.cells.slopes.T
    if len(slopes) < slopes.shape[1] + 2 + FEWEST_CELLS and at.effective is not None:
        slopes = slopes @ at.effective
    levels = np.ones(len(cells.f)), cells.f
    columns = [np.column_stack([*levels, bin.of_noise * slopes]) for bin in repeats]
    if len(columns[0]) < columns[0].shape[1] + FEWEST_CELLS:
        return None
    c2 = [cells.c2]
    if len(repeats) > 1:
        c2 += [cells.share @ np.nan_to_num(bin.averaged.c2[0]) for bin in repeats[1:]]
    residuals = [
        mean - (bin.offset + bin.contrast * cells.f) for bin, mean in zip(repeats, c2, strict=True)
    ]
    counts = np.array([bin.mean_counts for bin in repeats])
    left_over = left_by_fit(np.stack(residuals, axis=1), columns[0], model.of_cells)
    left = pseudoinverse(model.weights) if len(model.weights) else None
    noises, fits = [], _fits(*left_over, counts)
    for bin, residual, own, (fit, expected) in zip(repeats, residuals, columns, fits, strict=True):
        least, of_fields = np.zeros(len(expected.mean_counts)), model.of_fields
        if left is not None and bin.scatter is not None:
            least = _least_pixels(bin, model, left, expected)
        if left is not None and bin.weights is not None:
            of_fields = of_fields.mapped(bin.weights @ left)
        of_model = cells, model.of_cells, of_fields, model.weights, model.distance
        noises.append(
            BinNoise(*of_model, residual, own, _contiguous(fit), _contiguous(expected), least)
        )
    return noises


def _contiguous(fit: NoiseFit) -> NoiseFit:
    """Return the same, each array in one piece, as it comes from a worker: sums round by this."""
    arrays = ("mean_counts", "weight", "square", "whitened")
    return fit._replace(**{name: np.ascontiguousarray(getattr(fit, name)) for name in arrays})


def noise_of_model(
    at: FittedPoint,
    data: BinData,
    grid: CellGrid,
    of_pairs: bool = True,
    made: list[NoiseOfModel] | None = None,
) -> NoiseOfModel:
    """Return the noise of a bin at a fitted point, by the model alone (docs/explanation/speckle_noise.md).

    made: of other scans, one of which is taken where it holds for this bin.
    """
    model = BinModel(at, *data.place)
    fine = bin_averages(data.averaged, model) if data.means is None else data.means
    for noise in made or ():
        if noise.holds_for(data, at, fine.f):
            return noise.at_point(at, merged_averages(fine, noise.division, grid.min_pairs))
    division, frames = divided(model, data.frames, data.averaged, grid), data.frames
    parts = [blocks_of(model, frames, of, data.of_noise, of_pairs) for of in division.stretches]
    cells, of_cells = merged_averages(fine, division, grid.min_pairs).with_noise(parts)
    of_fields, weights = NoiseCovariance(*np.zeros((3, 0, 0))), np.zeros((0, 0))
    if of_pairs:
        noises, squares = zip(*(noise_of_fields(of, frames.min_lag) for of in parts), strict=True)
        of_fields, weights = sum_over_stretches(list(noises)), np.sum(squares, axis=0)
    distance = max(part.distance for part in parts)
    noise = NoiseOfModel(cells, of_cells, of_fields, weights, distance, data, at, division, fine.f)
    if made is not None:
        made.append(noise)
    return noise


def fitted_point(request: Request, state: State, joint: JointEquations) -> FittedPoint:
    """Return the model of a fit at its end, with derivatives by the scaled parameters that moved."""
    time = request.scan.time
    point = evaluation_of(request.problem.model).point(request.problem, state.theta, time)
    m, effective = joint.moved, None
    if request.search.smoothness is not None and joint.determined.all():
        root = np.linalg.cholesky(joint.inverse[:m, :m])
        shares, vectors = np.linalg.eigh(root.T @ joint.blocks.sum(0)[:m, :m] @ root)
        effective = root @ vectors[:, shares > OF_DATA]
    return FittedPoint(point, time, joint.which, 1 / joint.size[:m], effective)


def _fits(
    residuals: Float[np.ndarray, "k bin"], noise: NoiseCovariance, mean_counts: PerBin
) -> list[tuple[NoiseFit, NoiseFit]]:
    """Return what residuals say of the noise: by the counts that are known unless ruled out, and by these."""
    free = likely_noise(residuals, noise, MEAN_COUNTS)
    fits = list(zip(free, free, strict=True))
    with np.errstate(invalid="ignore"):
        number = np.round(np.log(mean_counts) / COUNTS_ALIKE)
    for interval in np.unique(number[np.isfinite(number)]):
        bins = np.flatnonzero(number == interval)
        mean = mean_counts[bins[:1]] if len(bins) == 1 else mean_counts[bins].mean(keepdims=True)
        for n, fit in zip(bins, likely_noise(residuals[:, bins], noise, mean), strict=True):
            ruled_out = fit.log_likelihood < free[n].log_likelihood - MOST_BELOW
            fits[n] = (free[n] if ruled_out else fit, fit)
    each = zip(residuals.T, fits, strict=True)
    return [(whitened(residual, noise, fit), expected) for residual, (fit, expected) in each]


def _least_pixels(
    data: BinData, model: NoiseOfModel, inverse: Float[np.ndarray, "column column"], fit: NoiseFit
) -> PerCounts:
    """Return the pixels at each μ whose noise gives single pairs the scatter that they have, and no less.

    No more than MAX_EXCESS times that of counts, and less by SCATTERS of its standard deviations: it is that
    of ½ (Σ K)²/Σ K² independent squares, K the covariance of the counts of two frames. inverse: of
    `model.weights`.
    """
    assert data.scatter is not None
    mu, contrast, (sums, chisqr) = fit.mean_counts, data.of_noise, data.scatter
    both = zip(pair_variance(contrast, sums), model.of_fields, strict=True)
    scatter_left = [float(of_pairs[0, 0] - np.sum(inverse * taken)) for of_pairs, taken in both]
    left = scatter_left[0] + scatter_left[1] / mu + scatter_left[2] / mu**2
    correlated = (contrast / (contrast + 1 / mu)) ** 2 * sums[2] / sums[0]
    independent = 0.5 / (correlated + 1 / int(data.frames.use.sum())) ** 2
    scatter = 1 + SCATTERS * np.sqrt(2 / independent)
    return np.maximum(left, 0) / chisqr / scatter


def bin_averages(averaged: AveragedCells, model: BinModel) -> Averages:
    points, number = averaged.points_of(0), len(averaged.intervals)
    f, slopes = (
        points.mean(of, number)
        for of in model.f_and_slopes(model.time(points.i), model.time(points.j))
    )
    pairs, place = averaged.pairs[0], np.arange(number)
    every = Averages(averaged.intervals, averaged.c2[0], pairs, f, slopes, place, pairs)
    return every.at((pairs > 0) & np.isfinite(f))


class GroupedMeans(NamedTuple):
    intervals: list[Interval]
    edges: tuple[Int[np.ndarray, " a"], Int[np.ndarray, " l"]]
    columns: Float[np.ndarray, "bin group k"]
    pairs: Int[np.ndarray, "bin group"]


def grouped_means(scan: Scan, min_lag: int, means: CellMeans) -> GroupedMeans:
    """Return the averages of data that are means over cells; each counts where its middle lies."""
    assert scan.cells is not None
    cuts, (t1, t2) = scan.cuts(min_lag), scan.cells.middle
    first, stop = cuts.age_edges[cuts.age], cuts.age_edges[cuts.age + 1]
    shortest, end = cuts.lag_edges[cuts.lag], cuts.lag_edges[cuts.lag + 1]
    some = np.flatnonzero((first >= scan.frames[0]) & (stop <= scan.frames[1]))
    number = np.full((len(cuts.age_edges) + 1, len(cuts.lag_edges) + 1), len(some))
    number[cuts.age[some], cuts.lag[some]] = np.arange(len(some))
    place = number[
        np.searchsorted(cuts.age_edges, t1, "right") - 1,
        np.searchsorted(cuts.lag_edges, t2 - t1, "right") - 1,
    ]
    edges = zip(first[some], stop[some], shortest[some], end[some], strict=True)
    intervals = [Interval(*map(int, one)) for one in edges]
    pairs = np.where(means.weight > 0, scan.cells.pairs, 0)
    member = np.zeros((len(some) + 1, len(place)))
    member[place, np.arange(len(place))] = 1
    count = pairs @ member[:-1].T
    with np.errstate(invalid="ignore"):
        columns = member[:-1] @ (means.columns * pairs[..., None]) / count[..., None]
    return GroupedMeans(
        intervals, (cuts.age_edges, cuts.lag_edges), columns, count.astype(np.int64)
    )


def merged_averages(fine: Averages, division: Division, min_pairs: int) -> Averages:
    ages, cells, label = division.ages, [], np.full(len(fine.pairs), -1)
    first, _, shortest, end = np.array(fine.intervals, int).reshape(-1, 4).T
    of_age = np.searchsorted(ages, first, "right") - 1
    for a, lags in enumerate(division.lags):
        inside = np.flatnonzero(
            (of_age == a) & (shortest >= lags[0]) & (shortest < lags[-1]) & (end <= lags[-1])
        )
        k = np.searchsorted(lags, shortest[inside], "right") - 1
        whole = end[inside] <= lags[k + 1]
        inside, k = inside[whole], k[whole]
        enough = np.bincount(k, fine.pairs[inside], len(lags)) >= min_pairs
        label[inside] = np.where(enough, len(cells) + np.cumsum(enough) - 1, -1)[k]
        edges = [(ages[a], ages[a + 1], lags[n], lags[n + 1]) for n in np.flatnonzero(enough)]
        cells += [Interval(*map(int, one)) for one in edges]
    some, number = label >= 0, len(cells)
    label_of, pairs = label[some], fine.pairs[some]
    count = np.bincount(label_of, pairs, number).astype(int)
    rows = np.stack([fine.c2, fine.f, *fine.slopes])[:, some] * pairs
    means = np.stack([np.bincount(label_of, row, number) for row in rows]) / count
    place = np.append(label, -1)[fine.place]
    return Averages(cells, means[0], count, means[1], means[2:], place, fine.fine_pairs)
