"""Outliers, pairs far from their neighbours, are excluded from the averages for initial values.

With 2 % of gross outliers the mean of a cell of age and lag has many times the noise of the others,
too much to find the direction of flow. The sums of a fit are not changed.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from ingest.block_means import MaskedMatrix
from ingest.clean import BAND_ROWS

MAX_DEVIATION = 8.0
"""Deviation of an outlier from the median of its neighbours, in σ and in units of their spread: noise
does not reach it."""
MIN_STEP = 5.5
"""Difference from the next pair, in σ, above which a pair is examined: noise exceeds it once in 10⁴ pairs."""
NEIGHBOURS = (-2, -1, 0, 1, 2)
"""Offsets of the neighbours along the lag diagonal, where c2 changes slowly at any decay; 0 is the pair."""
MAX_SPACING_VARIATION = 0.01
"""Largest relative variation of the frame spacing."""
MIN_NEIGHBOURS = 3
"""Known neighbours, the pair included, below which a pair is kept."""

Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
"""t1 and t2, as frames."""


def exclude_outliers(matrix: MaskedMatrix, sigma: float, time: Float[np.ndarray, " t"]) -> int:
    """Mark pairs far from their neighbours as unknown; return how many.

    sigma: of a pair. Where it is above 1, photons are so few that σ² is what a single pair of them adds
    to c2, and a pair counts as far from 8 σ² on. Between frames that are not evenly spaced in time
    neighbours differ without being outliers: none is excluded.
    """
    steps = np.diff(time)
    if np.ptp(steps) > MAX_SPACING_VARIATION * np.median(steps):
        return 0
    sigma = max(sigma, sigma**2)
    i, j = (np.concatenate(at) for at in zip(*_candidates(matrix.value, sigma), strict=True))
    i, j = _far(matrix, sigma, i, j)
    matrix.value[i, j], matrix.known[i, j] = 0, False
    return len(i)


def _candidates(value: np.ndarray, sigma: float) -> Iterator[Pairs]:
    """Yield pairs, a band of rows at a time: those that are a long step from the next one."""
    n = len(value)
    for first in range(0, n - 1, BAND_ROWS):
        last = min(first + BAND_ROWS, n - 1)
        with np.errstate(over="ignore"):  # an infinite step is far, too
            step = np.abs(value[first + 1 : last + 1, first + 1 :] - value[first:last, first:-1])
        i, j = np.nonzero(step > MIN_STEP * sigma)
        i, j = i + first, j + first
        yield np.append(i, i + 1), np.append(j, j + 1)


def _far(matrix: MaskedMatrix, sigma: float, i: np.ndarray, j: np.ndarray) -> Pairs:
    """Return those of some pairs that are known and far from the median of their neighbours."""
    n = len(matrix.value)
    i, j = np.divmod(np.unique(i * n + j), n)
    known = matrix.known[i, j]
    i, j = i[known], j[known]
    around = np.stack([_at(matrix, i + by, j + by) for by in NEIGHBOURS])
    enough = np.isfinite(around).sum(axis=0) >= MIN_NEIGHBOURS
    i, j, around = i[enough], j[enough], around[:, enough]
    if not len(i):
        return i, j
    middle = np.nanmedian(around, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(around - middle), axis=0)
    far = np.abs(matrix.value[i, j] - middle) > MAX_DEVIATION * np.maximum(sigma, spread)
    return i[far], j[far]


def _at(matrix: MaskedMatrix, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, " pair"]:
    """Return the values of pairs, NaN where they are unknown or outside."""
    inside = (i >= 0) & (j < len(matrix.value))
    i, j = np.where(inside, i, 0), np.where(inside, j, 0)
    known = inside & matrix.known[i, j]
    return np.where(known, matrix.value[i, j].astype(np.float64), np.nan)
