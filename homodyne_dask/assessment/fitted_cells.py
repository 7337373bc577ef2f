"""Averages over cells of age and lag with their noise, and what a fit takes out of them.

From these follow the variances of means of residuals, and how much smaller the errors of a fit would be
that weights the averages by the inverse of their covariance. Bins that repeat each other in a store of
repeats are one, the mean of their residuals: what tests and covariances need of bins of one model and one
noise are sums over them. A bin that deviates from the others stays by itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import Interval, means_of_cells
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.shared_speckle import SharedSpeckle, shared_cells
from homodyne_dask.assessment.speckle_covariance import log_variances
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.speckle_noise import (
    MIN_PAIRS,
    MOST_BELOW,
    SMALLEST_CONTRAST,
    BinNoise,
    noise_of_mean,
)
from homodyne_dask.request.options import PAIRS, SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.array_shapes import BinNumbers, Matrix
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


class OwnParameters(NamedTuple):
    """Offset and contrast of one bin where no other has them: what a fit of these takes out of residuals."""

    columns: Float[np.ndarray, "cell own"]
    to: Float[np.ndarray, "own cell"]
    """From residuals to their estimates."""

    def outside(self, changes: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        """Return what the fit leaves of changes of c2."""
        return changes - self.columns @ (self.to @ changes)

    def left_by(self, weights: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        """Return the weights with which sums of data are those of residuals."""
        return weights - self.to.T @ (self.columns.T @ weights)


def own_parameters(
    columns: Float[np.ndarray, "cell own"], weighted: Float[np.ndarray, "cell own"]
) -> OwnParameters:
    return OwnParameters(columns, pseudoinverse(columns.T @ weighted) @ weighted.T)


class CellsOfBin(NamedTuple):
    """The cells of one bin, or of the mean over bins that repeat each other."""

    noise: BinNoise
    members: list[int]
    weight: float
    """Of a pair of frames of all members: a fit of the mean with it is theirs."""
    cells: list[int]
    """Their numbers among the cells of all bins."""
    levels: OwnParameters
    columns: Float[np.ndarray, "cell n"]
    """Derivatives of c2 by the fitted parameters of all bins."""
    correlated: Float[np.ndarray, "cell n"]
    """noise @ weights @ columns, these without what `levels` explains."""

    def place(self, scan: Scan) -> tuple[int, ...]:
        first = self.members[0]
        alone = len(self.members) == 1 and scan.has_repeats
        return (int(scan.label[first]), *[int(scan.scan_number[first])] * alone)

    def words(self, scan: Scan) -> str:
        if len(self.members) == 1:
            return scan.bin_words(scan.bins[self.members[0]])
        return f"the bin labelled {scan.label[self.members[0]]} of {len(self.members)} scans"


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
        self, weights: Mapping[int, Float[np.ndarray, "cell test"]], by_noise: bool
    ) -> tuple[Float[np.ndarray, " test"], Float[np.ndarray, " test"]]:
        """Return the variance of sums of residuals with these weights in each bin, and its freedom.

        With r = y - X H⁻¹ Xᵀ W y, it is that of the noise less twice the covariance of noise and fit plus
        the variance of the fit. A fit of all pairs takes a little less out of a sum than one of cells would.
        by_noise: whether the noise of bins is in the weights.
        """
        tests = next(iter(weights.values())).shape[1]
        variance = np.zeros(tests)
        scores, across = np.zeros((2, len(self.inverse), tests))
        of_bin, relative = np.zeros((2, len(weights), tests))
        for n, (b, of_cells) in enumerate(weights.items()):
            bin = self.bins[b]
            weight, covariance = of_cells[bin.cells], bin.noise.covariance
            noise = covariance @ weight
            of_bin[n] = (weight * noise).sum(0)
            # offset and contrast of the bin are taken out first: then only theta is common to all
            noise -= (covariance @ bin.levels.to.T) @ (bin.levels.columns.T @ weight)
            weight = bin.levels.left_by(weight)
            variance += (weight * noise).sum(0)
            _, relative[n] = log_variances(bin.noise.of_cells, weight.T, bin.noise.expected)
            scores += bin.columns.T @ weight
            across += bin.correlated.T @ weight
        taken = self.inverse @ scores
        variance += (taken * (self.fitted @ taken)).sum(0) - 2 * (across * taken).sum(0)
        total = of_bin.sum(0)
        share = of_bin / np.maximum(total, np.finfo(float).tiny)
        freedom = 2 / np.maximum((share**2 * relative).sum(0), np.finfo(float).tiny)
        excess = (share * excess_of_weighted(share, relative)).sum(0) if by_noise else 0.0
        # the difference of nearly equal numbers, where the fit takes nearly all, is not trusted
        return np.maximum(variance, LEAST_LEFT * total) * (1 + excess), freedom


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
        self, bin: int, levels: Matrix, columns: Matrix, weights: Matrix, measured: Matrix
    ) -> tuple[OwnParameters, Float[np.ndarray, "cell n"]]:
        """Return the parameters that the bin has for itself, and the weighted columns without them."""
        eliminated = own_parameters(levels, weights @ levels)
        outside = eliminated.outside(columns)
        self.normal += columns.T @ weights @ outside
        self.maps[bin] = (weights @ outside).T
        self.scores += self.maps[bin] @ measured @ self.maps[bin].T
        return eliminated, weights @ outside

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
    prior, bins = np.zeros((n, n)), {}
    of_theta = slice(n - m, None)  # not -m: there may be no parameter
    prior[of_theta, of_theta] = joint.prior.normal[:m, :m]
    normal, fitted = prior.copy(), np.zeros((n, n))  # the noise of the data alone
    fits = by_pairs, by_noise = _WeightedFit(prior), _WeightedFit(prior)
    weighting = fits.index(by_noise if request.options.weighting == SPECKLE_WEIGHTS else by_pairs)
    residual, f = np.full((2, len(scan.bins), len(intervals)), np.nan)
    pairs_of, variances = np.zeros(residual.shape, np.int64), np.zeros(residual.shape)
    for b, (noise, members, share, weight) in pooled.items():
        cells, numbers = noise.cells, [place[cell] for cell in noise.cells.intervals]
        residual[b, numbers], f[b, numbers] = noise.residual, cells.f
        pairs_of[b, numbers] = cells.pairs * len(members)
        levels = np.stack([np.ones(len(numbers)), cells.f], axis=1)
        linear = np.tensordot(share, shared[members], 1)
        by_theta = reduced.contrast[b] * cells.slopes.T
        columns = np.concatenate([levels @ linear, by_theta], axis=1)
        levels, weights = levels[:, own_of[b]], (np.diag(cells.pairs * weight), noise.inverse)
        added = [
            fit.add(b, levels, columns, of_cells, noise.measured)
            for fit, of_cells in zip(fits, weights, strict=True)
        ]
        eliminated, weighted = added[weighting]
        correlated = noise.covariance @ weighted
        variances[b, numbers] = np.diag(noise.covariance)
        normal += columns.T @ weighted
        fitted += weighted.T @ correlated
        bins[b] = CellsOfBin(noise, members, weight, numbers, eliminated, columns, correlated)
    shared = replace(speckle.shared, clusters=_clusters_of_pooled(request, pooled))

    def between(a: int, b: int) -> Matrix:
        return shared_cells(pooled[a][0], pooled[b][0])

    of_pairs, of_weighted = (
        fit.covariance(shared.added(fit.maps, between).covariance)[of_theta, of_theta]
        for fit in fits
    )
    smoothed = {}
    if smoothness := request.search.smoothness:
        to_theta = np.zeros((len(joint.which), n))
        to_theta[joint.which, of_theta] = np.diag(joint.size[:m])
        smoothed = {name: to_theta[smoothness.places[name]] for name in smoothness.given}
    return FittedCells(
        intervals, residual, f, pairs_of, variances, bins, pseudoinverse(normal), fitted, of_pairs,
        of_weighted, shared, smoothed,
    )  # fmt: skip


def _clusters_of_pooled(request: Request, bins: Iterable[int]) -> BinNumbers:
    """Return a number for each bin: those of one see the same speckle, with pooled ones each in its place."""
    scan, clusters, first = request.scan, request.clusters, list(bins)
    if request.options.friedel == "on" and len(np.unique(scan.scan_number)) > 1:
        clusters = clusters.copy()
        clusters[first] = friedel_clusters(scan.q[first], scan.phi[first])
    return clusters


def _pooled_repeats(
    request: Request, reduced: ReducedProblem, bins: Mapping[int, BinNoise]
) -> dict[int, tuple[BinNoise, list[int], PerMember, float]]:
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
    _, mix = means_of_cells(cells.intervals, inverse, pairs, MIN_PAIRS)
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
