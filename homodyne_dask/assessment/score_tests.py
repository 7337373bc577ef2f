"""Score tests of a fitted model against named alternatives, from residuals averaged over cells.

Each alternative is a column d, the derivative of c2 by a parameter that is not in the model. Its part
orthogonal to all fitted columns X, in the metric of the noise Σ of the cells, has the score d·Σ⁻¹r, which
no fit of X changes, with the variance d·Σ⁻¹d (Rao 1948). That is the best linear test of d, and takes no
pass.

Whether a frame differs from its neighbours is a test of its own, from the mean of c2 over all pairs with
it. Only at the beginning of a record, rates may change by decades from frame to frame.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri, fdtrc, stdtr

from homodyne_dask.assessment.alternatives import DECAYED, bends_of_age, shares_at_ages
from homodyne_dask.assessment.fitted_cells import FittedCells, excess_of_weighted, own_parameters
from homodyne_dask.assessment.speckle_covariance import (
    NoiseFit,
    likely_covariance,
    log_variances,
    regular,
)
from homodyne_dask.assessment.speckle_noise import left_unexplained
from homodyne_dask.results.data.fit_result import Alternative, PowerOfQ
from homodyne_dask.solver.array_shapes import Matrix, PerBin, PerFrame, Values, Vector
from homodyne_dask.solver.cluster_robust import LEVEL_OF_ALTERNATIVES
from homodyne_dask.solver.normal_matrix import Eigensystem, eigensystem, pseudoinverse
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.rings_and_clusters import ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

LEAST_OWN = 1e-3
"""An alternative is tested where the fitted parameters leave more than this share of its information."""
SMOOTH = ("rate", "stretching", "contrast_drift", "baseline", "own_average", "shear")
"""Alternatives whose parts in the residuals of a bin are taken for no noise."""
OF_FRAMES = ("baseline", "frames")
"""Those to which all pairs of a frame add the same: `frames` are no noise for them, either."""
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
    change: Float[np.ndarray, "bin cell k"]
    """Derivatives of c2 by the parameters of the alternative."""
    bin: int | None = None
    """The only one in which it is not 0; None for several."""


def best_alternative(scores: Sequence[Score], least_share: float) -> Alternative | None:
    """Return the significant alternative of largest χ², less two for each parameter and twice the logarithm
    of the tests of its name; None without one."""
    names = len({score.name for score in scores})
    significant = [
        score
        for score in scores
        if score.share >= least_share and score.p * names * score.among < LEVEL_OF_ALTERNATIVES
    ]
    if not significant:
        return None
    best = max(significant, key=lambda row: row.square - 2 * len(row.size) - 2 * np.log(row.among))
    p = min(1.0, best.p * names * best.among)
    return Alternative(best.name, best.place, float(best.size[0]), best.share, p)


def power_of_q(scores: Sequence[Score]) -> PowerOfQ | None:
    for score in scores:
        if score.name == "power_of_q" and score.square > 0:
            step = float(score.size[0])
            return PowerOfQ(2 + step, abs(step) / score.square**0.5, score.freedom, score.p)
    return None


def score_tests(
    scan: Scan, cells: FittedCells, contrast: PerBin, has: Collection[str]
) -> list[Score]:
    """Return score tests of all alternatives that are no combinations of parameters; has: of the model."""
    columns = [column for column in _columns(scan, cells, contrast) if column.name not in has]
    smooth, with_frames = (
        np.concatenate([column.change for column in columns if column.name in names], axis=2)
        for names in (SMOOTH, {*SMOOTH, *OF_FRAMES})
    )
    sharing = cells.shared.counts(cells.bins)
    fitted = {b: bin.columns for b, bin in cells.bins.items()}
    scores = []
    for of_frames, no_noise in ((False, smooth), (True, with_frames)):
        tested = [column for column in columns if (column.name in OF_FRAMES) == of_frames]
        scores += _scores(tested, _Metric(cells, fitted, no_noise, sharing), cells, contrast)
    for name, coefficients in cells.smoothed.items():
        x = np.clip((np.arange(len(coefficients)) - 1) / (len(coefficients) - 3), 0, 1)
        lines = coefficients.T @ np.stack([np.ones_like(x), x], axis=1)  # which no penalty holds
        bends = coefficients.T @ bends_of_age(x)
        others = np.eye(coefficients.shape[1])[:, ~coefficients.any(0)]
        to = np.concatenate([others, lines], axis=1)
        bent = np.zeros((*cells.residual.shape, bends.shape[1]))
        for b, bin in cells.bins.items():
            bent[b, bin.cells] = bin.columns @ bends
        straight = {b: of_bin @ to for b, of_bin in fitted.items()}
        stiff = _Metric(cells, straight, np.concatenate([smooth, bent], axis=2), sharing)
        scores += _scores([_Column("smoothness", (name,), bent)], stiff, cells, contrast)
    odd, typical = odd_frame(scan), float(np.median(contrast))
    if odd is not None and typical > 0:
        square = float(chdtri(1, max(odd.p, np.finfo(float).tiny)))
        size = np.array([odd.excess / typical])
        place = (odd.frame,) * 2
        scores.append(Score("frame", place, square, np.inf, odd.p, size, abs(size[0]), odd.tests))
    return scores


def _scores(
    columns: list[_Column], metric: "_Metric", cells: FittedCells, contrast: PerBin
) -> list[Score]:
    names = [column.name for column in columns]
    names += ["bin"] * sum(len(bin.members) - 1 for bin in cells.bins.values())
    groups = [[column for column in columns if column.bin is None]]
    groups += [[column] for column in columns if column.bin is not None]
    tested = [
        pair for group in groups if group for pair in zip(group, metric.outside(group), strict=True)
    ]
    scores = []
    for (name, place, *_), outside in tested:
        if outside is None:
            continue
        step, k, freedom = outside.inverse @ outside.score, outside.independent, outside.freedom
        square = float(outside.score @ step) / outside.excess
        changes = [
            np.abs(columns_of_bin @ step).max() / contrast[b]
            for b, columns_of_bin in outside.columns.items()
            if contrast[b] > 0
        ]
        share, p = float(max(changes, default=0.0)), float(fdtrc(k, freedom, square / k))
        scores.append(Score(name, place, square, freedom, p, step, share, names.count(name)))
    return scores


class _Outside(NamedTuple):
    """What the fitted parameters leave of an alternative."""

    columns: dict[int, Float[np.ndarray, "cell k"]]
    score: Float[np.ndarray, " k"]
    inverse: Float[np.ndarray, "k k"]
    """Of their information, without combinations of which next to nothing is left."""
    independent: int
    """Combinations with more."""
    freedom: float
    excess: float
    """Variance of the score over the information, where noise that is estimated weights bins."""


class _Metric:
    """Scalar products of changes of c2 by the inverse covariance of the noise of cells."""

    def __init__(
        self,
        cells: FittedCells,
        fitted: Mapping[int, Float[np.ndarray, "cell n"]],
        smooth: Float[np.ndarray, "bin cell k"],
        sharing: Mapping[int, float],
    ) -> None:
        """smooth: changes that are no noise. sharing: bins with the speckle of each, which tell as much as
        one."""
        self.cells, self.fits, self.own = cells.bins, dict[int, NoiseFit](), {}
        self.inverse: dict[int, Float[np.ndarray, "cell cell"]] = {}
        groups: dict[tuple[object, ...], list[int]] = {}
        for b, bin in cells.bins.items():
            groups.setdefault(bin.noise.shape, []).append(b)
        for bins in groups.values():  # which further columns leave the same, too
            group = [cells.bins[b].noise for b in bins]
            fits = left_unexplained(group, smooth[bins[0], cells.bins[bins[0]].cells])
            self.fits |= zip(bins, fits, strict=True)
        for b, bin in cells.bins.items():
            noise = bin.noise
            covariance = likely_covariance(noise.of_cells, self.fits[b], noise.least_pixels)
            inverse = np.linalg.inv(regular(covariance)) / sharing[b]
            self.own[b] = own_parameters(bin.levels.columns, inverse @ bin.levels.columns)
            self.inverse[b] = self.own[b].left_by(inverse)
        self.fitted = fitted
        self.weighted = {b: self.inverse[b] @ columns for b, columns in fitted.items()}
        self.normal, self.score = self._of_fitted(fitted)
        self.solve = pseudoinverse(self.normal)

    def _of_fitted(self, bins: Iterable[int]) -> tuple[Matrix, Vector]:
        """Return the normal matrix of the fitted parameters and their scores, sums over these bins."""
        residuals = {b: self.cells[b].noise.residual for b in bins}
        normal = np.sum([self.fitted[b].T @ self.weighted[b] for b in residuals], axis=0)
        scores = [self.weighted[b].T @ residual for b, residual in residuals.items()]
        return normal, np.sum(scores, axis=0)

    def outside(self, columns: Sequence[_Column]) -> list[_Outside | None]:
        """Return what fitted parameters leave of each column of the same bins; None where next to nothing."""
        bins = self.cells if columns[0].bin is None else (columns[0].bin,)
        change = {
            b: np.concatenate([column.change[b, self.cells[b].cells] for column in columns], axis=1)
            for b in bins
        }
        weighted = {b: self.inverse[b] @ change[b] for b in bins}
        whole = np.sum([(weighted[b] * change[b]).sum(0) for b in bins], axis=0)
        take = self.solve @ np.sum([self.fitted[b].T @ weighted[b] for b in bins], axis=0)
        outside, products, scores, relative = {}, [], [], []
        for b in bins:
            noise = self.cells[b].noise
            change[b] -= self.fitted[b] @ take
            weighted[b] -= self.weighted[b] @ take
            products.append(change[b].T @ weighted[b])
            scores.append(weighted[b].T @ noise.residual)
            relative.append(log_variances(noise.of_cells, weighted[b].T, self.fits[b])[1])
            outside[b] = self.own[b].outside(change[b])
        products, relative = np.stack(products), np.stack(relative)
        # in other bins the columns are 0, less what the fitted ones take of them
        normal, score = self._of_fitted(bins)
        information = products.sum(0) + take.T @ (self.normal - normal) @ take
        score = np.sum(scores, axis=0) - take.T @ (self.score - score)
        least = max(float(np.finfo(float).eps * whole.max()), np.finfo(float).tiny ** 0.5)
        of_columns, stop = list[_Outside | None](), 0
        for column in columns:
            k = slice(stop, stop := stop + column.change.shape[2])
            scaled = eigensystem(information[k, k], np.sqrt(np.maximum(whole[k], least)))
            columns_outside = {b: left_of_fit[:, k] for b, left_of_fit in outside.items()}
            sums = score[k], products[:, k, k], relative[:, k].mean(1)
            of_columns.append(_outside_of(scaled, columns_outside, *sums))
        return of_columns


def _outside_of(
    scaled: Eigensystem,
    columns: dict[int, Matrix],
    score: Vector,
    products: Float[np.ndarray, "bin k k"],
    spread: Vector,
) -> _Outside | None:
    """products, spread: the information of the column in each bin, and its relative variance."""
    some = scaled.values > LEAST_OWN
    if not some.any():
        return None
    to = scaled.vectors[:, some] / scaled.size[:, None]
    inverse = to / scaled.values[some] @ to.T
    shares = np.einsum("ij,bji->b", inverse, products) / some.sum()
    freedom = 2 / max(float((shares**2 * spread).sum()), np.finfo(float).tiny)
    excess = 1 + float(shares @ excess_of_weighted(shares, spread))
    return _Outside(columns, score, inverse, int(some.sum()), freedom, excess)


def _columns(scan: Scan, cells: FittedCells, contrast: PerBin) -> Iterator[_Column]:
    f = np.clip(cells.f, DECAYED, 1 - DECAYED)
    there, scale, x = np.isfinite(cells.residual), contrast[:, None] * f, -np.log(f)
    with_noise, rings = np.array(sorted(cells.bins)), ring_numbers(scan.q)
    edges, faster = np.array(cells.intervals), -scale * x
    middle = np.stack([edges[:, :2].sum(1), edges.sum(1) - 1], axis=1) / 2 - 0.5
    middle = (middle - scan.frames[0]) / (scan.frames[1] - scan.frames[0])

    def named(name: str, change: Values, *place: int) -> _Column:
        shape = *there.shape, change[0, 0].size
        change = np.broadcast_to(change.reshape(*change.shape[:2], -1), shape)
        return _Column(name, place, np.where(there[:, :, None], change, 0.0))

    age = middle.mean(1)
    yield named("rate", faster[:, :, None] * bends_of_age(age))
    yield named("stretching", faster * np.log(x))
    lags = edges[:, 2:3] == np.unique(edges[:, 2])
    yield named("lag", contrast[:, None, None] * lags)
    yield named("contrast_drift", scale * (age - age.mean()))
    yield named("baseline", (1 + scale) * age)
    yield named("own_average", contrast[:, None] * _own_averages(cells, f))
    if len(rings_of(scan.q[with_noise])) > 1 and not np.isnan(scan.q).any():
        yield named("power_of_q", faster * np.log(scan.q / scan.q[with_noise].mean())[:, None])
    phi = scan.phi[with_noise]
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
    # of a single bin of each ring, whatever differs is as well a change with q
    several = len(with_noise) > len(np.unique(rings[with_noise])) + 1
    for b in map(int, with_noise if several else ()):
        of_bin = np.where(there[b], faster[b], 0.0)
        change = np.broadcast_to(of_bin[None, :, None], (*there.shape, 1))
        yield _Column("bin", cells.bins[b].place(scan), change, b)
    of_ages, across = shares_at_ages(tuple(cells.intervals))
    yield from (
        named("jump", scale * share, lost)
        for lost, share in across.items()
        if lost > scan.frames[0]
    )
    for (low, end), share in of_ages.items():
        yield named("frames", contrast[:, None] * share, low, end - 1)


def _own_averages(
    cells: FittedCells, f: Float[np.ndarray, "bin cell"]
) -> Float[np.ndarray, "bin cell"]:
    """Return the mean f of all pairs with the first frame of a pair, and with its second, as a sum."""
    edges = np.array(cells.intervals)
    ages = np.unique(edges[:, :2], axis=0)
    ages = ages[np.argsort(ages.sum(1))]
    of_ages, _ = shares_at_ages(tuple(cells.intervals))
    pairs = cells.pairs * np.stack([of_ages[first, stop] for first, stop in ages.tolist()])[:, None]
    mean = (pairs * np.nan_to_num(f)).sum(2) / np.maximum(pairs.sum(2), 1e-9)
    middle = np.stack([edges[:, :2].sum(1), edges.sum(1) - 1])
    return np.array([np.interp(middle, ages.sum(1), of_bin).sum(0) for of_bin in mean.T])


NEIGHBOURS = 2
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
    of_bins = np.where(early, _excess(means, CUBIC), _excess(means, EVEN))
    squares = (np.sum(np.square(weights)) for weights in (CUBIC, EVEN))
    size = np.sqrt(1 + 2 * np.where(early, *squares))
    of_bins[:, np.r_[:ENDS, len(scan.time) - ENDS : len(scan.time)]] = np.nan
    of_bins = of_bins[np.isfinite(of_bins).any(1)]
    some = np.isfinite(of_bins).all(0)
    if not len(of_bins) or not some.any():
        return None
    weight = 1 / np.maximum(((of_bins / size)[:, some] ** 2).mean(1), np.finfo(float).tiny)
    excess = (weight / weight.sum()) @ of_bins
    square = _around(np.where(some, excess / size, 0.0) ** 2)
    number = _around(some.astype(float))
    tested = some & (number >= FEWEST) & (square > 0)
    if not tested.any():
        return None
    freedom = number[tested] / CORRELATED
    t = np.abs(excess / size)[tested] / np.sqrt(square[tested] / number[tested])
    p = 2 * stdtr(freedom, -t)
    frame = int(np.flatnonzero(tested)[p.argmin()])
    return OddFrame(frame, float(excess[frame]), float(p.min()), int(tested.sum()))


FARTHEST, DRIFT = 64, 8
"""Frames from those that were found to differ, up to which others are looked at; and those between means that
show a drift."""
SMOOTH_TERMS = 4
"""Of a polynomial in the logarithm of age, by which means change with the rates."""
NORMAL = 0.4549
"""The median of the squares of normal deviates."""


def whole_range(scan: Scan, alternative: Alternative, contrast: float) -> Alternative:
    """Return the same of the range of frames, near those which were found, whose means of c2 differ most.

    It is the likeliest one beside a smooth change with age, noise of each frame and a random walk; the last
    two are estimated from the medians of squared differences.
    """
    if alternative.name not in ("frame", "frames") or scan.cells is not None:
        return alternative
    low, high = map(int, alternative.place)
    frames = np.flatnonzero(scan.use & np.isfinite(scan.frame_means).all(0))[ENDS:-ENDS]
    frames = frames[(frames >= low - FARTHEST) & (frames <= high + FARTHEST)]
    if (n := len(frames)) < FEWEST:
        return alternative
    means = scan.frame_means[:, frames].mean(0)
    next_, far = (np.median((means[k:] - means[:-k]) ** 2) / NORMAL for k in (1, DRIFT))
    walk = max(far - next_, 0.0) / (DRIFT - 1)
    white = max(next_ - walk, next_ / 10, np.finfo(float).tiny) / 2
    place = np.arange(n)
    weight = np.linalg.inv(white * np.eye(n) + walk * np.minimum.outer(place, place))
    smooth = np.vander(np.log1p(frames - scan.frames[0]), SMOOTH_TERMS)
    weighted = weight @ smooth
    weight -= weighted @ pseudoinverse(smooth.T @ weighted) @ weighted.T
    sums = np.pad(weight.cumsum(0).cumsum(1), (1, 0))
    score, own = np.append(0.0, np.cumsum(weight @ means)), np.diagonal(sums)
    first, stop = np.triu_indices(n + 1, 1)
    some = 2 * (stop - first) <= n
    first, stop = first[some], stop[some]
    information = own[stop] - 2 * sums[first, stop] + own[first]
    size = (score[stop] - score[first]) / information
    best = int(np.argmax(size**2 * information))
    place = int(frames[first[best]]), int(frames[stop[best] - 1])
    return alternative._replace(place=place, size=float(size[best]) / contrast)


def _excess(means: Float[np.ndarray, "bin t"], weights: tuple[float, ...]) -> np.ndarray:
    excess, n = np.full(means.shape, np.nan), means.shape[1]
    neighbours = [
        weight
        * (
            means[:, NEIGHBOURS - k : n - NEIGHBOURS - k]
            + means[:, NEIGHBOURS + k : n - NEIGHBOURS + k]
        )
        for k, weight in enumerate(weights, 1)
    ]
    excess[:, NEIGHBOURS : n - NEIGHBOURS] = means[:, NEIGHBOURS : n - NEIGHBOURS] - np.sum(
        neighbours, axis=0
    )
    return excess


def _around(values: PerFrame) -> PerFrame:
    n, before = len(values), np.concatenate([[0.0], np.cumsum(values)])
    frame = np.arange(n)

    def within(reach: int) -> PerFrame:
        return before[np.minimum(frame + reach + 1, n)] - before[np.maximum(frame - reach, 0)]

    return within(WINDOW // 2) - within(2 * NEIGHBOURS)
