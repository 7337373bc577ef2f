"""Values that nobody measured: holes that hold one number, and single pairs far from all around them.

A number that many pairs hold exactly is no measurement where hardly any other pair of the same two frames is
even a quarter as far from the median of its lag: noise of few photons or of a beam trip reaches as far.
Frames twice as noisy as others, or that repeat numbers (few photons, rounding), keep all of their pairs. In
the middle of what is measured, a number is no measurement that is far more frequent than every other.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from ingest.scatter import BAND_ROWS, SAMPLES

OFTEN = 20
"""How many times as frequent as others a number must be."""
MAX_NUMBERS = 3
"""Numbers that are so frequent, beyond which photons are few, or c2 is rounded."""
REACH = 4.0
"""How many times as far from the median of its lag as others a pair must be."""
FAR = 30.0
"""Distance of a single pair from all around it, in σ."""
DIFFERENT = 0.75
"""Share of the pairs of a frame that hold numbers of their own, below which these repeat."""
MIDDLE = 0.05, 0.95
"""Quantiles between which a number is in the middle of what is measured."""

Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
"""t1 and t2, as frames."""


class Excluded(NamedTuple):
    """Pairs that are left out for one reason."""

    why: str
    value: float
    """Of the first of them, as are its frames i and j."""
    pairs: int
    i: int
    j: int


def _leave_out(c2: Float32[np.ndarray, "t t"], why: str, i: np.ndarray, j: np.ndarray) -> Excluded:
    excluded = Excluded(why, float(c2[i[0], j[0]]), len(i), int(i[0]), int(j[0]))
    c2[i, j] = np.nan
    return excluded


@np.errstate(over="ignore")
def leave_out_fills(c2: Float32[np.ndarray, "t t"]) -> list[Excluded]:
    """Make pairs of one exact number that is no measurement unknown; return them by number."""
    sample = c2[:: max(1, len(c2) ** 2 // (2 * SAMPLES))]
    numbers, counts = np.unique(sample[~np.isnan(sample)], return_counts=True)
    if 3 * counts.max(initial=0) >= 2 * counts.sum():  # as zeros of few photons
        return []
    often = counts >= OFTEN * np.median(counts)
    if not 0 < np.count_nonzero(often) <= min(MAX_NUMBERS, len(counts) - 1):
        return []
    low, high = np.quantile(np.repeat(numbers[~often], counts[~often]), MIDDLE)
    most = max(OFTEN * counts[~often].max(), counts.sum() / OFTEN)
    lags, excluded = _measure_lags(c2, numbers[often]), list[Excluded]()
    for number, count in zip(numbers[often], counts[often], strict=True):
        i, j = np.nonzero(c2 == number)
        if not low < number < high or count < most:
            noisy, frames = np.zeros(len(c2), bool), np.unique(np.append(i, j))
            noisy[frames] = [_is_noise(number, n, c2, lags, numbers[often]) for n in frames]
            stay = noisy[i] | noisy[j] | (2 * np.count_nonzero(noisy) > len(frames))
            i, j = i[~stay], j[~stay]
        if len(i) >= OFTEN:
            excluded.append(_leave_out(c2, "repeated", i, j))
    return excluded


@np.errstate(over="ignore")
def leave_out_single(c2: Float32[np.ndarray, "t t"], sigma: float) -> list[Excluded]:
    """Make single pairs unknown that are FAR from all around them; return them together."""
    i, j = (np.concatenate(frames) for frames in zip(*long_steps(c2, FAR * sigma), strict=True))
    if not 0 < len(i) < 4 * len(c2):  # those of few photons are many
        return []
    i, j = np.divmod(np.unique(i * len(c2) + j), len(c2))
    far = np.array([_step_to_nearest(c2, *pair) > FAR * sigma for pair in zip(i, j, strict=True)])
    i, j, lags = i[far], j[far], _measure_lags(c2, np.empty(0))
    single = [
        not any(_is_noise(float(c2[pair]), frame, c2, lags, c2[pair]) for frame in pair)
        for pair in zip(i, j, strict=True)
    ]
    return [_leave_out(c2, "far", i[single], j[single])] if any(single) else []


def _measure_lags(
    c2: Float32[np.ndarray, "t t"], without: Float32[np.ndarray, " number"]
) -> Float[np.ndarray, "2 lag"]:
    """Return of each lag the median of pairs that hold none of some numbers, and their distance from it."""
    lags = np.full((2, len(c2)), np.nan)
    for lag in range(1, len(c2)):
        pairs = c2.diagonal(lag)
        pairs = pairs[~np.isnan(pairs) & ~np.isin(pairs, without)]
        if len(pairs):
            lags[0, lag] = np.median(pairs)
            lags[1, lag] = np.median(np.abs(pairs - lags[0, lag]))
    return lags


def _is_noise(
    number: float, frame: int, c2: np.ndarray, lags: np.ndarray, numbers: np.ndarray
) -> bool:
    """Return whether the pairs of a frame that hold none of some numbers lie as far from those of their lags
    as one of these does, are mostly farther from them than is typical, or repeat one another's numbers.
    """
    pairs = np.append(c2[:frame, frame], c2[frame, frame:])
    median, typical = lags[:, np.abs(np.arange(len(c2)) - frame)]
    others = ~np.isnan(pairs) & ~np.isin(pairs, numbers)
    apart = np.abs(pairs - median)
    far = others & (REACH * apart >= np.abs(number - median))
    total = np.count_nonzero(others)
    return bool(total) and bool(
        total < OFTEN
        or OFTEN * np.count_nonzero(far) > np.count_nonzero(pairs == number)
        or 2 * np.count_nonzero(others & (apart > 2 * typical)) > total
        or len(np.unique(pairs[others])) < DIFFERENT * total
    )


def _step_to_nearest(c2: Float32[np.ndarray, "t t"], i: int, j: int) -> float:
    """Return how far a pair is from the nearest value of those around it, NaN where none is known."""
    around = c2[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
    return float(np.sort(np.abs(around - c2[i, j]), axis=None)[1])


def long_steps(value: np.ndarray, least: float) -> Iterator[Pairs]:
    """Yield pairs, a band of rows at a time: those that are a long step from the next one of their lag."""
    n = len(value)
    for first in range(0, n - 1, BAND_ROWS):
        last = min(first + BAND_ROWS, n - 1)
        with np.errstate(over="ignore"):  # an infinite step is far, too
            step = np.abs(value[first + 1 : last + 1, first + 1 :] - value[first:last, first:-1])
        i, j = np.nonzero(step > least)
        i, j = i + first, j + first
        yield np.append(i, i + 1), np.append(j, j + 1)
