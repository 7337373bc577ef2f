"""Which bins see the same speckle, wholly or in part, and what that adds to covariances.

Bins of one cluster, opposite sectors of a ring, see the same speckle. Neighbouring rings or sectors share a
part of theirs where speckle is larger than the gap between them, or where pixels belong to both. Residuals
tell it. Let S be the covariance of the means over cells of two bins that would see one speckle. Bins at the
distance d then have the covariance κ(d) S, with κ(d) = ρ^(4 d^p) of fields with the correlation ρ of next
neighbours. The likelihood of all bins of a row is restricted to what neither the fit nor a misfit that all of
them have can change (Patterson and Thompson 1971). It is averaged over κ(1), evenly, and p; as likely
beforehand is that nothing is shared.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import combinations, pairwise, product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtrc

from homodyne_dask.assessment.alternatives import DECAYED, bends_of_age, shares_at_ages
from homodyne_dask.assessment.speckle_covariance import (
    dpotrf,
    dtrtrs,
    likely_covariance,
    outside_of,
    regular,
    variances,
)
from homodyne_dask.assessment.speckle_noise import FEWEST_CELLS, BinNoise
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.array_shapes import (
    BinNumbers,
    Matrix,
    Moved,
    PerBin,
    PerCell,
    Vector,
)
from homodyne_dask.store.rings_and_clusters import SAME_ANGLE_TOLERANCE, ring_numbers
from homodyne_dask.store.scan import Scan

LEVEL = 0.01
"""Probability by chance of so large a share of next neighbours, below which it is said."""
CORRELATIONS = np.linspace(0, 0.92, 13) ** 0.25
"""Of the fields of next neighbours, with evenly spaced shares, over which the likelihood is averaged: if all
correlations were as likely, most shares would be small, and errors of few bins too small by 8 %."""
COARSE, FAR_BELOW = (2, 4, 6, 8, 10, 12), 8.0
"""Numbers of those at which it is computed, in ascending order, until its logarithm is so far below the
largest; and beside the likely ones."""
IMPOSSIBLE = -1e9
"""Logarithm of the likelihood where no speckle is correlated like this."""
POWERS = 1.0, 2.0, 0.0
"""Of the distance, with which the logarithm of the correlation falls: exponential, Gaussian, and not at all.
Deviations that all bins have in common are a misfit, and no speckle."""
MOST_DISTANCE = 20
"""Farthest neighbours that may share speckle."""
SMALLEST = 0.02
"""Share below which bins are independent."""
LONGEST_ROW, BINS_OF_PIECE = 12, 8
"""Bins of a row whose likelihood is computed as a whole, and of the pieces of a longer one: time grows with
their cube."""
MOST_ROWS, MOST_BINS = 9, 72
"""Rows whose likelihood is computed, and bins of all of them."""
MOST_DIRECTIONS = 40
"""Combinations of cells of a bin, those with the most speckle. By 24, independent bins are more often taken
for such that share."""
LEAST_INFORMATION = 0.1
"""Of a row on its share, in which the noise is that of counting: the share does not matter, either."""
ENOUGH_VALUES = 20
"""More values of a row than columns, with fewer of which only smooth misfits are left out."""
MOST_JITTER = 5.0
"""Degrees by which bins at one angle may differ, at most."""
KINDS = 256
"""Pairs of kinds of noise whose common cells are kept: bins that follow each other are of few kinds."""
AXES = "rings", "sectors"
MARGIN = 5.0
"""Logarithm of the likelihood by which bins that are all alike have to surpass shared speckle."""
WRAPS = 1.5
"""Times the usual gap between sectors, up to which the last is a neighbour of the first."""


class Share(NamedTuple):
    axis: str
    """'rings' or 'sectors'."""
    size: float
    """Part of the speckle that next neighbours share, from 0 to 1."""
    p: float
    """Probability of so large a share if they share nothing."""


@dataclass(frozen=True)
class SharedSpeckle:
    clusters: BinNumbers
    """Bins with the same number see the same speckle."""
    neighbours: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Of each bin, the bins of other clusters that share a part of its speckle, with this part."""
    shares: tuple[Share, ...] = ()
    """What residuals showed; none where neighbours may be independent."""
    uncertainty: float = 0.0
    """Standard deviation of the shares over their size."""

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
        """Return of each of these bins how many of them see its speckle, itself included.

        A share that residuals do not show makes no deviation of a model less improbable.
        """
        bins = list(bins)
        counts = dict.fromkeys(bins, 1.0)
        for a, b, share in self.pairs(bins):
            if self.shares or share == 1:
                counts[a] += share
                counts[b] += share
        return counts

    def mean_count(self, bins: Iterable[int]) -> float:
        """Return how many of these bins see one speckle pattern, on average: they tell as much as one."""
        counts = list(self.counts(bins).values())
        return len(counts) / sum(1 / count for count in counts)

    def added(self, bins: Iterable[int], size: int, between: "Between") -> "Added":
        """Return what shared speckle adds to covariances of this size; between: of sums over two bins."""
        total, variances = np.zeros((size, size)), dict[tuple[int, int], Vector]()
        shares = {(a, b): share for a, b, share in self.pairs(bins)}
        for pair, share in shares.items():
            total += (product := share * between(*pair))
            variances[pair] = np.diag(product)
        return Added(total + total.T, variances, shares, self.uncertainty)


Between = Callable[[int, int], Matrix]
"""The covariance of sums over two bins that see the same speckle."""


class Added(NamedTuple):
    covariance: Float[np.ndarray, "n n"]
    variances: dict[tuple[int, int], Vector]
    """Half of what each pair of bins adds to the variances."""
    shares: dict[tuple[int, int], float]
    uncertainty: float = 0.0
    """Standard deviation of the shares below 1, over their size."""


class SpeckleOfSums(NamedTuple):
    """Sums over the cells of a bin, with what the speckle of cells is to them."""

    noise: BinNoise
    weights: Float[np.ndarray, "sum cell"]
    """In the sums, times the standard deviations of the speckle of cells."""
    correlated: Float[np.ndarray, "sum cell"]
    """The covariances of the sums with the cells over these deviations."""

    @classmethod
    def of(cls, noise: BinNoise, weights: Float[np.ndarray, "sum cell"]) -> "SpeckleOfSums":
        deviations = _deviations(noise)
        return cls(noise, weights * deviations, weights @ noise.of_cells.constant / deviations)

    def covariance_with(self, other: "SpeckleOfSums") -> Float[np.ndarray, "sum other"]:
        """Return that with sums over this bin, or over another one which sees the same speckle."""
        size = _size(self.noise, other.noise)
        if self.noise.of_cells is other.noise.of_cells:
            return self.correlated @ other.weights.T * size
        kinds = _Kind(self.noise), _Kind(other.noise)
        rows, columns = _common_cells(*kinds)
        (alone, of_alone), (alone_in_other, of_other) = _cells_of_one(*kinds)
        # the mean of both correlations; of cells that this bin alone has with the common ones, its own
        first = self.correlated[:, rows] + self.weights[:, alone] @ of_alone
        second = other.correlated[:, columns] - other.weights[:, alone_in_other] @ of_other
        both = first @ other.weights[:, columns].T + self.weights[:, rows] @ second.T
        return both * (size / 2)


def _deviations(noise: BinNoise) -> PerCell:
    return np.sqrt(np.maximum(noise.of_cells.constant.diagonal(), np.finfo(float).tiny))


class _Kind:
    """The noise of a bin but for its size, which is one object for all bins of a group."""

    def __init__(self, noise: BinNoise) -> None:
        self.noise = noise

    def __hash__(self) -> int:
        return id(self.noise.of_cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.noise.of_cells is other.noise.of_cells


def shared_fields(first: BinNoise, other: BinNoise) -> Matrix:
    """Return the covariance of the sums over pairs of two bins that see the same speckle.

    Derivatives of f may have another sign in the other bin: by φ0 those of sectors on either side of it.
    """
    alike = np.append([1.0, 1.0], _alike_slopes(_Kind(first), _Kind(other)))
    (of_first, size), (of_other, size_of_other) = first.speckle_of_fields, other.speckle_of_fields
    correlation = (of_first * alike + alike[:, None] * of_other) / 2
    return correlation * (size[:, None] * size_of_other) * _size(first, other)


@lru_cache(KINDS)
def _common_cells(first: _Kind, other: _Kind) -> Int[np.ndarray, "2 cell"]:
    """Return the numbers in each bin of the cells that both have."""
    place = {cell: n for n, cell in enumerate(first.noise.cells.intervals)}
    of_first = np.array([place.get(cell, -1) for cell in other.noise.cells.intervals], int)
    return np.stack([of_first, np.arange(len(of_first))])[:, of_first >= 0]


@lru_cache(KINDS)
def _cells_of_one(first: _Kind, other: _Kind) -> list[tuple[Int[np.ndarray, " cell"], Matrix]]:
    """Return the cells of each bin that the other has not, and their correlations with common ones."""
    of_each = []
    for kind, common in zip((first, other), _common_cells(first, other), strict=True):
        deviations, of_pixel = _deviations(kind.noise), kind.noise.of_cells.constant
        cells = np.delete(np.arange(len(of_pixel)), common)
        size = np.outer(deviations[cells], deviations[common])
        of_each.append((cells, of_pixel[cells][:, common] / size))
    return of_each


@lru_cache(KINDS)
def _alike_slopes(first: _Kind, other: _Kind) -> Moved:
    """Return the cosines between the derivatives of f of two bins, over the cells that both have."""
    rows, columns = _common_cells(first, other)
    pairs = first.noise.cells.pairs[rows]
    of_first, of_other = first.noise.cells.slopes[:, rows], other.noise.cells.slopes[:, columns]
    sizes = [(slopes**2 @ pairs) ** 0.5 for slopes in (of_first, of_other)]
    return (of_first * of_other) @ pairs / np.maximum(sizes[0] * sizes[1], np.finfo(float).tiny)


def _size(first: BinNoise, other: BinNoise) -> float:
    """Return the size of the noise that both have, the geometric mean of 1/P: the less of two estimates of
    the same is too small."""
    return float(np.sqrt(first.inverse_pixels * other.inverse_pixels))


def shared_speckle(scan: Scan, clusters: BinNumbers, bins: Mapping[int, BinNoise]) -> SharedSpeckle:
    """Return what bins share, by their clusters and by the residuals of neighbours."""
    places, likely = _Places.of(scan, clusters, bins), likely_shares(scan, clusters, bins)
    neighbours: dict[int, dict[int, float]] = {}
    of_rings, of_sectors = (np.append(1.0, likely[axis].of_neighbours) for axis in AXES)
    for along, around in product(range(len(of_rings)), range(1 - len(of_sectors), len(of_sectors))):
        if (along, around) <= (0, 0):
            continue
        share = float(of_rings[along] * of_sectors[abs(around)])
        if share <= SMALLEST:
            continue
        for a, b in places.pairs_apart(along, around):
            neighbours.setdefault(a, {})[b] = share
            neighbours.setdefault(b, {})[a] = share
    shares = [Share(axis, float(likely[axis].sizes[0]), likely[axis].p) for axis in AXES]
    seen = tuple(share for share in shares if share.p <= LEVEL)
    reaching = [likely[axis] for axis in AXES if len(likely[axis].of_neighbours)]
    size = np.array([of_axis.sizes[0] for of_axis in reaching])
    deviation = size * [of_axis.uncertainty for of_axis in reaching]
    uncertainty = float(np.linalg.norm(deviation) / size.sum()) if reaching else 0.0
    return SharedSpeckle(clusters, neighbours, seen, uncertainty)


_Row = tuple[list[int], Int[np.ndarray, "bin bin"]]
"""Bins, and their distances: 1 of next neighbours."""


class _LikelyShares(NamedTuple):
    sizes: Float[np.ndarray, " distance"]
    """Of bins at the distances 1, 2 ..., averaged over the likelihood."""
    uncertainty: float
    """Standard deviation of the first over its size."""
    p: float
    """The probability of so large a likelihood if nothing is shared."""

    @property
    def of_neighbours(self) -> Float[np.ndarray, " neighbour"]:
        """The sizes that are not negligible."""
        return self.sizes[: int((self.sizes > SMALLEST).cumprod().sum())]


class _Places(NamedTuple):
    """Bins by their place: scan, and number of the ring and of the angle."""

    bins: dict[tuple[int, int, int], list[int]]
    around: int
    """Angles of a full turn; 0 where the last is no neighbour of the first."""
    clusters: BinNumbers

    @classmethod
    def of(cls, scan: Scan, clusters: BinNumbers, used: Collection[int]) -> "_Places":
        """Return the places of used bins; those between them count for their distances."""
        whole = len(np.unique(clusters)) == len(clusters)
        turn = 360.0 if whole else 180.0  # opposite sectors see the same speckle
        rings = ring_numbers(scan.q)
        if np.isnan(scan.q).all() and np.isnan(scan.phi).all():
            rings = scan.label  # nothing else says which bins are neighbours
        rings_of_scans = rings + (1 + rings.max()) * scan.scan_number
        number, angles = _angles(scan.phi, rings_of_scans, turn)
        number, around = _in_order(number, angles, turn)
        for ring in np.unique(rings_of_scans[number < 0]):  # at unknown angles: in their order
            unknown = np.flatnonzero((rings_of_scans == ring) & (number < 0))
            number[unknown] = -1 - np.arange(len(unknown))
        places: dict[tuple[int, int, int], list[int]] = {}
        for b in sorted(used):
            place = int(scan.scan_number[b]), int(rings[b]), int(number[b])
            places.setdefault(place, []).append(b)
        return cls(places, around, clusters)

    def rows(self, axis: str) -> list[_Row]:
        """Return bins that follow each other on the axis, one of each place, with their distances."""
        rows: dict[tuple[int, int], dict[int, int]] = {}
        for (scan, ring, angle), members in sorted(self.bins.items()):
            row, place = (angle, ring) if axis == "rings" else (ring, angle)
            if axis == "rings" or angle >= 0:
                rows.setdefault((scan, row), {})[place] = members[0]
        pieces = list[_Row]()
        for row in rows.values():
            number = 1 if len(row) <= LONGEST_ROW else -(-len(row) // BINS_OF_PIECE)
            for piece in np.array_split(list(row), number):
                apart = np.abs(np.subtract.outer(piece, piece))
                if axis == "sectors" and self.around:
                    apart = np.minimum(apart, self.around - apart)
                if len(piece) > 1:
                    pieces.append(([row[place] for place in piece.tolist()], apart))
        return pieces

    def pairs_apart(self, along: int, around: int) -> list[tuple[int, int]]:
        if self.around and abs(around) > self.around // 2:
            return []
        pairs = []
        for (scan, ring, angle), members in self.bins.items():
            if around and angle < 0:
                continue
            other = angle + around
            other = other % self.around if self.around and around else other
            if around and other < 0:
                continue
            others = self.bins.get((scan, ring + along, other), [])
            pairs += [
                (a, b) for a in members for b in others if self.clusters[a] != self.clusters[b]
            ]
        return sorted({(min(pair), max(pair)) for pair in pairs})


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


def _in_order(
    number: Int[np.ndarray, " bin"], angles: Float[np.ndarray, " angle"], turn: float
) -> tuple[Int[np.ndarray, " bin"], int]:
    """Return the numbers from behind the widest gap on, and the angles of a full turn, 0 without one."""
    if len(angles) < 3:
        return number, 0
    gaps = np.diff(np.append(angles, angles[0] + turn))
    widest = int(gaps.argmax())
    if gaps[widest] <= WRAPS * np.median(gaps):
        return number, len(angles)
    return np.where(number < 0, number, (number - widest - 1) % len(angles)), 0


class _SpeckleOfCells(NamedTuple):
    """The cells of a bin in combinations that are uncorrelated and of unit variance, without what offset and
    contrast take; those with the most speckle."""

    sums: SpeckleOfSums
    residual: Vector
    """These combinations of the residuals."""
    speckle: Vector
    """The part of speckle in the variance of each."""
    changes: dict[tuple[str, object], Vector]
    """Of these combinations by fitted parameters, and by what the model may lack."""

    @classmethod
    def of(cls, noise: BinNoise, frames: int, fit: str = "") -> "_SpeckleOfCells":
        """fit: the name of that by which theta was found."""
        outside = outside_of(noise.columns[:, :2])
        covariance = likely_covariance(noise.of_cells, noise.fit)
        root = np.linalg.cholesky(regular(outside @ covariance @ outside.T))
        white, _ = dtrtrs(root, outside, lower=1)
        sums = SpeckleOfSums.of(noise, white)
        parts, vectors = np.linalg.eigh(sums.covariance_with(sums))
        to = vectors.T[: -1 - MOST_DIRECTIONS : -1] @ white
        changes = _possible_changes(noise, frames)
        changes |= {("theta", (fit, n)): column for n, column in enumerate(noise.columns[:, 2:].T)}
        of_changes = np.stack(list(changes.values())) @ to.T
        sums, parts = SpeckleOfSums.of(noise, to), parts[: -1 - MOST_DIRECTIONS : -1]
        return cls(sums, to @ noise.residual, parts, dict(zip(changes, of_changes, strict=True)))

    @property
    def information(self) -> float:
        """On the share of a neighbour that is like it."""
        return float(self.speckle @ self.speckle)


def _possible_changes(noise: BinNoise, frames: int) -> dict[tuple[str, object], PerCell]:
    """Return changes of c2 by other rates, another shape, and drifts of contrast and baseline, and by another
    contrast at a lag or of frames, or a loss of speckle at any age: a misfit makes neighbours alike, too."""
    cells, contrast = np.array(noise.cells.intervals), noise.contrast * noise.contrast_ratio
    age = (cells[:, :2].sum(1) + cells.sum(1) - 1) / (4 * frames)
    f = np.clip(noise.cells.f, DECAYED, 1 - DECAYED)
    x = -np.log(f)
    of_ages, across = shares_at_ages(tuple(noise.cells.intervals))
    smooth = [*((f * x)[:, None] * bends_of_age(age)).T, f * x * np.log(x), f * age, age]
    changes: dict[tuple[str, object], PerCell] = {
        **{("smooth", n): change for n, change in enumerate(smooth)},
        **{("lag", lag): cells[:, 2] == lag for lag in np.unique(cells[:, 2]).tolist()},
        **{("frames", ages): share for ages, share in of_ages.items()},
        **{("loss", frame): f * share for frame, share in across.items()},
    }
    return {name: contrast * change for name, change in changes.items()}


_CellsOf = Callable[[int], _SpeckleOfCells]


@one_blas_thread()
def likely_shares(
    scan: Scan,
    clusters: BinNumbers,
    bins: Mapping[int, BinNoise],
    fit_of_bin: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, _LikelyShares]:
    """Return what residuals tell of shares on both axes; fit_of_bin: names of several, by each of which theta
    of some bins was found."""
    places = _Places.of(scan, clusters, bins)
    cells_of = cache(lambda b: _SpeckleOfCells.of(bins[b], scan.n_frames, fit_of_bin.get(b, "")))
    return {axis: _likely_shares(places.rows(axis), cells_of) for axis in AXES}


def part_of_errors(noise: BinNoise) -> float:
    """Return the part of the variances of theta, fitted to this bin alone, which is of speckle."""
    weighted = noise.cells.pairs[:, None] * noise.columns
    levels, weights = noise.columns[:, :2], weighted[:, :2]
    take = np.linalg.solve(levels.T @ weights, weights.T @ noise.columns[:, 2:])
    scores = (weighted[:, 2:] - weights @ take).T
    of_all = variances(likely_covariance(noise.of_cells, noise.fit), scores)
    sums = SpeckleOfSums.of(noise, scores)
    return float(np.mean(np.diag(sums.covariance_with(sums)) / of_all))


def _likely_shares(rows: list[_Row], cells_of: _CellsOf) -> _LikelyShares:
    """Return what the residuals of rows of bins tell of their shares."""
    most = min(MOST_ROWS, MOST_BINS // max((len(bins) for bins, _ in rows), default=1))
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)
    speckle_of_rows = [_SpeckleOfRow.of(rows[n], cells_of) for n in chosen]
    log = _log_likelihood([of_row for of_row in speckle_of_rows if of_row is not None])
    *of_speckle, all_alike = log.max(1)
    best, independent = max(of_speckle), log[0, 0]
    if not log.any() or all_alike > best + MARGIN:
        return _LikelyShares(np.zeros(MOST_DISTANCE), 0.0, 1.0)
    weight = np.exp(log[:-1] - best)
    weight /= weight.sum() + weight.size * np.exp(independent - best)
    distances = np.arange(1, MOST_DISTANCE + 1)
    shares = np.array([CORRELATIONS[:, None] ** (4 * distances**power) for power in POWERS[:-1]])
    sizes = np.tensordot(weight, shares, 2)
    variance = float(np.tensordot(weight, shares[..., 0] ** 2, 2) - sizes[0] ** 2)
    variance += CORRELATIONS[1] ** 8 / 12  # of what lies between two of them
    p = float(chdtrc(1, 2 * (best - independent))) / 2
    return _LikelyShares(sizes, variance**0.5 / max(float(sizes[0]), SMALLEST), p)


def _log_likelihood(rows: "list[_SpeckleOfRow]") -> Float[np.ndarray, "power correlation"]:
    """Return the logarithm of the restricted likelihood of all rows.

    It has one maximum. It is computed at some correlations, until it is far below, and beside the likely
    ones; between these it is interpolated.
    """
    every, share = np.arange(len(CORRELATIONS)), CORRELATIONS**4
    log = np.zeros((len(POWERS), len(every)))

    def computed(n: int, power: float) -> float:
        correlation = float(CORRELATIONS[n])
        return max(sum(of_row.log_likelihood(correlation, power) for of_row in rows), IMPOSSIBLE)

    independent = computed(0, 1.0)
    for of_power, power in zip(log, POWERS, strict=True):
        values_at = {0: independent}
        for n in COARSE:
            values_at[n] = computed(n, power)
            if values_at[n] < max(values_at.values()) - FAR_BELOW:
                break
        likely = {n for n, x in values_at.items() if x >= max(values_at.values()) - FAR_BELOW}
        # of the largest alone is asked where bins are all alike
        beside = [n for n in every[1:].tolist() if power and {n - 1, n + 1} & likely]
        values_at |= {n: computed(n, power) for n in beside if n not in values_at}
        places = sorted(values_at)
        # a small share changes it linearly
        values = [values_at[n] for n in places]
        of_power[:] = np.interp(share, share[places], values, right=IMPOSSIBLE)
    return log


class _SpeckleOfRow(NamedTuple):
    apart: Float[np.ndarray, "bin bin"]
    """Distances of the bins."""
    places: list[slice]
    """Of the values of each."""
    shared: Float[np.ndarray, "value value"]
    """The covariance of values of two bins that would see one speckle, with those of later ones."""
    both: Float[np.ndarray, "value column"]
    """What fits and misfits change, orthonormal, and the residuals."""

    @classmethod
    def of(cls, row: _Row, cells_of: _CellsOf) -> "_SpeckleOfRow | None":
        """Return the values of a row; None with too few, or with next to no speckle."""
        bins, apart = [cells_of(b) for b in row[0]], row[1]
        if sum(of_bin.information for of_bin in bins) < LEAST_INFORMATION:
            return None
        edges = np.cumsum([0, *(len(of_bin.residual) for of_bin in bins)]).tolist()
        places = [slice(*place) for place in pairwise(edges)]
        misfits = _misfits(bins, places)
        if edges[-1] - misfits.shape[1] < FEWEST_CELLS:
            return None
        shared = np.eye(edges[-1])
        for (n, a), (m, b) in combinations(enumerate(bins), 2):
            shared[places[n], places[m]] = a.sums.covariance_with(b.sums)
        residual = np.concatenate([of_bin.residual for of_bin in bins])
        both = np.asfortranarray(np.column_stack([misfits, residual]))
        return cls(apart.astype(float), places, shared, both)

    def log_likelihood(self, correlation: float, power: float) -> float:
        part, lengths = (
            correlation ** (4 * self.apart**power),
            [p.stop - p.start for p in self.places],
        )
        np.fill_diagonal(part, 1.0)
        covariance = np.empty_like(self.shared)
        for n, place in enumerate(self.places):
            later, of_values = slice(place.start, None), np.repeat(part[n, n:], lengths[n:])
            np.multiply(self.shared[place, later], of_values, out=covariance[place, later])
        root, failed = dpotrf(covariance.T, lower=1, clean=0, overwrite_a=1)
        white, _ = dtrtrs(root, self.both, lower=1)
        taken, singular = dpotrf(white.T @ white, clean=0)
        if failed or 0 < singular < len(taken):  # no speckle is correlated like this
            return -np.inf
        *of_columns, left = (
            taken.diagonal()
        )  # the last one is what the columns leave of the residuals
        log = np.log(root.diagonal()).sum() + np.log(of_columns).sum()
        return -float(log + left**2 / 2)


def _misfits(bins: list[_SpeckleOfCells], places: list[slice]) -> Float[np.ndarray, "value column"]:
    """Return an orthonormal basis of what the fit changes, or a misfit that all bins have."""
    columns = defaultdict[tuple[str, object], Vector](lambda: np.zeros(places[-1].stop))
    for of_bin, place in zip(bins, places, strict=True):
        for name, change in of_bin.changes.items():
            columns[name][place] = change
    basis = _basis_of(np.column_stack(list(columns.values())))
    if len(basis) - basis.shape[1] < ENOUGH_VALUES:  # of a short record
        smooth = [changes for (kind, _), changes in columns.items() if kind in ("theta", "smooth")]
        basis = _basis_of(np.column_stack(smooth))
    return basis


def _basis_of(columns: Float[np.ndarray, "value k"]) -> Float[np.ndarray, "value column"]:
    scaled = columns / np.maximum(np.abs(columns).max(0), np.finfo(float).tiny)
    vectors, sizes, _ = np.linalg.svd(scaled, full_matrices=False)
    return vectors[:, sizes > 1e-10 * sizes[0]]
