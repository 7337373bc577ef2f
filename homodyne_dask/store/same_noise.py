"""Whether two matrices of c2 have one noise: copies, processed or not, and windows of one measurement.

Noise tells them: of bins that were measured separately, it has the same sign in half of all pairs. What all
bins share without being copies, as the intensity of the beam in each frame, is not noise in this sense.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice

import numpy as np
from jaxtyping import Float, Int8

SIGNS, MOST_LAGS, FEWEST_LAGS = 4096, 16, 2
"""Of a matrix so many signs are kept if its frames allow it, at so many lags of each frame."""
FEWEST, FEWEST_SHIFTED = 40, 120
"""Pairs known in both matrices, below which nothing is said; between other frames chance is tried often."""
SAME_SIGN = 0.94
"""Mean product of signs from which noise is the same: in 97 % of pairs, where chance reaches 70 %."""
SMOOTH = 0.5
"""Mean product of signs at neighbouring pairs, above which c2 has a curvature, not noise; of noise it is
-0.22."""
SHIFTS = 3
"""Shifts that are looked at, the likeliest ones."""
ALIKE = 0.25
"""Squared correlation of a sum of signs of each frame, below which they are not compared one by one."""
CHANCE = np.sign(np.random.default_rng(1).normal(size=MOST_LAGS)).astype(np.float32)
"""Weights of that sum, which expects nothing of signs at neighbouring lags."""
BINS_COMPARED = 2
"""Of two scans."""
DIFFERENCE = {(0, 0): 1, (2, 2): -1, (0, 1): -1, (1, 2): 1, (1, 0): -1, (2, 1): 1}
"""Weights of c2 so many frames later."""
ROUNDING = 1e-6
"""Relative size of what is left of float32 without noise."""

Signs = Int8[np.ndarray, "frame lag"]
"""1, -1, or 0 where unknown."""
Place = tuple[float, float]
"""q and φ of a bin."""


def signs_of_noise(c2: Float[np.ndarray, "t t"], n_frames: int) -> Signs:
    """Return the signs of a difference free of decays and factors of frames, at the first lags of each frame.

    It is of six neighbours in log c2, with weights whose sums over rows, columns and lags are 0; in c2 itself
    where one of them is 0, with few photons. Bins whose c2 a fluctuating beam changes alike would else seem
    to be copies. n_frames: of the scan of which c2 may be a part.
    """
    n, lags = len(c2), min(max(SIGNS // n_frames, FEWEST_LAGS), MOST_LAGS)
    signs = np.zeros((n, lags), np.int8)
    i, lag = np.nonzero(np.add.outer(np.arange(n), np.arange(lags)) < n - 4)
    j = i + lag + 2
    values = np.stack([c2[i + of_row, j + of_column] for of_row, of_column in DIFFERENCE])
    values = values.astype(float)
    positive = (values > 0).all(axis=0)
    values[:, positive] = np.log(values[:, positive])
    with np.errstate(invalid="ignore"):
        apart = np.array([*DIFFERENCE.values()]) @ values
        rounding = ROUNDING * np.where(positive, 1.0, np.abs(values).max(axis=0))
        apart[np.abs(apart) < rounding] = 0.0
    signs[i, lag] = np.sign(np.nan_to_num(apart, posinf=0.0, neginf=0.0))
    return signs


def signs_of_curves(g2: Float[np.ndarray, "bin t"]) -> Signs:
    """Return the signs of second differences of g2(delay) of some bins, which stand for lags."""
    apart = np.nan_to_num(np.diff(g2, 2, axis=1))
    return np.sign(np.where(np.abs(apart) < ROUNDING, 0.0, apart)).astype(np.int8).T


def have_one_noise(some: np.ndarray, here: np.ndarray, beside: np.ndarray, fewest: int = FEWEST):
    """Return of every two matrices whether their noise is the same: [some, other].

    some, here, beside: signs [matrix, pair] of some and of others, and of the others beside each pair.
    """

    def agreement(others: np.ndarray) -> np.ndarray:
        number = np.abs(some) @ np.abs(others).T
        return np.where(number >= fewest, some @ others.T / np.maximum(number, 1), 0.0)

    some, here, beside = (of.astype(np.float32) for of in (some, here, beside))
    return (agreement(here) >= SAME_SIGN) & (agreement(beside) < SMOOTH)


def shift_of_copy(one: Signs, other: Signs) -> int | None:
    """Return the frame of one matrix at which the other begins, if both have one noise; else None."""
    lags = min(one.shape[1], other.shape[1])
    one, other = one[:, :lags], other[:, :lags]
    a, b = (of @ CHANCE[:lags] for of in (one, other))
    length = 1 << (len(a) + len(b)).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, length) * np.fft.rfft(b, length).conj(), length)
    shift = np.arange(length)
    shift = np.where(shift < len(a), shift, shift - length)
    frames = np.minimum(len(a), len(b) + shift) - np.maximum(shift, 0)
    likely = np.argpartition(-product / np.sqrt(np.maximum(frames, 1)), SHIFTS)[:SHIFTS]
    for at in (0, *shift[likely].tolist()):
        number = min(len(a) - max(at, 0), len(b) - max(-at, 0)) - 1
        if number < 1:
            continue
        here, there = slice(max(at, 0), max(at, 0) + number), slice(max(-at, 0), None)
        both = a[here], b[there][:number]
        squares = ((both[n] * (both[1 - n] != 0)) ** 2 for n in (0, 1))
        if (both[0] @ both[1]) ** 2 <= ALIKE * np.prod([of.sum() for of in squares]):
            continue
        each = one[here], other[there][:number], other[there][1 : number + 1]
        some, near, beside = (of.reshape(1, -1) for of in each)
        if have_one_noise(some, near, beside, FEWEST_SHIFTED if at else FEWEST).all():
            return at
    return None


def measured_twice(scans: Sequence[Mapping[Place, Signs]]) -> Iterator[tuple[int, int, int]]:
    """Yield two scans with one noise, the later one first, and the frame of the other at which it begins.

    scans: the signs of some bins of each. Bins of the same place are compared; where scans have none in
    common, those in the same order.
    """
    for (n, one), (m, other) in combinations(enumerate(scans), 2):
        places = [(at, at) for at in one if at in other] or zip(one, other, strict=False)
        for a, b in islice(places, BINS_COMPARED):
            shift = shift_of_copy(one[a], other[b])
            if shift is not None and not are_opposite(a, b):
                yield m, n, shift
                break


def are_opposite(one: Place, other: Place) -> bool:
    """Return whether two bins see one speckle: 180° apart at one q, they are no copies."""
    return bool(
        np.isclose(one[0], other[0]) and np.isclose(abs(one[1] - other[1]) % 360, 180, atol=1)
    )


def from_frame(shift: int) -> str:
    """Return ' (its frame 0 is frame 100 there)' of a shift of 100 frames; '' for the same frames."""
    return f" (its frame {max(-shift, 0)} is frame {max(shift, 0)} there)" * (shift != 0)
