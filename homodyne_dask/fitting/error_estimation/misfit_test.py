"""The check of the model: whether means of residuals exceed what noise and correlated speckle allow.

Residuals are averaged over cells of age and lag, with the noise that counted photons would give them. They
are read from the averages stored with the data, so they cost no pass. Pairs that see the same speckle are
correlated, and the mean of a cell is then noisier than its pairs would say.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.results.data.misfit import ModelCheck
from homodyne_dask.solver.state import State
from homodyne_dask.store.rings import friedel_clusters, ring_numbers, rings_of
from homodyne_dask.store.scan import Cuts, Scan, q_or_one

MIN_PAIRS = 16
"""Fewest pairs of a cell: the noise of means over fewer is not normal."""
SAMPLES = 4
"""Frames along age and along lag at which f is averaged over a cell; all of them in shorter ones."""
MAX_EXCESS = 1.5
"""χ² per pair of σ from counts up to which the excess is taken for noise: about the most that pairs
of one speckle pattern have."""
LEVEL = 0.01
"""Probability that a right model is called wrong, by Bonferroni's bound over all means."""
MIN_SHARE = 0.005
"""Deviations below this share of the contrast are not called misfit, however certain."""
MIN_CELLS = 12
"""With fewer cells nothing is tested."""
MIN_FREEDOM = 4
"""Fewest degrees of freedom between bins from which noise is estimated."""
PARTS = np.linspace(0.0, 1.0, 21)
SIZES = 4
"""Groups of cells, by size, in each of which the scatter between bins must be explained."""


class ResidualCells(NamedTuple):
    """c2 less the fitted model, averaged over cells of age and lag."""

    residual: Float[np.ndarray, "bin cell"]
    """NaN in cells that are not used."""
    variance: Float[np.ndarray, "bin cell"]
    """Of the residual if pairs were independent."""
    f: Float[np.ndarray, "bin cell"]
    """Mean of f."""
    neighbours: Float[np.ndarray, "3 bin cell"]
    """Sums of f over as many neighbouring frames as the cell has ages, lags, and the fewer of both."""
    share: Float[np.ndarray, " bin"]
    """What frames of one speckle pattern share of the noise, at most: β/(1/μ + β), 1 if μ is unknown."""
    age: Float[np.ndarray, "cell 2"]
    """First and last t1 of a cell, s."""
    lag: Float[np.ndarray, "cell 2"]
    """Shortest and longest lag of a cell, s."""
    lag_number: Int[np.ndarray, " cell"]
    """Which interval of lags."""

    def correlated_variance(self, part: float = 1.0) -> Float[np.ndarray, "bin cell"]:
        """Return the variance of the residual for counted photons, an upper limit.

        part: of `share`. The covariance of pairs (i, j) and (k, l) is that of frames i and k times that
        of j and l, and that of two frames is `share` times f, and 1 of one frame. So with a cell's a ages
        and b lags and the sums F_n of f over n neighbours it exceeds that of independent pairs at most by
        (1 - share)² + share (1 - share)(F_b + F_min(a,b)) + share² F_a F_b; pairs that see one speckle
        pattern in both frames are themselves up to half as noisy again.
        """
        share, (Fa, Fb, both) = part * self.share[:, None], self.neighbours
        effect = (1 - share) ** 2 + share * (1 - share) * (Fb + both) + share**2 * Fa * Fb
        return self.variance * effect * (1 + 0.5 * share * self.f**2)


def _averaged_means(
    scan: Scan, cuts: Cuts, means: CellMeans
) -> tuple[Cuts, Float[np.ndarray, "bin cell"]]:
    """Return c2 and f averaged over the means that each cell holds, by their pairs."""
    assert scan.cells is not None
    t1, t2 = scan.cells.middle
    number = np.full((len(cuts.age_edges) + 1, len(cuts.lag_edges) + 1), len(cuts.t1))
    number[cuts.age, cuts.lag] = np.arange(len(cuts.t1))
    place = number[
        np.searchsorted(cuts.age_edges, t1, "right") - 1,
        np.searchsorted(cuts.lag_edges, t2 - t1, "right") - 1,
    ]
    pairs = np.where(means.weight > 0, scan.cells.pairs, 0)

    def total(of: Float[np.ndarray, "bin mean"]) -> Float[np.ndarray, "bin cell"]:
        return np.stack([np.bincount(place, one, len(cuts.t1) + 1)[:-1] for one in pairs * of])

    count = total(np.ones(pairs.shape))
    c2, f = (total(means.columns[..., n]) / np.maximum(count, 1) for n in (1, 2))
    return replace(cuts, c2=1 + c2, count=count.astype(np.int64)), f


class _Samples(NamedTuple):
    """Frames that stand for an interval of frames."""

    frame: Float[np.ndarray, "interval s"]
    used: Bool[np.ndarray, "interval s"]


def residual_cells(
    request: Request, state: State, means: CellMeans | None = None
) -> ResidualCells | None:
    """Return the residuals of every bin in the cells that lie inside the selected frames, if any.

    means: [1, y - 1, f] of data that are means over cells, smaller ones mostly; those whose middle lies in a
    cell of the averages stored with the data are then averaged instead.
    """
    scan, reduced, cuts = request.scan, state.reduced, request.scan.cuts(request.problem.min_lag)
    if not len(cuts.t1):
        return None
    age, lag = (_intervals(cuts.age_edges, cuts.age), _intervals(cuts.lag_edges, cuts.lag))
    if means is None:
        mean_f = _mean_f(request, state, age, lag)
    else:
        cuts, mean_f = _averaged_means(scan, cuts, means)
    contrast = np.where(np.isfinite(reduced.contrast), reduced.contrast, 0.0)
    contrast = np.where(reduced.undetermined, 0.0, contrast)
    residual = cuts.c2 - reduced.offset[:, None] - contrast[:, None] * mean_f
    first = np.searchsorted(scan.time, [cuts.t1, cuts.t2]).clip(0, scan.n_frames - 1)
    pair = scan.sigma_row[:, first[0]] ** 2 * scan.sigma_row[:, first[1]] ** 2
    pair = pair * _scale(request, state)[:, None]
    start, stop = scan.frames
    last = np.minimum(age[:, 1] + lag[:, 1] - 2, scan.n_frames - 1)
    inside = (age[:, 0] >= start) & (last < stop)
    used = inside & (cuts.count >= MIN_PAIRS) & (reduced.count > 0)[:, None] & np.isfinite(mean_f)
    return ResidualCells(
        residual=np.where(used, residual, np.nan),
        variance=pair / np.maximum(cuts.count, 1),
        f=mean_f,
        neighbours=_neighbours(request, state, cuts, first[1]),
        share=_correlated_share(scan),
        age=scan.time[np.stack([age[:, 0], age[:, 1] - 1], axis=1)],
        lag=_seconds(scan, lag),
        lag_number=cuts.lag,
    )


def _intervals(edges: Int[np.ndarray, " edge"], number: Int[np.ndarray, " cell"]) -> np.ndarray:
    """Return (first, one after the last) of the interval of each cell."""
    return np.stack([edges[number], edges[number + 1]], axis=1)


def _seconds(scan: Scan, lag: Int[np.ndarray, "cell 2"]) -> Float[np.ndarray, "cell 2"]:
    spacing = (scan.time[-1] - scan.time[0]) / max(scan.n_frames - 1, 1)
    return np.stack([lag[:, 0], lag[:, 1] - 1], axis=1) * spacing


def _samples(interval: Int[np.ndarray, "interval 2"]) -> _Samples:
    """Return all frames of a short interval, or the middles of SAMPLES equal parts of a longer one."""
    k, first = np.arange(SAMPLES), interval[:, :1]
    width = np.diff(interval, axis=1)
    short = width <= SAMPLES
    frame = np.where(short, first + k, first + (k + 0.5) * width / SAMPLES - 0.5)
    return _Samples(frame, ~short | (k < width))


def _mean_f(
    request: Request, state: State, age: Int[np.ndarray, "cell 2"], lag: Int[np.ndarray, "cell 2"]
) -> Float[np.ndarray, "bin cell"]:
    """Return the mean of f over the used frames of each cell; NaN where none stands for its few pairs."""
    scan, of_age, of_lag = request.scan, _samples(age), _samples(lag)
    i = of_age.frame[:, :, None] + 0 * of_lag.frame[:, None, :]
    j = i + of_lag.frame[:, None, :]
    end = scan.n_frames - 1
    there = of_age.used[:, :, None] & of_lag.used[:, None, :] & (j <= end)
    i, j = np.clip(i, 0, end), np.clip(j, 0, end)
    there &= scan.frame_mask[i.round().astype(int)] & scan.frame_mask[j.round().astype(int)]
    total, samples = (_f(request, state, i, j) * there).sum((2, 3)), there.sum((1, 2))
    return np.where(samples > 0, total / np.maximum(samples, 1), np.nan)


def _f(
    request: Request, state: State, i: Float[np.ndarray, "..."], j: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "bin ..."]:
    """Return f of every bin between frames i and j, which need not be whole."""
    scan, evaluation = request.scan, evaluation_of(request.problem.model)
    at, frames = evaluation.point(request.problem, state.theta, scan.time), np.arange(scan.n_frames)
    t1, t2 = (np.interp(of, frames, scan.time) for of in (i, j))
    return evaluation.f_at(at, scan.time, q_or_one(scan), scan.phi, t1, t2)


def _scale(request: Request, state: State) -> Float[np.ndarray, " bin"]:
    """Return the variance of a pair over σ²: χ² per pair; with σ from counts at most MAX_EXCESS."""
    reduced = state.reduced
    scale = reduced.chisqr_per_bin / np.maximum(reduced.count, 1)
    if request.problem.loss != "linear":
        scale = np.maximum(scale, 1.0)
    counts = request.scan.attrs["sigma_source"] == "counts"
    return np.minimum(scale, MAX_EXCESS) if counts else scale


def _correlated_share(scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return β/(1/μ + β) of every bin, 1 if μ is unknown."""
    if scan.attrs["sigma_source"] != "counts":
        return np.ones(len(scan.bins))
    some = list(scan.bins)
    mean = np.nanmean(scan.all_bins["intensity"][some], axis=1)
    contrast = np.maximum(np.nan_to_num(scan.all_bins["beta_ingest"][some]), 0.0)
    return contrast * mean / (1 + contrast * mean)


def _neighbours(
    request: Request, state: State, cuts: Cuts, second: Int[np.ndarray, " cell"]
) -> Float[np.ndarray, "3 bin cell"]:
    """Return Σ (1 - |s|/n) f over neighbours s = -n ... n, for `ResidualCells`; second: the frame of t2."""
    sums = _sums_over_lags(request, state, cuts)
    ages = np.clip(np.searchsorted(cuts.age_edges, second, "right") - 1, 0, len(cuts.age_edges) - 2)
    a, b = np.diff(cuts.age_edges)[cuts.age], np.diff(cuts.lag_edges)[cuts.lag]
    at = np.maximum(cuts.lag_edges - 1.0, 0)

    def total(age: Int[np.ndarray, " cell"], width: Int[np.ndarray, " cell"]) -> np.ndarray:
        reach = (width - 1) / 2  # of the same sum, and no less, where f falls
        below = np.clip(np.searchsorted(at, reach, "right") - 1, 0, len(at) - 2)
        part = (reach - at[below]) / np.maximum(at[below + 1] - at[below], 1)
        low, high = sums[:, age, below], sums[:, age, below + 1]
        return 1 + 2 * (low + (high - low) * np.minimum(part, 1))

    return np.stack([total(cuts.age, a), total(ages, b), total(cuts.age, np.minimum(a, b))])


def _sums_over_lags(
    request: Request, state: State, cuts: Cuts
) -> Float[np.ndarray, "bin age edge"]:
    """Return the sum of f over lags from 1 frame up to each edge of the lags, around each age."""
    end = request.scan.n_frames - 1
    lags = _samples(_intervals(cuts.lag_edges, np.arange(len(cuts.lag_edges) - 1)))
    s = np.minimum(lags.frame, end)
    middle = 0.5 * (cuts.age_edges[:-1] + cuts.age_edges[1:] - 1)
    i = np.clip(middle[:, None, None] - s / 2, 0, end - s)
    f = _f(request, state, i, i + s) * lags.used
    mean = f.sum(-1) / np.maximum(lags.used.sum(-1), 1)
    mean[..., 0] = 0.0  # lag 0 is the frame itself
    return np.insert(np.cumsum(mean * np.diff(cuts.lag_edges), axis=-1), 0, 0.0, axis=-1)


class _Means(NamedTuple):
    """Residuals averaged over some bins."""

    words: str
    residual: Float[np.ndarray, " cell"]
    z: Float[np.ndarray, " cell"]
    """In standard errors; NaN where there is none."""
    contrast: float


def examine_model(
    request: Request, state: State, of_cells: CellMeans | None = None
) -> ModelCheck | None:
    """Return the test of the model at the end of a fit; None where there is too little to test.

    of_cells: [1, y - 1, f] of data that are means over cells.
    """
    scan, reduced = request.scan, state.reduced
    if not reduced.finite:
        return None
    cells = residual_cells(request, state, of_cells)
    if cells is None or np.isfinite(cells.residual).any(0).sum() < MIN_CELLS:
        return None
    contrast = np.abs(np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast)))
    largest = cells.correlated_variance()
    shared = cells.correlated_variance(_part_from_scatter(scan, cells))
    means = _means(scan, cells, (shared, largest), contrast)
    z = np.abs(np.array([one.z for one in means]))
    tests = int(np.isfinite(z).sum())
    if tests < MIN_CELLS:  # the model interpolates the data
        return None
    threshold = float(-ndtri(LEVEL / 2 / tests))
    large = np.array([np.abs(one.residual) >= MIN_SHARE * one.contrast for one in means])
    strict = np.where(np.isfinite(z) & large, z, 0.0)
    at, cell = np.unravel_index(int(np.argmax(strict)), z.shape)
    worst = means[int(at)]
    return ModelCheck(
        tests=tests,
        threshold=threshold,
        deviating=int((strict > threshold).sum()),
        largest=float(strict[at, cell]),
        where=worst.words,
        age=(float(cells.age[cell, 0]), float(cells.age[cell, 1])),
        lag=(float(cells.lag[cell, 0]), float(cells.lag[cell, 1])),
        residual=float(worst.residual[cell]),
        share=float(worst.residual[cell] / max(worst.contrast, np.finfo(float).tiny)),
        depends_on=_depends_on(scan, cells, shared),
    )


def _means(
    scan: Scan,
    cells: ResidualCells,
    variances: tuple[Float[np.ndarray, "bin cell"], Float[np.ndarray, "bin cell"]],
    contrast: Float[np.ndarray, " bin"],
) -> list[_Means]:
    """Return the residuals of all bins together, of each ring if there are several, and of each bin.

    variances: of the residuals where several bins are averaged, and where a bin stands alone.
    """
    everything = np.ones(len(scan.bins), bool)
    clusters = friedel_clusters(scan.q, scan.phi)
    same = np.array([(clusters == one).sum() for one in clusters])  # bins of the same speckle
    groups = [("all bins", everything)] if len(scan.bins) > 1 else []
    rings, numbers = rings_of(scan.q), ring_numbers(scan.q)
    if len(rings) > 1 and not np.isnan(scan.q).any():
        groups += [(f"the bins of q {q:.6g} 1/Å", numbers == n) for n, q in enumerate(rings)]
    groups += [
        (f"the bin labelled {label}", np.arange(len(scan.bins)) == b)
        for b, label in enumerate(scan.label)
    ]
    found = []
    for words, members in groups:
        alone = members.sum() == 1
        residual, weight = _averaged(cells.residual, variances[int(alone)], members)
        several = np.ones(1) if alone else same[members]
        found.append(
            _Means(
                words,
                residual,
                residual * np.sqrt(weight / several.max()),
                float(np.median(contrast[members])),
            )
        )
    return found + _with_phi(scan, cells, variances[0], float(np.median(contrast)))


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
    scan: Scan, cells: ResidualCells, variance: Float[np.ndarray, "bin cell"], contrast: float
) -> list[_Means]:
    """Return the parts of the residuals that go with cos 2φ and sin 2φ, where there are enough bins."""
    basis = _trends(scan)
    if _freedom(basis) < MIN_FREEDOM:
        return []
    inverse = np.linalg.pinv(basis)[-2:]
    part, error = inverse @ cells.residual, np.sqrt(inverse**2 @ variance)
    words = ("all bins, as cos 2φ", "all bins, as sin 2φ")
    return [_Means(*of, contrast) for of in zip(words, part, part / error, strict=True)]


def _part_from_scatter(scan: Scan, cells: ResidualCells) -> float:
    """Return the part of the correlated noise that the scatter between bins leaves room for, at most 1.

    A wrong model gives bins of one ring alike residuals, or such that go with cos 2φ and sin 2φ; what is
    left is noise. The part is the smallest at which noise explains it in small and in large cells. 1
    with fewer than MIN_FREEDOM bins more than such columns.
    """
    basis = _trends(scan)
    whole = np.isfinite(cells.residual).all(0)
    freedom = _freedom(basis)
    if freedom < MIN_FREEDOM or whole.sum() < MIN_CELLS:
        return 1.0
    residual = cells.residual[:, whole]
    left = residual - basis @ np.linalg.lstsq(basis, residual, rcond=None)[0]
    order = np.argsort((cells.correlated_variance() / cells.variance)[:, whole].mean(0))
    for part in PARTS:
        variance = cells.correlated_variance(part)[:, whole]
        ratio = (left**2 / variance).sum(0)[order] / freedom
        if all(some.mean() <= 1 for some in np.array_split(ratio, SIZES)):
            return float(part)
    return 1.0


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


def _depends_on(scan: Scan, cells: ResidualCells, variance: Float[np.ndarray, "bin cell"]) -> str:
    """Return what explains most of the deviations beyond noise: q, bin, age or lag.

    Σ residual²/variance is split, as in an analysis of variance, into that of the mean over ages and bins
    at each lag, and what age, ring and bin add.
    """
    rings, residual = ring_numbers(scan.q), cells.residual
    members = [rings == ring for ring in np.unique(rings)]
    every = np.ones(len(scan.bins), bool)
    whole, weight = _averaged(residual, variance, every)
    there = weight > 0
    of_all = _size(whole, weight)
    at_lags, lags = _over_ages(whole[there], weight[there], cells.lag_number[there])
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
