"""Tests of single frames, by the mean of c2 over all pairs with each, against the frames beside it.

Only at the beginning of a record, rates may change by decades from frame to frame.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import stdtr

from homodyne_dask.results.data.fit_result import Alternative
from homodyne_dask.solver.array_shapes import BinNumbers, PerFrame
from homodyne_dask.solver.cluster_robust import IMPROBABLE
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.scan import Scan

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
MEDIAN_OF_NORMAL, FAR = 0.6745, 3.0
"""Median of the size of normal deviations over their standard deviation; how many of these are no noise."""
FARTHEST_OF_NOISE = 4.0
"""Standard deviations, by their median, beyond which a frame does not make the noise of others larger."""
FEW = 0.05
"""Share of the frames that single events may be."""


class OddFrame(NamedTuple):
    frame: int
    excess: float
    p: float
    tests: int


def odd_frame(scan: Scan) -> OddFrame | None:
    """Return the frame of the selection that differs most; None where there are too few to compare."""
    excesses = _excesses(scan)
    if excesses is None:
        return None
    of_bins, size = excesses
    of_bins = of_bins[np.isfinite(of_bins).any(1)]
    some = np.isfinite(of_bins).all(0)
    if not len(of_bins) or not some.any():
        return None
    weight = 1 / np.maximum(((of_bins / size)[:, some] ** 2).mean(1), np.finfo(float).tiny)
    excess = (weight / weight.sum()) @ of_bins
    z = np.where(some, excess / size, 0.0)
    # other frames that differ as much say nothing of the noise beside one
    far = FARTHEST_OF_NOISE * np.median(np.abs(z[some])) / MEDIAN_OF_NORMAL
    square = _around(np.minimum(np.abs(z), far) ** 2)
    number = _around(some.astype(float))
    tested = some & (number >= FEWEST) & (square > 0)
    if not tested.any():
        return None
    freedom = number[tested] / CORRELATED
    t = np.abs(excess / size)[tested] / np.sqrt(square[tested] / number[tested])
    p = 2 * stdtr(freedom, -t)
    frame = int(np.flatnonzero(tested)[p.argmin()])
    return OddFrame(frame, float(excess[frame]), float(p.min()), int(tested.sum()))


def beam_noise(scan: Scan, clusters: BinNumbers) -> float | None:
    """Return the relative noise of the beam by which c2 was not divided; None without any.

    It is the same in bins that see different speckle, which have nothing else in common from frame to frame.
    Frames that differ by far, and the FEW in which bins agree most, are left out: all frames are to differ.
    clusters: equal for bins of one speckle.
    """
    excesses = _excesses(scan)
    if excesses is None:
        return None
    z = excesses[0] / excesses[1]
    alone = np.unique(clusters, return_index=True)[1]
    alone = alone[np.isfinite(z[alone]).any(1)]
    numbers, z = scan.scan_number[alone], z[alone]
    if not np.isfinite(z).all(0).any():
        return None
    scale = np.nanmedian(np.abs(z), axis=1) / MEDIAN_OF_NORMAL
    z /= np.maximum(scale, np.finfo(float).tiny)[:, None]
    # frames beside one that differs by far are compared with it
    is_far = np.median(np.abs(np.nan_to_num(z)), axis=0) >= FAR
    beside = np.convolve(is_far, np.ones(2 * NEIGHBOURS + 1), "same") > 0
    z = z[:, np.isfinite(z).all(0) & ~beside]
    if not z.size:
        return None
    z = np.where(np.abs(z) < FAR, z, 0.0)
    agreement, variance, largest = [], 0.0, 0.0
    for number in np.unique(numbers):  # another scan sees another beam
        of_scan = z[numbers == number]
        square = (of_scan**2).sum(1)
        # Σ z z' over pairs of bins
        agreement.append((of_scan.sum(0) ** 2 - (of_scan**2).sum(0)) / 2)
        variance += CORRELATED * (square.sum() ** 2 - (square**2).sum()) / 2 / z.shape[1]
        largest += (np.sqrt(square).sum() ** 2 - square.sum()) / 2
    of_frames, freedom = np.sort(np.concatenate(agreement)), z.shape[1] / CORRELATED
    of_most = of_frames[: len(of_frames) - round(FEW * len(of_frames))].sum()
    if not variance or stdtr(freedom, -of_most / np.sqrt(variance)) > IMPROBABLE:
        return None
    level = float(np.nanmean(scan.frame_means[:, scan.use]))
    return float(np.sqrt(of_frames.sum() / largest) * np.median(scale)) / level


def _excesses(scan: Scan) -> tuple[Float[np.ndarray, "bin t"], PerFrame] | None:
    """Return by how much means of frames exceed what those beside say, and the error of this over that of a
    mean; NaN at the ends and beside masked frames. None where there is nothing to compare."""
    if scan.cells is not None or scan.n_frames < FEWEST or is_uneven(scan.time):
        return None
    means, n = np.where(scan.use, scan.frame_means, np.nan), len(scan.time)
    early = np.arange(n) < EARLY
    of_bins = np.where(early, _excess(means, CUBIC), _excess(means, EVEN))
    squares = (np.sum(np.square(weights)) for weights in (CUBIC, EVEN))
    of_bins[:, np.r_[:ENDS, n - ENDS : n]] = np.nan
    return of_bins, np.sqrt(1 + 2 * np.where(early, *squares))


FARTHEST, DRIFT = 64, 8
"""Frames from those that were found to differ, up to which others are looked at; and those between means that
show a drift."""
SMOOTH_TERMS = 4
"""Of a polynomial in the logarithm of age, by which means change with the rates."""


def whole_range(scan: Scan, alternative: Alternative, contrast: float) -> Alternative:
    """Return the same of the range of frames, near those which were found, whose means of c2 differ most.

    It is the likeliest one beside a smooth change with age, noise of each frame and a random walk; the last
    two are estimated from the medians of squared differences.
    """
    if alternative.name not in ("frame", "frames") or scan.cells is not None:
        return alternative
    low, high = map(int, alternative.place)
    of_bins = scan.frame_means
    frames = np.flatnonzero(scan.use & np.isfinite(of_bins).any(0))[ENDS:-ENDS]
    frames = frames[(frames >= low - FARTHEST) & (frames <= high + FARTHEST)]
    of_bins = of_bins[np.isfinite(of_bins[:, frames]).all(1)]  # others would cut an event in two
    if (n := len(frames)) < FEWEST or not len(of_bins):
        return alternative
    means = of_bins[:, frames].mean(0)
    next_, far = (
        np.median((means[k:] - means[:-k]) ** 2) / MEDIAN_OF_NORMAL**2 for k in (1, DRIFT)
    )
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


def scan_of_frames(scan: Scan, first: int, last: int) -> tuple[int, float]:
    """Return the number of the scan that alone differs in these frames from those beside, and by how much
    more than the mean of all that have them; 0 for several."""
    means = np.ma.masked_invalid(scan.frame_means)
    inside, beside = means[:, first : last + 1], means[:, max(first - DRIFT, 0) : last + 1 + DRIFT]
    excess, numbers = inside.mean(1) - beside.mean(1), np.unique(scan.scan_number)
    of_scans = np.ma.stack([excess[scan.scan_number == n].mean() for n in numbers])
    sizes = np.abs(of_scans.filled(0.0))
    largest = int(np.argmax(sizes))
    if sizes.sum() - sizes[largest] >= sizes[largest] / 2:
        return 0, 1.0
    return int(numbers[largest]), float(of_scans[largest] / of_scans.mean())


def _excess(means: Float[np.ndarray, "bin t"], weights: tuple[float, ...]) -> np.ndarray:
    excess, kernel = np.full(means.shape, np.nan), -np.array([*weights[::-1], -1.0, *weights])
    excess[:, NEIGHBOURS:-NEIGHBOURS] = sliding_window_view(means, len(kernel), axis=1) @ kernel
    return excess


def _around(values: PerFrame) -> PerFrame:
    n, before = len(values), np.concatenate([[0.0], np.cumsum(values)])
    frame = np.arange(n)

    def within(reach: int) -> PerFrame:
        return before[np.minimum(frame + reach + 1, n)] - before[np.maximum(frame - reach, 0)]

    return within(WINDOW // 2) - within(2 * NEIGHBOURS)
