"""Averages over cells of age and lag with their noise, and what a fit takes out of them.

From these follow the variances of means of residuals, and how much smaller the errors of a fit would be
that weights the averages by the inverse of their covariance. Bins that repeat each other in a store of
repeats are one, the mean of their residuals: what tests and covariances need of bins of one model and one
noise are sums over them. A bin that deviates from the others stays by itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import Interval, means_of_cells
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.shared_speckle import SharedSpeckle, SpeckleOfSums
from homodyne_dask.assessment.speckle_covariance import (
    NoiseCovariance,
    NoiseFit,
    inverse_of_regular,
    likely_sizes,
    log_variances,
    regular,
)
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.speckle_noise import (
    AT_ONCE,
    MIN_PAIRS,
    MOST_BELOW,
    SMALLEST_CONTRAST,
    BinNoise,
    noise_of_mean,
)
from homodyne_dask.request.options import PAIRS, SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.array_shapes import BinNumbers, Matrix, PerCounts
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.reduce import ReducedProblem, linear_columns
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from homodyne_dask.store.scan import Scan

DEVIATES = 4.0
"""Standard deviations of a mean of residuals from that of its repeats, beyond which a bin stays by itself."""
MOST_RELATIVE = 0.5
"""Largest 4/n of n degrees of freedom of the noise of a bin, by which variances of weighted sums grow."""
LEAST_LEFT = 0.4
"""Share of the variance of a mean of residuals that the fit leaves at least."""

PerMember = Float[np.ndarray, " member"]
PerCellOfBins = Float[np.ndarray, "bin cell k"]
_Pooled = dict[int, tuple[BinNoise, list[int], PerMember, float]]
"""By the first of its bins: the noise of their mean, these bins, their shares, and the weight."""


class OwnParameters(NamedTuple):
    """Offset and contrast of bins where no other has them: what a fit of these takes out of residuals."""

    columns: Float[np.ndarray, "*bin cell own"]
    to: Float[np.ndarray, "*bin own cell"]
    """From residuals to their estimates."""

    def outside(
        self, changes: Float[np.ndarray, "*bin cell k"]
    ) -> Float[np.ndarray, "*bin cell k"]:
        """Return what the fit leaves of changes of c2."""
        return changes - self.columns @ (self.to @ changes)

    def left_by(
        self, weights: Float[np.ndarray, "*bin cell k"]
    ) -> Float[np.ndarray, "*bin cell k"]:
        """Return the weights with which sums of data are those of residuals."""
        return weights - self.to.mT @ (self.columns.mT @ weights)


def summed(
    first: Float[np.ndarray, "bin cell k"], other: Float[np.ndarray, "bin cell n"]
) -> Float[np.ndarray, "k n"]:
    """Return the sum over bins and cells of products."""
    cells = first.shape[0] * first.shape[1]
    return first.reshape(cells, -1).T @ other.reshape(cells, -1)


def own_parameters(
    columns: Float[np.ndarray, "*bin cell own"], weighted: Float[np.ndarray, "*bin cell own"]
) -> OwnParameters:
    return OwnParameters(columns, pseudoinverse(columns.mT @ weighted) @ weighted.mT)


class CellsOfBin(NamedTuple):
    """The cells of one bin, or of the mean over bins that repeat each other."""

    noise: BinNoise
    members: list[int]
    weight: float
    """Of a pair of frames of all members: a fit of the mean with it is theirs."""
    cells: list[int]
    """Their numbers among the cells of all bins."""

    def place(self, scan: Scan) -> tuple[int, ...]:
        first = self.members[0]
        alone = len(self.members) == 1 and scan.has_repeats
        return (int(scan.label[first]), *[int(scan.scan_number[first])] * alone)

    def words(self, scan: Scan) -> str:
        if len(self.members) == 1:
            return scan.bin_words(scan.bins[self.members[0]])
        return f"the bin labelled {scan.label[self.members[0]]} of {len(self.members)} scans"


@dataclass(frozen=True)
class CellCovariances:
    """Those of the means over cells of bins with one noise; with known counts, each is computed once."""

    noise: NoiseCovariance
    of_pixel: dict[float, tuple[Matrix, Matrix]] = field(default_factory=dict)

    def at(self, mean_counts: float) -> tuple[Matrix, Matrix]:
        """Return the covariance of one pixel, and its inverse."""
        if mean_counts not in self.of_pixel:
            covariance = regular(self.noise.at(mean_counts))
            self.of_pixel[mean_counts] = covariance, inverse_of_regular(covariance)
        return self.of_pixel[mean_counts]

    def likely(self, fit: NoiseFit, least: PerCounts | float = 0.0) -> tuple[Matrix, Matrix]:
        """Return the mean covariance over likely P and μ, and its inverse; least: the fewest pixels."""
        sizes = likely_sizes(fit, least)
        if len(fit.weight) == 1:
            covariance, inverse = self.at(float(fit.mean_counts[0]))
            return covariance * sizes[0], inverse / sizes[0]
        covariance = regular(self.noise.of_sizes(sizes))
        return covariance, inverse_of_regular(covariance)


class CellsOfKind(NamedTuple):
    """Bins with the same cells and one noise, but for its size, as arrays."""

    bins: list[int]
    cells: list[int]
    """Their numbers among the cells of all bins."""
    noises: list[BinNoise]
    residual: Float[np.ndarray, "bin cell"]
    sizes: Float[np.ndarray, "bin 3"]
    """Of the terms of the noise."""
    covariances: CellCovariances
    levels: OwnParameters
    of_levels: Float[np.ndarray, "bin 3 own cell"]
    """levels.to @ noise of one pixel, by its terms."""
    columns: Float[np.ndarray, "bin cell n"]
    """Derivatives of c2 by the fitted parameters of all bins."""
    weighted: Float[np.ndarray, "bin cell n"]
    """weights @ columns, these without what `levels` explains."""
    correlated: Float[np.ndarray, "bin cell n"]
    """noise @ weighted."""

    def of_bins(self, some: list[int]) -> "CellsOfKind":
        """Return that of some of its bins, by their places."""
        if len(some) == len(self.bins):
            return self
        arrays = self._asdict().items()
        return self._replace(
            bins=[self.bins[n] for n in some],
            noises=[self.noises[n] for n in some],
            levels=OwnParameters(*(array[some] for array in self.levels)),
            **{name: array[some] for name, array in arrays if isinstance(array, np.ndarray)},
        )

    @property
    def of_cells(self) -> NoiseCovariance:
        return self.covariances.noise

    @property
    def variances(self) -> Float[np.ndarray, "3 cell"]:
        return np.stack([term.diagonal() for term in self.of_cells])

    def of_data(
        self, alone: Float[np.ndarray, "bin cell"], several: Float[np.ndarray, "bin cell set"]
    ) -> "_OfData":
        """Return sums of residuals as those of data, from which offset and contrast of a bin take nothing.

        alone: the weights of cells, each of which is a sum; several: those in other sums.
        """

        def of_both(rows: Float[np.ndarray, "bin n cell"]) -> Float[np.ndarray, "bin n test"]:
            return np.concatenate([rows * alone[:, None], rows @ several], axis=2)

        levels, noise, sizes = self.levels, self.of_levels, self.sizes[:, :, None]
        columns = of_both(levels.columns.mT)
        of_several = self.of_cells.variances(several.mT)
        by_term = np.concatenate([alone[:, None] ** 2 * self.variances, of_several], axis=2)
        taken = 2 * of_both(noise.reshape(len(alone), -1, alone.shape[1]))
        taken = (
            taken.reshape(*noise.shape[:3], columns.shape[2])
            - noise @ levels.to.mT[:, None] @ columns[:, None]
        )
        left = by_term - (columns[:, None] * taken).sum(2)
        relative = log_variances(left, [noise.expected for noise in self.noises])[1]
        scores, across = (of_both(levels.outside(x).mT) for x in (self.columns, self.correlated))
        return _OfData(scores, across, (sizes * by_term).sum(1), (sizes * left).sum(1), relative)


class _OfData(NamedTuple):
    derivatives: Float[np.ndarray, "bin n test"]
    """By the parameters of all bins."""
    correlated: Float[np.ndarray, "bin n test"]
    """Covariances with the scores of these."""
    of_residuals: Float[np.ndarray, "bin test"]
    """The variance of the sums without any fit."""
    of_data: Float[np.ndarray, "bin test"]
    """The variance without that of the fit of theta."""
    relative: Float[np.ndarray, "bin test"]
    """The relative variance of that variance."""


class FittedCells(NamedTuple):
    intervals: list[Interval]
    residual: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no such cell."""
    f: Float[np.ndarray, "bin cell"]
    pairs: Int[np.ndarray, "bin cell"]
    variances: Float[np.ndarray, "bin cell"]
    """Of their noise; 0 where a bin has no such cell."""
    bins: dict[int, CellsOfBin]
    """Of those whose noise is known; bins that repeat each other are one, in the place of the first."""
    kinds: list[CellsOfKind]
    """The same bins, those with one noise together."""
    inverse: Matrix
    """Of the normal matrix of all cells, by the parameters of all bins."""
    fitted: Matrix
    """The covariance of the scores of these parameters."""
    of_pairs: Float[np.ndarray, "moved moved"]
    """The covariance of theta that the measured noise gives to a fit of all pairs."""
    of_weighted: Float[np.ndarray, "moved moved"]
    """The same of a fit weighted by the inverse covariance of the measured noise of each bin."""
    shared: SharedSpeckle
    """Which of `bins` see the same speckle."""
    smoothed: Mapping[str, Float[np.ndarray, "size n"]]
    """Of each rate whose smoothness a user gave: which combination of the columns each coefficient is."""

    def variance(
        self, share: Float[np.ndarray, "bin cell"], alone: Int[np.ndarray, " alone"],
        mix: Float[np.ndarray, "cell several"], by_noise: bool,
    ) -> tuple[Float[np.ndarray, " test"], Float[np.ndarray, " test"]]:  # fmt: skip
        """Return the variance of means of residuals over bins, and its freedom: at some cells alone, and of
        several by their mix. share: of each bin in the mean at a cell.

        With r = y - X H⁻¹ Xᵀ W y, it is that of the noise less twice the covariance of noise and fit plus
        the variance of the fit. A fit of all pairs takes a little less out of a sum than one of cells would.
        by_noise: whether the noise of bins is in the shares.
        """
        cells, sets = mix.shape
        scores, across = np.zeros((2, len(self.inverse), cells + sets))
        of_bins, has_share = list[np.ndarray](), share.any(1)
        for whole in self.kinds:
            kind = whole.of_bins(np.flatnonzero(has_share[whole.bins]).tolist())
            if not kind.bins:
                continue
            of_cells = share[np.ix_(kind.bins, kind.cells)]
            of_kind = kind.of_data(of_cells, of_cells[:, :, None] * mix[kind.cells])
            tests = [*kind.cells, *range(cells, cells + sets)]
            scores[:, tests] += of_kind.derivatives.sum(0)
            across[:, tests] += of_kind.correlated.sum(0)
            of_bins.append(np.zeros((3, len(kind.bins), cells + sets)))
            of_bins[-1][:, :, tests] = of_kind[2:]
        tests = np.append(alone, np.arange(cells, cells + sets))
        of_bin, of_data, relative = np.concatenate(of_bins, axis=1)[:, :, tests]
        total = of_bin.sum(0)
        variance = of_data.sum(0) + self._of_fit(scores[:, tests], across[:, tests])
        share = of_bin / np.maximum(total, np.finfo(float).tiny)
        freedom = 2 / np.maximum((share**2 * relative).sum(0), np.finfo(float).tiny)
        excess = (share * excess_of_weighted(share, relative)).sum(0) if by_noise else 0.0
        # the difference of nearly equal numbers, where the fit takes nearly all, is not trusted
        return np.maximum(variance, LEAST_LEFT * total) * (1 + excess), freedom

    def variances_alone(
        self, kind: CellsOfKind, alone: Int[np.ndarray, " alone"],
        several: Float[np.ndarray, "bin cell several"],
    ) -> tuple[Float[np.ndarray, "bin test"], Float[np.ndarray, "bin test"]]:  # fmt: skip
        """Return the variance of residuals of each bin, and its freedom: of some cells, and of sums."""
        *_, cells, sets = several.shape
        tests = np.append(alone, np.arange(cells, cells + sets))
        of_kind = kind.of_data(np.ones_like(kind.residual), several)
        scores, across, of_bin, of_data, relative = (array[..., tests] for array in of_kind)
        variance = of_data + self._of_fit(scores, across)
        freedom = 2 / np.maximum(relative, np.finfo(float).tiny)
        return np.maximum(variance, LEAST_LEFT * of_bin), freedom

    def _of_fit(
        self, scores: Float[np.ndarray, "*bin n test"], across: Float[np.ndarray, "*bin n test"]
    ) -> Float[np.ndarray, "*bin test"]:
        """Return what the fit of theta adds to the variances of sums."""
        taken = self.inverse @ scores
        return (taken * (self.fitted @ taken - 2 * across)).sum(-2)


def excess_of_weighted(
    share: Float[np.ndarray, "bin ..."], relative: Float[np.ndarray, "bin ..."]
) -> Float[np.ndarray, "bin ..."]:
    """Return by how much the part of each bin in the variance of a sum over bins is larger, relative.

    The bins are weighted by their noise: where it was estimated too small, the weight is too large, too. With
    n degrees of freedom, E[v/v̂²]/E[1/v̂] is n/(n - 4); of a single bin Student's t is right.
    """
    ratio = np.minimum(2 * relative, MOST_RELATIVE)  # 4/n
    return (1 - share) * ratio / (1 - ratio)


class _WeightedFit:
    """A fit of the cells of all bins with some weights, and what their measured noise does to it."""

    def __init__(self, prior: Matrix) -> None:
        self.normal, self.scores = prior.copy(), prior.copy()
        self.maps: dict[int, Float[np.ndarray, "n cell"]] = {}

    def add(
        self, bins: list[int], levels: PerCellOfBins, columns: PerCellOfBins,
        weights: Float[np.ndarray, "bin cell cell"] | Float[np.ndarray, "bin cell 1"],
        measured: Float[np.ndarray, "bin cell cell"],
    ) -> tuple[OwnParameters, PerCellOfBins]:  # fmt: skip
        """Return the parameters that bins have for themselves, and the weighted columns without them.

        weights: between cells, or of each.
        """
        times = np.multiply if weights.shape[2] == 1 else np.matmul
        eliminated = own_parameters(levels, times(weights, levels))
        weighted = times(weights, eliminated.outside(columns))
        self.normal += summed(columns, weighted)
        self.scores += summed(weighted, measured @ weighted)
        self.maps |= zip(bins, weighted.mT, strict=True)
        return eliminated, weighted

    def covariance(self, shared: Matrix) -> Matrix:
        """Return that of the parameters; shared: of scores, what bins of one speckle add."""
        inverse = pseudoinverse(self.normal)
        return inverse @ (self.scores + shared) @ inverse.T


def fitted_cells(end: FitEnd, speckle: SpeckleErrors) -> FittedCells:
    """Return the cells of all bins, and two fits of them: weighted by pairs, and by the inverse noise."""
    request, scan, reduced, joint = end.request, end.request.scan, end.reduced, speckle.joint
    pooled = _pooled_repeats(request, reduced, speckle.bins)
    intervals = sorted({cell for noise, *_ in pooled.values() for cell in noise.cells.intervals})
    place = {cell: n for n, cell in enumerate(intervals)}
    m, (own_of, shared) = joint.moved, linear_columns(reduced)
    n = shared.shape[2] + m
    prior = np.zeros((n, n))
    of_theta = slice(n - m, None)  # not -m: there may be no parameter
    prior[of_theta, of_theta] = joint.prior.normal[:m, :m]
    normal, fitted = prior.copy(), np.zeros((n, n))  # the noise of the data alone
    fits = by_pairs, by_noise = _WeightedFit(prior), _WeightedFit(prior)
    weighting = fits.index(by_noise if request.options.weighting == SPECKLE_WEIGHTS else by_pairs)
    residual, f = np.full((2, len(scan.bins), len(intervals)), np.nan)
    pairs_of, variances = np.zeros(residual.shape, np.int64), np.zeros(residual.shape)
    kinds = list[CellsOfKind]()
    for group in _groups(pooled, own_of, n):
        cells = [place[cell] for cell in pooled[group[0]][0].cells.intervals]
        levels, columns = _levels_and_columns(reduced, shared, group, pooled)
        levels = levels[:, :, own_of[group[0]]]
        kinds.append(_fitted_by_all(fits, weighting, group, cells, pooled, levels, columns))
    for kind in kinds:
        rows, members = np.ix_(kind.bins, kind.cells), [len(pooled[b][1]) for b in kind.bins]
        residual[rows], f[rows] = kind.residual, np.stack([noise.cells.f for noise in kind.noises])
        pairs_of[rows] = np.array(members)[:, None] * [noise.cells.pairs for noise in kind.noises]
        variances[rows] = kind.sizes @ kind.variances
        normal += summed(kind.columns, kind.weighted)
        fitted += summed(kind.weighted, kind.correlated)
    numbers = {b: kind.cells for kind in kinds for b in kind.bins}
    bins = {
        b: CellsOfBin(noise, members, weight, numbers[b])
        for b, (noise, members, _, weight) in pooled.items()
    }
    shared = replace(speckle.shared, clusters=_clusters_of_pooled(request, pooled))

    @cache
    def scores_of_fits(b: int) -> SpeckleOfSums:
        return SpeckleOfSums.of(pooled[b][0], np.concatenate([fit.maps[b] for fit in fits]))

    def between(a: int, b: int) -> Matrix:
        return scores_of_fits(a).covariance_with(scores_of_fits(b))

    added = shared.added(pooled, 2 * n, between).covariance
    of_pairs = by_pairs.covariance(added[:n, :n])[of_theta, of_theta]
    of_weighted = by_noise.covariance(added[n:, n:])[of_theta, of_theta]
    smoothed = _smoothed_rates(request, joint, n)
    return FittedCells(
        intervals, residual, f, pairs_of, variances, bins, kinds, pseudoinverse(normal), fitted, of_pairs,
        of_weighted, shared, smoothed,
    )  # fmt: skip


def _smoothed_rates(
    request: Request, joint: JointEquations, columns: int
) -> dict[str, Float[np.ndarray, "size n"]]:
    """Return `FittedCells.smoothed`; theta is the last of the columns."""
    smoothness = request.search.smoothness
    if smoothness is None:
        return {}
    to_theta = np.zeros((len(joint.which), columns))
    to_theta[joint.which, columns - joint.moved :] = np.diag(joint.size[: joint.moved])
    return {name: to_theta[smoothness.places[name]] for name in smoothness.given}


def _fitted_by_all(
    fits: tuple[_WeightedFit, _WeightedFit], weighting: int, group: list[int], cells: list[int],
    pooled: _Pooled, levels: PerCellOfBins, columns: PerCellOfBins,
) -> CellsOfKind:  # fmt: skip
    """Add bins of one noise to both fits, and return them with what the one with this number does to them."""
    noises, _, _, weights = zip(*(pooled[b] for b in group), strict=True)
    pairs = np.stack([noise.cells.pairs for noise in noises]) * np.array(weights)[:, None]
    covariances = CellCovariances(noises[0].of_cells)
    both = [covariances.likely(noise.fit) for noise in noises]
    measured, inverse = map(np.stack, zip(*both, strict=True))
    added = [
        fit.add(group, levels, columns, of_cells, measured)
        for fit, of_cells in zip(fits, (pairs[:, :, None], inverse), strict=True)
    ]
    (eliminated, weighted), of_cells = added[weighting], covariances.noise
    residual, sizes = map(np.stack, zip(*((x.residual, x.sizes) for x in noises), strict=True))
    products = np.stack(of_cells.products(weighted.mT), axis=1)
    correlated = (sizes[:, :, None, None] * products).sum(1).mT
    of_levels = np.stack(of_cells.products(eliminated.to), axis=1)
    of_bins = list(noises), residual, sizes, covariances
    return CellsOfKind(group, cells, *of_bins, eliminated, of_levels, columns, weighted, correlated)


def _levels_and_columns(
    reduced: ReducedProblem, shared: Float[np.ndarray, "bin 2 k"], group: list[int], pooled: _Pooled
) -> tuple[PerCellOfBins, PerCellOfBins]:
    """Return derivatives of c2 by offset and contrast, and by the parameters that bins share and theta."""
    linear, f, slopes = [], [], []
    for noise, members, share, _ in (pooled[b] for b in group):
        linear.append(np.tensordot(share, shared[members], 1))
        f.append(noise.cells.f)
        slopes.append(noise.cells.slopes.T)
    levels = np.stack([np.ones((len(f), len(f[0]))), np.stack(f)], axis=2)
    by_theta = reduced.contrast[group, None, None] * np.stack(slopes)
    return levels, np.concatenate([levels @ np.stack(linear), by_theta], axis=2)


def _groups(
    pooled: _Pooled, own_of: Bool[np.ndarray, "bin 2"], columns: int
) -> Iterator[list[int]]:
    """Yield bins with one noise, so many together that their arrays are small; columns: of theta."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for b, (noise, members, *_) in pooled.items():
        groups.setdefault((id(noise.of_cells), len(members), own_of[b].tobytes()), []).append(b)
    for group in groups.values():
        cells = len(pooled[group[0]][0].residual)
        some = max(AT_ONCE // (cells * (cells + columns)), 1)
        yield from (group[first : first + some] for first in range(0, len(group), some))


def _clusters_of_pooled(request: Request, bins: Iterable[int]) -> BinNumbers:
    """Return a number for each bin: those of one see the same speckle, with pooled ones each in its place."""
    scan, clusters, first = request.scan, request.clusters, list(bins)
    if request.options.friedel == "on" and len(np.unique(scan.scan_number)) > 1:
        clusters = clusters.copy()
        clusters[first] = friedel_clusters(scan.q[first], scan.phi[first])
    return clusters


def _pooled_repeats(
    request: Request, reduced: ReducedProblem, bins: Mapping[int, BinNoise]
) -> _Pooled:
    """Return bins, pooled where they share a noise and counts, with members, their shares, and weight."""
    scan, q = request.scan, request.scan.q_or_one
    typical = (1 / scan.sigma_row**2).mean(1) ** 2
    repeats = request.options.weighting == PAIRS and len(np.unique(scan.scan_number)) > 1
    groups: dict[tuple[object, ...], list[int]] = {}
    for b, noise in bins.items():
        counts = noise.fit.mean_counts.tobytes(), noise.expected.mean_counts.tobytes()
        pooled = repeats and reduced.contrast[b] > SMALLEST_CONTRAST
        place = float(q[b]), float(scan.phi[b])
        groups.setdefault((id(noise.of_cells), place, *counts) if pooled else (b,), []).append(b)
    pooled_bins = {}
    for members in groups.values():
        odd = np.ones(len(members), bool)
        # of two bins that differ, neither is the one that deviates
        if len(members) > 2:
            odd = _deviating([bins[b] for b in members], members, reduced, typical[members])
        for b in np.array(members)[odd].tolist():
            pooled_bins[b] = bins[b], [b], np.ones(1), float(typical[b])
        if not odd.all():
            alike = np.array(members)[~odd].tolist()
            share, weight = _shares(reduced.contrast[alike], typical[alike])
            pooled_bins[alike[0]] = _mean_of([bins[b] for b in alike], share), alike, share, weight
    return {b: pooled_bins[b] for b in sorted(pooled_bins)}


def _shares(contrast: PerMember, typical: PerMember) -> tuple[PerMember, float]:
    weight = typical * contrast**2
    return typical * contrast * contrast[0] / weight.sum(), float(weight.sum() / contrast[0] ** 2)


def _mean_of(noises: list[BinNoise], share: PerMember) -> BinNoise:
    residuals = np.stack([noise.residual for noise in noises], axis=1)
    least = np.stack([noise.least_pixels for noise in noises])
    return replace(
        noises[0],
        residual=residuals @ share,
        fit=noise_of_mean([noise.fit for noise in noises], share, np.zeros((len(noises), 1))),
        expected=noise_of_mean([noise.expected for noise in noises], share, least),
        least_pixels=np.zeros_like(least[0]),
        pooled=(residuals, share, least),
    )


def _deviating(
    noises: list[BinNoise], members: list[int], reduced: ReducedProblem, typical: PerMember
) -> Bool[np.ndarray, " member"]:
    contrast, cells, of_cells = reduced.contrast[members], noises[0].cells, noises[0].of_cells
    weight = [noise.expected.weight for noise in noises]
    weight = np.log(np.maximum(weight, np.finfo(float).tiny))
    best = int(weight.sum(0).argmax())
    other = weight[:, best] < weight.max(1) - MOST_BELOW
    pixels = np.array(
        [max(noise.expected.pixels[best], noise.least_pixels[best]) for noise in noises]
    )
    covariance = of_cells.at(float(noises[0].expected.mean_counts[best]))
    inverse, pairs = 1 / np.diag(covariance), cells.pairs * len(members)
    alone, _, mix = means_of_cells(cells.intervals, inverse, pairs, MIN_PAIRS)
    mix = np.column_stack([np.eye(len(mix))[:, alone], mix])
    levels = np.stack([np.ones(len(inverse)), cells.f], axis=1)
    levels = levels[:, linear_columns(reduced)[0][members[0]]]
    weights = own_parameters(levels, cells.pairs[:, None] * levels).left_by(mix)
    spread = (weights * (covariance @ weights)).sum(0)
    spread = np.maximum(spread, LEAST_LEFT * (mix * (covariance @ mix)).sum(0))
    residuals = np.stack([noise.residual for noise in noises], axis=1)
    mean = residuals @ _shares(contrast, typical)[0]
    apart = residuals - np.outer(mean, contrast / contrast[0])
    z = (mix.T @ apart) / np.sqrt(spread[:, None] / pixels)
    return other | (np.abs(z) > DEVIATES).any(0)
