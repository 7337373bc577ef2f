"""g2(lag) of each bin: c2 averaged over age, from the averages stored with the data, with its error.

At a fixed lag, c2 of ages that see the same speckle fluctuates together. The theory of speckle and counting
noise tells how (`covariance_over_age`); its size follows from the scatter between intervals of age.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray
from jaxtyping import Float, Int
from scipy.special import gammaln

from homodyne_dask.assessment.speckle_covariance import MEAN_COUNTS
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.c2_means import covariance_over_age
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.scan import Cuts, Scan, as_scan

SECOND_DIFFERENCE = np.array([6.0, -8.0, 2.0])
"""Variance of c(t) - 2 c(t + 1) + c(t + 2) from the covariances at distances 0, 1 and 2."""
LEAST_CONTRAST = 1e-4
"""Of what is taken for a decay."""
FREEDOM_OF_PAIRS = 50.0
"""Degrees of freedom that the measured σ of pairs counts with: its share of speckle noise is not exact."""


def g2(data: Scan | str | Path) -> xarray.Dataset:
    """Return g2 of every bin, c2 averaged over age: g2, stderr and pairs over (bin, lag).

    data: a scan, whose selected bins and frames are used, or the path of a store. Lags [s] are those of the
    stored averages: every frame up to 4 frames, then intervals that grow by a third to a half, each at the
    mean lag of its pairs. stderr is that of speckle and counting noise for dynamics that are the same at all
    ages, its size from the scatter between intervals of age at all lags; NaN where that is not known. For
    decays as long as the record, it is right if the file has counts; without counts, which then follow from
    the scatter, it is too small by a factor of 1.2 to 1.7. Raises OptionError for frames that are not evenly
    spaced in time, which have no common lags.

    >>> hd.g2("A0123_c2.zarr")["stderr"].dims
    ('bin', 'lag')
    """
    scan = as_scan(data)
    table, read, sigma = _age_means(scan), scan.cuts(), scan.median_sigma
    lags = (table["lag"].values / scan.attributes.frame_time).round().astype(int)
    for bin, counts in enumerate(scan.mean_counts.tolist()):
        pairs = table["pairs"].values[bin]
        if not pairs.any():
            continue
        decay = _decay_of(table.isel(bin=bin), scan)
        intervals = zip(np.unique(read.lag).tolist(), lags.tolist(), strict=True)
        noises = [_noise_at_lag(read, bin, interval, lag, *decay) for interval, lag in intervals]
        if scan.attributes.sigma_source == "scatter":
            noises.append(_noise_of_pairs(float(sigma[bin]), pairs, lags, *decay))
        table["stderr"].values[bin] = _errors(noises, counts)[: len(lags)]
    return table


def _age_means(scan: Scan) -> xarray.Dataset:
    """Return what `g2` does, with the error as if intervals of age were independent."""
    if is_uneven(scan.time):
        raise OptionError(
            f"the frames of {scan.path} are not evenly spaced in time, so ages have no lags in common: "
            f"fit c2 itself, or inspect it with `view`"
        )
    read = scan.cuts()
    if not len(read.lag):
        raise OptionError(
            f"no interval of age and lag of the averages of {scan.path} lies in the selected frames: select "
            f"more frames"
        )
    columns = [_at_lag(read, lag) for lag in np.unique(read.lag)]
    names = ("lag", "g2", "stderr", "pairs")
    lag, mean, stderr, pairs = (
        np.stack([column[n] for column in columns], axis=-1) for n in range(len(names))
    )
    dims = ("bin", "lag")
    coords = {name: ("bin", getattr(scan, name)) for name in ("label", "q", "phi")}
    coords |= {"scan": ("bin", scan.scan_number)} if scan.has_repeats else {}
    return xarray.Dataset(
        {"g2": (dims, mean), "stderr": (dims, stderr), "pairs": (dims, pairs.astype(int))},
        coords=coords
        | {"lag": ("lag", [float(f"{seconds:.12g}") for seconds in lag], {"units": "s"})},
        attrs={"store_sha256": scan.digest, "source_file": scan.attributes.source_file},
    )


def _at_lag(read: Cuts, lag: int) -> tuple[Float[np.ndarray, "*bin"], ...]:
    cells = read.lag == lag
    count = np.where(np.isfinite(read.c2[:, cells]), read.count[:, cells], 0)
    value, total = np.where(count > 0, read.c2[:, cells], 0.0), count.sum(axis=1)
    ages = (count > 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (count * value).sum(axis=1) / total
        squares = (count**2 * (value - mean[:, None]) ** 2).sum(axis=1) / total**2
        stderr = np.sqrt(np.where(ages > 1, squares * ages / (ages - 1), np.nan))
    used = count.sum(axis=0)
    return np.average((read.t2 - read.t1)[cells], weights=np.maximum(used, 1)), mean, stderr, total


def _decay_of(mean: xarray.Dataset, scan: Scan) -> tuple[Float[np.ndarray, " t"], float]:
    """Return f at lags of 0, 1, 2 ... frames, 0 for what is below its error, and the contrast."""
    value, error = mean["g2"].values - 1, np.nan_to_num(mean["stderr"].values)
    finite = np.isfinite(value)
    if not finite.any():
        return np.zeros(scan.n_frames), LEAST_CONTRAST
    lag, value = mean["lag"].values[finite], np.where(value > 2 * error, value, 0.0)[finite]
    near = value[:2] if len(value) > 1 else np.repeat(value, 2)
    # what is lost in the first frame, as in the second
    extrapolated = near[0] * near[0] / max(near[1], near[0] / 2, 1e-12)
    contrast = float(np.clip(extrapolated, LEAST_CONTRAST, 1.0))
    lags = scan.attributes.frame_time * np.arange(scan.n_frames)
    f = np.interp(lags, np.concatenate([[0.0], lag]), np.concatenate([[1.0], value / contrast]))
    return np.clip(f, 0.0, 1.0), contrast


class _LagNoise(NamedTuple):
    """The noise of the means over intervals of age at one lag: of one pixel, by powers of 1/μ."""

    scatter: float
    """Observed: Σ w² (mean of an interval - mean)², times a factor, w the share of each in the mean."""
    of_mean: Float[np.ndarray, " 3"]
    of_scatter: Float[np.ndarray, " 3"]
    squares: Float[np.ndarray, "3 3"]
    """Half of the variance of the scatter."""


def _noise_at_lag(
    read: Cuts, bin: int, interval: int, lag: int, f: Float[np.ndarray, " t"], contrast: float
) -> _LagNoise:
    cells = (read.lag == interval) & (read.count[bin] > 0) & np.isfinite(read.c2[bin])
    count, value = read.count[bin, cells], read.c2[bin, cells]
    if not len(count):
        return _LagNoise(0.0, np.full(3, np.nan), np.zeros(3), np.zeros((3, 3)))
    lags = int(np.diff(read.lag_edges)[interval])
    begin, length = read.age_edges[read.age[cells]], np.maximum(count // lags, 1)
    share, ages = count / count.sum(), len(count)
    covariance = _of_intervals(f, contrast, lag, begin, length)
    covariance[2] /= lags  # counts of pairs of other lags are independent of each other
    away = np.eye(ages) - share
    form = away.T @ (share[:, None] ** 2 * away) * ages / max(ages - 1, 1)
    product = form @ covariance
    return _LagNoise(
        float(value @ form @ value),
        covariance @ share @ share,
        np.trace(product, axis1=1, axis2=2),
        np.einsum("iab,jba->ij", product, product),
    )


def _noise_of_pairs(
    sigma: float,
    pairs: Int[np.ndarray, " lag"],
    lags: Int[np.ndarray, " lag"],
    f: Float[np.ndarray, " t"],
    contrast: float,
) -> _LagNoise:
    """Return that of σ as it is measured, from second differences over age."""
    variances = [
        _by_counts(f, contrast, lag)[:, :3] @ SECOND_DIFFERENCE / 6 for lag in lags.tolist()
    ]
    expected = np.average(variances, axis=0, weights=pairs)
    squares = np.outer(expected, expected) / FREEDOM_OF_PAIRS
    return _LagNoise(sigma**2, np.full(3, np.nan), expected, squares)


def _by_counts(f: Float[np.ndarray, " t"], contrast: float, lag: int) -> Float[np.ndarray, "3 t"]:
    """Return the covariance of pairs of a lag by the distance of their ages: its parts by powers of 1/μ."""
    constant, all_parts = (covariance_over_age(f, contrast, mu, lag) for mu in (np.inf, 1.0))
    twice = np.zeros(len(f))
    twice[0] = 1 + contrast * f[lag]
    return np.stack([constant, all_parts - constant - twice, twice])


def _of_intervals(
    f: Float[np.ndarray, " t"],
    contrast: float,
    lag: int,
    begin: Int[np.ndarray, " age"],
    length: Int[np.ndarray, " age"],
) -> Float[np.ndarray, "3 age age"]:
    """Return the covariance of the means over intervals of age at a lag, in parts by powers of 1/μ."""
    parts = _by_counts(f, contrast, lag)
    # the sum over all pairs of two intervals is a second difference of sums of sums
    parts[:, 0] /= 2
    sums = np.concatenate([np.zeros((3, 1)), parts.cumsum(1).cumsum(1)], axis=1)
    start = begin[:, None]
    end = start + length[:, None]

    def apart(first: Int[np.ndarray, "age 1"], other: Int[np.ndarray, "age 1"]) -> np.ndarray:
        return sums[:, np.minimum(np.abs(first - other.T), len(f))]

    total = apart(end, start) + apart(start, end) - apart(start, start) - apart(end, end)
    return total / np.outer(length, length)


def _errors(noises: list[_LagNoise], counts: float) -> Float[np.ndarray, " lag"]:
    """counts: μ, NaN where it is not known; variances are averaged over its likelihood.

    Scatters are taken as multiples of χ² with the degrees of freedom of their variance; P is the likeliest at
    each μ.
    """
    mu = np.array([counts]) if np.isfinite(counts) else MEAN_COUNTS
    power = mu ** -np.arange(3.0)[:, None]
    of_mean = np.array([noise.of_mean @ power for noise in noises])
    scattered = [noise for noise in noises if noise.scatter > 0]
    if not scattered:
        return np.full(len(noises), np.nan)
    scatter = np.array([[noise.scatter] for noise in scattered])
    expected = np.array([noise.of_scatter @ power for noise in scattered])
    half_variance = np.array([((noise.squares @ power) * power).sum(0) for noise in scattered])
    half = 0.5 * expected**2 / half_variance  # of the degrees of freedom
    pixels = half.sum(0) / (half * scatter / expected).sum(0)
    rate = half * pixels / expected
    log = (half * np.log(rate * scatter) - gammaln(half) - rate * scatter).sum(0)
    weight = np.exp(log - log.max())
    return np.sqrt(of_mean @ (weight / weight.sum() / pixels))
