"""The noise of each bin of a fit: what its speckle and counts give, on the frames that were fitted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval, cell_points
from homodyne_dask.assessment.fit_end import FitEnd
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
    correlation_and_deviation,
    inverse_of_regular,
    left_by_fit,
    likely_covariance,
    likely_noise,
    likely_sizes,
    pair_variance,
    regular,
    whitened,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.models.derived_models import FROZEN_FRACTION
from homodyne_dask.solver.array_shapes import PerBin, PerCell, PerCounts, Vector
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.store.scan import Scan

AGES, AGES_OF_MANY = 20, 12
"""Intervals of age, and those of more than MOST_WITH_ALL_AGES bins, whose means show less: what begins inside
an interval is seen half as well."""
MOST_WITH_ALL_AGES = 10
FEWEST_PAIRS = 8
"""Of a cell. Fewer than MIN_PAIRS are at the ends of a record, where an age has few lags."""
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
"""Weight of a μ in the likelihood below which it is 0."""
CONTRAST_ALIKE, MOST_RATIO = 0.04, 2.0
"""Difference of contrasts, and their ratio, up to which bins share the noise of one in their middle. To
lowest order the noise of a contrast β depends on β²/P and β μ alone: what is left is of the relative size of
the difference."""
SIGMA_ALIKE = 0.03
"""Mean relative difference of how σ changes over frames, up to which bins share their noise."""
F_ALIKE, SLOPES_ALIKE = 0.03, 0.06
"""Differences of f in any cell, and of its derivatives over their largest, up to which bins of several q
share the noise of one in their middle; half of that of f with scans that have parameters of their own."""
Q_ALIKE = 0.03
"""Relative distance of neighbouring rings, up to which their f are compared."""
COUNTS_ALIKE = 0.05
"""Relative width of the intervals of known counts in which bins that share their noise have one μ."""
AT_ONCE = 400_000
"""Values of f and its derivatives that are computed together before they are averaged."""
OF_DATA = 0.5
"""Share of the information on a combination of parameters that comes from the data, and not from the
smoothness of rates, above which the combination counts as fitted."""
FEWEST_CELLS = 6
"""P is estimated where there are at least so many more cells than fitted columns."""


def grid_of_errors(bins: int, outliers: bool = False) -> CellGrid:
    """Return the cells of so many bins. outliers: means over few pairs would show each of them."""
    some = OF_SOME if bins <= MANY_BINS else OF_MANY
    blocks = OF_FEW if bins <= FEW_BINS else some
    if bins > MOST_WITH_ALL_AGES or outliers:
        return CellGrid(AGES_OF_MANY, MIN_PAIRS, *blocks)
    return CellGrid(AGES, FEWEST_PAIRS, *blocks)


class Averages(NamedTuple):
    """Means over cells of age and lag of one bin: of c2, of f, and of its derivatives."""

    intervals: list[Interval]
    c2: PerCell
    pairs: Int[np.ndarray, " cell"]
    f: PerCell
    slopes: Float[np.ndarray, "m cell"]
    """Derivatives of f by the scaled parameters that moved."""
    place: Int[np.ndarray, " fine"]
    """The cell that holds each of the finest cells; -1 for none."""
    fine_pairs: Int[np.ndarray, " fine"]

    @property
    def share(self) -> Float[np.ndarray, "cell fine"]:
        """The weights of the finest cells in the means."""
        inside = np.flatnonzero(self.place >= 0)
        share = np.zeros((len(self.pairs), len(self.place)))
        share[self.place[inside], inside] = self.fine_pairs[inside]
        return share / self.pairs[:, None]

    def with_noise(self, blocks: list[Blocks]) -> "tuple[Averages, NoiseCovariance]":
        """Return the cells that hold a pair of blocks, with their noise: others hold few pairs."""
        noise = noise_of_cells(blocks, self.intervals)
        with_pairs = np.diag(noise.counted_twice) > 0
        if with_pairs.all():
            return self, noise
        terms = (term[np.ix_(with_pairs, with_pairs)] for term in noise)
        return self.of_cells(with_pairs), NoiseCovariance(*terms)

    def of_cells(self, chosen: Bool[np.ndarray, " cell"]) -> "Averages":
        number = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)
        return Averages(
            list(compress(self.intervals, chosen)), self.c2[chosen], self.pairs[chosen], self.f[chosen],
            self.slopes[:, chosen], number[self.place], self.fine_pairs,
        )  # fmt: skip


@dataclass(frozen=True)
class ModelNoise:
    """The noise of a bin that a model gives at a fitted point, before its residuals are looked at."""

    cells: Averages
    of_cells: NoiseCovariance
    """Of the means over cells, for one pixel."""
    of_fields: NoiseCovariance
    """Of Σ w ψ, Σ w f ψ and Σ w ∂f/∂θ ψ over all pairs, θ scaled, for one pixel."""
    weights: Float[np.ndarray, "column column"]
    """Σ w times the products of the same fields."""
    contrast: float
    """Of the bin for which they were computed."""
    distance: float
    """Of g from a correlation, relative; 0 where the model gives g."""

    def weighted_by(self, factor: float) -> "ModelNoise":
        """Return the noise of sums in which each pair of frames has `factor` times the weight."""
        of_fields = NoiseCovariance(*(term * factor**2 for term in self.of_fields))
        return replace(self, of_fields=of_fields, weights=self.weights * factor)


@dataclass(frozen=True)
class BinNoise(ModelNoise):
    """The noise of one bin, with its size: P pixels and μ counts, from the residuals over its cells."""

    residual: PerCell
    columns: Float[np.ndarray, "cell column"]
    """Derivatives of c2 by offset, contrast and the scaled parameters that moved."""
    fit: NoiseFit
    """P and μ that the residuals show."""
    expected: NoiseFit
    """`fit` with the counts that are known, whatever the residuals say of them."""
    contrast_ratio: float
    """Of the bin over `contrast`: the noise is known by contrast²/P and contrast·μ."""
    least_pixels: PerCounts
    """The fewest pixels at each μ of `expected` with which single pairs scatter no more than they do. 0 under
    a loss, where χ² is no sum of squares, and where averages or cells are fitted: pairs are not known."""
    pooled: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Of a mean over bins that repeat each other their residuals, shares and `least_pixels`."""

    @cached_property
    def sizes(self) -> Float[np.ndarray, " 3"]:
        """Those of the terms of `of_cells` in the covariance by which residuals are judged.

        It is that of the expected P and μ, but limited by the scatter of single pairs (`least_pixels`): a
        misfit of the model makes residuals of cells larger, and would pass for noise.
        """
        return likely_sizes(self.expected, self.least_pixels)

    @cached_property
    def measured(self) -> Float[np.ndarray, "cell cell"]:
        """The covariance of the means over cells, of the noise that the residuals show."""
        return regular(likely_covariance(self.of_cells, self.fit))

    @cached_property
    def inverse(self) -> Float[np.ndarray, "cell cell"]:
        """The weights of a fit of the means over cells."""
        return inverse_of_regular(self.measured)

    @cached_property
    def inverse_pixels(self) -> float:
        """The mean of 1/P over its likelihood, of the noise that the residuals show."""
        return float(self.fit.weight @ (1 / self.fit.pixels))

    @cached_property
    def speckle_of_fields(self) -> tuple[Float[np.ndarray, "column column"], Vector]:
        """The correlation of sums over pairs that speckle gives them, and their standard deviations."""
        return correlation_and_deviation(self.of_fields.constant)

    @property
    def chisqr(self) -> float:
        """χ² of whitened residuals, the least at any μ that they allow: the scatter of pairs tells more."""
        weight, pixels = self.expected.weight, np.maximum(self.expected.pixels, self.least_pixels)
        allowed = weight >= ALLOWED * weight.max()
        return float((pixels * self.expected.square)[allowed].min())


def left_unexplained(
    group: Sequence[BinNoise], columns: Float[np.ndarray, "cell column"]
) -> list[NoiseFit]:
    """Return the expected P and μ of bins with one noise but for its size, from what further columns, beside
    the fitted ones, leave of their residuals: a deviation that these explain is not taken for noise."""
    every, first = np.column_stack([group[0].columns, columns]), group[0]
    if len(every) < every.shape[1] + FEWEST_CELLS:
        return [noise.expected for noise in group]
    # of a mean over bins, the residuals of its members: its own would tell P of the mean alone
    members = [noise.pooled or (noise.residual[:, None],) for noise in group]
    residuals = np.concatenate([of_bin for of_bin, *_ in members], axis=1)
    left, of_cells = left_by_fit(residuals, every, first.of_cells)
    counts = [noise.expected.mean_counts.tobytes() for noise in group]
    stops = np.cumsum([0] + [of_bin.shape[1] for of_bin, *_ in members])
    expected = [noise.expected for noise in group]
    for some in set(counts):
        bins = [n for n, of_bin in enumerate(counts) if of_bin == some]
        columns_of_bins = np.concatenate([np.arange(stops[n], stops[n + 1]) for n in bins])
        fits = iter(likely_noise(left[:, columns_of_bins], of_cells, expected[bins[0]].mean_counts))
        for n in bins:
            of_bin, *of_mean = members[n]
            of_members = list(islice(fits, of_bin.shape[1]))
            expected[n] = noise_of_mean(of_members, *of_mean) if of_mean else of_members[0]
    return expected


def noise_of_mean(
    fits: list[NoiseFit], share: PerBin, least: Float[np.ndarray, "bin mu"]
) -> NoiseFit:
    """Return μ of bins that have the same, and P of a mean over them with shares; least: fewest pixels."""
    log = np.sum([np.log(np.maximum(fit.weight, SMALLEST_WEIGHT)) for fit in fits], axis=0)
    weight = np.exp(log - log.max())
    weight = np.where(weight > SMALLEST_WEIGHT, weight, 0.0)
    freedom = sum(fit.freedom for fit in fits)
    of_mean = share**2 @ (1 / np.maximum([fit.pixels for fit in fits], least))
    square = np.where(weight > 0, freedom * of_mean, 1.0)
    return NoiseFit(
        fits[0].mean_counts, weight / weight.sum(), square, sum(fit.log_likelihood for fit in fits),
        freedom, np.concatenate([fit.whitened for fit in fits]),
    )  # fmt: skip


Place = tuple[float, float]
"""q [1/Å], 1 where the model has none, and φ [degree], 0 where it is isotropic."""


class FineAverages:
    """Means over the finest cells of f and of its derivatives by the scaled parameters that moved, of some
    places at a time; NaN where a cell has no pair."""

    def __init__(self, point: FittedPoint, places: Iterable[Place], averaged: AveragedCells):
        self.point, self.points, self.cells = point, averaged.points_of(0), len(averaged.intervals)
        self.places = list(dict.fromkeys(places))
        self.number = {place: n for n, place in enumerate(self.places)}
        self.together = max(AT_ONCE // max(len(self.points.i) * (1 + len(point.units)), 1), 1)
        self.computed: dict[int, tuple[np.ndarray, ...]] = {}

    def at(self, place: Place) -> tuple[Float[np.ndarray, " fine"], Float[np.ndarray, "m fine"]]:
        chunk, n = divmod(self.number[place], self.together)
        if chunk not in self.computed:
            points, time, first = self.points, self.point.time, chunk * self.together
            times = (np.interp(side, np.arange(len(time)), time) for side in (points.i, points.j))
            q, phi = np.array(self.places[first : first + self.together]).T
            values = self.point.f_and_slopes(q, phi, *times)
            self.computed[chunk] = tuple(points.mean(value, self.cells) for value in values)
        f, slopes = self.computed[chunk]
        return f[n], slopes[n]


class BinData(NamedTuple):
    bin: int
    place: Place
    offset: float
    contrast: float
    frames: BinFrames
    averaged: AveragedCells
    """Of this bin alone."""
    mean_counts: float
    """NaN where it is not known."""
    scatter: tuple[Float[np.ndarray, " 3"], float] | None = None
    """Of single pairs: Σ w, Σ w f and Σ w f², and χ², no more of it than can be noise. None under a loss,
    where χ² is no sum of squares, and where averages or cells are fitted."""
    means: Averages | None = None
    """Over the finest cells, of data that are means over cells of age and lag."""
    fine: FineAverages | None = None
    """Of this place and others; None where bins know different pairs."""
    weights: Float[np.ndarray, "column column"] | None = None
    """`ModelNoise.weights` over single pairs, of a model with a frozen part: the noise of it that all pairs
    have is far larger than that of other parameters, and is not to look like them in blocks of frames."""

    @property
    def noise_contrast(self) -> float:
        """The contrast of which the noise is that of speckle."""
        return min(max(self.contrast, SMALLEST_CONTRAST), 1.0)

    def alike(self, other: "BinData") -> bool:
        """Return whether pairs are the same, and contrast and the course of σ are near each other."""
        low, high = sorted((self.noise_contrast, other.noise_contrast))
        if (
            high - low >= min(CONTRAST_ALIKE, (MOST_RATIO - 1) * low)
            or not np.array_equal(self.averaged.pairs, other.averaged.pairs)
            or len(self.frames.sigma) != len(other.frames.sigma)
        ):
            return False
        ratio = self.frames.sigma / other.frames.sigma
        return float(np.abs(ratio / ratio.mean() - 1).mean()) < SIGMA_ALIKE

    def weight_over(self, other: "BinData") -> float:
        """Return the weight of pairs, 1/σ² with σ the product of two frames', over that of another bin."""
        of_frame, of_other = (np.mean(data.frames.sigma**-2.0) for data in (self, other))
        return float((of_frame / of_other) ** 2)


class ComputedNoise(NamedTuple):
    """The noise that the model gave a bin of a scan, which holds for the same bin of other scans if their
    parameters hardly differ."""

    noise: ModelNoise
    data: BinData
    point: FittedPoint
    division: Division
    f: Float[np.ndarray, " fine"]
    """Of the finest cells."""

    def holds_for(self, data: BinData, point: FittedPoint, f: Float[np.ndarray, " fine"]) -> bool:
        return (
            data.place == self.data.place
            and len(f) == len(self.f)
            # before the others: of hundreds of scans few pass
            and bool(np.abs(f - self.f).max() < F_ALIKE / 2)
            and data.alike(self.data)
            and np.array_equal(point.which, self.point.which)
        )

    def at_point(
        self, data: BinData, point: FittedPoint, fine: Averages, min_pairs: int
    ) -> ModelNoise:
        """Return it with the averages of another bin, for which it holds, and its units of parameters."""
        noise, averages = self.noise, merged_averages(fine, self.division, min_pairs)
        size = np.concatenate([np.ones(2), point.units / self.point.units])[: len(noise.weights)]
        both, with_noise = np.outer(size, size), set(noise.cells.intervals)
        of_fields = NoiseCovariance(*(term * both for term in noise.of_fields))
        chosen = np.array([cell in with_noise for cell in averages.intervals], bool)
        cells = averages.of_cells(chosen)
        noise = replace(noise, cells=cells, of_fields=of_fields, weights=noise.weights * both)
        return noise.weighted_by(data.weight_over(self.data))


NoiseCache = list[ComputedNoise]
"""Of scans that are fitted together, or of the updates of weights."""
OfGroup = Callable[[list[BinData]], list[BinNoise] | None]
"""From bins that share their noise to the noise of each: `noise_of_group` at a point and a grid."""
Compute = Callable[[OfGroup, list[list[BinData]]], Iterable[list[BinNoise] | None]]
"""Applies such a function to groups of bins, in their order."""


def noise_of_bins(
    end: FitEnd,
    point: FittedPoint,
    bins: Sequence[int],
    averaged: AveragedCells,
    means: CellMeans | None,
    of_group: OfGroup,
    compute: Compute = map,
) -> dict[int, BinNoise] | None:
    """Return the noise of bins at the end of a fit; None with too few cells, or where the model is exact."""
    reduced, at_place = end.reduced, dict[object, list[list[BinData]]]()
    if (reduced.chisqr_per_bin[bins] <= reduced.rounding_per_bin[bins]).any():
        return None
    every = list(_data_of_bins(end, point, bins, averaged, means))
    places = _places(end, every)
    for data in sorted(every, key=lambda data: data.contrast):
        groups_there = at_place.setdefault(places[data.bin], [])
        group = next((group for group in groups_there if data.alike(group[0])), None)
        if group is None:
            groups_there.append(group := [])
        group.append(data)
    groups, noises = [_middle_first(group) for many in at_place.values() for group in many], {}
    for group, of_members in zip(groups, compute(of_group, groups), strict=True):
        if of_members is None:
            return None
        noises |= {data.bin: noise for data, noise in zip(group, of_members, strict=True)}
    return {b: noises[b] for b in bins}


def _middle_first(group: list[BinData]) -> list[BinData]:
    """Return a group that begins with the bin nearest to the middle of its q and contrasts."""
    places = np.array([(data.place[0], data.contrast) for data in group])
    apart = np.abs(places - (places.min(0) + places.max(0)) / 2)
    relative = (apart / np.maximum(apart.max(0), np.finfo(float).tiny)).max(1)
    middle = int(relative.round(9).argmin())  # of two that are as near, the first
    return [group[middle], *group[:middle], *group[middle + 1 :]]


def _places(end: FitEnd, every: Sequence[BinData]) -> dict[int, object]:
    """Return the place of each bin: f of bins in one place is all but the same."""
    if every[0].means is not None:
        return {data.bin: data.bin for data in every}
    if end.request.problem.model.isotropic and (fine := every[0].fine) is not None:
        rings, ring = np.unique([data.place[0] for data in every], return_inverse=True)
        numbers = _alike_rings(fine, rings)[ring].tolist()
        return {data.bin: number for data, number in zip(every, numbers, strict=True)}
    several = len(np.unique(end.request.scan.scan_number)) > 1
    return {data.bin: data.place if several else data.bin for data in every}


def _alike_rings(fine: FineAverages, q: Float[np.ndarray, " ring"]) -> Int[np.ndarray, " ring"]:
    """Return numbers of rings, in ascending order of q: those with the same have f all but the same."""
    follows, number = np.append(False, np.diff(q) < Q_ALIKE * q[1:]), np.arange(len(q))
    first = None
    for n in range(len(q)) if follows.any() else ():
        values = [np.nan_to_num(value) for value in fine.at((q[n], 0.0))]
        if first is not None and follows[n] and _alike(*values, *first):
            number[n] = number[n - 1]
        else:
            first = values
    return number


def _alike(f: PerCell, slopes: np.ndarray, of_first: PerCell, slopes_of_first: np.ndarray) -> bool:
    largest = np.abs(slopes_of_first).max(1, keepdims=True, initial=0.0)
    return bool(
        (np.abs(f - of_first) < F_ALIKE).all()
        and (np.abs(slopes - slopes_of_first) <= SLOPES_ALIKE * largest).all()
    )


def _data_of_bins(
    end: FitEnd,
    point: FittedPoint,
    bins: Sequence[int],
    averaged: AveragedCells,
    means: CellMeans | None,
) -> Iterator[BinData]:
    request, scan, reduced = end.request, end.request.scan, end.reduced
    min_lag, frozen = request.problem.min_lag, FROZEN_FRACTION in request.problem.model.names
    sigma_row, mean_counts, q = scan.sigma_row, scan.mean_counts, scan.q_or_one  # read once
    grouped = None if means is None else averages_of_means(scan, min_lag, means)
    units = np.append([1.0, 1.0], point.units)
    columns = np.append([0, 2], 3 + np.flatnonzero(point.which))
    phi = np.zeros(len(q)) if request.problem.model.isotropic else scan.phi
    places = {b: (float(q[b]), float(phi[b])) for b in bins}
    alike = means is None and len(averaged.points) == 1
    fine = FineAverages(point, places.values(), averaged) if alike else None
    for b in bins:
        scatter = weights = of_means = None
        if grouped is not None:
            of_means = _fine_means(*grouped, b, point)
        elif reduced.gram.loss is None:
            M, chisqr = reduced.gram.moments[b], float(reduced.chisqr_per_bin[b])
            # speckle may be larger than a pixel: only so much of an excess over counts is noise
            if scan.attributes.sigma_source == "counts":
                chisqr = min(chisqr, MAX_EXCESS * float(reduced.count[b]))
            scatter = np.array([M[0, 0], M[0, 2], M[2, 2]]), chisqr
            if frozen:
                weights = M[np.ix_(columns, columns)] * np.outer(units, units)
        shares = averaged.known_shares
        known_share = None if shares is None else shares[b]
        yield BinData(
            bin=b,
            place=places[b],
            offset=float(reduced.offset[b]),
            contrast=float(reduced.contrast[b]),
            frames=BinFrames(scan.frames, scan.use, sigma_row[b, scan.use], min_lag, known_share),
            averaged=averaged.of_bins([b]),
            mean_counts=float(mean_counts[b]),
            scatter=scatter,
            means=of_means,
            fine=fine,
            weights=weights,
        )


def _fine_means(
    averaged: AveragedCells, columns: Float[np.ndarray, "bin cell k"], bin: int, point: FittedPoint
) -> Averages:
    (_, _, f, *slopes), pairs = columns[bin].T, averaged.pairs[bin]
    scaled, place = np.array(slopes)[point.which] * point.units[:, None], np.arange(len(f))
    averages = Averages(averaged.intervals, averaged.c2[bin], pairs, f, scaled, place, pairs)
    return averages.of_cells(pairs > 0)


def noise_of_group(
    point: FittedPoint,
    grid: CellGrid,
    group: Sequence[BinData],
    of_pairs: bool = True,
    cache: NoiseCache | None = None,
) -> list[BinNoise] | None:
    """Return the noise of a group of bins, with `of_pairs` of sums over pairs, too; None
    with too few cells. cache: of the noise of the model of other scans."""
    model, first = noise_of_model(point, group[0], grid, of_pairs, cache), group[0]
    every = _cells_of_group(model.cells, group)
    effective, (moved, number) = None, model.cells.slopes.shape
    if number < moved + 2 + FEWEST_CELLS:
        effective = point.effective
    columns, residuals = [], []
    for data, cells in zip(group, every, strict=True):
        slopes = cells.slopes.T if effective is None else cells.slopes.T @ effective
        levels = np.ones(number), cells.f
        columns.append(np.column_stack([*levels, data.noise_contrast * slopes]))
        residuals.append(cells.c2 - (data.offset + data.contrast * cells.f))
    if number < columns[0].shape[1] + FEWEST_CELLS:
        return None
    ratios = [data.noise_contrast / model.contrast for data in group]
    counts = np.array([data.mean_counts for data in group]) * ratios
    unexplained = left_by_fit(np.stack(residuals, axis=1), columns[0], model.of_cells)
    inverse = pseudoinverse(model.weights) if len(model.weights) else None
    noises, fits = [], _fits(*unexplained, counts)
    members = zip(group, every, residuals, columns, ratios, fits, strict=True)
    for data, cells, residual, of_bin, ratio, (fit, expected) in members:
        factor = 1.0 if data is first else data.weight_over(first)
        noise = replace(model if factor == 1 else model.weighted_by(factor), cells=cells)
        noise, least = _of_pairs(data, noise, inverse, factor, expected)
        noises.append(
            BinNoise(
                **vars(noise), residual=residual, columns=of_bin, fit=fit,
                expected=expected, contrast_ratio=ratio, least_pixels=least,
            )
        )  # fmt: skip
    return noises


def _of_pairs(
    data: BinData,
    noise: ModelNoise,
    inverse: Float[np.ndarray, "column column"] | None,
    factor: float,
    expected: NoiseFit,
) -> tuple[ModelNoise, PerCounts]:
    """Return the noise, with the weights of single pairs where a frozen part needs them; and least pixels.

    inverse: of the weights of the first bin, of which this one has `factor` times as much.
    """
    least = np.zeros(len(expected.mean_counts))
    if inverse is None:
        return noise, least
    if data.scatter is not None:
        least = _least_pixels(data, noise, inverse / factor, expected)
    if data.weights is not None:
        of_fields = noise.of_fields.mapped(data.weights @ inverse / factor)
        noise = replace(noise, of_fields=of_fields)
    return noise, least


def _cells_of_group(of_first: Averages, group: Sequence[BinData]) -> list[Averages]:
    """Return the averages of each bin over the cells of the first."""
    if len(group) == 1:
        return [of_first]
    share, cells, of_place = of_first.share, [of_first], {group[0].place: of_first}
    means = np.nan_to_num([data.averaged.c2[0] for data in group[1:]]) @ share.T
    for data, c2 in zip(group[1:], means, strict=True):
        if data.place not in of_place:
            assert data.fine is not None
            f, slopes = (np.nan_to_num(values) @ share.T for values in data.fine.at(data.place))
            of_place[data.place] = of_first._replace(f=f, slopes=slopes)
        cells.append(of_place[data.place]._replace(c2=c2))
    return cells


def noise_of_model(
    point: FittedPoint,
    data: BinData,
    grid: CellGrid,
    of_pairs: bool = True,
    cache: NoiseCache | None = None,
) -> ModelNoise:
    """Return the noise of a bin at a fitted point, by the model alone (docs/explanation/speckle_noise.md)."""
    model = BinModel(point, *data.place)
    fine = bin_averages(data, point) if data.means is None else data.means
    for computed in cache or ():
        if computed.holds_for(data, point, fine.f):
            return computed.at_point(data, point, fine, grid.min_pairs)
    division, frames = divided(model, data.frames, data.averaged, grid), data.frames
    blocks = blocks_of(model, frames, division.stretches, data.noise_contrast, of_pairs)
    cells, of_cells = merged_averages(fine, division, grid.min_pairs).with_noise(blocks)
    of_fields, weights = noise_of_fields(blocks if of_pairs else [], frames.min_lag)
    distance = max(stretch.distance for stretch in blocks)
    noise = ModelNoise(cells, of_cells, of_fields, weights, data.noise_contrast, distance)
    if cache is not None:
        cache.append(ComputedNoise(noise, data, point, division, fine.f))
    return noise


def fitted_point(end: FitEnd, joint: JointEquations) -> FittedPoint:
    """Return the model of a fit at its end, with derivatives by the scaled parameters that moved."""
    request, time = end.request, end.request.scan.time
    point = evaluation_of(request.problem.model).point(request.problem, end.theta, time)
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
    with np.errstate(invalid="ignore"):  # NaN where counts are not known
        number = np.round(np.log(mean_counts) / COUNTS_ALIKE)
    for interval in np.unique(number[np.isfinite(number)]):
        bins = np.flatnonzero(number == interval)
        mean = mean_counts[bins[:1]] if len(bins) == 1 else mean_counts[bins].mean(keepdims=True)
        for n, fit in zip(bins, likely_noise(residuals[:, bins], noise, mean), strict=True):
            ruled_out = fit.log_likelihood < free[n].log_likelihood - MOST_BELOW
            fits[n] = (free[n] if ruled_out else fit, fit)
    chosen, expected = zip(*fits, strict=True)
    return list(zip(whitened(residuals, noise, chosen), expected, strict=True))


def _least_pixels(
    data: BinData, model: ModelNoise, inverse: Float[np.ndarray, "column column"], fit: NoiseFit
) -> PerCounts:
    """Return the pixels at each μ whose noise gives single pairs the scatter that they have, and no less.

    No more than MAX_EXCESS times that of counts, and less by SCATTERS of its standard deviations: it is that
    of ½ (Σ K)²/Σ K² independent squares, K the covariance of the counts of two frames. inverse: of
    `model.weights`.
    """
    assert data.scatter is not None
    mu, contrast, (sums, chisqr) = fit.mean_counts, model.contrast, data.scatter
    both = zip(pair_variance(contrast, sums), model.of_fields, strict=True)
    scatter_left = [float(of_pairs[0, 0] - np.sum(inverse * taken)) for of_pairs, taken in both]
    variance = scatter_left[0] + scatter_left[1] / mu + scatter_left[2] / mu**2
    correlated = (contrast / (contrast + 1 / mu)) ** 2 * sums[2] / sums[0]
    independent = 0.5 / (correlated + 1 / int(data.frames.use.sum())) ** 2
    scatter = 1 + SCATTERS * np.sqrt(2 / independent)
    return np.maximum(variance, 0) / chisqr / scatter


def bin_averages(data: BinData, point: FittedPoint) -> Averages:
    averaged, fine = data.averaged, data.fine
    f, slopes = (fine or FineAverages(point, [data.place], averaged)).at(data.place)
    pairs, place = averaged.pairs[0], np.arange(len(f))
    averages = Averages(averaged.intervals, averaged.c2[0], pairs, f, slopes, place, pairs)
    return averages.of_cells((pairs > 0) & np.isfinite(f))


def averages_of_means(
    scan: Scan, min_lag: int, means: CellMeans
) -> tuple[AveragedCells, Float[np.ndarray, "bin cell k"]]:
    """Return the averages of data that are means over cells, each of which counts where its middle lies; and
    the averages of the columns of a Gram. Points are none: f of a cell is a mean of those of the data."""
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
    intervals = [Interval(*map(int, cell)) for cell in edges]
    pairs = np.where(means.weight > 0, scan.cells.pairs, 0)
    member = np.zeros((len(some) + 1, len(place)))
    member[place, np.arange(len(place))] = 1
    count = pairs @ member[:-1].T
    with np.errstate(invalid="ignore"):
        columns = member[:-1] @ (means.columns * pairs[..., None]) / count[..., None]
    averaged = AveragedCells(
        intervals, 1 + columns[..., 1], count.astype(np.int64), [cell_points([], scan.use)],
        cuts.age_edges, cuts.lag_edges,
    )  # fmt: skip
    return averaged, columns


def merged_averages(fine: Averages, division: Division, min_pairs: int) -> Averages:
    ages, of_lags = division.ages, [len(lags) for lags in division.lags]
    age, lags = np.repeat(np.arange(len(of_lags)), of_lags), np.concatenate(division.lags)
    first, _, shortest, end = np.array(fine.intervals, int).reshape(-1, 4).T
    of_age = np.searchsorted(ages, first, "right") - 1
    apart = 1 + max(int(end.max(initial=0)), int(lags.max()))  # ages follow each other
    edges, of_fine = lags + apart * age, apart * of_age
    k = np.searchsorted(edges, shortest + of_fine, "right") - 1
    after = np.minimum(k + 1, len(edges) - 1)
    whole = (k >= 0) & (k < after) & (age[k] == of_age) & (age[after] == of_age)
    whole &= end + of_fine <= edges[after]
    pairs = np.bincount(k[whole], fine.pairs[whole], len(edges))
    enough, inside = pairs >= min_pairs, np.flatnonzero(whole)
    inside = inside[enough[k[inside]]]
    label_of, number = (np.cumsum(enough) - 1)[k[inside]], int(enough.sum())
    chosen = np.flatnonzero(enough)
    columns = ages[age[chosen]], ages[age[chosen] + 1], lags[chosen], lags[chosen + 1]
    cells = list(map(Interval._make, np.stack(columns, axis=1).tolist()))
    rows = np.stack([fine.c2, fine.f, *fine.slopes])[:, inside] * fine.pairs[inside]
    count = pairs[chosen].astype(int)
    means = np.stack([np.bincount(label_of, row, number) for row in rows]) / count
    label = np.full(len(fine.pairs) + 1, -1)
    label[inside] = label_of
    return Averages(cells, means[0], count, means[1], means[2:], label[fine.place], fine.fine_pairs)
