"""Which bins see the same speckle, wholly or in part, and what that adds to covariances.

Bins of one cluster, opposite sectors of a ring, see the same speckle. Neighbouring rings or sectors share a
part of theirs where speckle is larger than the gap between them, or where pixels belong to both. Residuals
tell it: let S be the covariance of the means over cells of two bins that would see one speckle, and w = W r
the residuals of each, without what a fit and smooth deviations take, in standard deviations and uncorrelated.
Then w₁ᵀ G w₂ with G = W₁ S W₂ᵀ has the mean κ‖G‖², κ the part that they share, and the variance ‖G‖² if that
is none. Sums over all pairs at one distance give κ of this distance and its error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from homodyne_dask.assessment.alternatives import DECAYED, bends_of_age, shares_at_ages
from homodyne_dask.assessment.speckle_covariance import likely_covariance, outside_of, regular
from homodyne_dask.assessment.speckle_noise import FEWEST_CELLS, BinNoise
from homodyne_dask.solver.array_shapes import BinNumbers, Matrix, Moved, PerBin, Vector
from homodyne_dask.store.rings_and_clusters import SAME_ANGLE_TOLERANCE, ring_numbers
from homodyne_dask.store.scan import Scan

LEVEL = 0.01
"""Probability by chance of so large a share of next neighbours, below which it counts."""
LEVEL_FARTHER, LEVEL_APART = 0.05, 0.02
"""The same of bins behind those that share speckle, and of bins apart that share nearly as much: then all
have something in common, which is no speckle."""
MOST_DISTANCE, APART = 10, 5
"""Farthest neighbours that are looked at, and those up to which bins are compared with next neighbours."""
MOST_PAIRS = 60
"""Pairs at one distance from which a share is estimated."""
ENOUGH_CELLS = 20
"""More cells than columns, with fewer of which only smooth misfits are left out of the residuals."""
MOST_JITTER = 5.0
"""Degrees by which bins at one angle may differ, at most."""
WRAPS = 1.5
"""Times the usual gap between sectors, up to which the last is a neighbour of the first."""


class Share(NamedTuple):
    axis: str
    """'rings' or 'sectors'."""
    distance: int
    """1 of next neighbours."""
    size: float
    """Part of the speckle that bins at this distance share, from 0 to 1."""
    p: float
    """Probability of so large a share if they share nothing."""


@dataclass(frozen=True)
class SharedSpeckle:
    clusters: BinNumbers
    """Bins with the same number see the same speckle."""
    neighbours: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Of each bin, the bins of other clusters that share a part of its speckle, with this part."""
    shares: tuple[Share, ...] = ()
    """What residuals showed; none where neighbours are independent."""

    def pairs(self, bins: Iterable[int]) -> Iterator[tuple[int, int, float]]:
        """Yield pairs of these bins that share speckle, the earlier first, with the part they share."""
        of_cluster, earlier = dict[int, list[int]](), set[int]()
        for b in bins:
            members = of_cluster.setdefault(int(self.clusters[b]), [])
            yield from ((a, b, 1.0) for a in members)
            yield from ((a, b, s) for a, s in self.neighbours.get(b, {}).items() if a in earlier)
            members.append(b)
            earlier.add(b)

    def counts(self, bins: Iterable[int]) -> dict[int, float]:
        """Return of each of these bins how many of them see its speckle, itself included."""
        bins = list(bins)
        counts = dict.fromkeys(bins, 1.0)
        for a, b, share in self.pairs(bins):
            counts[a] += share
            counts[b] += share
        return counts

    def mean_count(self, bins: Iterable[int]) -> float:
        """Return how many of these bins see one speckle pattern, on average: they tell as much as one."""
        counts = list(self.counts(bins).values())
        return len(counts) / sum(1 / count for count in counts)

    def added(self, maps: Mapping[int, Float[np.ndarray, "n k"]], between: "Between") -> "Added":
        """Return what shared speckle adds; maps: of what has that covariance `between` two bins."""
        n = len(next(iter(maps.values())))
        total, variances = np.zeros((n, n)), dict[tuple[int, int], Vector]()
        for a, b, share in self.pairs(maps):
            product = share * (maps[a] @ between(a, b) @ maps[b].T)
            total += product + product.T
            variances[a, b] = np.diag(product)
        return Added(total, variances, {(a, b): share for a, b, share in self.pairs(maps)})


Between = Callable[[int, int], Matrix]
"""The covariance of two bins that see the same speckle."""


class Added(NamedTuple):
    covariance: Float[np.ndarray, "n n"]
    variances: dict[tuple[int, int], Vector]
    """Half of what each pair of bins adds to the variances."""
    shares: dict[tuple[int, int], float]


def shared_cells(first: BinNoise, other: BinNoise) -> Float[np.ndarray, "cell other"]:
    """Return the covariance of the means over cells of two bins that see the same speckle."""
    rows, columns = _common_cells(first, other)
    of_first, of_other = first.of_cells.constant, other.of_cells.constant
    correlation = _correlation(of_first)[:, rows]
    correlation[rows] = (correlation[rows] + _correlation(of_other)[np.ix_(columns, columns)]) / 2
    shared = np.zeros((len(of_first), len(of_other)))
    shared[:, columns] = correlation * np.outer(_deviation(of_first), _deviation(of_other)[columns])
    return shared * _size(first, other)


def shared_fields(first: BinNoise, other: BinNoise) -> Matrix:
    """Return the covariance of the sums over pairs of two bins that see the same speckle.

    Derivatives of f may have another sign in the other bin: by φ0 those of sectors on either side of it.
    """
    of_first, of_other = first.of_fields.constant, other.of_fields.constant
    alike = np.append([1.0, 1.0], _alike_slopes(first, other))
    correlation = _correlation(of_first) * alike + alike[:, None] * _correlation(of_other)
    correlation /= 2
    sizes = np.outer(_deviation(of_first), _deviation(of_other))
    return correlation * sizes * _size(first, other)


def _common_cells(first: BinNoise, other: BinNoise) -> Int[np.ndarray, "2 cell"]:
    """Return the numbers in each bin of the cells that both have."""
    place = {cell: n for n, cell in enumerate(first.cells.intervals)}
    common = [(place[cell], n) for n, cell in enumerate(other.cells.intervals) if cell in place]
    return np.array(common, int).reshape(-1, 2).T


def _alike_slopes(first: BinNoise, other: BinNoise) -> Moved:
    """Return the cosines between the derivatives of f of two bins, over the cells that both have."""
    rows, columns = _common_cells(first, other)
    pairs = first.cells.pairs[rows]
    of_first, of_other = first.cells.slopes[:, rows], other.cells.slopes[:, columns]
    sizes = [(slopes**2 @ pairs) ** 0.5 for slopes in (of_first, of_other)]
    return (of_first * of_other) @ pairs / np.maximum(sizes[0] * sizes[1], np.finfo(float).tiny)


def _size(first: BinNoise, other: BinNoise) -> float:
    """Return the size of the noise that both have: 1/P of more pixels, in units of their contrasts."""
    ratios = first.contrast_ratio, other.contrast_ratio
    fits_and_ratios = zip((first.fit, other.fit), ratios, strict=True)
    least = min(float(fit.weight @ (1 / fit.pixels)) / ratio**2 for fit, ratio in fits_and_ratios)
    return ratios[0] * ratios[1] * least


def _deviation(covariance: Matrix) -> Vector:
    return np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))


def _correlation(covariance: Matrix) -> Matrix:
    return covariance / np.outer(_deviation(covariance), _deviation(covariance))


def shared_speckle(scan: Scan, clusters: BinNumbers, bins: Mapping[int, BinNoise]) -> SharedSpeckle:
    """Return what bins share, by their clusters and by the residuals of neighbours."""
    places = _Places.of(scan, clusters, list(bins))
    whitened_of = cache(lambda b: _whitened(bins[b], scan.n_frames))
    shares = tuple(
        share
        for axis in ("rings", "sectors")
        for share in _shares(axis, partial(places.pairs, axis), bins, whitened_of)
    )
    neighbours: dict[int, dict[int, float]] = {}
    sizes = _possible(shares)
    reach = {axis: sum(share.axis == axis for share in shares) for axis in ("rings", "sectors")}
    for along, around in product(
        range(reach["rings"] + 1), range(-reach["sectors"], reach["sectors"] + 1)
    ):
        if (along, around) <= (0, 0):
            continue
        share = sizes.get(("rings", along), 1.0) * sizes.get(("sectors", abs(around)), 1.0)
        for a, b in places.pairs_apart(along, around):
            neighbours.setdefault(a, {})[b] = share
            neighbours.setdefault(b, {})[a] = share
    return SharedSpeckle(clusters, neighbours, shares)


def _possible(shares: Iterable[Share]) -> dict[tuple[str, int], float]:
    """Return the shares by axis and distance, all smaller where no speckle could have them: where a sum of
    bins with some weights would have a negative variance."""
    sizes, waves = {}, np.linspace(0, np.pi, 181)
    for axis in {share.axis for share in shares}:
        of_axis = [share for share in shares if share.axis == axis]
        spectrum = sum(2 * share.size * np.cos(share.distance * waves) for share in of_axis)
        most = 1 / max(-float(np.min(spectrum)), 1.0)
        sizes |= {(axis, share.distance): most * share.size for share in of_axis}
    return sizes


class _Places(NamedTuple):
    """Bins by their place: scan, and number of the ring and of the angle."""

    bins: dict[tuple[int, int, int], list[int]]
    around: int
    """Angles of a full turn; 0 where the last is no neighbour of the first."""
    clusters: BinNumbers

    @classmethod
    def of(cls, scan: Scan, clusters: BinNumbers, used: list[int]) -> "_Places":
        whole = len(np.unique(clusters[used])) == len(used)
        turn = 360.0 if whole else 180.0  # opposite sectors see the same speckle
        rings = ring_numbers(scan.q[used])
        if np.isnan(scan.q[used]).all() and np.isnan(scan.phi[used]).all():
            rings = scan.label[used]  # nothing else says which bins are neighbours
        rings_of_scans = rings + (1 + rings.max()) * scan.scan_number[used]
        number, angles = _angles(scan.phi[used], rings_of_scans, turn)
        gaps = np.diff(angles)
        last = turn - gaps.sum()
        around = len(angles) if len(angles) > 2 and last <= WRAPS * np.median(gaps) else 0
        places: dict[tuple[int, int, int], list[int]] = {}
        for b, ring, angle in zip(used, rings.tolist(), number.tolist(), strict=True):
            places.setdefault((int(scan.scan_number[b]), ring, angle), []).append(b)
        return cls(places, around, clusters)

    def pairs(self, axis: str, distance: int) -> list[tuple[int, int]]:
        """Return a pair of bins for each pair of speckle patterns that are so far apart on the axis."""
        along, around = (distance, 0) if axis == "rings" else (0, distance)
        of_clusters = {
            frozenset((int(self.clusters[a]), int(self.clusters[b]))): (a, b)
            for a, b in reversed(self.pairs_apart(along, around))
        }
        return sorted(of_clusters.values())

    def pairs_apart(self, along: int, around: int) -> list[tuple[int, int]]:
        if self.around and abs(around) > self.around // 2:
            return []
        pairs = []
        for (scan, ring, angle), members in self.bins.items():
            if around and angle < 0:
                continue
            other = angle + around
            other = other % self.around if self.around else other
            if around and other < 0:
                continue
            others = self.bins.get((scan, ring + along, other), [])
            pairs += [
                (a, b) for a in members for b in others if self.clusters[a] != self.clusters[b]
            ]
        return sorted({(min(pair), max(pair)) for pair in pairs})


class _Estimate(NamedTuple):
    score: float
    information: float

    @property
    def size(self) -> float:
        return self.score / self.information

    @property
    def p(self) -> float:
        """The probability of so large a share if there is none."""
        return float(ndtr(-self.score / self.information**0.5))


def _angles(
    phi: PerBin, rings: Int[np.ndarray, " bin"], turn: float
) -> tuple[Int[np.ndarray, " bin"], Float[np.ndarray, " angle"]]:
    """Return the number of the angle of each bin, -1 where it is unknown, and the angles in ascending order.

    turn: degrees after which angles are the same. Angles of rings may differ by a part of their spacing.
    """
    with_angle = np.flatnonzero(np.isfinite(phi))
    spacings = [
        np.diff(np.sort(np.mod(phi[with_angle][rings[with_angle] == n], 360))) for n in set(rings)
    ]
    spacing = np.concatenate([*spacings, [2 * MOST_JITTER]])
    width = spacing[spacing > SAME_ANGLE_TOLERANCE].min() / 2
    angle = np.mod(phi[with_angle], turn)
    angle = np.where(turn - angle < width / 2, angle - turn, angle)
    order, number = np.argsort(angle), np.full(len(phi), -1)
    begins = np.diff(angle[order], prepend=-np.inf) > width
    number[with_angle[order]] = np.cumsum(begins) - 1
    return number, angle[order][begins]


def _shares(
    axis: str,
    pairs_at: Callable[[int], list[tuple[int, int]]],
    bins: Mapping[int, BinNoise],
    whitened_of: "Callable[[int], _Whitened | None]",
) -> Iterator[Share]:
    """Yield the shares of next neighbours, and of those behind them, while they are above their errors."""
    estimates = list[_Estimate]()
    for distance in range(1, MOST_DISTANCE + 1):
        estimate = _estimate(pairs_at(distance), bins, whitened_of)
        if estimate is None or (distance == 1 and estimate.p > LEVEL):
            break
        estimates.append(estimate)
    if not estimates or _all_are_alike(estimates):
        return
    most = 1.0
    for distance, estimate in enumerate(estimates, 1):
        if distance > 1 and estimate.p > LEVEL_FARTHER:
            return
        most = min(estimate.size, most)
        yield Share(axis, distance, most, estimate.p)


def _all_are_alike(estimates: list[_Estimate]) -> bool:
    """Return whether bins apart share nearly as much as next neighbours: that is a misfit, and no speckle."""
    apart = estimates[1:] if len(estimates) < 3 else estimates[2:APART]
    if not apart:
        return False
    far, next_to = _Estimate(*map(sum, zip(*apart, strict=True))), estimates[0].size
    # of speckle of one size the shares fall as powers of the first
    least = max(next_to / 2, min(next_to, 1.0) ** 3)
    return far.size > least and far.p < LEVEL_APART


def _estimate(
    pairs: list[tuple[int, int]],
    bins: Mapping[int, BinNoise],
    whitened_of: "Callable[[int], _Whitened | None]",
) -> _Estimate | None:
    """Return what some of these pairs tell of their share; None where there is nothing."""
    score = information = 0.0
    chosen = np.linspace(0, len(pairs) - 1, min(len(pairs), MOST_PAIRS)).astype(int)
    for a, b in (pairs[n] for n in chosen):
        of_first, of_other = whitened_of(a), whitened_of(b)
        if of_first is not None and of_other is not None:
            between = of_first.to @ shared_cells(bins[a], bins[b]) @ of_other.to.T
            score += float(of_first.residual @ between @ of_other.residual)
            information += float((between**2).sum())
    return _Estimate(score, information) if information else None


class _Whitened(NamedTuple):
    to: Float[np.ndarray, "k cell"]
    """From residuals of cells to uncorrelated ones of unit variance."""
    residual: Vector


def _whitened(noise: BinNoise, frames: int) -> _Whitened | None:
    """Return residuals without what a fit and smooth deviations of a bin take; None with too few cells."""
    smooth, at_ages = _alternatives(noise, frames)
    outside = outside_of(np.column_stack([noise.columns, smooth, at_ages]))
    if len(outside) < ENOUGH_CELLS:  # of a short record
        outside = outside_of(np.column_stack([noise.columns, smooth]))
    if len(outside) < FEWEST_CELLS:
        return None
    covariance = likely_covariance(noise.of_cells, noise.fit)
    root = np.linalg.cholesky(regular(outside @ covariance @ outside.T))
    to = np.linalg.solve(root, outside)
    return _Whitened(to, to @ noise.residual)


def _alternatives(
    noise: BinNoise, frames: int
) -> tuple[Float[np.ndarray, "cell smooth"], Float[np.ndarray, "cell k"]]:
    """Return changes of c2 by other rates, another shape, and drifts of contrast and baseline, and by another
    contrast at a lag or of frames, or a loss of speckle at any age: a misfit makes neighbours alike, too."""
    cells = np.array(noise.cells.intervals)
    age = (cells[:, :2].sum(1) + cells.sum(1) - 1) / (4 * frames)
    f = np.clip(noise.cells.f, DECAYED, 1 - DECAYED)
    x = -np.log(f)
    of_ages, across = shares_at_ages(tuple(noise.cells.intervals))
    smooth = [(f * x)[:, None] * bends_of_age(age), f * x * np.log(x), f * age, age]
    at_lags = cells[:, 2:3] == np.unique(cells[:, 2])
    return np.column_stack(smooth), np.column_stack(
        [at_lags, *of_ages.values(), *(f * share for share in across.values())]
    )
