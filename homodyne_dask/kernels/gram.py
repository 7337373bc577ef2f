"""The Gram matrix: all that a fit needs of a block of data."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Gram(NamedTuple):
    """The contribution of one block, or of a sum of blocks, to a fit (Golub and Pereyra 1973)."""

    moments: Float[np.ndarray, "bin k k"]
    """Xᵀ W X per bin, X = [1, y - 1, f, ∂f/∂theta_1 ... ∂f/∂theta_p], y = c2, W = 1/sigma²."""
    pairs: Int[np.ndarray, " bin"]
    """Pairs summed; masked pairs are not counted."""


class RobustGram(NamedTuple):
    """The same under a loss, at one theta, offset and contrast."""

    moments: Float[np.ndarray, "bin k k"]
    """Xᵀ W X per bin with the weights W = ρ'/sigma²."""
    loss: Float[np.ndarray, "bin 4"]
    """Σ scale²·ρ, Σ ρ', Σ (ρ' + 2zρ'') and Σ r²ρ'² per bin, r in units of sigma, z = (r/scale)²."""
    pairs: Int[np.ndarray, " bin"]


class CandidateGrams(NamedTuple):
    """The moments that χ² needs at several thetas, without derivatives."""

    moments: Float[np.ndarray, "bin point 3 3"]
    """Xᵀ W X per bin and theta, X = [1, y - 1, f]."""
    pairs: Int[np.ndarray, " bin"]

    def each(self) -> list[Gram]:
        """Return the Gram of every theta."""
        return [Gram(self.moments[:, n], self.pairs) for n in range(self.moments.shape[1])]


class WideGram(NamedTuple):
    """The moments of f at many thetas: χ² at any theta where f is a combination of them."""

    moments: Float[np.ndarray, "bin m m"]
    """Xᵀ W X per bin, X = [1, y - 1, f_0, f_1 - f_0, f_2 - f_0 ...], f_n that of the n-th theta."""
    pairs: Int[np.ndarray, " bin"]


class BlockGrams(NamedTuple):
    """The moments of every pair of blocks of frames, that of t1 and that of t2, kept apart."""

    moments: Float[np.ndarray, "bin block block 3 3"]
    """Those of 1, y - 1 and f, from which the score of the contrast follows."""
    pairs: Int[np.ndarray, " bin"]


class CellSums(NamedTuple):
    """Sums of the data over the known pairs of each cell of age and lag."""

    weighted: Float[np.ndarray, "bin cell 4"]
    """Of w, w (c2 - 1), w t1 and w t2."""
    moments: Float[np.ndarray, "bin cell 6"]
    """Of c2 - 1, i, lag, i², i·lag and lag²; i is the first frame of a pair, the lag in frames."""
    pairs: Int[np.ndarray, "bin cell"]
    possible: Int[np.ndarray, "bin cell"]
    """Pairs of selected frames, known or not."""


class CellMeans(NamedTuple):
    """The measurements of some bins, and the model at one theta."""

    columns: Float[np.ndarray, "bin cell 3+p"]
    """X = [1, y - 1, mean of f, means of ∂f/∂theta]; 0 in a cell that does not count."""
    weight: Float[np.ndarray, "bin cell"]
    """Σ 1/sigma² over the pairs of a cell; 0 where one of them is unknown or not selected."""
    pairs: Int[np.ndarray, " bin"]
    """Cells that count."""


type AnyGram = Gram | RobustGram | CandidateGrams | WideGram | BlockGrams | CellMeans | CellSums


def gram_of_data(sums: Float[np.ndarray, "bin 4"], p: int) -> Gram:
    """Return the Gram of data where f has decayed to zero: Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs."""
    return Gram(moments_of_data(sums, p + 3), sums[:, 3].astype(np.int64))


def moments_of_data(sums: Float[np.ndarray, "bin 4"], m: int) -> Float[np.ndarray, "bin m m"]:
    """Return the moments of m columns of which only the first two, 1 and y - 1, are not 0."""
    moments = np.zeros((len(sums), m, m))
    moments[:, 0, 0], moments[:, 1, 1] = sums[:, 0], sums[:, 2]
    moments[:, 0, 1] = moments[:, 1, 0] = sums[:, 1]
    return moments


def add[G: AnyGram](left: G, right: G) -> G:
    """Return the Gram of both sets of points."""
    return left._make(a + b for a, b in zip(left, right, strict=True))


def merge_tree[G: AnyGram](leaves: Iterable[G]) -> G:
    """Return the sum of consecutive leaves, always added in the same pairs.

    Neighbours are added two by two, then the sums two by two, an unpaired one moving up. A run of
    2^k leaves that starts at a multiple of 2^k is a whole subtree: summing runs first, wherever
    that happens, changes no bit. Of n leaves log2(n) sums are held at once.
    """
    return merge_runs((1, leaf) for leaf in leaves)


def merge_runs[G: AnyGram](runs: Iterable[tuple[int, G]]) -> G:
    """Return the result of merge_tree over leaves that are summed already in consecutive runs of 2^k.

    Each run comes with its length; lengths never increase, and the last run may have summed fewer.
    """
    subtrees: list[tuple[int, G]] = []
    for run in runs:
        length, total = run
        while subtrees and subtrees[-1][0] == length:
            length, total = 2 * length, add(subtrees.pop()[1], total)
        subtrees.append((length, total))
    _, total = subtrees.pop()
    while subtrees:
        total = add(subtrees.pop()[1], total)
    return total
