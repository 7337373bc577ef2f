"""The variance of c2 over age at each lag, and how much of it the speckle and counting noise explains.

At a fixed lag c2 fluctuates from age to age by its noise, and by more where the dynamics do: the excess is
the dynamical susceptibility of time-resolved correlation (Duri, Bissig, Trappe and Cipelletti 2005) times
the square of the contrast.
"""

from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import OptionError, require_type
from homodyne_dask.fitting.g2 import SECOND_DIFFERENCE, age_means, decay_of, require_common_lags
from homodyne_dask.solver.speckle import covariance_over_age
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, Scan, as_scan

if TYPE_CHECKING:
    import xarray

LAGS_PER_DECADE = 8
FEWEST_AGES = 10
"""Of a lag: with fewer there is no variance."""
_OF_NORMAL = 0.454936
"""Median of the square of a normal deviate."""


def age_variance(data: Scan | str | Path, mean_counts: float | None = None) -> "xarray.Dataset":
    """Return the variance of c2 over age at each lag of every bin, and the part that noise explains.

    data: a scan, whose selected bins and frames are used, or the path of a store; c2 is read once.
    mean_counts: mean counts per pixel and frame; by default as stored. The report of a fit has an estimate.
    Returns variables over (bin, lag), with lags [s] of every frame up to half the record. variance: of c2
    over age. noise: the variance due to speckle and counting for dynamics that are the same at all ages,
    with the number of independent pixels that c2 shows from one age to the next (`pixels`). excess:
    variance - noise, due to the dynamics, ageing of the sample and drift of the contrast. stderr: of the
    excess, if it is 0. Without counts, noise, excess, stderr and pixels are NaN. Raises OptionError for
    frames that are not evenly spaced in time, for c2 that was averaged before ingest, and for mean_counts
    that are not positive.

    >>> hd.age_variance("A0123_c2.zarr")["excess"].dims
    ('bin', 'lag')
    """
    import xarray  # takes a second to import

    scan = as_scan(data)
    require_common_lags(scan)
    if scan.cells is not None:
        raise OptionError(
            f"c2 of {scan.path} was averaged over cells of age and lag before ingest: its variance "
            f"over age is unknown"
        )
    counts = scan.mean_counts
    if mean_counts is not None:
        require_type("mean_counts", mean_counts, Real, "a number above 0, or None")
        if not 0 < mean_counts < np.inf:
            raise OptionError(f"mean_counts = {mean_counts:g} is not a number above 0")
        counts = np.full(len(scan.bins), float(mean_counts))
    most = max((scan.frames[1] - scan.frames[0]) // 2, 1)
    number = int(LAGS_PER_DECADE * np.log10(most)) + 1
    # in frames, evenly on a logarithmic scale
    lags = np.unique(np.geomspace(1, most, number).round().astype(int))
    mean_over_age = age_means(scan)
    rows, pixels = [], []
    for bin in range(len(scan.bins)):
        c2 = _c2_at_lags(scan, bin, lags)
        decay = decay_of(mean_over_age.isel(bin=bin), scan)
        noise, of_bin = _noise(c2, lags, *decay, float(counts[bin]))
        known = np.isfinite(c2)
        ages = known.sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(known, c2, 0.0).sum(1) / ages
            variance = (np.where(known, c2 - mean[:, None], 0.0) ** 2).sum(1) / (ages - 1)
        variance[ages < FEWEST_AGES] = np.nan
        rows.append([mean, variance, noise[:, 0], variance - noise[:, 0], noise[:, 1], ages])
        pixels.append(of_bin)
    names = ("mean", "variance", "noise", "excess", "stderr", "ages")
    columns = zip(names, np.moveaxis(np.array(rows), 1, 0), strict=True)
    known_of_bins = mean_over_age.drop_vars("lag")
    table = xarray.Dataset(
        {name: (("bin", "lag"), of) for name, of in columns} | {"pixels": ("bin", pixels)},
        coords=known_of_bins.coords,
        attrs=known_of_bins.attrs,
    )
    seconds = [float(f"{one:.12g}") for one in lags * scan.attrs["frame_time"]]
    table["ages"] = table["ages"].astype(int)
    return table.assign_coords(lag=("lag", seconds, {"units": "s"}))


def _c2_at_lags(
    scan: Scan, bin: int, lags: Int[np.ndarray, " lag"]
) -> Float32[np.ndarray, "lag t"]:
    """Return c2(t, t + lag) of a bin; NaN where it is unknown or not selected."""
    side, use = schema.tile_side(scan.n_frames), scan.use
    c2 = np.full((len(lags), scan.n_frames), np.nan, np.float32)
    into = np.empty((side, side), np.float32)
    tiles = sorted({int(t) // side for t in np.flatnonzero(use)})
    for i in tiles:
        for j in tiles:
            inside = np.flatnonzero((lags > (j - i - 1) * side) & (lags < (j - i + 1) * side))
            if j < i or not len(inside):
                continue
            scan.read_chunk(Chunk(1, scan.bins[bin], i, j), into)
            for n in inside:
                offset = int(lags[n]) - (j - i) * side
                values = np.diagonal(into, offset)
                first = i * side + max(-offset, 0)
                span = slice(first, min(first + len(values), scan.n_frames))
                c2[n, span] = values[: span.stop - first]
    for row, lag in zip(c2, lags, strict=True):
        row[:-lag][~(use[:-lag] & use[lag:])] = np.nan
        row[-lag:] = np.nan
    return c2


def _noise(
    c2: Float32[np.ndarray, "lag t"],
    lags: Int[np.ndarray, " lag"],
    f: Float[np.ndarray, " t"],
    contrast: float,
    mean_counts: float,
) -> tuple[Float[np.ndarray, "lag 2"], float]:
    """Return the variance that noise gives and the standard deviation of that, and the independent pixels."""
    noise = np.full((len(lags), 2), np.nan)
    if not np.isfinite(mean_counts):
        return noise, np.nan
    covariances = [covariance_over_age(f, contrast, mean_counts, int(lag)) for lag in lags]
    ratios, weights = [], []
    for row, of in zip(c2, covariances, strict=True):
        second = np.diff(row.astype(float), 2)
        second = second[np.isfinite(second)]
        if len(second) >= FEWEST_AGES:
            ratios.append(np.median(second**2) / _OF_NORMAL / (SECOND_DIFFERENCE @ of[:3]))
            weights.append(len(second))
    if not ratios:
        return noise, np.nan
    pixels = 1 / float(np.average(ratios, weights=weights))
    for n, (row, of) in enumerate(zip(c2, covariances, strict=True)):
        known = np.isfinite(row)
        if known.sum() >= FEWEST_AGES:
            noise[n] = _of_variance(known, of / pixels)
    return noise, pixels


def _of_variance(
    known: Bool[np.ndarray, " t"], covariance: Float[np.ndarray, " t"]
) -> tuple[float, float]:
    """Return mean and standard deviation of the variance of values at known ages.

    covariance: by their distance. With M the projection that takes off the mean of n values and C their
    covariance: tr(M C)/(n - 1), and the root of 2 tr(M C M C)/(n - 1)².
    """
    from scipy.signal import correlate, fftconvolve  # loads for a fifth of a second

    use, n = known.astype(float), int(known.sum())
    pairs = np.maximum(correlate(use, use, method="fft")[len(use) - 1 :], 0.0)
    pairs[1:] *= 2
    both = np.concatenate([covariance[:0:-1], covariance])
    rows = fftconvolve(use, both, mode="full")[len(use) - 1 : 2 * len(use) - 1]
    total, squares = pairs @ covariance, pairs @ covariance**2
    mean = (n * covariance[0] - total / n) / (n - 1)
    spread = squares - 2 / n * (use @ rows**2) + (total / n) ** 2
    return mean, float(np.sqrt(2 * max(spread, 0.0))) / (n - 1)
