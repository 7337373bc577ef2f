"""The check of the model: whether means of residuals exceed what speckle and counting allow.

Residuals are averaged over cells of age and lag, these over bins, and over all ages or lags. The variance of
each such mean is that of the noise (`solver.speckle`) less what the fit takes out of it; nothing
else is assumed, and it costs no pass.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from homodyne_dask.fitting.error_estimation.cell_residuals import Interval
from homodyne_dask.fitting.error_estimation.speckle_errors import SpeckleErrors
from homodyne_dask.fitting.options import SPECKLE_WEIGHTS
from homodyne_dask.fitting.request import Request
from homodyne_dask.results.data.misfit import ModelCheck
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.state import State
from homodyne_dask.store.rings import friedel_clusters, ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

LEVEL = 0.01
"""Probability that a right model is called wrong, by Bonferroni's bound over all means."""
MIN_SHARE = 0.005
"""Deviations below this share of the contrast are not called misfit, however certain."""
MIN_CELLS = 12
"""With fewer cells nothing is tested."""
LEAST_LEFT = 0.4
"""Share of the variance of a mean that the fit leaves at least."""
MIN_FREEDOM = 4
"""Fewest more bins than rings and trends with φ, with which these trends are tested."""


class _Cells(NamedTuple):
    """The residuals of all bins with their noise and what the fit takes out of it."""

    intervals: list[Interval]
    """Of all bins; a bin has some of them."""
    residual: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no such cell."""
    noise: dict[int, Float[np.ndarray, "cell cell"]]
    """The covariance of the noise of each bin; 0 where it has no cell."""
    columns: dict[int, Float[np.ndarray, "cell n"]]
    """Derivatives of c2 by all fitted parameters."""
    correlated: dict[int, Float[np.ndarray, "cell n"]]
    """noise @ weights @ columns."""
    inverse: Float[np.ndarray, "n n"]
    """Of the normal matrix of all cells."""
    fitted: Float[np.ndarray, "n n"]
    """Covariance of the scores of the fitted parameters."""
    freedom: float
    """Degrees of freedom of the size of the noise."""

    def variance(
        self, weights: Mapping[int, Float[np.ndarray, "cell test"]]
    ) -> Float[np.ndarray, " test"]:
        """Return the variance of sums of residuals with these weights in each bin.

        A fit of all pairs takes a little less out of a sum than one of cells would.
        """
        tests = next(iter(weights.values())).shape[1]
        total, scores = np.zeros(tests), np.zeros((len(self.inverse), tests))
        across = np.zeros((len(self.inverse), tests))
        for b, of in weights.items():
            total += (of * (self.noise[b] @ of)).sum(0)
            scores += self.columns[b].T @ of
            across += self.correlated[b].T @ of
        taken = self.inverse @ scores
        left = total - 2 * (across * taken).sum(0) + (taken * (self.fitted @ taken)).sum(0)
        return np.maximum(left, LEAST_LEFT * total)


def _cells(request: Request, state: State, speckle: SpeckleErrors) -> _Cells:
    """Return the residuals of the bins whose noise is known."""
    scan, reduced = request.scan, state.reduced
    moved = request.search.free_inside_bounds(state.theta)
    joint = joint_equations(reduced, moved)
    known = speckle.bins
    intervals = sorted({cell for one in known.values() for cell in one.cells.intervals})
    place = {cell: n for n, cell in enumerate(intervals)}
    linear, m = _linear_columns(request, state), joint.moved
    n, size = linear.shape[2] + m, len(intervals)
    normal, fitted = np.zeros((n, n)), np.zeros((n, n))
    if joint.prior is not None:
        normal[-m:, -m:] += joint.prior.normal[:m, :m]
    noise, columns, correlated = {}, {}, {}
    residual = np.full((len(scan.bins), size), np.nan)
    for b, one in known.items():
        at = [place[cell] for cell in one.cells.intervals]
        residual[b, at] = one.residual
        contrast = reduced.contrast[b]
        own = np.stack([np.ones(len(at)), one.cells.f], axis=1) @ linear[b]
        own = np.concatenate([own, contrast * one.cells.slopes.T], axis=1)
        covariance = one.covariance
        if request.options.weighting == SPECKLE_WEIGHTS:
            weight = one.inverse
        else:
            weight = np.diag(one.cells.pairs * (1 / scan.sigma_row[b] ** 2).mean() ** 2)
        weighted = weight @ own
        scores = covariance @ weighted
        normal += own.T @ weighted
        fitted += weighted.T @ scores
        noise[b], columns[b], correlated[b] = (
            np.zeros((size, size)), np.zeros((size, n)), np.zeros((size, n))
        )  # fmt: skip
        noise[b][np.ix_(at, at)], columns[b][at], correlated[b][at] = covariance, own, scores
    scale = np.sqrt(np.where(np.diag(normal) > 0, np.diag(normal), 1.0))
    inverse = np.linalg.pinv(normal / np.outer(scale, scale), 1e-10, hermitian=True)
    freedom = float(np.median([one.fit.freedom for one in known.values()]))
    return _Cells(
        intervals,
        residual,
        noise,
        columns,
        correlated,
        inverse / np.outer(scale, scale),
        fitted,
        freedom,
    )


def _linear_columns(request: Request, state: State) -> Float[np.ndarray, "bin 2 l"]:
    """Return the derivatives of (offset, contrast) of every bin by the linear parameters of all."""
    reduced, bins = state.reduced, len(request.scan.bins)
    groups = len(reduced.inverse) if reduced.columns.shape[1] else 0
    if groups <= 1:  # fixed, or shared by all bins
        return np.einsum("km,zy->kzym", reduced.columns, np.eye(2)).reshape(bins, 2, -1)
    own = np.zeros((bins, 2, bins, 2))
    for b in range(bins):
        own[b, [0, 1], b, [0, 1]] = ~reduced.at_bound[b]
    return own.reshape(bins, 2, -1)


class _Means(NamedTuple):
    """Residuals averaged over some bins."""

    words: str
    residual: Float[np.ndarray, " cell"]
    z: Float[np.ndarray, " cell"]
    """In standard errors; NaN where there is none."""
    contrast: float
    cells: list[Int[np.ndarray, " some"]]
    """The cells of each mean."""


@one_blas_thread()
def examine_model(
    request: Request, state: State, speckle: SpeckleErrors | None
) -> ModelCheck | None:
    """Return the test of the model at the end of a fit; None where there is too little to test."""
    scan, reduced = request.scan, state.reduced
    if speckle is None or not reduced.finite:
        return None
    cells = _cells(request, state, speckle)
    if np.isfinite(cells.residual).any(0).sum() < MIN_CELLS:
        return None
    contrast = np.abs(np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast)))
    means = _means(scan, cells, contrast)
    z = [np.abs(one.z) for one in means]
    tests = int(sum(np.isfinite(of).sum() for of in z))
    if tests < MIN_CELLS:  # the model interpolates the data
        return None
    threshold = float(-stdtrit(cells.freedom, LEVEL / 2 / tests))
    strict = [
        np.where(np.isfinite(of) & (np.abs(one.residual) >= MIN_SHARE * one.contrast), of, 0.0)
        for of, one in zip(z, means, strict=True)
    ]
    at = int(np.argmax([of.max(initial=0.0) for of in strict]))
    worst, test = means[at], int(np.argmax(strict[at]))
    some = [cells.intervals[n] for n in worst.cells[test]]
    spacing = (scan.time[-1] - scan.time[0]) / max(scan.n_frames - 1, 1)
    return ModelCheck(
        tests=tests,
        threshold=threshold,
        deviating=int(sum((of > threshold).sum() for of in strict)),
        largest=float(strict[at][test]),
        where=worst.words,
        age=(
            float(scan.time[min(cell.first for cell in some)]),
            float(scan.time[max(cell.stop for cell in some) - 1]),
        ),
        lag=(
            float(min(cell.shortest for cell in some) * spacing),
            float((max(cell.end for cell in some) - 1) * spacing),
        ),
        residual=float(worst.residual[test]),
        share=float(worst.residual[test] / max(worst.contrast, np.finfo(float).tiny)),
        depends_on=_depends_on(scan, cells),
        p_value=speckle.p_value,
    )


def _means(scan: Scan, cells: _Cells, contrast: Float[np.ndarray, " bin"]) -> list[_Means]:
    """Return the residuals of all bins together, of each ring if there are several, and of each bin."""
    known = np.array([b in cells.noise for b in range(len(scan.bins))])
    clusters = friedel_clusters(scan.q, scan.phi)
    same = np.array([(clusters[known] == one).sum() for one in clusters])
    groups = [("all bins", known)] if known.sum() > 1 else []
    rings, numbers = rings_of(scan.q), ring_numbers(scan.q)
    if len(rings) > 1 and not np.isnan(scan.q).any():
        groups += [
            (f"the bins of q {q:.6g} 1/Å", known & (numbers == n)) for n, q in enumerate(rings)
        ]
    groups += [
        (f"the bin labelled {label}", known & (np.arange(len(scan.bins)) == b))
        for b, label in enumerate(scan.label)
    ]
    found = []
    for words, members in groups:
        if not members.any():
            continue
        several = float(same[members].max()) if members.sum() > 1 else 1.0
        typical = float(np.median(contrast[members]))
        found += _of_group(words, cells, members, several, typical)
    return found + _with_phi(scan, cells, known, float(np.median(contrast)))


def _of_group(
    words: str, cells: _Cells, members: Bool[np.ndarray, " bin"], several: float, contrast: float
) -> list[_Means]:
    """Return the means over some bins of each cell, over all ages at each lag, and all lags at each age.

    several: bins of the group that see one speckle pattern.
    """
    of = np.flatnonzero(members)
    variance = np.stack([np.diag(cells.noise[b]) for b in map(int, of)])
    there = np.isfinite(cells.residual[of]) & (variance > 0)
    weight = np.where(there, 1 / np.where(there, variance, 1.0), 0.0)
    each = weight / np.maximum(weight.sum(0), np.finfo(float).tiny)
    number = np.arange(len(cells.intervals))
    single = number[there.any(0)]
    ages, lags = (
        np.array([getattr(cell, name) for cell in cells.intervals])
        for name in ("first", "shortest")
    )
    sets = [np.array([n]) for n in single]
    for key in (lags, ages):
        sets += [single[key[single] == value] for value in np.unique(key[single])]
    sets = [of_set for n, of_set in enumerate(sets) if n < len(single) or len(of_set) > 1]
    total = weight.sum(0)
    mix = np.zeros((len(number), len(sets)))
    for n, of_set in enumerate(sets):
        mix[of_set, n] = total[of_set] / total[of_set].sum()
    weights = {int(b): row[:, None] * mix for b, row in zip(of, each, strict=True)}
    residual = sum(np.nan_to_num(cells.residual[b]) @ weights[int(b)] for b in of)
    spread = cells.variance(weights) * several
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(spread > 0, residual / np.sqrt(np.maximum(spread, 0)), np.nan)
    return [_Means(words, np.asarray(residual), z, contrast, sets)]


def _trends(scan: Scan) -> Float[np.ndarray, "bin column"]:
    """Return a column for each ring, then cos 2φ and sin 2φ."""
    rings = ring_numbers(scan.q)
    angle = np.deg2rad(2 * np.nan_to_num(scan.phi))
    columns = [rings == ring for ring in np.unique(rings)]
    return np.stack([*columns, np.cos(angle), np.sin(angle)], axis=1).astype(float)


def _freedom(basis: Float[np.ndarray, "bin column"]) -> int:
    """Return how many more bins there are than trends."""
    return len(basis) - int(np.linalg.matrix_rank(basis))


def _with_phi(
    scan: Scan, cells: _Cells, known: Bool[np.ndarray, " bin"], contrast: float
) -> list[_Means]:
    """Return the parts of the residuals that go with cos 2φ and sin 2φ, where there are enough bins."""
    basis = _trends(scan)[known]
    whole = np.flatnonzero(np.isfinite(cells.residual[known]).all(0))
    if _freedom(basis) < MIN_FREEDOM or not len(whole):
        return []
    of, found = np.flatnonzero(known), []
    chosen = np.eye(len(cells.intervals))[:, whole]
    words = ("all bins, as cos 2φ", "all bins, as sin 2φ")
    for name, row in zip(words, np.linalg.pinv(basis)[-2:], strict=True):
        part = row @ cells.residual[np.ix_(of, whole)]
        spread = cells.variance({int(b): one * chosen for b, one in zip(of, row, strict=True)})
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.where(spread > 0, part / np.sqrt(np.maximum(spread, 0)), np.nan)
        found.append(_Means(name, part, z, contrast, [np.array([n]) for n in whole]))
    return found


def _averaged(
    residual: Float[np.ndarray, "bin cell"],
    variance: Float[np.ndarray, "bin cell"],
    members: np.ndarray,
) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"]]:
    """Return the mean residual of some bins in each cell and 1/variance of that mean."""
    residual, variance = residual[members], variance[members]
    known = np.isfinite(residual) & (variance > 0)
    weight = np.where(known, 1 / np.where(known, variance, 1.0), 0.0)
    total = weight.sum(0)
    sums = (weight * np.where(known, residual, 0.0)).sum(0)
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan), total


def _depends_on(scan: Scan, cells: _Cells) -> str:
    """Return what explains most of the deviations beyond noise: q, bin, age or lag.

    Σ residual²/variance is split, as in an analysis of variance, into that of the mean over ages and bins
    at each lag, and what age, ring and bin add.
    """
    rings, residual = ring_numbers(scan.q), cells.residual
    each = np.stack([np.diag(of) for of in cells.noise.values()])
    typical = np.nanmedian(np.where(each > 0, each, np.nan), axis=0)
    variance = np.where(np.isfinite(residual), typical, 0.0)
    shortest = np.array([cell.shortest for cell in cells.intervals])
    lag_number = np.unique(shortest, return_inverse=True)[1]
    members = [rings == ring for ring in np.unique(rings)]
    every = np.ones(len(scan.bins), bool)
    whole, weight = _averaged(residual, variance, every)
    there = weight > 0
    of_all = _size(whole, weight)
    at_lags, lags = _over_ages(whole[there], weight[there], lag_number[there])
    of_rings = sum(_size(*_averaged(residual, variance, some)) for some in members)
    known = np.isfinite(residual) & (variance > 0)
    of_bins = float((residual[known] ** 2 / variance[known]).sum())
    n = int(there.sum())
    parts = {
        "lag": (at_lags, lags),
        "age": (of_all - at_lags, n - lags),
        "q": (of_rings - of_all, n * (len(members) - 1)),
        "bin": (of_bins - of_rings, n * (len(scan.bins) - len(members))),
    }
    possible = [name for name, (_, freedom) in parts.items() if freedom > 0]
    return max(possible, key=lambda name: parts[name][0] - parts[name][1])


def _size(residual: Float[np.ndarray, " cell"], weight: Float[np.ndarray, " cell"]) -> float:
    return float((weight * np.nan_to_num(residual) ** 2).sum())


def _over_ages(
    residual: Float[np.ndarray, " cell"],
    weight: Float[np.ndarray, " cell"],
    lag: Int[np.ndarray, " cell"],
) -> tuple[float, int]:
    """Return Σ residual²/variance of the means over all ages at each lag, and the number of lags."""
    total = np.bincount(lag, weight)
    sums = np.bincount(lag, weight * residual)
    some = total > 0
    return float((sums[some] ** 2 / total[some]).sum()), int(some.sum())
