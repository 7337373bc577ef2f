"""Score tests of a fitted model against named alternatives, from residuals averaged over cells.

Each alternative is a column d, the derivative of c2 by a parameter that is not in the model. Its part
orthogonal to all fitted columns X, in the metric of the noise Σ of the cells, has the score d·Σ⁻¹r, which
no fit of X changes, with the variance d·Σ⁻¹d (Rao 1948). That is the best linear test of d, and takes no
pass.

Whether a frame differs from its neighbours is a test of its own (`frame_tests`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri, fdtrc, stdtr

from homodyne_dask.assessment.alternatives import DECAYED, bends_of_age, shares_at_ages
from homodyne_dask.assessment.fitted_cells import FittedCells, excess_of_weighted, own_parameters
from homodyne_dask.assessment.frame_tests import odd_frame
from homodyne_dask.assessment.speckle_covariance import (
    NoiseFit,
    likely_covariance,
    log_variances,
    regular,
)
from homodyne_dask.assessment.speckle_noise import left_unexplained
from homodyne_dask.results.data.fit_result import Alternative, PowerOfQ
from homodyne_dask.solver.array_shapes import Matrix, PerBin, Values, Vector
from homodyne_dask.solver.cluster_robust import LEVEL_OF_ALTERNATIVES
from homodyne_dask.solver.normal_matrix import Eigensystem, eigensystem, pseudoinverse
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


def p_of_other_profile(scores: Sequence[Score]) -> float:
    """Return the probability of a step that is so far from 1, that of the other profile, if it is right."""
    for score in scores:
        if score.name == "profile" and score.square > 0:
            step = float(score.size[0])
            z = abs(1 - step) * score.square**0.5 / abs(step)
            return 2 * float(stdtr(score.freedom, -z))
    return 1.0


def power_of_q(scores: Sequence[Score]) -> PowerOfQ | None:
    for score in scores:
        if score.name == "power_of_q" and score.square > 0:
            step = float(score.size[0])
            return PowerOfQ(2 + step, abs(step) / score.square**0.5, score.freedom, score.p)
    return None


def score_tests(
    scan: Scan,
    cells: FittedCells,
    contrast: PerBin,
    has: Collection[str],
    of_model: Mapping[str, Float[np.ndarray, "bin cell"]] = MappingProxyType({}),
) -> list[Score]:
    """Return score tests of all alternatives that are no combinations of parameters.

    has: those that the model has. of_model: changes of f to which this model has an alternative.
    """
    columns = _columns(scan, cells, contrast, of_model)
    columns = [column for column in columns if column.name not in has]
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


def _columns(
    scan: Scan,
    cells: FittedCells,
    contrast: PerBin,
    of_model: Mapping[str, Float[np.ndarray, "bin cell"]],
) -> Iterator[_Column]:
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
    first = edges[:, 2] == edges[:, 2].min()
    yield named("first_lag", contrast[:, None] * (first / (edges[:, 3] - edges[:, 2])))
    for name, change in of_model.items():
        yield named(name, contrast[:, None] * change)
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
