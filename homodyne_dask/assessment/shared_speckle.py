"""Which bins see the same speckle, wholly or in part, and what that adds to covariances.

Bins of one cluster, opposite sectors of a ring, see the same speckle. Neighbouring rings or sectors share a
part of theirs where speckle is larger than the gap between them, or where pixels belong to both. Residuals
tell it: let S be the covariance of the means over cells of two bins that would see one speckle, and w = W r
the residuals of each, without what a fit and smooth deviations take, in standard deviations and uncorrelated.
Then w₁ᵀ G w₂ with G = W₁ S W₂ᵀ has the mean κ‖G‖², κ the part that they share, and the variance ‖G‖² if that
is none. Sums over all pairs at one distance give κ of this distance and its error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from homodyne_dask.assessment.cell_residuals import shares_with
from homodyne_dask.assessment.speckle_covariance import likely_covariance, regular
from homodyne_dask.assessment.speckle_noise import FEWEST_CELLS, BinNoise
from homodyne_dask.solver.array_shapes import BinNumbers, Matrix, Vector
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
DECAYED = 1e-6
"""f below which its logarithm is that of this."""
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

    def with_clusters(self, clusters: BinNumbers) -> "SharedSpeckle":
        return replace(self, clusters=clusters)

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
        bins = list(bins)
        _, members = np.unique(self.clusters[bins], return_counts=True)
        if not self.neighbours:
            return len(bins) / len(members)
        return float(np.mean(list(self.counts(bins).values())))

    def added(
        self, maps: Mapping[int, Float[np.ndarray, "n k"]], between: "Between"
    ) -> Float[np.ndarray, "n n"]:
        """Return the covariance that shared speckle adds; maps: of what has that `between` two bins."""
        n = len(next(iter(maps.values())))
        total = np.zeros((n, n))
        for a, b, share in self.pairs(maps):
            covariance = maps[a] @ between(a, b, share) @ maps[b].T
            total += covariance + covariance.T
        return total


Between = Callable[[int, int, float], Matrix]
"""The covariance of two bins, given the part of their speckle that they share."""


def shared_cells(first: BinNoise, other: BinNoise, share: float) -> Float[np.ndarray, "cell other"]:
    """Return the covariance of the means over cells of two bins that share speckle."""
    place = {cell: n for n, cell in enumerate(first.cells.intervals)}
    common = [(n, place[cell]) for n, cell in enumerate(other.cells.intervals) if cell in place]
    columns, rows = np.array(common, int).reshape(-1, 2).T
    shared = np.zeros((len(place), len(other.cells.intervals)))
    if share == 1:
        shared[:, columns] = first.of_cells.constant[:, rows]
    else:
        of_first, of_other = first.of_cells.constant, other.of_cells.constant
        common_cells = np.ix_(rows, rows), np.ix_(columns, columns)
        between = _between(of_first[common_cells[0]], of_other[common_cells[1]])
        shared[np.ix_(rows, columns)] = share * between
    return shared * shared_size(first, other)


def shared_fields(first: BinNoise, other: BinNoise, share: float) -> Matrix:
    """Return the covariance of the sums over pairs of two bins that share speckle."""
    of_first, of_other = first.of_fields.constant, other.of_fields.constant
    between = of_first if share == 1 else share * _between(of_first, of_other)
    return between * shared_size(first, other)


def shared_size(first: BinNoise, other: BinNoise) -> float:
    """Return the size of the noise that both have: 1/P of more pixels."""
    return float(min(fit.weight @ (1 / fit.pixels) for fit in (first.fit, other.fit)))


def _between(of_first: Matrix, of_other: Matrix) -> Matrix:
    """Return the covariance of two bins of one speckle whose f differ, with their mean correlations."""
    both = of_first, of_other
    sizes = [np.sqrt(np.maximum(np.diag(noise), np.finfo(float).tiny)) for noise in both]
    correlation = sum(noise / np.outer(size, size) for noise, size in zip(both, sizes, strict=True))
    return correlation / 2 * np.outer(*sizes)


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
    sizes = {(share.axis, share.distance): share.size for share in shares}
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
        phi = np.mod(scan.phi[used], turn)
        phi = np.where(turn - phi < SAME_ANGLE_TOLERANCE, 0.0, phi)
        angles = np.unique(np.round(phi[np.isfinite(phi)] / SAME_ANGLE_TOLERANCE))
        gaps = np.diff(angles) * SAME_ANGLE_TOLERANCE
        last = turn - gaps.sum()
        around = len(angles) if len(angles) > 2 and last <= WRAPS * np.median(gaps) else 0
        angle_of_bin = np.nan_to_num(np.round(phi / SAME_ANGLE_TOLERANCE), nan=-1.0)
        number = np.where(angle_of_bin < 0, -1, np.searchsorted(angles, angle_of_bin))
        places: dict[tuple[int, int, int], list[int]] = {}
        rings = ring_numbers(scan.q[used])
        for b, ring, angle in zip(used, rings.tolist(), number.tolist(), strict=True):
            places.setdefault((int(scan.scan_number[b]), ring, angle), []).append(b)
        return cls(places, around, clusters)

    def pairs(self, axis: str, distance: int) -> list[tuple[int, int]]:
        """Return next neighbours at distance 1, and others, along the rings or around one."""
        return self.pairs_apart(*((distance, 0) if axis == "rings" else (0, distance)))

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


def _shares(
    axis: str,
    pairs_at: Callable[[int], list[tuple[int, int]]],
    bins: Mapping[int, BinNoise],
    whitened_of: "Callable[[int], _Whitened | None]",
) -> Iterator[Share]:
    """Yield the shares of next neighbours, and of those behind them, while they are above their errors.

    None where bins that are apart share nearly as much.
    """
    estimates = list[_Estimate]()
    for distance in range(1, MOST_DISTANCE + 1):
        estimate = _estimate(pairs_at(distance), bins, whitened_of)
        if estimate is None or (distance == 1 and estimate.p > LEVEL):
            break
        estimates.append(estimate)
    if not estimates:
        return
    next_to, apart = estimates[0].size, estimates[1:] if len(estimates) < 3 else estimates[2:APART]
    far = _Estimate(*map(sum, zip(*apart, strict=True))) if apart else None
    # of speckle of one size the shares fall as powers of the first
    if far is not None and far.size > max(next_to / 2, next_to**3) and far.p < LEVEL_APART:
        return
    most = 1.0
    for distance, estimate in enumerate(estimates, 1):
        if distance > 1 and estimate.p > LEVEL_FARTHER:
            return
        most = min(estimate.size, most)
        yield Share(axis, distance, most, estimate.p)


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
            whole = shared_cells(bins[a], bins[b], np.nextafter(1.0, 0.0))
            between = of_first.to @ whole @ of_other.to.T
            score += float(of_first.residual @ between @ of_other.residual)
            information += float((between**2).sum())
    return _Estimate(score, information) if information else None


class _Whitened(NamedTuple):
    to: Float[np.ndarray, "k cell"]
    """From residuals of cells to uncorrelated ones of unit variance."""
    residual: Vector


def _whitened(noise: BinNoise, frames: int) -> _Whitened | None:
    """Return residuals without what a fit and smooth deviations of a bin take; None with too few cells."""
    columns = np.column_stack([noise.columns, _alternatives(noise, frames)])
    scaled = columns / np.maximum(np.abs(columns).max(0), np.finfo(float).tiny)
    vectors, values, _ = np.linalg.svd(scaled)
    outside = vectors[:, int((values > 1e-10 * values[0]).sum()) :].T
    if len(outside) < FEWEST_CELLS:
        return None
    covariance = likely_covariance(noise.of_cells, noise.fit)
    root = np.linalg.cholesky(regular(outside @ covariance @ outside.T))
    to = np.linalg.solve(root, outside)
    return _Whitened(to, to @ noise.residual)


def _alternatives(noise: BinNoise, frames: int) -> Float[np.ndarray, "cell k"]:
    """Return changes of c2 by other rates, another shape, drifts of contrast and baseline, a loss of speckle
    at any age, and other frames: a misfit of the model makes neighbours alike, too."""
    cells = np.array(noise.cells.intervals)
    age = (cells[:, :2].sum(1) + cells.sum(1) - 1) / (4 * frames)
    f = np.clip(noise.cells.f, DECAYED, 1 - DECAYED)
    x = -np.log(f)
    bends = np.cos(np.pi * np.arange(1, 4) * np.sqrt(np.clip(age, 0, 1))[:, None])
    columns = [(f * x)[:, None] * bends, f * x * np.log(x), f * age, age]
    columns.append(cells[:, 2:3] == np.unique(cells[:, 2]))
    for low, end in sorted({(cell.first, cell.stop) for cell in noise.cells.intervals}):
        columns.append(shares_with(cells, low, end))
        for lost in {low, (low + end) // 2}:
            before, after = ((0, lost), (lost, cells.max() * 2))
            columns.append(f * (shares_with(cells, *before) + shares_with(cells, *after) - 1))
    return np.column_stack(columns)
