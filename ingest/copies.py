"""Bins that hold the data of another bin: raw and processed, a copy, a matrix and its transpose.

Noise tells them: of bins that were measured separately, it has the same sign in half of all pairs.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Int

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
-0.46."""
SIGNS = {1: "+", -1: "-", 0: "0"}


def signs_of_noise(c2: Float32[np.ndarray, "t t"]) -> str:
    """Return the signs of second differences along lag diagonals: at some pairs, then at their neighbours."""
    n, random = len(c2), np.random.default_rng(len(c2))
    if n < 5:
        return ""
    i, j = np.sort(random.integers(1, n - 2, (2, PAIRS)), axis=0)
    found = []
    for by in (0, 1):
        a, b = i + by, j + by
        apart = c2[a - 1, b - 1].astype(float) - 2.0 * c2[a, b] + c2[a + 1, b + 1]
        found.append(np.sign(np.nan_to_num(apart, posinf=0.0, neginf=0.0)))
    return "".join(SIGNS[int(sign)] for sign in np.concatenate(found))


def copies(source: Source, records: Sequence[Record]) -> dict[int, int]:
    """Return the bins whose data are those of another one, and the first such bin of each.

    Bins 180° apart at one q see one speckle, and count as one cluster in a fit: they are no copies.
    """
    held = [n for n, record in enumerate(records) if record["signs"]]
    signs = np.array([[*records[n]["signs"]] for n in held])
    if len(held) < 2:
        return {}
    value = (signs == "+") * 1.0 - (signs == "-")
    here, beside = np.split(value, 2, axis=1)
    same, smooth = _agreement(here, here), _agreement(here, beside)
    alike = np.triu((same >= SAME_SIGN) & (smooth < SMOOTH), 1)
    found: dict[int, int] = {}
    for first, other in np.array(held)[np.argwhere(alike)].tolist():
        if first not in found and not _opposite(source, first, other):
            found.setdefault(other, first)
    return found


def _agreement(
    one: Float[np.ndarray, "bin pair"], other: Float[np.ndarray, "bin pair"]
) -> Float[np.ndarray, "bin bin"]:
    """Return the mean product of signs of every two bins, 0 where few pairs are known in both."""
    number: Int[np.ndarray, "bin bin"] = np.abs(one) @ np.abs(other).T
    return np.where(number >= FEWEST, one @ other.T / np.maximum(number, 1), 0.0)


def _opposite(source: Source, one: int, other: int) -> bool:
    apart = np.abs(source.phi[one] - source.phi[other]) % 360
    return bool(np.isclose(source.q[one], source.q[other]) and np.isclose(apart, 180, atol=1))
