"""The sub-blocks of a block, and in which of them f has not decayed to zero."""

from functools import cache
from math import gcd
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

SUBBLOCK_ROWS, SUBBLOCK_COLUMNS = 128, 64
"""Size of a sub-block: its fields fit the second-level cache, and few masked pairs are computed."""
DECAY_CUTOFF = -np.log(1e-16)
"""k ΔC from which f is below rounding beside 1: Σ w f, Σ w f² and all derivatives vanish there."""


class SubBlocks(NamedTuple):
    """The sub-blocks of a block that hold a pair that counts, the active ones first."""

    offsets: Int[np.ndarray, "all 2"]
    """First row and column of each in the block; padded to all sub-blocks of a block."""
    n_active: int
    """Number of those in which f has not decayed to zero."""
    n_total: int


def subblock_shape(T: int) -> tuple[int, int]:
    """Return rows and columns of the sub-blocks of a block of side T, which they divide."""
    return gcd(SUBBLOCK_ROWS, T), gcd(SUBBLOCK_COLUMNS, T)


def sub_blocks(
    i0: int,
    j0: int,
    T: int,
    min_lag: int,
    kC: Float[np.ndarray, "point n"],
    frames: tuple[int, int],
) -> SubBlocks:
    """Return the sub-blocks of the block at frames (i0, j0); kC is k·C at all frames.

    frames: the first that is selected and the one after the last. With several points, those are
    active that one of them makes so. C never decreases, so that f <= exp(-k ΔC) of the pair of least
    lag, whatever the shear.
    """
    shape = subblock_shape(T)
    offsets = _with_pairs(i0, j0, T, shape, frames, min_lag)
    last_row = np.minimum(i0 + offsets[:, 0] + shape[0], kC.shape[1]) - 1
    active = (kC[:, j0 + offsets[:, 1]] - kC[:, last_row]).min(axis=0) < DECAY_CUTOFF
    table = np.zeros((-(-T // shape[0]) * -(-T // shape[1]), 2), np.int64)
    table[: len(offsets)] = np.concatenate([offsets[active], offsets[~active]])
    return SubBlocks(table, int(active.sum()), len(offsets))


@cache
def _with_pairs(
    i0: int, j0: int, T: int, shape: tuple[int, int], frames: tuple[int, int], min_lag: int
) -> Int[np.ndarray, "some 2"]:
    first, stop = frames
    grid = [(i, j) for i in range(0, T, shape[0]) for j in range(0, T, shape[1])]
    offsets = [
        (i, j)
        for i, j in grid
        if first - shape[0] < i0 + i < stop
        and first - shape[1] < j0 + j < stop
        and j0 + j + shape[1] - 1 - (i0 + i) >= min_lag
    ]
    return np.array(offsets, np.int64).reshape(-1, 2)
