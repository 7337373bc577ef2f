"""The Gram: all that a fit ever needs to know of a chunk of data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Gram(NamedTuple):
    """What one block, or any sum of blocks, contributes to a fit (Golub and Pereyra 1973)."""

    moments: Float[np.ndarray, "bin k k"]
    """Xᵀ W X per bin, X = [1, y - 1, f, ∂f/∂theta_1 ... ∂f/∂theta_p], y = c2, W = 1/sigma²."""
    pairs: Int[np.ndarray, " bin"]
    """Pairs summed; masked pairs are not counted."""


def gram_of_data(sums: Float[np.ndarray, "bin 4"], p: int) -> Gram:
    """Return the Gram of data where f is nothing: Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs."""
    moments = np.zeros((len(sums), p + 3, p + 3))
    moments[:, 0, 0], moments[:, 1, 1] = sums[:, 0], sums[:, 2]
    moments[:, 0, 1] = moments[:, 1, 0] = sums[:, 1]
    return Gram(moments, sums[:, 3].astype(np.int64))


def add(left: Gram, right: Gram) -> Gram:
    """Return the Gram of both sets of points."""
    return Gram(left.moments + right.moments, left.pairs + right.pairs)


def merge_tree(leaves: Sequence[Gram]) -> Gram:
    """Return the sum of consecutive leaves, always added in the same pairs.

    Neighbours are added two by two, then the sums two by two, an odd one out moving up. A run of
    2^k leaves that starts at a multiple of 2^k is a whole subtree: summing runs first, wherever
    that happens, changes no bit.
    """
    level = list(leaves)
    while len(level) > 1:
        level = _one_level_up(level)
    return level[0]


def merge_runs(runs: Sequence[tuple[int, Gram]]) -> Gram:
    """Return what merge_tree gives of the leaves that consecutive runs of 2^k leaves have summed.

    Each run comes with its length; lengths never rise, and the last run may have summed fewer.
    """
    level: list[Gram] = []
    length = runs[-1][0]
    for size, gram in reversed(runs):
        while length < size:
            level = _one_level_up(level)
            length *= 2
        level.insert(0, gram)
    return merge_tree(level)


def _one_level_up(level: list[Gram]) -> list[Gram]:
    pairs = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
    return pairs + level[len(pairs) * 2 :]
