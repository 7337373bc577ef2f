"""Score tests of a fitted model against named alternatives, from residuals averaged over cells.

Each alternative is a column d, the derivative of c2 by a parameter that is not in the model. Its part
orthogonal to all fitted columns X, in the metric of the noise Σ of the cells, has the score d·Σ⁻¹r, which
no fit of X changes, with the variance d·Σ⁻¹d (Rao 1948). That is the best linear test of d, and takes no
pass.

Whether a frame differs from those beside it is tested by itself, from the mean of c2 over all pairs with
it. Only at the beginning of a record, rates may change by decades from frame to frame.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtri, fdtrc, stdtr

from homodyne_dask.assessment.fitted_cells import FittedCells, excess_of_weighted
from homodyne_dask.assessment.speckle_covariance import log_variances, regular
from homodyne_dask.results.data.fit_result import Alternative, PowerOfQ
from homodyne_dask.solver.array_shapes import (
    BinNumbers,
    Matrix,
    PerBin,
    PerCell,
    PerFrame,
    Values,
    Vector,
)
from homodyne_dask.solver.cluster_robust import LEVEL_OF_ALTERNATIVES
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.reduce import own_parameters
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.rings_and_clusters import ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

LEAST_OWN = 1e-3
"""Share of the information of an alternative that the fitted parameters leave, from which on it is tested."""
SMOOTH = ("rate", "stretching", "contrast_drift", "baseline", "own_average", "shear")
"""Alternatives whose parts in the residuals of a bin are taken for no noise."""
OF_FRAMES = ("baseline", "frames")
"""Those to which all pairs of a frame add the same: `frames` are no noise for them, either."""
BENDS = 3
"""Ways to bend of a rate, which are tested together."""
DECAYED = 1e-6
"""f below which its logarithm is that of this."""
FEWEST_ANGLES = 4
"""With fewer angles that differ, changes with φ are not tested."""


class Score(NamedTuple):
    name: str
    place: tuple[int | str, ...]
    square: float
    """Of the score in standard deviations."""
    freedom: float
    p: float
    size: Float[np.ndarray, " k"]
    """One step of Gauss and Newton from the fit, by the parameters of the alternative."""
    share: float
    """The largest change of c2 by that step which no fitted parameter could make, over the contrast."""
    among: int = 1
    """Tests of this name, of which it is the one with the least p."""


class _Column(NamedTuple):
    name: str
    place: tuple[int | str, ...]
    of: Float[np.ndarray, "bin cell k"]
    bin: int | None = None
    """The only one in which it is not 0; None for several."""


def best_alternative(found: Sequence[Score], least_share: float) -> Alternative | None:
    tests = len({one.name for one in found})
    significant = [
        one
        for one in found
        if one.share >= least_share and one.p * tests * one.among < LEVEL_OF_ALTERNATIVES
    ]
    if not significant:
        return None
    best = max(significant, key=lambda one: one.square - 2 * len(one.size) - 2 * np.log(one.among))
    p = min(1.0, best.p * tests * best.among)
    return Alternative(best.name, best.place, float(best.size[0]), best.share, p)


def power_of_q(found: Sequence[Score]) -> PowerOfQ | None:
    for one in found:
        if one.name == "power_of_q" and one.square > 0:
            step = float(one.size[0])
            return PowerOfQ(2 + step, abs(step) / one.square**0.5, one.freedom, one.p)
    return None


def score_tests(
    scan: Scan, cells: FittedCells, contrast: PerBin, has: Collection[str], clusters: BinNumbers
) -> list[Score]:
    """Return score tests of all alternatives that are no combinations of parameters; has: of the model."""
    columns = [one for one in _columns(scan, cells, contrast) if one.name not in has]
    smooth, with_frames = (
        np.concatenate([one.of for one in columns if one.name in names], axis=2)
        for names in (SMOOTH, {*SMOOTH, *OF_FRAMES})
    )
    clusters = clusters[list(cells.bins)]
    _, place, members = np.unique(clusters, return_inverse=True, return_counts=True)
    same = dict(zip(cells.bins, members[place].tolist(), strict=True))
    plain = {b: one.columns for b, one in cells.bins.items()}
    found = []
    for of_frames, parts in ((False, smooth), (True, with_frames)):
        some = [one for one in columns if (one.name in OF_FRAMES) == of_frames]
        found += _scores(some, _Metric(cells, plain, parts, same), cells, contrast)
    for name, of in cells.smoothed.items():
        x = np.clip((np.arange(len(of)) - 1) / (len(of) - 3), 0, 1)
        lines = of.T @ np.stack([np.ones_like(x), x], axis=1)  # which no penalty holds
        bends = of.T @ _bends(x)
        others = np.eye(of.shape[1])[:, ~of.any(0)]
        to = np.concatenate([others, lines], axis=1)
        bent = np.zeros((*cells.residual.shape, bends.shape[1]))
        for b, one in cells.bins.items():
            bent[b, one.at] = one.columns @ bends
        straight = {b: of_bin @ to for b, of_bin in plain.items()}
        stiff = _Metric(cells, straight, np.concatenate([smooth, bent], axis=2), same)
        found += _scores([_Column("smoothness", (name,), bent)], stiff, cells, contrast)
    odd, typical = odd_frame(scan), float(np.median(contrast))
    if odd is not None and typical > 0:
        square = float(chdtri(1, max(odd.p, np.finfo(float).tiny)))
        size = np.array([odd.excess / typical])
        found.append(
            Score("frame", (odd.frame,) * 2, square, np.inf, odd.p, size, abs(size[0]), odd.tests)
        )
    return found


def _bends(ages: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n bend"]:
    """Return ways to bend of what changes with age, faster in the beginning. ages: from 0 to 1."""
    return np.cos(np.pi * np.arange(1, BENDS + 1) * np.sqrt(np.clip(ages, 0, 1))[..., None])


def _scores(
    columns: list[_Column], metric: "_Metric", cells: FittedCells, contrast: PerBin
) -> list[Score]:
    found, names = [], [one.name for one in columns]
    names += ["bin"] * sum(len(one.members) - 1 for one in cells.bins.values())
    groups = [[one for one in columns if one.bin is None]]
    groups += [[one] for one in columns if one.bin is not None]
    each = (
        of for group in groups if group for of in zip(group, metric.outside(group), strict=True)
    )
    for one, left in each:
        if left is None:
            continue
        step, k = left.inverse @ left.score, left.independent
        square = float(left.score @ step) / left.more
        changes = [
            np.abs(of @ step).max() / contrast[b]
            for b, of in left.columns.items()
            if contrast[b] > 0
        ]
        change = float(max(changes, default=0.0))
        p = float(fdtrc(k, left.freedom, square / k))
        among = names.count(one.name)
        found.append(Score(one.name, one.place, square, left.freedom, p, step, change, among))
    return found


class _Outside(NamedTuple):
    columns: dict[int, Float[np.ndarray, "cell k"]]
    score: Float[np.ndarray, " k"]
    inverse: Float[np.ndarray, "k k"]
    """Of their information, without combinations of which next to nothing is left."""
    independent: int
    """Combinations with more."""
    freedom: float
    more: float
    """Variance of the score over the information, where noise that is estimated weights bins."""


class _Metric:
    def __init__(
        self,
        cells: FittedCells,
        fitted: Mapping[int, Float[np.ndarray, "cell n"]],
        smooth: Float[np.ndarray, "bin cell k"],
        same: Mapping[int, int],
    ) -> None:
        """same: bins with the speckle of each; they tell as much as one."""
        self.cells, self.fits, self.own = cells.bins, {}, {}
        self.inverse: dict[int, Float[np.ndarray, "cell cell"]] = {}
        for b, one in cells.bins.items():
            covariance, self.fits[b] = one.noise.beside(smooth[b, one.at])
            inverse, own = np.linalg.inv(regular(covariance)) / same[b], one.own.columns
            self.own[b] = own_parameters(own, inverse @ own)
            self.inverse[b] = self.own[b].left_by(inverse)
        self.fitted = fitted
        self.weighted = {b: self.inverse[b] @ of for b, of in fitted.items()}
        self.normal, self.score = self._of_fitted(fitted)
        self.solve = pseudoinverse(self.normal)

    def _of_fitted(self, bins: Iterable[int]) -> tuple[Matrix, Vector]:
        residual = {b: self.cells[b].noise.residual for b in bins}
        normal = np.sum([self.fitted[b].T @ self.weighted[b] for b in residual], axis=0)
        return normal, np.sum([self.weighted[b].T @ of for b, of in residual.items()], axis=0)

    def outside(self, columns: Sequence[_Column]) -> list[_Outside | None]:
        """Return what fitted parameters leave of each column of the same bins; None where next to nothing."""
        bins = self.cells if columns[0].bin is None else (columns[0].bin,)
        of = {
            b: np.concatenate([one.of[b, self.cells[b].at] for one in columns], axis=1)
            for b in bins
        }
        weighted = {b: self.inverse[b] @ of[b] for b in bins}
        whole = np.sum([(weighted[b] * of[b]).sum(0) for b in bins], axis=0)
        take = self.solve @ np.sum([self.fitted[b].T @ weighted[b] for b in bins], axis=0)
        for b in bins:
            of[b] -= self.fitted[b] @ take
            weighted[b] -= self.weighted[b] @ take
        noise = {b: self.cells[b].noise for b in bins}
        parts = np.stack([of[b].T @ weighted[b] for b in bins])
        relative = np.stack(
            [log_variances(noise[b].of_cells, weighted[b].T, self.fits[b])[1] for b in bins]
        )
        changes = {b: self.own[b].outside(of[b]) for b in bins}
        normal, score = self._of_fitted(bins)
        information = parts.sum(0) + take.T @ (self.normal - normal) @ take
        own = np.sum([weighted[b].T @ noise[b].residual for b in bins], axis=0)
        score = own - take.T @ (self.score - score)
        least = max(float(np.finfo(float).eps * whole.max()), np.finfo(float).tiny ** 0.5)
        found, stop = [], 0
        for one in columns:
            k = slice(stop, stop := stop + one.of.shape[2])
            root = np.sqrt(np.maximum(whole[k], least))
            values, vectors = np.linalg.eigh(information[k, k] / np.outer(root, root))
            some = values > LEAST_OWN
            if not some.any():
                found.append(None)
                continue
            to = vectors[:, some] / root[:, None]
            inverse = to / values[some] @ to.T
            shares = np.einsum("ij,bji->b", inverse, parts[:, k, k]) / some.sum()
            spread = relative[:, k].mean(1)
            freedom = 2 / max(float((shares**2 * spread).sum()), np.finfo(float).tiny)
            left = {b: changes[b][:, k] for b in bins}
            more = 1 + float(shares @ excess_of_weighted(shares, spread))
            found.append(_Outside(left, score[k], inverse, int(some.sum()), freedom, more))
        return found


def _columns(scan: Scan, cells: FittedCells, contrast: PerBin) -> Iterator[_Column]:
    f = np.clip(cells.f, DECAYED, 1 - DECAYED)
    there, scale, x = np.isfinite(cells.residual), contrast[:, None] * f, -np.log(f)
    known, rings = np.array(sorted(cells.bins)), ring_numbers(scan.q)
    edges, faster = np.array(cells.intervals), -scale * x
    middle = np.stack([edges[:, :2].sum(1), edges.sum(1) - 1], axis=1) / 2 - 0.5
    middle = (middle - scan.frames[0]) / (scan.frames[1] - scan.frames[0])

    def named(name: str, of: Values, *place: int) -> _Column:
        of = np.broadcast_to(of.reshape(*of.shape[:2], -1), (*there.shape, of[0, 0].size))
        return _Column(name, place, np.where(there[:, :, None], of, 0.0))

    age = middle.mean(1)
    yield named("rate", faster[:, :, None] * _bends(age))
    yield named("stretching", faster * np.log(x))
    lags = edges[:, 2:3] == np.unique(edges[:, 2])
    yield named("lag", contrast[:, None, None] * lags)
    yield named("contrast_drift", scale * (age - age.mean()))
    yield named("baseline", (1 + scale) * age)
    yield named("own_average", contrast[:, None] * _own_averages(cells, f))
    if len(rings_of(scan.q[known])) > 1 and not np.isnan(scan.q).any():
        yield named("power_of_q", faster * np.log(scan.q / scan.q[known].mean())[:, None])
    phi = scan.phi[known]
    complete = np.isfinite(phi).all()
    phi = np.unique(np.round(phi % 180, 3))  # 180° apart is one angle
    if complete and len(phi) >= FEWEST_ANGLES:
        # (q lag)² and its changes with cos 2φ and sin 2φ, to lowest order; where shear is strong the fitted
        # rate has followed it: then rates go with cos 2φ and sin 2φ
        turn = np.deg2rad(2 * np.nan_to_num(scan.phi))
        turned = np.stack([np.cos(turn), np.sin(turn)], axis=1)[:, None]
        slow = (faster * (middle[:, 1] - middle[:, 0]))[:, :, None]
        changes = [slow, slow * turned, faster[:, :, None] * turned]
        yield named("shear", np.concatenate(changes, axis=2))
    for b in map(int, known if len(known) > len(np.unique(rings[known])) + 1 else ()):
        own = np.where(there[b], faster[b], 0.0)
        of = np.broadcast_to(own[None, :, None], (*there.shape, 1))
        yield _Column("bin", cells.bins[b].place(scan), of, b)
    for lost in sorted({cell.first for cell in cells.intervals} - {scan.frames[0]}):
        across = _shares_with(edges, 0, lost) + _shares_with(edges, lost, edges.max() * 2) - 1
        yield named("jump", scale * across, lost)
    for low, end in sorted({(cell.first, cell.stop) for cell in cells.intervals}):
        share = _shares_with(edges, low, end)
        yield named("frames", contrast[:, None] * share, low, end - 1)


def _shares_with(cells: Int[np.ndarray, "cell 4"], low: int, end: int) -> PerCell:
    """Return the shares of the pairs of cells (edges of age and lag) with a frame from low to before end."""
    first, stop, shortest, longest = cells.T
    frames, lags = stop - first, longest - shortest
    before = np.cumsum(frames) - frames
    t1 = np.arange(frames.sum()) + np.repeat(first - before, frames)
    least, most, own = (np.repeat(of, frames) for of in (shortest, longest, lags))
    later = np.minimum(t1 + most, end) - np.maximum(t1 + least, low)
    pairs = np.where((t1 >= low) & (t1 < end), own, np.clip(later, 0, own))
    return np.add.reduceat(pairs, before) / frames / lags


def _own_averages(
    cells: FittedCells, f: Float[np.ndarray, "bin cell"]
) -> Float[np.ndarray, "bin cell"]:
    """Return the mean f of all pairs with the first frame of a pair, and with its second, as a sum."""
    edges = np.array(cells.intervals)
    ages = np.unique(edges[:, :2], axis=0)
    ages = ages[np.argsort(ages.sum(1))]
    pairs = cells.pairs * np.stack([_shares_with(edges, *age) for age in ages.tolist()])[:, None]
    mean = (pairs * np.nan_to_num(f)).sum(2) / np.maximum(pairs.sum(2), 1e-9)
    middle = np.stack([edges[:, :2].sum(1), edges.sum(1) - 1])
    return np.array([np.interp(middle, ages.sum(1), of_bin).sum(0) for of_bin in mean.T])


BESIDE = 2
"""Frames on each side that say what the mean should be."""
EVEN, CUBIC = (1 / 4, 1 / 4), (2 / 3, -1 / 6)
"""Weights of the next frame on either side and of the one behind it: of their mean, and of a cubic polynomial
through them."""
EARLY = 32
"""Frames of a record whose means are compared with the cubic polynomial."""
ENDS = 4
"""Frames at both ends of the record that are not tested: their means change with the frame."""
WINDOW = 100
"""Frames around one that say how noisy it is."""
FEWEST = 16
"""With fewer of them nothing is tested."""
CORRELATED = 1.45
"""Σ ρ² of the differences of uncorrelated means."""


class OddFrame(NamedTuple):
    frame: int
    excess: float
    p: float
    tests: int


def odd_frame(scan: Scan) -> OddFrame | None:
    """Return the frame of the selection that differs most; None where there are too few to compare."""
    if scan.cells is not None or scan.n_frames < FEWEST or is_uneven(scan.time):
        return None
    means, n = np.where(scan.use, scan.frame_means, np.nan), len(scan.time)
    early = np.arange(n) < EARLY
    own = np.where(early, _excess(means, CUBIC), _excess(means, EVEN))
    size = np.sqrt(1 + 2 * np.where(early, *(np.sum(np.square(of)) for of in (CUBIC, EVEN))))
    own[:, np.r_[:ENDS, len(scan.time) - ENDS : len(scan.time)]] = np.nan
    own = own[np.isfinite(own).any(1)]
    some = np.isfinite(own).all(0)
    if not len(own) or not some.any():
        return None
    weight = 1 / np.maximum(((own / size)[:, some] ** 2).mean(1), np.finfo(float).tiny)
    excess = (weight / weight.sum()) @ own
    square = _around(np.where(some, excess / size, 0.0) ** 2)
    number = _around(some.astype(float))
    known = some & (number >= FEWEST) & (square > 0)
    if not known.any():
        return None
    freedom = number[known] / CORRELATED
    t = np.abs(excess / size)[known] / np.sqrt(square[known] / number[known])
    p = 2 * stdtr(freedom, -t)
    at = int(p.argmin())
    frame = int(np.flatnonzero(known)[at])
    return OddFrame(frame, float(excess[frame]), float(p[at]), int(known.sum()))


def _excess(means: Float[np.ndarray, "bin t"], weights: tuple[float, ...]) -> np.ndarray:
    own, n = np.full(means.shape, np.nan), means.shape[1]
    beside = [
        of * (means[:, BESIDE - k : n - BESIDE - k] + means[:, BESIDE + k : n - BESIDE + k])
        for k, of in enumerate(weights, 1)
    ]
    own[:, BESIDE : n - BESIDE] = means[:, BESIDE : n - BESIDE] - np.sum(beside, axis=0)
    return own


def _around(values: PerFrame) -> PerFrame:
    n, before = len(values), np.concatenate([[0.0], np.cumsum(values)])
    frame = np.arange(n)

    def within(reach: int) -> PerFrame:
        return before[np.minimum(frame + reach + 1, n)] - before[np.maximum(frame - reach, 0)]

    return within(WINDOW // 2) - within(2 * BESIDE)
