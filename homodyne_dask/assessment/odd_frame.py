"""Whether a frame differs from those beside it: in the mean of c2 over all pairs with it, stored at ingest.

Under any model that mean changes little from frame to frame, so its neighbours say what it should be, and how
noisy it is. Only at the beginning of a record, rates may change by decades from frame to frame.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr

from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.scan import Scan

BESIDE = 2
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


class OddFrame(NamedTuple):
    """The frame that differs most."""

    frame: int
    excess: float
    """Mean of c2 over all pairs with it above what those of its neighbours are."""
    p: float
    """Probability of so large an excess of one frame by chance."""
    tests: int
    """Frames tested."""


def odd_frame(scan: Scan) -> OddFrame | None:
    """Return the frame of the selection that differs most; None where there are too few to compare.

    Bins are weighted by the inverse of their noise. Frames that are uneven in time are not compared, nor are
    those beside masked ones, nor data that are means over cells.
    """
    if scan.cells is not None or scan.n_frames < FEWEST or is_uneven(scan.time):
        return None
    means, n = np.where(scan.use, scan.frame_means, np.nan), len(scan.time)
    early = np.arange(n) < EARLY
    own = np.where(early, _excess(means, CUBIC), _excess(means, EVEN))
    size = np.sqrt(1 + 2 * np.where(early, *(np.sum(np.square(of)) for of in (CUBIC, EVEN))))
    own[:, np.r_[:ENDS, len(scan.time) - ENDS : len(scan.time)]] = np.nan
    own = own[np.isfinite(own).any(1)]
    some = np.isfinite(own).all(0)
    if not len(own) or not some.any():
        return None
    weight = 1 / np.maximum(((own / size)[:, some] ** 2).mean(1), np.finfo(float).tiny)
    excess = (weight / weight.sum()) @ own
    square = _around(np.where(some, excess / size, 0.0) ** 2)
    number = _around(some.astype(float))
    known = some & (number >= FEWEST) & (square > 0)
    if not known.any():
        return None
    freedom = number[known] / CORRELATED
    t = np.abs(excess / size)[known] / np.sqrt(square[known] / number[known])
    p = 2 * stdtr(freedom, -t)
    at = int(p.argmin())
    frame = int(np.flatnonzero(known)[at])
    return OddFrame(frame, float(excess[frame]), float(p[at]), int(known.sum()))


def _excess(means: Float[np.ndarray, "bin t"], weights: tuple[float, ...]) -> np.ndarray:
    """Return by how much each mean exceeds those beside it, with weights of the next and those behind it."""
    own, n = np.full(means.shape, np.nan), means.shape[1]
    beside = [
        of * (means[:, BESIDE - k : n - BESIDE - k] + means[:, BESIDE + k : n - BESIDE + k])
        for k, of in enumerate(weights, 1)
    ]
    own[:, BESIDE : n - BESIDE] = means[:, BESIDE : n - BESIDE] - np.sum(beside, axis=0)
    return own


def _around(values: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
    """Return the sums over the frames around each but those that share a mean with it."""
    n, before = len(values), np.concatenate([[0.0], np.cumsum(values)])
    frame = np.arange(n)

    def within(reach: int) -> Float[np.ndarray, " t"]:
        return before[np.minimum(frame + reach + 1, n)] - before[np.maximum(frame - reach, 0)]

    return within(WINDOW // 2) - within(2 * BESIDE)
