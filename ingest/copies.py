"""Bins that hold the data of another bin: raw and processed, a copy, a matrix and its transpose.

Noise tells them: of bins that were measured separately, it has the same sign in half of all pairs. What all
bins share without being copies, as the intensity of the beam in each frame, is not noise in this sense.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32

from ingest.noise import Record
from ingest.readers.source import Source

PAIRS = 256
"""Pairs of frames at which signs are compared."""
FEWEST = 40
"""Pairs known in both bins, below which nothing is said."""
SAME_SIGN = 0.94
"""Mean product of signs from which noise is the same: in 97 % of pairs, where chance reaches 70 %."""
SMOOTH = 0.5
"""Mean product of signs at neighbouring pairs, above which c2 has a curvature, not noise; of noise it is
-0.22."""
BINS = 500
"""Bins that are compared with all others at once: with 100,000, each of the arrays takes 200 MB."""
DIFFERENCE = {(0, 0): 1, (2, 2): -1, (0, 1): -1, (1, 2): 1, (1, 0): -1, (2, 1): 1}
"""Weights of c2 so many frames later."""
ROUNDING = 1e-6
"""Relative size of what is left of float32 without noise."""
SIGNS = {1: "+", -1: "-", 0: "0"}


def signs_of_noise(c2: Float32[np.ndarray, "t t"]) -> str:
    """Return the signs of a difference free of decays and factors of frames: at pairs, then beside them.

    It is of six neighbours in log c2, with weights whose sums over rows, columns and lags are 0; in c2 itself
    where one of them is 0, with few photons. Bins whose c2 a fluctuating beam changes alike would else seem
    to be copies. No pair counts twice, or few frames would be many pairs.
    """
    n, random = len(c2), np.random.default_rng(len(c2))
    if n < 5:
        return ""
    at = np.unique(np.sort(random.integers(0, n - 3, (PAIRS, 2)), axis=1), axis=0)
    i, j = at[at[:, 0] < at[:, 1]].T
    found = []
    for by in (0, 1):
        a, b = i + by, j + by
        values = np.stack([c2[a + of_row, b + of_column] for of_row, of_column in DIFFERENCE])
        values = values.astype(float)
        positive = (values > 0).all(axis=0)
        values[:, positive] = np.log(values[:, positive])
        with np.errstate(invalid="ignore"):
            apart = np.array([*DIFFERENCE.values()]) @ values
            rounding = ROUNDING * np.where(positive, 1.0, np.abs(values).max(axis=0))
            apart[np.abs(apart) < rounding] = 0.0
        found.append(np.sign(np.nan_to_num(apart, posinf=0.0, neginf=0.0)))
    return "".join(SIGNS[int(sign)] for sign in np.concatenate(found))


def of_copies(signs: str, others: str) -> bool:
    """Return whether the noise of two matrices of a bin is the same, by `signs_of_noise` of each."""
    if not signs or len(signs) != len(others):
        return False
    here, beside = _values([signs, others])
    return bool(_alike(here[:1], here[1:], beside[1:]))


def copies(source: Source, records: Sequence[Record]) -> dict[int, int]:
    """Return the bins whose data are those of another one, and the first such bin of each.

    Bins 180° apart at one q see one speckle, and count as one cluster in a fit: they are no copies.
    """
    if source.g2 is not None:
        first_with: dict[bytes, int] = {}
        at = [first_with.setdefault(of.tobytes(), n) for n, of in enumerate(source.g2)]
        return {n: one for n, one in enumerate(at) if one != n}
    held = [n for n, record in enumerate(records) if record["signs"]]
    if len(held) < 2:
        return {}
    here, beside = _values([records[n]["signs"] for n in held])
    found: dict[int, int] = {}
    for start in range(0, len(held), BINS):
        alike = np.triu(_alike(here[start : start + BINS], here[start:], beside[start:]), 1)
        for first, other in np.array(held)[start + np.argwhere(alike)].tolist():
            if first not in found and not _opposite(source, first, other):
                found.setdefault(other, first)
    return found


def _values(signs: Sequence[str]) -> list[Float32[np.ndarray, "bin pair"]]:
    """Return 1, -1 or 0 of each sign of some bins: at pairs, and beside them."""
    each = np.array([[*of_bin] for of_bin in signs])
    return np.split((each == "+").astype(np.float32) - (each == "-"), 2, axis=1)


def _alike(
    some: Float32[np.ndarray, "some pair"],
    here: Float32[np.ndarray, "bin pair"],
    beside: Float32[np.ndarray, "bin pair"],
) -> Bool[np.ndarray, "some bin"]:
    """Return of every two bins whether their noise is the same."""
    return (_agreement(some, here) >= SAME_SIGN) & (_agreement(some, beside) < SMOOTH)


def _agreement(
    one: Float32[np.ndarray, "some pair"], other: Float32[np.ndarray, "bin pair"]
) -> Float32[np.ndarray, "some bin"]:
    """Return the mean product of signs of every two bins, 0 where few pairs are known in both."""
    number = np.abs(one) @ np.abs(other).T
    return np.where(number >= FEWEST, one @ other.T / np.maximum(number, 1), 0.0)


def _opposite(source: Source, one: int, other: int) -> bool:
    apart = np.abs(source.phi[one] - source.phi[other]) % 360
    return bool(np.isclose(source.q[one], source.q[other]) and np.isclose(apart, 180, atol=1))
