"""Residuals averaged over cells of age and lag, with the noise that counted photons would give them.

They are read from the averages stored with the data, so they cost no pass. Pairs that see the same
speckle are correlated, and the mean of a cell is then noisier than its pairs would say.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.solver.state import State
from homodyne_dask.store.age_lag_averages import Cuts
from homodyne_dask.store.scan import Scan, q_or_one

MIN_PAIRS = 16
"""Fewest pairs of a cell: the noise of means over fewer is not normal."""
SAMPLES = 4
"""Frames along age and along lag at which f is averaged over a cell; all of them in shorter ones."""
MAX_EXCESS = 1.5
"""χ² per pair of σ from counts up to which the excess is taken for noise: about the most that pairs
of one speckle pattern have."""


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
    request: Request,
    state: State,
    age: Int[np.ndarray, "cell 2"],
    lag: Int[np.ndarray, "cell 2"],
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
    a, b = (
        np.diff(edges)[number]
        for edges, number in ((cuts.age_edges, cuts.age), (cuts.lag_edges, cuts.lag))
    )
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
