"""The check of the model: whether means of residuals exceed what speckle and counting allow.

Residuals are averaged over cells of age and lag, these over bins, and over all ages or lags. The variance of
each such mean is that of the noise (`speckle_covariance`) less what the fit takes out of it; nothing else is
assumed, and it costs no pass. Alternatives that have a name are tested, too (`score_tests`).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr, stdtrit

from homodyne_dask.assessment.cell_residuals import means_of_cells
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.fitted_cells import CellsOfKind, FittedCells
from homodyne_dask.assessment.flow_profile import change_by_other, has_profile
from homodyne_dask.assessment.frame_tests import beam_noise, whole_range
from homodyne_dask.assessment.score_tests import (
    best_alternative,
    p_of_other_profile,
    power_of_q,
    score_tests,
)
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.speckle_noise import MIN_PAIRS
from homodyne_dask.models.rate_forms import LOG_DENSITY
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_result import Alternative, ModelCheck, PowerOfQ
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.array_shapes import PerBin, PerCell, SomeBins
from homodyne_dask.solver.cluster_robust import LEVEL_OF_MISFIT
from homodyne_dask.store.rings_and_clusters import ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

MIN_SHARE = 0.005
"""Deviations below this share of the contrast are no misfit, however certain they are."""
MIN_CELLS = 12
"""With fewer cells nothing is tested."""
MOST_NOISE = 1 / 8
"""Error of a mean of c2 above which it is taken for 0: it rests on less than 64 pairs of photons, or on a few
speckles, and is not normal."""
MIN_RINGS = 3
"""Rings from which on the power of q is said first."""
MIN_SPREAD = 1e-3
"""Of cos 2φ within a ring, below which φ is taken for one."""
MIN_FREEDOM = 4
"""Trends with φ are tested where there are so many more bins than rings and trends."""


class _Means(NamedTuple):
    words: str
    residual: PerCell
    z: PerCell
    """In standard errors; NaN where there is none."""
    freedom: PerCell
    contrast: float
    cells: list[Int[np.ndarray, " some"]]
    repeats: int = 1
    """Bins of which each mean was looked at before they were pooled."""

    @property
    def tests(self) -> int:
        return int(np.isfinite(self.z).sum()) * self.repeats

    def limits(self, tests: int) -> PerCell:
        """Return the |z| above which a mean deviates, one of so many that are tested (Bonferroni)."""
        return -stdtrit(self.freedom, LEVEL_OF_MISFIT / 2 / tests)

    def over_limit(self, tests: int) -> PerCell:
        """Return |z| over its limit; 0 of deviations that are too small to matter."""
        large = np.abs(self.residual) >= MIN_SHARE * self.contrast
        return np.where(np.isfinite(self.z) & large, np.abs(self.z) / self.limits(tests), 0.0)


class Examined(NamedTuple):
    """The tests of a model, as an `Assessment` has them."""

    check: ModelCheck | None = None
    power_of_q: PowerOfQ | None = None
    """Both are None where there is too little to test."""
    p_of_other_profile: float = 1.0


@one_blas_thread()
def examine_model(
    end: FitEnd, speckle: SpeckleErrors | None, cells: FittedCells | None
) -> Examined:
    request, scan, reduced = end.request, end.request.scan, end.reduced
    if speckle is None or cells is None or not reduced.finite:
        return Examined()
    if np.isfinite(cells.residual).any(0).sum() < MIN_CELLS:
        return Examined()
    contrast = np.abs(np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast)))
    means = _means(scan, cells, contrast)
    tests = sum(group.tests for group in means)
    if tests < MIN_CELLS:  # the model interpolates the data
        return Examined()
    flows = has_profile(request.problem)
    of_model = {"profile": change_by_other(end, cells.intervals)} if flows else {}
    scores = score_tests(scan, cells, contrast, _alternatives_of(request), of_model)
    alternative = _of_all_frames(end, best_alternative(scores, MIN_SHARE))
    typical = float(np.median(contrast))
    if alternative is not None and typical > 0:
        alternative = whole_range(scan, alternative, typical)
    check = ModelCheck(
        tests=tests,
        **_largest_deviation(scan, cells, means, tests),
        depends_on=_depends_on(scan, cells),
        p_value=speckle.p_value,
        alternative=alternative,
    )
    inside = zip(request.parameters, end.inside, strict=True)
    scaled = any(parameter.q_power > 0 for parameter, free in inside if free)
    several = len(rings_of(scan.q[list(speckle.bins)])) >= MIN_RINGS
    power = power_of_q(scores) if scaled and several else None
    return Examined(check, power, p_of_other_profile(scores))


def _of_all_frames(end: FitEnd, alternative: Alternative | None) -> Alternative | None:
    """Return the noise of the beam in place of frames that differ, where it makes all frames differ."""
    if alternative is None or alternative.name not in ("frame", "frames"):
        return alternative
    noise = beam_noise(end.request.scan, end.request.clusters)
    return alternative if noise is None else alternative._replace(name="beam", place=(), size=noise)


def _largest_deviation(
    scan: Scan, cells: FittedCells, means: list[_Means], tests: int
) -> dict[str, Any]:
    """Return the fields of a `ModelCheck` on the means that are over their limits, and on the largest."""
    over_limit = [group.over_limit(tests) for group in means]
    # by the ratio, not by z: few degrees of freedom allow a larger z
    of_worst = int(np.argmax([ratio.max(initial=0.0) for ratio in over_limit]))
    worst, test = means[of_worst], int(np.argmax(over_limit[of_worst]))
    threshold = float(worst.limits(tests)[test])
    largest = float(over_limit[of_worst][test] * threshold)
    first, stop, shortest, longest = np.array([cells.intervals[n] for n in worst.cells[test]]).T
    spacing = (scan.time[-1] - scan.time[0]) / max(scan.n_frames - 1, 1)
    return {
        "threshold": threshold,
        "deviating": int(sum((ratio > 1).sum() for ratio in over_limit)),
        "largest": largest,
        "where": worst.words,
        "age": (float(scan.time[first.min()]), float(scan.time[stop.max() - 1])),
        "lag": (float(shortest.min() * spacing), float((longest.max() - 1) * spacing)),
        "residual": float(worst.residual[test]),
        "share": float(worst.residual[test] / max(worst.contrast, np.finfo(float).tiny)),
        "p_of_largest": min(1.0, 2 * tests * float(stdtr(worst.freedom[test], -largest))),
    }


OF_PARAMETERS = {"stretching": "stretching", "q_exponent": "power_of_q"}


def _alternatives_of(request: Request) -> set[str]:
    model, free = request.problem.model, np.array(request.search.names)[request.search.free]
    names = {OF_PARAMETERS[name] for name in free if name in OF_PARAMETERS}
    names |= set() if model.isotropic else {"shear"}
    return names | {"stretching" if name == LOG_DENSITY else "rate" for name in model.splines}


def _means(scan: Scan, cells: FittedCells, contrast: PerBin) -> list[_Means]:
    with_noise = np.isin(np.arange(len(scan.bins)), list(cells.bins))
    groups = [("all bins", with_noise)] if with_noise.sum() > 1 else []
    rings, numbers = rings_of(scan.q), ring_numbers(scan.q)
    if len(rings) > 1 and not np.isnan(scan.q).any():
        groups += [
            (f"the bins at q = {q:.6g} 1/Å", with_noise & (numbers == n))
            for n, q in enumerate(rings)
        ]
    means, alone = list[_Means](), dict[int, _Means]()
    for kind in cells.kinds:
        alone |= _alone(scan, cells, kind, contrast)
    for words, members in groups:
        bins = np.flatnonzero(members).tolist()
        if len(bins) == 1:  # a ring of one bin
            means.append(alone[bins[0]]._replace(words=words))
        elif bins:
            several = max(cells.shared.counts(bins).values())
            typical = float(np.median(contrast[members]))
            means.append(_of_group(words, cells, members, several, typical))
    means += [alone[b]._replace(repeats=len(bin.members)) for b, bin in cells.bins.items()]
    return means + _with_phi(scan, cells, float(np.median(contrast)))


def _alone(
    scan: Scan, cells: FittedCells, kind: CellsOfKind, contrast: PerBin
) -> dict[int, _Means]:
    """Return the means of each bin."""
    variance = cells.variances[np.ix_(kind.bins, kind.cells)]
    weight = 1 / np.where(variance > 0, variance, np.inf)
    intervals = [cells.intervals[n] for n in kind.cells]
    pairs = cells.pairs[kind.bins[0], kind.cells]
    some, sets, mix = means_of_cells(intervals, weight.min(0), pairs, MIN_PAIRS)
    weights = (mix > 0) * weight[:, :, None]
    weights /= weights.sum(1, keepdims=True)
    of_sets, numbers = (kind.residual[:, None] @ weights)[:, 0], np.array(kind.cells)
    residuals = np.concatenate([kind.residual[:, some], of_sets], axis=1)
    numbers = [numbers[of_mean] for of_mean in (*some[:, None], *sets)]
    of_bins = zip(kind.bins, residuals, *cells.variances_alone(kind, some, weights), strict=True)
    return {
        b: _Means(
            cells.bins[b].words(scan), residual, _in_errors(residual, variance), freedom,
            float(contrast[b]), numbers,
        )
        for b, residual, variance, freedom in of_bins
    }  # fmt: skip


def _of_group(
    words: str, cells: FittedCells, members: SomeBins, several: float, contrast: float
) -> _Means:
    """Return the means over bins that enough pairs make normal; several: bins of one speckle pattern."""
    bins = np.flatnonzero(members)
    variance = cells.variances[bins]
    there = np.isfinite(cells.residual[bins]) & (variance > 0)
    weight = np.where(there, 1 / np.where(there, variance, 1.0), 0.0)
    share = np.zeros(cells.residual.shape)
    share[bins] = weight / np.maximum(weight.sum(0), np.finfo(float).tiny)
    pairs = (cells.pairs[bins] * there).sum(0)
    alone, sets, mix = means_of_cells(cells.intervals, weight.sum(0), pairs, MIN_PAIRS)
    of_cells = (share[bins] * np.nan_to_num(cells.residual[bins])).sum(0)
    residual = np.append(of_cells[alone], of_cells @ mix)
    variance, freedom = cells.variance(share, alone, mix, by_noise=True)
    z = _in_errors(residual, variance * several)
    return _Means(words, residual, z, freedom, contrast, [*alone[:, None], *sets])


def _in_errors(
    residual: Float[np.ndarray, " mean"], variance: Float[np.ndarray, " mean"]
) -> Float[np.ndarray, " mean"]:
    noisy, normal = variance > 0, variance < MOST_NOISE**2
    return np.where(noisy, normal * residual / np.sqrt(np.where(noisy, variance, 1.0)), np.nan)


def _with_phi(scan: Scan, cells: FittedCells, contrast: float) -> list[_Means]:
    """Return the parts of the residuals that go with cos 2φ and sin 2φ, and are not the same in each ring."""
    bins, means = np.array(sorted(cells.bins)), []
    rings, angle = ring_numbers(scan.q), np.deg2rad(2 * scan.phi)
    independent, of_rings = len(np.unique(cells.shared.clusters[bins])), np.unique(rings[bins])
    if independent - len(of_rings) < MIN_FREEDOM or not np.isfinite(angle[bins]).all():
        return []
    columns = [rings == ring for ring in of_rings]
    basis = np.stack([*columns, np.cos(angle), np.sin(angle)], axis=1).astype(float)[bins]
    enough = cells.pairs[bins].sum(0) >= MIN_PAIRS
    whole = np.flatnonzero(np.isfinite(cells.residual[bins]).all(0) & enough)
    if independent - np.linalg.matrix_rank(basis) < MIN_FREEDOM or not len(whole):
        return []
    alone = whole, np.zeros((len(cells.intervals), 0))
    words = ("all bins, as cos 2φ", "all bins, as sin 2φ")
    trends = zip(words, np.linalg.pinv(basis)[-2:], basis.T[-2:], strict=True)
    for name, row, column in trends:
        if max(np.ptp(column[ring[bins]]) for ring in columns) < MIN_SPREAD:
            continue
        amplitude = row @ cells.residual[np.ix_(bins, whole)]
        share = np.zeros(cells.residual.shape)
        share[np.ix_(bins, whole)] = row[:, None]
        spread, freedom = cells.variance(share, *alone, by_noise=False)
        several = max(cells.shared.counts(bins.tolist()).values())
        z, sets = _in_errors(amplitude, spread * several), [np.array([n]) for n in whole]
        means.append(_Means(name, amplitude, z, freedom, contrast, sets))
    return means


def _depends_on(scan: Scan, cells: FittedCells) -> str:
    """Return what explains most of the deviations beyond noise: q, bin, age or lag."""
    rings, bins, number = ring_numbers(scan.q), list(cells.bins), np.ones((len(scan.bins), 1))
    number[bins, 0] = [len(bin.members) for bin in cells.bins.values()]
    variances = (cells.variances * number)[bins]
    # one variance for all bins: by their own, the least noisy would decide alone
    typical = np.nanmedian(np.where(variances > 0, variances, np.nan), axis=0) / number
    counted = np.isfinite(cells.residual) & (typical > 0)
    weight = np.where(counted, 1 / np.where(counted, typical, 1.0), 0.0)
    score = weight * np.nan_to_num(cells.residual)
    members = [rings == ring for ring in np.unique(rings)]
    lag = np.unique([cell.shortest for cell in cells.intervals], return_inverse=True)[1]
    at_lags, lags = _explained(np.bincount(lag, score.sum(0)), np.bincount(lag, weight.sum(0)))
    of_all, n = _explained(score.sum(0), weight.sum(0))
    of_rings = sum(_explained(score[some].sum(0), weight[some].sum(0))[0] for some in members)
    of_bins, _ = _explained(score, weight)
    explained = {
        "lag": (at_lags, lags),
        "age": (of_all - at_lags, n - lags),
        "q": (of_rings - of_all, n * (len(members) - 1)),
        "bin": (of_bins - of_rings, n * (len(bins) - len(members))),
    }
    possible = [name for name, (_, freedom) in explained.items() if freedom > 0]
    # of noise alone each has about as much χ² as degrees of freedom
    return max(possible, key=lambda name: explained[name][0] - explained[name][1])


def _explained(score: np.ndarray, weight: np.ndarray) -> tuple[float, int]:
    weighted = weight > 0
    return float((score[weighted] ** 2 / weight[weighted]).sum()), int(weighted.sum())
