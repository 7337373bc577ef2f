"""Which axes of an array of matrices are the two times."""

from itertools import combinations
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import OptionError, SourceError
from ingest.readers.source import MIN_FRAMES, check_frames

Index = tuple[int | slice, ...]


class MatrixAxes(NamedTuple):
    """Which axes of an array are the two times; the others count bins, the last one fastest."""

    shape: tuple[int, ...]
    times: tuple[int, int]

    @property
    def n_frames(self) -> int:
        """Frames."""
        return self.shape[self.times[0]]

    @property
    def n_bins(self) -> int:
        """Matrices."""
        return prod(self.shape) // self.n_frames**2

    def names(self, array: str) -> list[str]:
        """Return the names of the matrices of an array: c2[0], c2[1], ..."""
        return [f"{array}[{number}]" for number in range(self.n_bins)]

    def index_of(self, number: int) -> Index:
        """Return the index by which an array gives the matrix of a number."""
        bins = [axis for axis in range(len(self.shape)) if axis not in self.times]
        at = np.unravel_index(number, [self.shape[axis] for axis in bins]) if bins else ()
        of = dict(zip(bins, map(int, at), strict=True))
        return tuple(of.get(axis, slice(None)) for axis in range(len(self.shape)))


def layout_of(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    axes: tuple[str, ...] | None,
) -> MatrixAxes:
    """Return which axes are the times: those given, or the two of one length.

    Raises SourceError or OptionError, saying what to give, where neither tells.
    """
    what = f"{name} of {path.name}"
    if dtype.kind not in "fiu":
        raise SourceError(f"{what} contains {dtype}, not real numbers")
    given = axes is not None
    found = [_given_layout(what, shape, axes)] if given else _layouts_of_lengths(what, shape)
    for one in found:
        check_frames(one.n_frames, path, one.n_bins)
    if len(found) == 1:
        return found[0]
    names = (["t" if axis in one.times else "q" for axis in range(len(shape))] for one in found)
    ways = " or ".join(map(",".join, names))
    raise OptionError(
        f"{what} has shape {shape}, which does not show which two axes are times: "
        f"give --axes {ways}, with t for each time axis"
    )


def _layouts_of_lengths(what: str, shape: tuple[int, ...]) -> list[MatrixAxes]:
    pairs = [MatrixAxes(shape, pair) for pair in combinations(range(len(shape)), 2)]
    equal = [one for one in pairs if shape[one.times[0]] == shape[one.times[1]] > 1]
    if not equal or 0 in shape:
        raise SourceError(
            f"{what} has shape {shape}: it must be (N, N), (bin, N, N) or (N, N, bin), where N is the "
            "number of frames"
        )
    return [one for one in equal if one.n_frames >= MIN_FRAMES] or equal


def _given_layout(what: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> MatrixAxes:
    first, second = (at for at, axis in enumerate(axes) if axis == "t")
    if len(axes) != len(shape) or shape[first] != shape[second] or 0 in shape:
        raise OptionError(
            f"axes = {','.join(axes)} do not match {what} of shape {shape}: "
            f"name each axis, with t for the two whose length is the number of frames"
        )
    return MatrixAxes(shape, (first, second))


def halves(matrix: np.ndarray) -> tuple[Bool[np.ndarray, "t t"], Bool[np.ndarray, "t t"]]:
    """Return where anything but 0 is known above the diagonal, and where below it, both with t1 < t2."""
    filled = np.isfinite(matrix) & (matrix != 0)
    return np.triu(filled, 1), np.triu(filled.T, 1)
