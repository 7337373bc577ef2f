"""The Gram matrix: all that a fit needs of a block of data."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Place = Int[np.ndarray, "bin p"]
LinearParams = Float[np.ndarray, "bin 2"]
"""(offset - 1, contrast) of every bin."""
DataSums = Float[np.ndarray, "padded 4"]
"""Of the data of a block alone: Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs, y = c2."""


class Gram(NamedTuple):
    """The contribution of one block, or of a sum of blocks, to a fit (Golub and Pereyra 1973)."""

    moments: Float[np.ndarray, "bin *at k k"]
    """Xᵀ W X per bin. In a fit X = [1, y - 1, f, ∂f/∂theta_1 ... ∂f/∂theta_p], y = c2, W = 1/sigma², or under
    a loss ρ'/sigma². At several thetas, or of pairs of blocks of frames, X = [1, y - 1, f], with such axes.
    A wide Gram has [1, y - 1, f_0, f_1 - f_0, f_2 - f_0 ...], f_n that of the n-th theta: it gives χ² at any
    theta where f is a combination of them."""
    pairs: Int[np.ndarray, " bin"]
    """Pairs summed; masked pairs are not counted."""
    loss: Float[np.ndarray, "bin 4"] | None = None
    """Under a loss, at one theta, offset and contrast: Σ scale²·ρ, Σ ρ', Σ (ρ' + 2zρ'') and Σ r²ρ'² per bin,
    r in units of sigma, z = (r/scale)²."""
    place: Place | None = None
    """Which parameters of the fit the last columns of a bin belong to; None where they are all of them."""

    @property
    def wide(self) -> "Gram":
        """The same with a column for each parameter of the fit, 0 for those that a bin does not depend on."""
        if self.place is None:
            return self
        first = self.moments.shape[-1] - self.place.shape[1]
        before = np.tile(np.arange(first), (len(self.place), 1))
        columns = np.concatenate([before, first + self.place], axis=1)
        moments = spread_twice(self.moments, columns, first + 1 + int(self.place.max()))
        return Gram(moments, self.pairs, self.loss)

    def each(self) -> list["Gram"]:
        return [Gram(self.moments[:, n], self.pairs) for n in range(self.moments.shape[1])]


def spread(
    narrow: Float[np.ndarray, "bin *at p"], place: Place, n: int
) -> Float[np.ndarray, "bin *at n"]:
    """Return values of each bin at their places among n, 0 at the others."""
    wide = np.zeros((*narrow.shape[:-1], n))
    between = (1,) * (narrow.ndim - 2)
    np.put_along_axis(wide, place.reshape(len(place), *between, -1), narrow, axis=-1)
    return wide


def spread_twice(
    narrow: Float[np.ndarray, "bin p p"], place: Place, n: int
) -> Float[np.ndarray, "bin n n"]:
    """Return the matrix of each bin at its places in one of n rows and columns."""
    rows = spread(narrow, place, n)
    return spread(rows.swapaxes(1, 2), place, n).swapaxes(1, 2)


def summed(
    blocks: Float[np.ndarray, "bin p p"], place: Place | None, n: int
) -> Float[np.ndarray, "n n"]:
    """Return the sum of matrices of bins at their places in one of n rows and columns."""
    if place is None:
        return blocks.sum(0)
    total = np.zeros((n, n))
    np.add.at(total, (place[:, :, None], place[:, None, :]), blocks)
    return total


class CellSums(NamedTuple):
    weighted: Float[np.ndarray, "bin cell 4"]
    """Of w, w (c2 - 1), w t1 and w t2."""
    moments: Float[np.ndarray, "bin cell 6"]
    """Of c2 - 1, i, lag, i², i·lag and lag²; i is the first frame of a pair, the lag in frames."""
    pairs: Int[np.ndarray, "bin cell"]
    possible: Int[np.ndarray, "bin cell"]
    """Pairs of selected frames, known or not."""


class CellMeans(NamedTuple):
    columns: Float[np.ndarray, "bin cell 3+p"]
    """X = [1, y - 1, mean of f, means of ∂f/∂theta]; 0 in a cell that does not count."""
    weight: Float[np.ndarray, "bin cell"]
    """Σ 1/sigma² over the pairs of a cell; 0 where one of them is unknown or not selected."""
    pairs: Int[np.ndarray, " bin"]
    """Cells that count."""


type AnyGram = Gram | CellMeans | CellSums


def gram_of_data(sums: Float[np.ndarray, "bin 4"], m: int) -> Gram:
    """Return the Gram where f has decayed to 0; sums: Σ w, Σ w(y - 1), Σ w(y - 1)², pairs."""
    moments = np.zeros((len(sums), m, m))
    moments[:, 0, 0], moments[:, 1, 1] = sums[:, 0], sums[:, 2]
    moments[:, 0, 1] = moments[:, 1, 0] = sums[:, 1]
    return Gram(moments, sums[:, 3].astype(np.int64))


def stacked(grams: Iterable[Gram], order: Int[np.ndarray, " bin"] | slice = slice(None)) -> Gram:
    moments, pairs, *more = (
        None if part[0] is None else np.concatenate(part)[order]
        for part in zip(*grams, strict=True)
    )
    assert moments is not None
    assert pairs is not None
    return Gram(moments, pairs, *more)


def add[G: AnyGram](left: G, right: G) -> G:
    sums = (None if a is None else a + b for a, b in zip(left, right, strict=True))
    return left._make(sums)


def merge_tree[G: AnyGram](leaves: Iterable[G]) -> G:
    """Return the sum of consecutive leaves, always added in the same pairs.

    Neighbours are added two by two, then the sums two by two, an unpaired one moving up. A run of
    2^k leaves that starts at a multiple of 2^k is a whole subtree: summing runs first, wherever
    that happens, changes no bit. Of n leaves log2(n) sums are held at once.
    """
    return merge_runs((1, leaf) for leaf in leaves)


def merge_runs[G: AnyGram](runs: Iterable[tuple[int, G]]) -> G:
    """Return merge_tree of leaves in runs of 2^k, with these lengths; the last may have summed fewer."""
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
