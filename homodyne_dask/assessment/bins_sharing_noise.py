"""Bins that repeat each other in a store of repeats as one: the mean of their residuals and its noise.

What tests and covariances need of bins of one model and one noise are sums over them. A bin that deviates
from the others stays by itself."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import means_of_cells
from homodyne_dask.assessment.speckle_noise import (
    MIN_PAIRS,
    MOST_BELOW,
    SMALLEST_CONTRAST,
    BinNoise,
    RepeatedResiduals,
    noise_of_mean,
)
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.reduce import LEAST_LEFT, linear_columns, own_parameters
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from homodyne_dask.store.scan import Scan

DEVIATES = 4.0
"""Standard deviations of a mean of residuals from that of its repeats, beyond which a bin stays by itself."""


class PooledBin(NamedTuple):
    """The mean over some bins that repeat each other, or one bin."""

    noise: BinNoise
    members: list[int]
    share: Float[np.ndarray, " member"]
    """Of each in the mean, which has the contrast of the first."""
    weight: float
    """Of a pair of frames of all: a fit of the mean with it is that of the members."""

    def place(self, scan: Scan) -> tuple[int, ...]:
        """Return the label; of one bin of a store of repeats with the number of its scan."""
        first = self.members[0]
        label, number = int(scan.label[first]), int(scan.scan_number[first])
        alone = len(self.members) == 1 and "scans" in scan.attrs
        return (label, number) if alone else (label,)

    def words(self, scan: Scan) -> str:
        """Return 'the bin labelled 5', of a store of repeats with its scan, or how many there are."""
        if len(self.members) == 1:
            return scan.bin_words(scan.bins[self.members[0]])
        return f"the bin labelled {scan.label[self.members[0]]} of {len(self.members)} scans"


def pooled_repeats(
    request: Request, reduced: ReducedProblem, bins: Mapping[int, BinNoise]
) -> dict[int, PooledBin]:
    """Return bins with those pooled that share a noise of the model and the counts that are known.

    By the first of each. Those of a fit weighted by speckle stay by themselves.
    """
    typical = (1 / request.scan.sigma_row**2).mean(1) ** 2
    repeats = request.options.weighting == PAIRS and len(np.unique(request.scan.scan_number)) > 1
    groups: dict[tuple[object, ...], list[int]] = {}
    for b, one in bins.items():
        counts = one.fit.mean_counts.tobytes(), one.expected.mean_counts.tobytes()
        pooled = repeats and reduced.contrast[b] > SMALLEST_CONTRAST
        groups.setdefault((id(one.of_cells), *counts) if pooled else (b,), []).append(b)
    found = {}
    for members in groups.values():
        odd = np.ones(len(members), bool)
        if len(members) > 2:
            odd = _deviating(bins, members, reduced, typical[members])
        for b in np.array(members)[odd].tolist():
            found[b] = PooledBin(bins[b], [b], np.ones(1), float(typical[b]))
        if not odd.all():
            rest = np.array(members)[~odd].tolist()
            found[rest[0]] = _pooled(bins, rest, reduced, typical[rest])
    return {b: found[b] for b in sorted(found)}


def clusters_of_pooled(request: Request, bins: Iterable[int]) -> Int[np.ndarray, " bin"]:
    """Return a number for each bin: those of one see the same speckle, with pooled ones each in its place."""
    scan, clusters, first = request.scan, request.clusters, list(bins)
    if request.options.friedel == "on" and len(np.unique(scan.scan_number)) > 1:
        clusters = clusters.copy()
        clusters[first] = friedel_clusters(scan.q[first], scan.phi[first])
    return clusters


def _shares(
    contrast: Float[np.ndarray, " member"], typical: Float[np.ndarray, " member"]
) -> tuple[Float[np.ndarray, " member"], float]:
    """Return the shares of bins in their mean as they count in a fit of pairs, and its weight."""
    weight = typical * contrast**2
    return typical * contrast * contrast[0] / weight.sum(), float(weight.sum() / contrast[0] ** 2)


def _pooled(
    bins: Mapping[int, BinNoise],
    members: list[int],
    reduced: ReducedProblem,
    typical: Float[np.ndarray, " member"],
) -> PooledBin:
    noises = [bins[b] for b in members]
    share, weight = _shares(reduced.contrast[members], typical)
    residuals = np.stack([one.residual for one in noises], axis=1)
    each = RepeatedResiduals(residuals, share, np.stack([one.least_pixels for one in noises]))
    first, none = noises[0], np.zeros_like(each.least)
    noise = replace(
        first,
        residual=residuals @ share,
        fit=noise_of_mean([one.fit for one in noises], share, none[:, :1]),
        expected=noise_of_mean([one.expected for one in noises], share, each.least),
        least_pixels=none[0],
        of_each=each,
    )
    return PooledBin(noise, members, share, weight)


def _deviating(
    bins: Mapping[int, BinNoise],
    members: list[int],
    reduced: ReducedProblem,
    typical: Float[np.ndarray, " member"],
) -> Bool[np.ndarray, " member"]:
    noises, contrast = [bins[b] for b in members], reduced.contrast[members]
    first, residuals = noises[0], np.stack([one.residual for one in noises], axis=1)
    weight = np.log(np.maximum([one.expected.weight for one in noises], np.finfo(float).tiny))
    best = int(weight.sum(0).argmax())
    other = weight[:, best] < weight.max(1) - MOST_BELOW
    pixels = np.array([max(one.expected.pixels[best], one.least_pixels[best]) for one in noises])
    covariance = first.of_cells.at(float(first.expected.mean_counts[best]))
    inverse, pairs = 1 / np.diag(covariance), first.cells.pairs * len(members)
    _, mix = means_of_cells(first.cells.intervals, inverse, pairs, MIN_PAIRS)
    own = np.stack([np.ones(len(inverse)), first.cells.f], axis=1)
    own = own[:, linear_columns(reduced)[0][members[0]]]
    left = own_parameters(own, first.cells.pairs[:, None] * own).left_by(mix)
    spread = (left * (covariance @ left)).sum(0)
    spread = np.maximum(spread, LEAST_LEFT * (mix * (covariance @ mix)).sum(0))
    share, _ = _shares(contrast, typical)
    apart = residuals - np.outer(residuals @ share, contrast / contrast[0])
    z = (mix.T @ apart) / np.sqrt(spread[:, None] / pixels)
    return other | (np.abs(z) > DEVIATES).any(0)
