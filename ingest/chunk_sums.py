"""Weighted sums over each chunk: all that a fit needs of a chunk in which the model is constant."""

from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.store import schema
from ingest.block_means import MaskedMatrix
from ingest.clean import upper_blocks

NAMES = ("weight", "first", "second")


def tile_sums(matrix: MaskedMatrix, weight: Float[np.ndarray, " t"]) -> dict[str, list[float]]:
    """Return "i/j" → [Σw, Σw(y-1), Σw(y-1)², pairs] over the known pairs of used frames of a chunk.

    The weight of a pair is w = weight(t1)·weight(t2); y = c2. Sums are float64, and made by loops
    whose order does not depend on the number of threads.
    """
    n = len(matrix.value)
    side = schema.tile_side(n)
    return {
        f"{rows.start // side}/{cols.start // side}": [
            *_sums(matrix.value[rows, cols], matrix.known[rows, cols], weight[rows], weight[cols]),
            int(np.count_nonzero(matrix.known[rows, cols])),
        ]
        for rows, cols in upper_blocks(n, side)
    }


def _sums(value, known, w1: Float[np.ndarray, " rows"], w2: Float[np.ndarray, " cols"]):
    """Return Σw, Σw·value and Σw·value²; einsum here runs without BLAS and its threads."""
    term = known.astype(np.float64)
    weight = _weighted(term, w1, w2)
    np.copyto(term, value)
    first = _weighted(term, w1, w2)
    return weight, first, _weighted(np.square(term, out=term), w1, w2)


def _weighted(term, w1, w2) -> float:
    return float(np.einsum("i,ij->j", w1, term) @ w2)


def weights(sigma_rows: Float[np.ndarray, "*bin t"]) -> Float[np.ndarray, "*bin t"]:
    """Return weight(t) = 1/sigma_row(t)²: the weight 1/σ² of a pair is the product of two."""
    return 1 / np.square(sigma_rows)


def sums_by_chunk(sums: list[dict[str, list[float]]], n_frames: int) -> dict[str, np.ndarray]:
    """Return the arrays (bin, i, j) of the group sums/; NaN, or no pair, below the diagonal."""
    tiles = -(-n_frames // schema.tile_side(n_frames))
    shape = (len(sums), tiles, tiles)
    arrays: dict[str, Any] = {name: np.full(shape, np.nan) for name in NAMES}
    arrays["pairs"] = np.zeros(shape, dtype=np.int64)
    for index, by_tile in enumerate(sums):
        for key, values in by_tile.items():
            i, j = map(int, key.split("/"))
            for name, value in zip(arrays, values, strict=True):
                arrays[name][index, i, j] = value
    return arrays
