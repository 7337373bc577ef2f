"""Pairs far from their neighbours are excluded from the averages that initial values are made from.

Among 2 % of gross outliers a mean over a cell of age and lag has many times the noise of the others,
and the direction of flow is lost in it. What a fit sums is not touched.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from ingest.block_means import MaskedMatrix
from ingest.clean import BAND

FAR = 8.0
"""σ, and times their own spread, from the median of the neighbours: noise does not go there, nor does
c2 where times are uneven."""
STEP = 5.5
"""σ to the next pair from which one is looked at: noise takes a step like that once in 10⁴ pairs."""
REACH = (-2, -1, 0, 1, 2)
"""Neighbours along the lag diagonal, where c2 changes slowly however fast it decays; and the pair."""
EVEN = 0.01
"""Most that the spacing of frames may vary, relatively."""
FEWEST = 3
"""Known ones of these without which nothing is said of a pair."""

Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
"""t1 and t2, as frames."""


def exclude_outliers(matrix: MaskedMatrix, sigma: float, time: Float[np.ndarray, " t"]) -> int:
    """Mark pairs far from their neighbours as unknown; return how many.

    sigma: of a pair. Between frames that are not evenly spaced in time neighbours differ without
    being outliers: none is excluded.
    """
    steps = np.diff(time)
    if np.ptp(steps) > EVEN * np.median(steps):
        return 0
    i, j = (np.concatenate(at) for at in zip(*_candidates(matrix.value, sigma), strict=True))
    i, j = _far(matrix, sigma, i, j)
    matrix.value[i, j], matrix.known[i, j] = 0, False
    return len(i)


def _candidates(value: np.ndarray, sigma: float) -> Iterator[Pairs]:
    """Yield pairs, a band of rows at a time: those that are a long step from the next one."""
    n = len(value)
    for first in range(0, n - 1, BAND):
        last = min(first + BAND, n - 1)
        with np.errstate(over="ignore"):  # an infinite step is far, too
            step = np.abs(value[first + 1 : last + 1, first + 1 :] - value[first:last, first:-1])
        i, j = np.nonzero(step > STEP * sigma)
        i, j = i + first, j + first
        yield np.append(i, i + 1), np.append(j, j + 1)


def _far(matrix: MaskedMatrix, sigma: float, i: np.ndarray, j: np.ndarray) -> Pairs:
    """Return those of some pairs that are known and far from the median of their neighbours."""
    n = len(matrix.value)
    i, j = np.divmod(np.unique(i * n + j), n)
    known = matrix.known[i, j]
    i, j = i[known], j[known]
    around = np.stack([_at(matrix, i + by, j + by) for by in REACH])
    enough = np.isfinite(around).sum(axis=0) >= FEWEST
    i, j, around = i[enough], j[enough], around[:, enough]
    if not len(i):
        return i, j
    middle = np.nanmedian(around, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(around - middle), axis=0)
    far = np.abs(matrix.value[i, j] - middle) > FAR * np.maximum(sigma, spread)
    return i[far], j[far]


def _at(matrix: MaskedMatrix, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, " pair"]:
    """Return the values of pairs, NaN where they are unknown or outside."""
    inside = (i >= 0) & (j < len(matrix.value))
    i, j = np.where(inside, i, 0), np.where(inside, j, 0)
    known = inside & matrix.known[i, j]
    return np.where(known, matrix.value[i, j].astype(np.float64), np.nan)
