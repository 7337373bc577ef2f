"""Averages and sums stored with the data: over cells of age and lag, over blocks of pairs, over chunks.

The weighted sums over a chunk are all that a fit needs of one in which the model is constant.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.store import schema
from ingest.clean import BLOCK_SIDE, upper_blocks

Edges = Int[np.ndarray, " edge"]
ALIKE = 0.02
"""Relative difference in known pairs of a frame from those beside it, up to which their means compare."""


def cell_times(
    time: Float[np.ndarray, " t"], ages: Edges, lags: Edges
) -> tuple[Float[np.ndarray, "age lag"], Float[np.ndarray, "age lag"]]:
    """Return the mean t1 and t2 of all pairs of each cell, NaN where it has none."""
    n = len(time)
    before = np.concatenate([[0.0], np.cumsum(time)])
    i = np.arange(n)[:, None]
    first = np.minimum(i + np.maximum(lags[:-1], 1), n)
    last = np.maximum(np.minimum(i + lags[1:], n), first)
    pairs = np.add.reduceat(last - first, ages[:-1], axis=0)
    t1 = np.add.reduceat((last - first) * time[:, None], ages[:-1], axis=0)
    t2 = np.add.reduceat(before[last] - before[first], ages[:-1], axis=0)
    return _mean(t1, pairs), _mean(t2, pairs)


class MaskedMatrix(NamedTuple):
    """One matrix with its unknown pairs set to 0, ready for sums."""

    value: Float32[np.ndarray, "t t"]
    """c2 - 1, and 0 where it is unknown or a frame is masked."""
    known: Bool[np.ndarray, "t t"]


def mask_matrix(c2: Float32[np.ndarray, "t t"], use: Bool[np.ndarray, " t"]) -> MaskedMatrix:
    """Return the pairs that are known and between used frames; `c2` itself becomes the values.

    Nothing is known on and below the diagonal, as `clean` leaves it.
    """
    known = np.zeros(c2.shape, dtype=bool)
    for rows, cols in upper_blocks(len(c2), BLOCK_SIDE):
        value = c2[rows, cols]
        seen = ~np.isnan(value)
        seen &= use[rows, None]
        seen &= use[cols]
        value -= 1
        value[~seen] = 0
        known[rows, cols] = seen
        if rows != cols:
            c2[cols, rows] = 0
    return MaskedMatrix(c2, known)


def cell_averages(
    matrix: MaskedMatrix, ages: Edges, lags: Edges
) -> tuple[Float[np.ndarray, "age lag"], Int[np.ndarray, "age lag"]]:
    """Return the mean of c2 and the number of known pairs of used frames in each cell."""
    total = _cells(matrix.value, ages, lags, np.float64)
    count = _cells(matrix.known, ages, lags, np.int64)
    return _mean(total, count) + 1, count


def frame_means(matrix: MaskedMatrix) -> Float[np.ndarray, " t"]:
    """Return the mean of c2 over the known pairs of each used frame with all others.

    NaN without any, and where a frame has fewer or more than those beside it: their means are of other lags.
    """
    total = matrix.value.sum(0, dtype=np.float64) + matrix.value.sum(1, dtype=np.float64)
    count = matrix.known.sum(0) + matrix.known.sum(1)
    mean = _mean(total, count) + 1
    beside = np.convolve(count, [0.25, 0.25, 0, 0.25, 0.25], "same")[2:-2]
    mean[2:-2][np.abs(count[2:-2] - beside) > ALIKE * count[2:-2]] = np.nan
    return mean


def _cells(values: np.ndarray, ages: Edges, lags: Edges, dtype) -> np.ndarray:
    """Sum over cells: a sheared view has the lag along its second axis.

    Element (i, l) of the view lies i·(n + 1) + l elements from the start, which is (i, i + l); past
    the last column it meets the next row below the diagonal, where there is nothing.
    """
    n = len(values)
    row, column = values.strides
    sheared = np.lib.stride_tricks.as_strided(
        values, (n - 1, n), (row + column, column), writeable=False
    )
    by_age = np.zeros((len(ages) - 1, n), dtype=dtype)
    for cell, (first, last) in enumerate(pairwise(ages)):
        by_age[cell, : n - first] = sheared[first:last, : n - first].sum(axis=0, dtype=dtype)
    return np.add.reduceat(by_age, lags[:-1], axis=1)


def level_means(matrix: MaskedMatrix) -> dict[int, Float32[np.ndarray, "i j"]]:
    """Return the means over blocks of each level, NaN on and below the block diagonal."""
    n = len(matrix.value)
    found = {}
    finest, *_ = schema.LEVELS
    total, count = _upper_sums(matrix.value, np.float64), _upper_sums(matrix.known, np.uint16)
    for level in schema.LEVELS:
        if level != finest:
            total, count = _sums(total, level // finest), _sums(count, level // finest)
            finest = level
        side = schema.level_frames(n, level)
        if side:
            mean = (_mean(total, count) + 1)[:side, :side]
            mean[count[:side, :side] < level**2 / 2] = np.nan
            mean[np.tri(side, dtype=bool)] = np.nan
            found[level] = mean.astype(np.float32)
    return found


def _upper_sums(values: np.ndarray, dtype: type) -> np.ndarray:
    """Sum over the blocks of the finest level, those above the diagonal."""
    factor, n = schema.LEVELS[0], len(values)
    total = np.zeros((n // factor, n // factor), dtype=dtype)
    for rows, cols in upper_blocks(n // factor * factor, BLOCK_SIDE):
        place = tuple(slice(s.start // factor, s.stop // factor) for s in (rows, cols))
        total[place] = _sums(values[rows, cols], factor, dtype)
    return total


def _sums(values: np.ndarray, factor: int, dtype: type | None = None) -> np.ndarray:
    height, width = (side // factor * factor for side in values.shape)
    rows = _sum_rows(values[:height, :width], factor, dtype or values.dtype)
    return _sum_rows(rows.T, factor, rows.dtype).T


def _sum_rows(values: np.ndarray, factor: int, dtype) -> np.ndarray:
    """Sum rows in groups of `factor`; whole strides at a time, short sums are slow."""
    total = values[::factor].astype(dtype)
    for k in range(1, factor):
        total += values[k::factor]
    return total


def _mean(total: np.ndarray, count: np.ndarray) -> Float[np.ndarray, "..."]:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def tile_sums(matrix: MaskedMatrix, weight: Float[np.ndarray, " t"]) -> list[list[float]]:
    """Return Σw, Σw(y-1), Σw(y-1)² and pairs over the known pairs of used frames of each chunk.

    Chunks are those on and above the diagonal, row by row. The weight of a pair is w = weight(t1)·weight(t2);
    y = c2. Sums are float64, and made by loops whose order does not depend on the number of threads.
    """
    found = []
    for rows, cols in upper_blocks(len(matrix.value), schema.tile_side(len(matrix.value))):
        known, value = matrix.known[rows, cols], matrix.value[rows, cols].astype(np.float64)
        # einsum here runs without BLAS and its threads
        sums = [
            float(np.einsum("i,ij->j", weight[rows], term) @ weight[cols])
            for term in (known.astype(np.float64), value, np.square(value))
        ]
        found.append([*sums, int(np.count_nonzero(known))])
    return found


def sums_by_chunk(sums: list[list[list[float]]], n_frames: int) -> dict[str, np.ndarray]:
    """Return the arrays (bin, i, j) of the group sums/; NaN, or no pair, below the diagonal."""
    tiles = schema.tiles_per_side(n_frames, 1)
    rows, columns = np.triu_indices(tiles)
    whole = np.full((4, len(sums), tiles, tiles), np.nan)
    whole[3] = 0
    whole[:, :, rows, columns] = np.moveaxis(np.array(sums), -1, 0)
    return dict(zip(("weight", "first", "second", "pairs"), whole, strict=True))
