"""The noise of each bin of a fit: what its speckle and counts give, on the frames that were fitted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval
from homodyne_dask.assessment.own_parameters import scaled_inverse
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
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans, Gram, RobustGram
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.request.request import Request
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.speckle import (
    NoiseCovariance,
    NoiseFit,
    fit_noise,
    fit_noises,
    pair_variance,
    regular,
    sum_over_stretches,
)
from homodyne_dask.solver.state import State
from homodyne_dask.store.scan import Scan, q_or_one

FEW_BINS, MANY_BINS = 2, 7
OF_FEW, OF_SOME, OF_MANY = (8, 8, 80), (5, 5, 60), (5, 3, 50)
"""Intervals of age, blocks per decay and blocks of a record, of up to FEW_BINS bins, up to MANY_BINS and
more: P and μ need fewer cells of each where there are several. With 16 blocks per decay and 160 of a record
standard errors of some bins change by 0 to 5 %, in ten times the time."""
MIN_PAIRS = 16
"""Fewest pairs of a cell: the noise of means over fewer is not normal."""
SCATTERS = 2.5
"""Standard deviations by which the scatter of single pairs may be below that of the noise, by chance."""
MOST_BELOW = 5.0
"""Logarithm of the likelihood below its largest, at which counts that are known do not explain the noise."""
MAX_EXCESS = 2.0
"""χ² per pair of σ from counts up to which the excess is taken for noise: speckle may exceed pixels."""
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
FEWEST_CELLS = 6
"""More cells than columns, with fewer of which P is not estimated."""


def grid_of_errors(bins: int) -> CellGrid:
    """Return the cells from which P and μ follow: means over fewer pairs are not normal."""
    some = OF_SOME if bins <= MANY_BINS else OF_MANY
    ages, per_decay, fewest = OF_FEW if bins <= FEW_BINS else some
    return CellGrid(ages, MIN_PAIRS, per_decay, fewest)


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

    def with_noise(self, blocks: list[Blocks]) -> "tuple[Averages, NoiseCovariance]":
        """Return the cells that hold a pair of blocks, with their noise.

        Others hold few pairs: at the end of the record, or before blocks become longer.
        """
        noise = sum_over_stretches([noise_of_cells(part, self.intervals) for part in blocks])
        known = np.diag(noise.counted_twice) > 0
        cells = self.only([one for one, some in zip(self.intervals, known, strict=True) if some])
        return cells, NoiseCovariance(*(part[np.ix_(known, known)] for part in noise))

    def only(self, intervals: list[Interval]) -> "Averages":
        """Return some of the cells."""
        some = set(intervals)
        known = np.array([one in some for one in self.intervals], bool)
        return Averages(
            intervals, self.c2[known], self.pairs[known], self.f[known], self.slopes[:, known],
            self.share[known],
        )  # fmt: skip


@dataclass(frozen=True)
class BinNoise:
    """The noise of one bin, and the residuals it was measured with."""

    cells: Averages
    residual: Float[np.ndarray, " cell"]
    columns: Float[np.ndarray, "cell column"]
    """Derivatives of c2 by offset, contrast and the scaled parameters that moved."""
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
    of_each: "RepeatedResiduals | None" = None
    """Of a mean over repeats: what it is the mean of."""

    @property
    def covariance(self) -> Float[np.ndarray, "cell cell"]:
        """Of the means over cells, of the expected noise, and no more of it than single pairs show."""
        return self._covariance(self.expected)

    def beside(
        self, more: Float[np.ndarray, "cell column"]
    ) -> tuple[Float[np.ndarray, "cell cell"], NoiseFit]:
        """Return the same with the part of the residuals that more columns explain taken for no noise."""
        own, expected = np.column_stack([self.columns, more]), self.expected
        if len(own) >= own.shape[1] + FEWEST_CELLS:
            given = own, self.of_cells, expected.mean_counts
            each = self.of_each
            expected = fit_noise(self.residual, *given) if each is None else each.fit(*given)
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

    @property
    def measured(self) -> Float[np.ndarray, "cell cell"]:
        """The covariance of the means over cells, of the noise that the residuals show."""
        return regular(self.of_cells.mean(self.fit.weight / self.fit.pixels, self.fit.mean_counts))

    @property
    def inverse(self) -> Float[np.ndarray, "cell cell"]:
        """The inverse of `measured`."""
        return np.linalg.inv(self.measured)

    @property
    def chisqr(self) -> float:
        """χ² of the whitened residuals with no more of the expected noise than single pairs show.

        The least at any μ that the residuals allow: the scatter of pairs tells more of μ.
        """
        weight, pixels = self.expected.weight, np.maximum(self.expected.pixels, self.least_pixels)
        allowed = weight >= ALLOWED * weight.max()
        return float((pixels * self.expected.square)[allowed].min())


class RepeatedResiduals(NamedTuple):
    """The residuals of bins that repeat each other, of which a mean is used."""

    residuals: Float[np.ndarray, "cell bin"]
    share: Float[np.ndarray, " bin"]
    """Of each in the mean."""
    least: Float[np.ndarray, "bin mu"]
    """`BinNoise.least_pixels` of each."""

    def fit(
        self,
        columns: Float[np.ndarray, "cell column"],
        noise: NoiseCovariance,
        mean_counts: Float[np.ndarray, " mu"],
    ) -> NoiseFit:
        """Return the noise of the mean as what columns leave of each shows it."""
        fits = fit_noises(self.residuals, columns, noise, mean_counts)
        return noise_of_mean(fits, self.share, self.least)


def noise_of_mean(
    fits: list[NoiseFit], share: Float[np.ndarray, " bin"], least: Float[np.ndarray, "bin mu"]
) -> NoiseFit:
    """Return μ of bins that have the same, and P of a mean over them.

    share: of each in the mean. least: the fewest pixels of each.
    """
    log = np.sum([np.log(np.maximum(one.weight, SMALLEST_WEIGHT)) for one in fits], axis=0)
    weight = np.exp(log - log.max())
    weight = np.where(weight > SMALLEST_WEIGHT, weight, 0.0)
    freedom = sum(one.freedom for one in fits)
    of_mean = share**2 @ (1 / np.maximum([one.pixels for one in fits], least))
    return NoiseFit(
        fits[0].mean_counts,
        weight / weight.sum(),
        np.where(weight > 0, freedom * of_mean, 1.0),
        sum(one.log_likelihood for one in fits),
        freedom,
        np.concatenate([one.whitened for one in fits]),
    )


class NoiseOfModel(NamedTuple):
    """What the noise of a bin is before its residuals are looked at."""

    cells: Averages
    of_cells: NoiseCovariance
    of_fields: NoiseCovariance
    weights: Float[np.ndarray, "column column"]
    distance: float
    """As in `BinNoise`."""
    bin: "RepeatedBin"
    """For which it was computed."""
    at: FittedPoint
    division: Division
    fine: Float[np.ndarray, " fine"]
    """f of the finest cells."""

    def holds_for(
        self, bin: "RepeatedBin", at: FittedPoint, fine: Float[np.ndarray, " fine"]
    ) -> bool:
        """Return whether it is that of a bin of another scan, too, where f is all but the same."""
        return (
            bin.alike(self.bin)
            and np.array_equal(at.which, self.at.which)
            and bool(np.abs(fine - self.fine).max() < F_ALIKE)
        )

    def at_point(self, at: FittedPoint, own: Averages) -> "NoiseOfModel":
        """Return it with the averages of another bin, for which it holds, and its units of parameters."""
        size = np.concatenate([np.ones(2), at.units / self.at.units])[: len(self.weights)]
        both = np.outer(size, size)
        of_fields = NoiseCovariance(*(part * both for part in self.of_fields))
        return self._replace(cells=own, of_fields=of_fields, weights=self.weights * both)


class RepeatedBin(NamedTuple):
    """What tells whether bins of scans that repeat each other have one noise, at one model."""

    place: tuple[float, float]
    """q [1/Å] and φ [degree]."""
    contrast: float
    sigma: Float[np.ndarray, " used"]
    pairs: Int[np.ndarray, " cell"]

    def alike(self, other: "RepeatedBin") -> bool:
        """Return whether q, φ and pairs are the same, and contrast and σ all but the same."""
        return (
            self.place == other.place
            and abs(self.contrast / other.contrast - 1) < ALIKE
            and np.array_equal(self.pairs, other.pairs)
            and len(self.sigma) == len(other.sigma)
            and float(np.abs(self.sigma / other.sigma - 1).mean()) < ALIKE
        )


class DataAndModel(NamedTuple):
    """What a fit was made of, as the noise of its bins needs it."""

    scan: Scan
    problem: Problem
    mean_counts: Float[np.ndarray, " bin"]
    """`Scan.mean_counts`."""


@dataclass(frozen=True)
class SumsOfBins:
    """What the last sums of a fit say of its bins (see `ReducedProblem`)."""

    contrast: Float[np.ndarray, " bin"]
    offset: Float[np.ndarray, " bin"]
    chisqr_per_bin: Float[np.ndarray, " bin"]
    rounding_per_bin: Float[np.ndarray, " bin"]
    count: Float[np.ndarray, " bin"]
    gram: Gram | RobustGram

    def of_bins(self, bins: list[int]) -> "SumsOfBins":
        """Return those of some bins."""
        gram = type(self.gram)(*(part[bins] for part in self.gram))
        columns = {name: of[bins] for name, of in vars(self).items() if name != "gram"}
        return SumsOfBins(**columns, gram=gram)


class EndOfFit(NamedTuple):
    """The last sums of a fit, where a `State` has them."""

    reduced: SumsOfBins


Groups = list[list[int]]
OfGroup = Callable[[list[int]], list[BinNoise] | None]
"""From bins that share one noise of the model to the noise of each; None as `noise_of_bins`."""


def noise_of_bins(
    request: Request,
    state: State,
    at: FittedPoint,
    bins: Sequence[int],
    grid: CellGrid,
    averaged: AveragedCells,
    means: CellMeans | None,
    of_pairs: bool = True,
    known: list[NoiseOfModel] | None = None,
    compute: Callable[[OfGroup, Groups, SumsOfBins], Iterable[list[BinNoise] | None]] | None = None,
) -> dict[int, BinNoise] | None:
    """Return the noise of bins at the end of a fit; None with too few cells, or where the model is exact.

    at: the model there. means: of data that are means over cells of age and lag. of_pairs: whether the noise
    of sums over pairs is wanted, too; else it is empty. known: noise of the model of other scans, which is
    used where it holds; what is computed here is added. compute: what applies a function to groups of bins,
    in their order; one after another without it.
    """
    scan, reduced, noises = request.scan, state.reduced, dict[int, BinNoise]()
    sums = SumsOfBins(*(getattr(reduced, of.name) for of in fields(SumsOfBins)))
    data, end = DataAndModel(scan, request.problem, scan.mean_counts), EndOfFit(sums)
    groups = [[b] for b in bins]
    if means is None and len(np.unique(scan.scan_number)) > 1:
        groups = _repeats({b: _repeated(data, end, averaged, b) for b in bins})

    def of_group(group: list[int]) -> list[BinNoise] | None:
        return noise_of_group(data, end, at, group, grid, averaged, means, of_pairs, known)

    each = map(of_group, groups) if compute is None else compute(of_group, groups, sums)
    for group, of_each in zip(groups, each, strict=True):
        if of_each is None:
            return None
        noises.update(zip(group, of_each, strict=True))
    return {b: noises[b] for b in bins}


def noise_of_group(
    request: DataAndModel,
    state: EndOfFit,
    at: FittedPoint,
    bins: list[int],
    grid: CellGrid,
    averaged: AveragedCells,
    means: CellMeans | None = None,
    of_pairs: bool = True,
    known: list[NoiseOfModel] | None = None,
) -> list[BinNoise] | None:
    """Return the noise of bins that share one noise of the model; None and arguments as `noise_of_bins`."""
    repeated = _repeated(request, state, averaged, bins[0])
    model = _noise_of_model(request, at, bins[0], repeated, grid, averaged, means, of_pairs, known)
    contrast = np.clip(state.reduced.contrast[bins], SMALLEST_CONTRAST, 1.0)  # that of the noise
    counts, single = request.mean_counts[bins], means is None
    noises = _noise_of_repeats(request, state, bins, contrast, model, averaged, counts, single)
    if noises is None or not of_pairs:
        return noises
    # which finest cells a cell is the mean of, only weights need: it is larger than all the rest
    return [
        replace(
            one,
            cells=one.cells._replace(share=one.cells.share[:, :0]),
            fit=_contiguous(one.fit),
            expected=_contiguous(one.expected),
        )
        for one in noises
    ]


def _contiguous(fit: NoiseFit) -> NoiseFit:
    """Return the same, each array in one piece, as it comes from a worker: sums round by this."""
    pieces = {
        name: np.ascontiguousarray(getattr(fit, name)) for name in ("weight", "square", "whitened")
    }
    return fit._replace(mean_counts=np.ascontiguousarray(fit.mean_counts), **pieces)


def _repeated(
    request: DataAndModel, state: EndOfFit, averaged: AveragedCells, bin: int
) -> RepeatedBin:
    """Return what tells whether another bin has the same noise."""
    scan, contrast = request.scan, float(state.reduced.contrast[bin])
    sigma = scan.all_bins["sigma_row"][scan.bins[bin]][scan.use]
    place = float(q_or_one(scan)[bin]), float(scan.phi[bin])
    # a contrast that noise can have
    clipped = float(np.clip(contrast, SMALLEST_CONTRAST, 1.0))
    return RepeatedBin(place, clipped, sigma, averaged.pairs[bin])


def _repeats(repeated: dict[int, RepeatedBin]) -> list[list[int]]:
    """Return the bins that share one noise."""
    found = dict[tuple[float, float], list[list[int]]]()
    for b in repeated:
        same = found.setdefault(repeated[b].place, [])
        of = next((of for of in same if repeated[b].alike(repeated[of[0]])), None)
        if of is None:
            same.append([b])
        else:
            of.append(b)
    return [of for same in found.values() for of in same]


def _noise_of_repeats(
    request: DataAndModel,
    state: EndOfFit,
    bins: list[int],
    contrast: Float[np.ndarray, " bin"],
    model: NoiseOfModel,
    averaged: AveragedCells,
    mean_counts: Float[np.ndarray, " bin"],
    single_pairs: bool,
) -> list[BinNoise] | None:
    """Return the noise of bins of one noise of the model, that of the first; None as `noise_of_bins`.

    single_pairs: whether χ² is that of pairs, so that their scatter limits the noise.
    """
    reduced, cells = state.reduced, model.cells
    columns = [
        np.column_stack([np.ones(len(cells.f)), cells.f, c * cells.slopes.T]) for c in contrast
    ]
    exact = reduced.chisqr_per_bin[bins] <= reduced.rounding_per_bin[bins]
    if exact.any() or len(columns[0]) < columns[0].shape[1] + FEWEST_CELLS:
        return None
    c2 = [cells.c2, *(cells.share @ np.nan_to_num(averaged.c2[b]) for b in bins[1:])]
    levels = reduced.offset[bins, None] + reduced.contrast[bins, None] * cells.f
    residuals = np.stack(c2) - levels
    fits = _fits(residuals.T, columns[0], model.of_cells, mean_counts)
    least = [np.zeros(len(expected.mean_counts)) for _, expected in fits]
    if single_pairs and len(model.weights) and not isinstance(reduced.gram, RobustGram):
        each = zip(bins, contrast.tolist(), fits, strict=True)
        left = scaled_inverse(model.weights, 1e-9)
        least = [_least_pixels(request, state, b, c, model, left, fit) for b, c, (_, fit) in each]
    return [
        BinNoise(
            cells._replace(c2=c2[n]),
            residuals[n],
            columns[n],
            model.of_cells,
            model.of_fields,
            model.weights,
            model.distance,
            *fits[n],
            least[n],
        )
        for n in range(len(bins))
    ]


def _noise_of_model(
    request: DataAndModel,
    at: FittedPoint,
    bin: int,
    repeated: RepeatedBin,
    grid: CellGrid,
    averaged: AveragedCells,
    means: CellMeans | None,
    of_pairs: bool,
    known: list[NoiseOfModel] | None,
) -> NoiseOfModel:
    scan = request.scan
    model = BinModel(at, float(q_or_one(scan)[bin]), float(scan.phi[bin]))
    weight = np.where(scan.use, scan.sigma_row[bin] ** -2.0, 0.0)
    known_share = None if averaged.known is None else averaged.known[bin]
    frames = BinFrames(scan.frames, scan.use, weight, request.problem.min_lag, known_share)
    if means is None:
        fine = bin_averages(averaged, bin, model)
    else:
        fine = _averages_of_means(request, at, bin, means)
    for one in known or ():
        if one.holds_for(repeated, at, fine.f):
            own = merged_averages(fine, one.division, grid.min_pairs)
            return one.at_point(at, own.only(one.cells.intervals))
    division = divided(model, frames, averaged, grid)
    parts = [blocks_of(model, frames, stretch, repeated.contrast) for stretch in division.stretches]
    cells, of_cells = merged_averages(fine, division, grid.min_pairs).with_noise(parts)
    of_fields, weights = NoiseCovariance(*np.zeros((3, 0, 0))), np.zeros((0, 0))
    if of_pairs:
        noises, squares = zip(
            *(noise_of_fields(model, part, frames.min_lag) for part in parts), strict=True
        )
        of_fields, weights = sum_over_stretches(list(noises)), np.sum(squares, axis=0)
    distance = max(part.distance for part in parts)
    found = NoiseOfModel(
        cells, of_cells, of_fields, weights, distance, repeated, at, division, fine.f
    )
    if known is not None:
        known.append(found)
    return found


def fitted_point(request: Request, state: State, joint: JointEquations) -> FittedPoint:
    """Return the model of a fit at its end, with derivatives by the scaled parameters that moved."""
    time = request.scan.time
    point = evaluation_of(request.problem.model).point(request.problem, state.theta, time)
    return FittedPoint(point, time, joint.which, 1 / joint.size[: joint.moved])


def _fits(
    residuals: Float[np.ndarray, "cell bin"],
    columns: Float[np.ndarray, "cell column"],
    noise: NoiseCovariance,
    mean_counts: Float[np.ndarray, " bin"],
) -> list[tuple[NoiseFit, NoiseFit]]:
    """Return what residuals say of the noise: by the counts that are known unless ruled out, and by these.

    mean_counts: NaN where they are not known.
    """
    free = fit_noises(residuals, columns, noise)
    found = list(zip(free, free, strict=True))
    with np.errstate(invalid="ignore"):
        number = np.round(np.log(mean_counts) / COUNTS_ALIKE)
    for one in np.unique(number[np.isfinite(number)]):
        bins = np.flatnonzero(number == one)
        mean = mean_counts[bins[:1]] if len(bins) == 1 else mean_counts[bins].mean(keepdims=True)
        for n, fit in zip(bins, fit_noises(residuals[:, bins], columns, noise, mean), strict=True):
            ruled_out = fit.log_likelihood < free[n].log_likelihood - MOST_BELOW
            found[n] = (free[n] if ruled_out else fit, fit)
    return found


def _least_pixels(
    request: DataAndModel,
    state: EndOfFit,
    bin: int,
    contrast: float,
    model: NoiseOfModel,
    inverse: Float[np.ndarray, "column column"],
    fit: NoiseFit,
) -> Float[np.ndarray, " mu"]:
    """Return the pixels at each μ whose noise gives single pairs the scatter that they have, and no less.

    No more than MAX_EXCESS times that of counts, and less by SCATTERS of its standard deviations: it is that
    of ½ (Σ K)²/Σ K² independent squares, K the covariance of the counts of two frames. inverse: of
    `model.weights`.
    """
    gram, mu = state.reduced.gram, fit.mean_counts
    M, frames = gram.moments[bin], int(request.scan.use.sum())
    variance = pair_variance(contrast, np.array([M[0, 0], M[0, 2], M[2, 2]]))
    scatter_left = [
        float(one[0, 0] - np.sum(inverse * other))
        for one, other in zip(variance, model.of_fields, strict=True)
    ]
    left = scatter_left[0] + scatter_left[1] / mu + scatter_left[2] / mu**2
    correlated = (contrast / (contrast + 1 / mu)) ** 2 * M[2, 2] / M[0, 0]
    independent = 0.5 / (correlated + 1 / frames) ** 2
    scatter = 1 + SCATTERS * np.sqrt(2 / independent)
    chisqr, most = state.reduced.chisqr_per_bin[bin], MAX_EXCESS * state.reduced.count[bin]
    if request.scan.attrs["sigma_source"] == "counts":
        chisqr = min(chisqr, most)
    return np.maximum(left, 0) / chisqr / scatter


def bin_averages(averaged: AveragedCells, bin: int, model: BinModel) -> Averages:
    """Return c2 and the model averaged over the cells of a bin."""
    points, number = averaged.points_of(bin), len(averaged.intervals)
    f, slopes = (
        points.mean(of, number)
        for of in model.f_and_slopes(model.time(points.i), model.time(points.j))
    )
    known = (averaged.pairs[bin] > 0) & np.isfinite(f)
    intervals = [one for one, some in zip(averaged.intervals, known, strict=True) if some]
    return Averages(
        intervals, averaged.c2[bin, known], averaged.pairs[bin, known], f[known], slopes[:, known],
        np.eye(number)[known],
    )  # fmt: skip


class GroupedCells(NamedTuple):
    """Stored cells inside the selection, over which cells of before the ingest are averaged."""

    intervals: list[Interval]
    place: Int[np.ndarray, " cell"]
    """Of each cell before ingest: the stored one in which its middle lies; their number where in none."""
    edges: tuple[Int[np.ndarray, " a"], Int[np.ndarray, " l"]]
    """Of age and lag."""

    def averaged(
        self, scan: Scan, means: CellMeans
    ) -> tuple[Float[np.ndarray, "bin group k"], Int[np.ndarray, "bin group"]]:
        """Return the averages of columns, NaN without pairs, and the pairs in each."""
        assert scan.cells is not None
        pairs, number = np.where(means.weight > 0, scan.cells.pairs, 0), len(self.intervals)
        member = np.zeros((number + 1, len(self.place)))
        member[self.place, np.arange(len(self.place))] = 1
        count = pairs @ member[:-1].T
        with np.errstate(invalid="ignore"):
            columns = member[:-1] @ (means.columns * pairs[..., None]) / count[..., None]
        return columns, count.astype(np.int64)


def grouped_cells(scan: Scan, min_lag: int) -> GroupedCells:
    """Return the stored cells for data that were averaged over cells before ingest."""
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
    return GroupedCells(intervals, place, (cuts.age_edges, cuts.lag_edges))


def _averages_of_means(
    request: DataAndModel, at: FittedPoint, bin: int, means: CellMeans
) -> Averages:
    """Return c2 and the model averaged over the cells of a bin, of data that are means over cells."""
    groups = grouped_cells(request.scan, request.problem.min_lag)
    columns, count = (of[bin] for of in groups.averaged(request.scan, means))
    known = count > 0
    _, y, f, *slopes = columns[known].T
    scaled = np.array(slopes)[at.which] * at.units[:, None]
    intervals = [one for one, some in zip(groups.intervals, known, strict=True) if some]
    return Averages(intervals, 1 + y, count[known], f, scaled, np.eye(len(known))[known])


def merged_averages(fine: Averages, division: Division, min_pairs: int) -> Averages:
    """Return the averages over the larger cells of a division."""
    ages, first, cells, rows = division.ages, [one.first for one in fine.intervals], [], []
    shortest, end = (np.array([one[n] for one in fine.intervals], int) for n in (2, 3))
    of_age = np.searchsorted(ages, first, "right") - 1
    for a, lags in enumerate(division.lags):
        of_lag = np.searchsorted(lags, shortest, "right") - 1
        inside = (of_age == a) & (of_lag >= 0) & (of_lag < len(lags) - 1)
        inside[inside] = end[inside] <= lags[of_lag[inside] + 1]
        for k in np.unique(of_lag[inside]):
            pairs = np.where(inside & (of_lag == k), fine.pairs, 0)
            if pairs.sum() >= min_pairs:
                cells.append(Interval(*map(int, (ages[a], ages[a + 1], lags[k], lags[k + 1]))))
                rows.append(pairs)
    members = np.array(rows, np.int64).reshape(len(cells), len(fine.pairs))
    count = members.sum(1)
    share = members / np.maximum(count, 1)[:, None]
    return Averages(
        cells, share @ fine.c2, count, share @ fine.f, fine.slopes @ share.T, share @ fine.share
    )
