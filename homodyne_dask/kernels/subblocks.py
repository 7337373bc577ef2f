"""The sub-blocks a block is worked in, and which of them a theta leaves anything to compute."""

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

ROWS, COLUMNS = 128, 64
"""Of a sub-block: its fields stay in the second-level cache, few pairs that do not count are worked."""
GONE = -np.log(1e-16)
"""k ΔC from which f is nothing beside 1: Σ w f, Σ w f² and all derivatives vanish there."""


class SubBlocks(NamedTuple):
    """Corners of the sub-blocks that hold a pair, those with something to compute first."""

    corners: Int[np.ndarray, "all 2"]
    """Padded to all sub-blocks of a block."""
    live: int
    number: int


def subblock_shape(T: int) -> tuple[int, int]:
    """Return rows and columns of the sub-blocks of a block of side T."""
    return min(ROWS, T), min(COLUMNS, T)


def sub_blocks(
    i0: int,
    j0: int,
    T: int,
    min_lag: int,
    kC: Float[np.ndarray, "point n"],
    frames: tuple[int, int],
) -> SubBlocks:
    """Return the sub-blocks of the block at frames (i0, j0); kC is k·C at all frames.

    frames: the first that is selected and the one after the last. With several points, those that
    one of them leaves something to compute in. C never falls, so that f <= exp(-k ΔC) of the pair
    of least lag, whatever the shear.
    """
    shape = subblock_shape(T)
    corners = _with_pairs(i0, j0, T, shape, frames, min_lag)
    last_row = np.minimum(i0 + corners[:, 0] + shape[0], kC.shape[1]) - 1
    live = (kC[:, j0 + corners[:, 1]] - kC[:, last_row]).min(axis=0) < GONE
    table = np.zeros((-(-T // shape[0]) * -(-T // shape[1]), 2), np.int64)
    table[: len(corners)] = np.concatenate([corners[live], corners[~live]])
    return SubBlocks(table, int(live.sum()), len(corners))


@cache
def _with_pairs(
    i0: int, j0: int, T: int, shape: tuple[int, int], frames: tuple[int, int], min_lag: int
) -> Int[np.ndarray, "some 2"]:
    first, stop = frames
    grid = [(i, j) for i in range(0, T, shape[0]) for j in range(0, T, shape[1])]
    corners = [
        (i, j)
        for i, j in grid
        if first - shape[0] < i0 + i < stop
        and first - shape[1] < j0 + j < stop
        and j0 + j + shape[1] - 1 - (i0 + i) >= min_lag
    ]
    return np.array(corners, np.int64).reshape(-1, 2)
