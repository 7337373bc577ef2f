"""Values that nobody measured: holes that hold one number, and single pairs far from all around them.

c2 that is measured has noise. One exact number is held by many pairs only where photons are few, where
c2 is rounded, and where it is clipped: then numbers as frequent, or noise as large, are close to it. Pairs
beside one another differ by noise and decays, and those of a flash or a beam trip with all of their frame.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from ingest.scatter import BAND_ROWS, SAMPLES, measure_scatter, second_differences

FAR = 30.0
"""Distance of a single pair from all around it, in σ."""
MIN_EQUAL = 3
"""Pairs of one exact number from which on it is looked at."""
RARE = 0.01
"""Share of all pairs below which the least and the largest number are not looked at."""
MIN_PAIRS = 6
"""Pairs of one exact number, below which they stay."""
NOISE_OF_TAILS = 2.0
"""The same, in σ of the tails of noise."""
FRAMES = 32
"""Frames of which the noise is the typical one."""
NEAREST = 9
"""Frames up to which the nearest one of known pairs is searched."""
CANDIDATES = 8
"""Numbers that are looked at: the most frequent beside themselves, the least and the largest of all."""
OFTEN = 20
"""How many times as frequent as those close to it a number must be."""
CLOSE = 3.0
"""Distance, in σ, up to which numbers are close."""
NOISE = 5.0
"""Distance, in σ of a pair by its frames, that noise explains."""
ROUNDED = 10
"""Pairs of a number, on average, from which on c2 is rounded, and its steps from one number to the next that
are close."""
FLAT = 5.0
"""Distance of a single pair from those around it, in units of their own spread."""
TAILS = 0.98, 2.33
"""Share of differences within, and their Gaussian limit in σ: noise of longer tails has a larger σ."""
EQUAL = 0.01
"""Share of pairs equal to the next, from which on photons are few, or c2 is rounded."""
BRIGHT = 0.3
"""How much the other pairs of a frame of few photons are above the mean, in units of the mean."""
MIN_AROUND = 4
"""Known pairs around a single pair, below which it stays."""
AROUND = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]

Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
"""t1 and t2, as frames."""


class Excluded(NamedTuple):
    """Pairs that are left out for one reason."""

    why: str
    value: float
    """Of the first of them."""
    pairs: int
    i: int
    """Frames of the first of them."""
    j: int


@np.errstate(over="ignore")
def leave_out_fills(c2: Float32[np.ndarray, "t t"]) -> list[Excluded]:
    """Make pairs of one exact number that is no measurement unknown; return them by number."""
    numbers = _repeated(c2)
    sigma = measure_scatter(c2) if len(numbers) else None
    if not sigma:
        return []
    sample = c2[:: max(1, len(c2) ** 2 // (2 * SAMPLES))]
    sample = sample[~np.isnan(sample)].astype(np.float64)
    level = max(float(np.median(np.abs(sample))), 1.0)
    others, found = np.where(np.isin(c2, numbers), np.nan, c2), list[Excluded]()
    apart = second_differences(others)
    if 2 * np.count_nonzero(apart) < len(apart):  # c2 without noise
        return []
    sigma = max(sigma, measure_scatter(others) or 0.0)
    noise, close = _NoiseOfFrames(others, sigma, level), max(sigma, _tails(others))
    close, tails = CLOSE * max(close, close**2 / level), NOISE_OF_TAILS * _tails(c2)
    for number in numbers:
        kind = _kind(number, sample, close)
        i, j = np.nonzero(c2 == number) if kind else (np.empty(0, int), np.empty(0, int))
        if kind == "apart":
            far = np.abs(number - sample.mean()) > np.maximum(tails, NOISE * noise.of_pairs(i, j))
            far &= ~noise.explains(number, i, c2) & ~noise.explains(number, j, c2)
            i, j = i[far], j[far]
        if len(i) >= MIN_PAIRS:
            c2[i, j] = np.nan
            found.append(Excluded("repeated", float(number), len(i), int(i[0]), int(j[0])))
    return found + (leave_out_fills(c2) if found else [])  # one number may hide another


def _tails(c2: Float32[np.ndarray, "t t"]) -> float:
    """Return σ of noise as its tails have it, which are longer where photons are few."""
    apart = np.abs(second_differences(c2))
    return float(np.quantile(apart, TAILS[0])) / TAILS[1] / 6**0.5 if len(apart) else 0.0


def _repeated(c2: Float32[np.ndarray, "t t"]) -> Float32[np.ndarray, " number"]:
    """Return numbers that pairs beside one another share exactly, and the extremes of all."""
    beside, extremes = [np.empty(0, np.float32)], []
    for first in range(0, len(c2) - 1, BAND_ROWS):
        band = c2[first : first + BAND_ROWS, first + 1 :]
        extremes += [np.fmin.reduce(band, axis=None), np.fmax.reduce(band, axis=None)]
        for one, other in ((band[:, 1:], band[:, :-1]), (band[1:], band[:-1])):
            same = one == other
            if number := np.count_nonzero(same):
                beside.append(one[same][:: 1 + number // 1000])
    numbers, counts = np.unique(np.concatenate(beside), return_counts=True)
    often = numbers[np.argsort(-counts, kind="stable")][:CANDIDATES]
    often = often[np.sort(-counts)[: len(often)] <= -MIN_EQUAL]
    ends = [of(extremes) for of in (np.fmin.reduce, np.fmax.reduce)]
    least = max(MIN_EQUAL, RARE * len(c2) ** 2 / 2)
    ends = [end for end in ends if end not in often and np.count_nonzero(c2 == end) >= least]
    return np.append(often, np.array(ends, np.float32))


def _kind(number: float, sample: Float[np.ndarray, " n"], close: float) -> str:
    """Return how a frequent number differs from the rest of a sample: apart, or among them; '' by noise.

    close: distance up to which noise leads.
    """
    rest = sample[sample != number]
    if not len(rest):
        return ""
    pairs, distinct = len(sample) - len(rest), np.unique(rest)
    rounded = len(rest) > ROUNDED * len(distinct)
    if rounded and len(distinct) > 1:
        close = max(close, ROUNDED * float(np.median(np.diff(distinct))))
    near, counts = np.unique(rest[np.abs(rest - number) <= close], return_counts=True)
    if OFTEN * counts.sum() <= pairs:
        return "apart"
    below = counts[near < number].sum()
    on_both_sides = OFTEN * min(below, counts.sum() - below) >= counts.sum()
    return "among" if on_both_sides and not rounded and pairs >= OFTEN * counts.max() else ""


class _NoiseOfFrames:
    """The noise of frames: how much their pairs differ from those of the frames beside them, one by one."""

    def __init__(self, c2: Float32[np.ndarray, "t t"], sigma: float, level: float):
        self.c2, self.sigma, self.level, self.known = c2, sigma, level, dict[int, float]()
        some = np.linspace(0, len(c2) - 1, min(len(c2), FRAMES)).astype(int)
        self.typical = float(np.median([self._of(int(n)) for n in some])) or sigma

    def of_pairs(self, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, " pair"]:
        """Return σ of pairs, or what a single photon adds to c2, if it is more."""
        one, other = (np.array([self._of(int(n)) for n in frames]) for frames in (i, j))
        sigma = np.maximum(one * other / self.typical, self.sigma)
        return np.maximum(sigma, sigma**2 / self.level)

    def _of(self, frame: int) -> float:
        if frame not in self.known:
            sizes = [
                self._apart(frame, range(frame + by, frame + NEAREST * by, by)) for by in (-1, 1)
            ]
            known = [of for of in sizes if of is not None]
            self.known[frame] = 1.4826 / 2**0.5 * min(known) if known else self.sigma
        return self.known[frame]

    def _apart(self, frame: int, others: range) -> float | None:
        """Return how far the pairs of a frame are from those of the first other with any, at equal lags."""
        for other in others:
            if 0 <= other < len(self.c2):
                early, late = min(frame, other), max(frame, other)
                lines = _line(self.c2, early)[: early - late], _line(self.c2, late)[late - early :]
                apart = np.abs(lines[0] - lines[1])
                if np.count_nonzero(~np.isnan(apart)) >= MIN_EQUAL:
                    return float(np.nanmedian(apart))
        return None

    def explains(
        self, number: float, frames: np.ndarray, c2: Float32[np.ndarray, "t t"]
    ) -> np.ndarray:
        """Return for frames of `c2` whether only with the pairs of that number they have the mean of all.

        That of frames of few photons is so: most of their pairs are 0, and others all the larger.
        """
        middle, of = float(np.nanmedian(self.c2)), dict[int, bool]()
        for frame in np.unique(frames).tolist():
            rest, line = _line(self.c2, frame), _line(c2, frame)
            rest = rest[~np.isnan(rest)].astype(float)
            number_of = np.count_nonzero(line == number)
            total = (rest.sum() + number_of * number) / max(len(rest) + number_of, 1)
            apart = abs(rest.mean() - middle) if len(rest) else 0.0
            of[frame] = apart > max(abs(total - middle), BRIGHT * abs(middle - number))
        return np.array([of[frame] for frame in frames.tolist()], bool)


def _line(c2: Float32[np.ndarray, "t t"], frame: int) -> Float32[np.ndarray, " t"]:
    """Return the pairs of a frame with all frames."""
    return np.concatenate([c2[:frame, frame], c2[frame, frame:]])


@np.errstate(over="ignore")
def leave_out_single(c2: Float32[np.ndarray, "t t"], sigma: float) -> list[Excluded]:
    """Make single pairs unknown that are FAR from all around them; return them together.

    Where neighbours share one number, photons are few, or c2 is rounded: no pair is left out.
    """
    if np.fmax.reduce(c2, axis=None) - np.fmin.reduce(c2, axis=None) <= FAR * sigma:
        return []
    if np.count_nonzero(c2[:, 1:] == c2[:, :-1]) > EQUAL * np.count_nonzero(~np.isnan(c2)):
        return []
    level = max(abs(float(np.nanmedian(c2[:BAND_ROWS]))), 1.0)
    least = max(sigma, _tails(c2))
    least = FAR * max(least, least**2 / level)
    i, j = (np.concatenate(at) for at in zip(*long_steps(c2, least), strict=True))
    i, j = np.divmod(np.unique(i * len(c2) + j), len(c2))
    around = _around(c2, i, j)
    enough = ~np.isnan(c2[i, j]) & (np.isfinite(around).sum(axis=0) >= MIN_AROUND)
    i, j, around = i[enough], j[enough], around[:, enough]
    apart = np.sort(np.abs(around - c2[i, j]), axis=0)[1]
    spread = np.nanmedian(np.abs(around - np.nanmedian(around, axis=0)), axis=0)
    least = np.maximum(least, FAR * _NoiseOfFrames(c2, sigma, level).of_pairs(i, j))
    far = (apart > least) & (apart > FLAT * spread)
    i, j = i[far], j[far]
    if not len(i):
        return []
    value = float(c2[i[0], j[0]])
    c2[i, j] = np.nan
    return [Excluded("far", value, len(i), int(i[0]), int(j[0]))]


def _around(
    c2: Float32[np.ndarray, "t t"], i: np.ndarray, j: np.ndarray
) -> Float32[np.ndarray, "8 n"]:
    """Return the eight pairs around each of some pairs, NaN where there is none."""
    found = np.full((len(AROUND), len(i)), np.nan, np.float32)
    for row, (down, right) in zip(found, AROUND, strict=True):
        inside = (i + down >= 0) & (i + down < len(c2)) & (j + right < len(c2))
        row[inside] = c2[i[inside] + down, j[inside] + right]
    return found


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
