"""Score tests of a fitted model against named alternatives, from residuals averaged over cells.

Each alternative is a column d, the derivative of c2 by a parameter that is not in the model. Its part
orthogonal to all fitted columns X, in the metric of the noise Σ of the cells, has the score d·Σ⁻¹r, which
no fit of X changes, with the variance d·Σ⁻¹d (Rao 1948). That is the best linear test of d, and takes no
pass.

Whether a frame differs from its neighbours is a test of its own (`frame_tests`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri, fdtrc, stdtr

from homodyne_dask.assessment.alternatives import DECAYED, bends_of_age, shares_at_ages
from homodyne_dask.assessment.fitted_cells import (
    CellsOfKind,
    FittedCells,
    OwnParameters,
    excess_of_weighted,
    own_parameters,
    summed,
)
from homodyne_dask.assessment.frame_tests import odd_frame
from homodyne_dask.assessment.speckle_covariance import (
    NoiseCovariance,
    NoiseFit,
    relative_variances,
)
from homodyne_dask.assessment.speckle_noise import left_unexplained
from homodyne_dask.results.data.fit_result import Alternative, PowerOfQ
from homodyne_dask.solver.array_shapes import PerBin, Values, Vector
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
    places: Mapping[int, tuple[int | str, ...]] | None = None
    """Of bins where each is tested alone; None where all are together."""


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
    fitted = [kind.columns for kind in cells.kinds]
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
        for kind in cells.kinds:
            bent[np.ix_(kind.bins, kind.cells)] = kind.columns @ bends
        straight = [of_kind @ to for of_kind in fitted]
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
    tests = Counter(column.name for column in columns if column.places is None)
    for column in columns:
        tests[column.name] += sum(len(cells.bins[b].members) for b in column.places or ())
    together = [column for column in columns if column.places is None]
    tested = [
        (column.name, column.place, outside)
        for column, outside in zip(together, metric.outside(together), strict=True)
    ]
    for name, _, change, places in columns:
        if places is not None:
            tested += [(name, places[b], outside) for b, outside in metric.alone(change)]
    scores, positive = [], np.where(contrast > 0, contrast, np.inf)
    for name, place, outside in tested:
        if outside is None:
            continue
        step, k, freedom = outside.inverse @ outside.score, outside.independent, outside.freedom
        square = float(outside.score @ step) / outside.excess
        changes = [
            (np.abs(changes @ step).max(1) / positive[bins]).max()
            for bins, changes in outside.columns
        ]
        share, p = float(max(changes)), float(fdtrc(k, freedom, square / k))
        scores.append(Score(name, place, square, freedom, p, step, share, tests[name]))
    return scores


class _Outside(NamedTuple):
    """What the fitted parameters leave of an alternative."""

    columns: list[tuple[list[int], Float[np.ndarray, "bin cell k"]]]
    """Of bins of each kind."""
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
        fitted: list[Float[np.ndarray, "bin cell n"]],
        smooth: Float[np.ndarray, "bin cell k"],
        sharing: Mapping[int, float],
    ) -> None:
        """fitted: of bins of each kind. smooth: changes that are no noise. sharing: bins with the speckle of
        each, which tell as much as one."""
        self.kinds = [
            _KindInMetric.of(kind, columns, smooth, sharing)
            for kind, columns in zip(cells.kinds, fitted, strict=True)
        ]
        self.normal = np.sum([summed(kind.fitted, kind.weighted) for kind in self.kinds], axis=0)
        scores = [summed(kind.weighted, kind.residual[:, :, None]) for kind in self.kinds]
        self.score = np.sum(scores, axis=0)[:, 0]
        self.solve = pseudoinverse(self.normal)

    def outside(self, columns: Sequence[_Column]) -> list[_Outside | None]:
        """Return what fitted parameters leave of each column; None where next to nothing."""
        if not columns:
            return []
        every = np.concatenate([column.change for column in columns], axis=2)
        changes = [every[np.ix_(kind.bins, kind.cells)] for kind in self.kinds]
        weighted = [kind.inverse @ change for kind, change in zip(self.kinds, changes, strict=True)]
        pairs = list(zip(self.kinds, changes, weighted, strict=True))
        whole = np.sum([(of_kind * change).sum((0, 1)) for _, change, of_kind in pairs], axis=0)
        across = [summed(kind.fitted, of_kind) for kind, _, of_kind in pairs]
        take = self.solve @ np.sum(across, axis=0)
        outside, products, scores, relative = [], [], [], []
        for kind, change, of_kind in pairs:
            change -= kind.fitted @ take
            of_kind -= kind.weighted @ take
            products.append(change.mT @ of_kind)
            scores.append(summed(of_kind, kind.residual[:, :, None])[:, 0])
            relative.append(relative_variances(kind.noise, of_kind.mT, kind.fits))
            outside.append((kind.bins, kind.own.outside(change)))
        products, relative = np.concatenate(products), np.concatenate(relative)
        information, score = products.sum(0), np.sum(scores, axis=0)
        least = _least(whole.max())
        of_columns, stop = list[_Outside | None](), 0
        for column in columns:
            k = slice(stop, stop := stop + column.change.shape[2])
            scaled = eigensystem(information[k, k], np.sqrt(np.maximum(whole[k], least)))
            columns_outside = [(bins, left_of_fit[:, :, k]) for bins, left_of_fit in outside]
            sums = score[k], products[:, k, k], relative[:, k].mean(1)
            of_columns.append(_outside_of(scaled, columns_outside, *sums))
        return of_columns

    def alone(
        self, change: Float[np.ndarray, "bin cell 1"]
    ) -> Iterator[tuple[int, _Outside | None]]:
        """Yield each bin with what fitted parameters leave of a change in this bin alone."""
        for kind in self.kinds:
            inside = change[np.ix_(kind.bins, kind.cells)][:, :, 0]
            weighted = np.einsum("bij,bj->bi", kind.inverse, inside)
            whole = (weighted * inside).sum(1)
            take = np.einsum("bcn,bc->bn", kind.fitted, weighted) @ self.solve.T
            taken = np.einsum("bcn,bn->bc", kind.fitted, take)
            weighted_taken = np.einsum("bcn,bn->bc", kind.weighted, take)
            left, weighted = inside - taken, weighted - weighted_taken
            products = (left * weighted).sum(1)
            # in other bins the change is 0, less what the fitted parameters take of it
            others = ((take @ self.normal) * take).sum(1) - (taken * weighted_taken).sum(1)
            score = ((weighted + weighted_taken) * kind.residual).sum(1) - take @ self.score
            spread = relative_variances(kind.noise, weighted[:, None], kind.fits)
            outside = kind.own.outside(left[:, :, None])
            for n, b in enumerate(kind.bins):
                size = np.sqrt(max(whole[n], _least(whole[n])))
                scaled = eigensystem(np.full((1, 1), products[n] + others[n]), np.full(1, size))
                sums = score[n : n + 1], products[n].reshape(1, 1, 1), spread[n]
                yield b, _outside_of(scaled, [([b], outside[n : n + 1])], *sums)


class _KindInMetric(NamedTuple):
    """Bins of one kind, with their noise as the residuals show it."""

    bins: list[int]
    cells: list[int]
    noise: NoiseCovariance
    fits: list[NoiseFit]
    residual: Float[np.ndarray, "bin cell"]
    own: OwnParameters
    inverse: Float[np.ndarray, "bin cell cell"]
    """Of the covariance, without what offset and contrast of a bin explain."""
    fitted: Float[np.ndarray, "bin cell n"]
    weighted: Float[np.ndarray, "bin cell n"]

    @classmethod
    def of(
        cls,
        kind: CellsOfKind,
        fitted: Float[np.ndarray, "bin cell n"],
        smooth: Float[np.ndarray, "bin cell k"],
        sharing: Mapping[int, float],
    ) -> "_KindInMetric":
        # which further columns leave the same, too
        fits = left_unexplained(kind.noises, smooth[kind.bins[0], kind.cells])
        inverse, levels = np.empty((*kind.residual.shape, len(kind.cells))), kind.levels.columns
        for n, (b, noise, fit) in enumerate(zip(kind.bins, kind.noises, fits, strict=True)):
            inverse[n] = kind.covariances.likely(fit, noise.least_pixels)[1] / sharing[b]
        own = own_parameters(levels, inverse @ levels)
        inverse = own.left_by(inverse)
        return cls(
            kind.bins, kind.cells, kind.of_cells, fits, kind.residual, own, inverse, fitted,
            inverse @ fitted,
        )  # fmt: skip


def _least(whole: float) -> float:
    """Return the least information that is no rounding, of columns with so much before they were fitted."""
    return max(float(np.finfo(float).eps * whole), np.finfo(float).tiny ** 0.5)


def _outside_of(
    scaled: Eigensystem,
    columns: list[tuple[list[int], Float[np.ndarray, "bin cell k"]]],
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
    if several:
        places = {b: bin.place(scan) for b, bin in cells.bins.items()}
        yield named("bin", faster)._replace(places=places)
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
