"""Whether two matrices of c2 have one noise: copies, processed or not, and windows of one measurement.

Noise tells them: of bins that were measured separately, it has the same sign in half of all pairs. What all
bins share without being copies, as the intensity of the beam in each frame, is not noise in this sense.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

SIGNS, MOST_LAGS, FEWEST_LAGS = 4096, 16, 2
"""Signs that are kept of a matrix with enough frames; the most and the fewest lags of each frame."""
FEWEST, FEWEST_SHIFTED = 40, 120
"""Pairs measured in both matrices below which nothing is concluded; more for shifted frames, as one of many
shifts may agree by chance."""
SAME_SIGN = 0.94
"""Mean product of signs from which noise is the same: in 97 % of pairs, where chance reaches 70 %."""
SMOOTH = 0.5
"""Mean product of signs at neighbouring pairs, above which c2 has a curvature, not noise; of noise it is
-0.22."""
SHIFTS = 3
"""Shifts that are looked at, the likeliest ones."""
WEIGHTS = np.sign(np.random.default_rng(1).normal(size=MOST_LAGS)).astype(np.float32)
"""Of the lags of a frame in the sums that tell these: of signs at neighbouring lags 0 is expected."""
BINS_COMPARED = 2
"""Of two scans."""
DIFFERENCE = {(0, 0): 1, (2, 2): -1, (0, 1): -1, (1, 2): 1, (1, 0): -1, (2, 1): 1}
"""Weights of c2 so many frames later."""
ROUNDING = 1e-6
"""Relative size of what is left of float32 without noise."""

Signs = Int8[np.ndarray, "frame lag"]
"""1, -1, or 0 where unknown."""
BinPlace = tuple[float, float]
"""q and φ of a bin."""


def signs_of_noise(c2: Float[np.ndarray, "t t"], n_frames: int) -> Signs:
    """Return the signs of a difference free of decays and factors of frames, at the first lags of each frame.

    It is of six neighbours in log c2 (in c2 with few photons), with weights whose sums over rows, columns and
    lags are 0, so that bins under one beam are no copies. n_frames: of the scan of which c2 may be a part.
    """
    n, lags = len(c2), min(max(SIGNS // n_frames, FEWEST_LAGS), MOST_LAGS)
    signs = np.zeros((n, lags), np.int8)
    (i, lag), neighbours = _pairs_with_neighbours(n, lags)
    values = c2.ravel()[neighbours].astype(float)
    positive = (values > 0).all(axis=0)
    values[:, positive] = np.log(values[:, positive])
    with np.errstate(invalid="ignore"):
        difference = np.array([*DIFFERENCE.values()]) @ values
        rounding = ROUNDING * np.where(positive, 1.0, np.abs(values).max(axis=0))
        significant = np.isfinite(difference) & (np.abs(difference) >= rounding)
    signs[i, lag] = np.sign(np.where(significant, difference, 0.0))
    return signs


@lru_cache(4)
def _pairs_with_neighbours(
    n: int, lags: int
) -> tuple[tuple[Int[np.ndarray, " pair"], ...], Int[np.ndarray, "neighbour pair"]]:
    """Return the pairs with all neighbours, and these by their place in the matrix, row by row."""
    i, lag = np.nonzero(np.add.outer(np.arange(n), np.arange(lags)) < n - 4)
    neighbours = [(i + row) * n + i + lag + 2 + col for row, col in DIFFERENCE]
    return (i, lag), np.array(neighbours)


def signs_of_curves(g2: Float[np.ndarray, "bin t"]) -> Signs:
    """Return the signs of second differences of g2(delay) of some bins, which stand for lags."""
    difference = np.nan_to_num(np.diff(g2, 2, axis=1))
    return np.sign(np.where(np.abs(difference) < ROUNDING, 0.0, difference)).astype(np.int8).T


def have_one_noise(
    signs_of_some: Int8[np.ndarray, "some pair"],
    signs_of_others: Int8[np.ndarray, "other pair"],
    signs_beside: Int8[np.ndarray, "other pair"],
    fewest: int = FEWEST,
) -> Bool[np.ndarray, "some other"]:
    """Return of every two matrices whether their noise is the same; signs_beside: of next pairs of others."""
    signs_of_some = signs_of_some.astype(np.float32)

    def agreement(signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of pairs with equal signs less that of others, and of both."""
        signs = signs.astype(np.float32)
        others = np.abs(signs)
        if (others == others[:1]).all():  # the same pairs are known of all, as in most scans
            others = others[:1]
        return signs_of_some @ signs.T, np.abs(signs_of_some) @ others.T

    equal, number = agreement(signs_of_others)
    alike = equal >= np.where(number >= fewest, SAME_SIGN * number, np.inf)
    candidates = np.flatnonzero(alike.any(axis=0))
    if len(candidates):
        equal, number = agreement(signs_beside[candidates])
        alike[:, candidates] &= (equal < SMOOTH * number) | (number < fewest)
    return alike


def shift_of_copy(first: Signs, other: Signs) -> int | None:
    """Return the frame of one matrix at which the other begins, if both have one noise; else None."""
    lags, length = min(first.shape[1], other.shape[1]), len(first) + len(other)
    first, other = first[:, :lags], other[:, :lags]
    # of the length of both: shifts do not wrap around
    a, b = (np.fft.rfft(signs @ WEIGHTS[:lags], length) for signs in (first, other))
    shifts = np.arange(1 - len(other), len(first))
    frames = np.minimum(len(first), len(other) + shifts) - np.maximum(shifts, 0)
    likelihood = np.fft.irfft(a * b.conj(), length)[shifts] / np.sqrt(frames)
    for shift in (0, *shifts[np.argsort(-likelihood)[:SHIFTS]].tolist()):
        start, number = max(-shift, 0), frames[shift + len(other) - 1] - 1
        overlaps = first[max(shift, 0) :], other[start:], other[start + 1 :]
        shared, shared_of_other, next_frames = (signs[:number].reshape(1, -1) for signs in overlaps)
        fewest = FEWEST_SHIFTED if shift else FEWEST
        if have_one_noise(shared, shared_of_other, next_frames, fewest).all():
            return shift
    return None


def measured_twice(scans: Sequence[Mapping[BinPlace, Signs]]) -> Iterator[tuple[int, int, int]]:
    """Yield two scans with one noise, the later one first, and the frame of the other at which it begins.

    scans: the signs of some bins of each. Bins of the same place are compared; where scans have none in
    common, those in the same order.
    """
    for (n, first), (m, other) in combinations(enumerate(scans), 2):
        common = [(place, place) for place in first if place in other]
        for a, b in islice(common or zip(first, other, strict=False), BINS_COMPARED):
            shift = shift_of_copy(first[a], other[b])
            if shift is not None and not are_opposite(a, b):
                yield m, n, shift
                break


def are_opposite(first: BinPlace, other: BinPlace) -> bool:
    """Return whether two bins see one speckle: 180° apart at one q, they are no copies."""
    (q, phi), (other_q, other_phi) = first, other
    return bool(np.isclose(q, other_q) and np.isclose(abs(phi - other_phi) % 360, 180, atol=1))


def from_frame(shift: int) -> str:
    """Return ' (its frame 0 is frame 100 there)' of a shift of 100 frames; '' for the same frames."""
    return f" (its frame {max(-shift, 0)} is frame {max(shift, 0)} there)" * (shift != 0)
