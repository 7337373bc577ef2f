"""One task of an ingest: one matrix → its chunks, averages, sums, and a record of them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.allocator import set_allocator_thresholds
from ingest import block_means, chunk_sums, noise, store_writer
from ingest.block_means import MaskedMatrix
from ingest.clean import clean, measure_contrast, measure_scatter, upper_blocks
from ingest.noise import Record
from ingest.outliers import exclude_outliers
from ingest.readers.source import Source

_KEYS = {
    "baseline", "dead", "zeros", "infinite", "one_sided", "contrast", "scatter", "tiles", "sums",
    "outliers",
}  # fmt: skip
DIGEST_DIGITS = 16
"""Hexadecimal digits of a tile's SHA-256 that the manifest keeps."""


def write_bin(source: Source, target: Path, index: int, use: Bool[np.ndarray, " t"]) -> Record:
    """Write the only bin of `source` at position `index`, its record last; return the record."""
    set_allocator_thresholds(spare=2 * 2**20)
    cleaned = clean(source.read(0), source.n_frames, source.name(0), source.baseline)
    record = {
        "baseline": cleaned.baseline,
        "dead": cleaned.dead.tolist(),
        "zeros": cleaned.zeros,
        "infinite": cleaned.infinite,
        "one_sided": cleaned.one_sided,
        "contrast": measure_contrast(cleaned.c2),
        "scatter": measure_scatter(cleaned.c2),
    }
    rows = noise.sigma_rows(source, [record]).rows
    record["tiles"] = _write_tiles(target, index, cleaned.c2)
    matrix = block_means.mask_matrix(cleaned.c2, use)
    record["sums"] = chunk_sums.tile_sums(matrix, chunk_sums.weights(rows[0]))
    _write_levels(target, index, matrix)
    sigma = max(float(np.median(rows[0])) ** 2, record["scatter"] or 0.0)
    record["outliers"] = exclude_outliers(matrix, sigma, source.time)
    _write_cuts(target, index, matrix)
    store_writer.write_json(target / store_writer.WORK_FOLDER / f"bin-{index:06d}.json", record)
    return record


def read_record(path: Path) -> Record:
    """Return the record of a bin that was written earlier; raises StoreError where it is damaged."""
    record = store_writer.read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS:
        raise StoreError(f"{path} is damaged: give --overwrite to start over")
    return record


def _write_tiles(target: Path, index: int, c2: Float32[np.ndarray, "t t"]) -> dict[str, Any]:
    """Write the tiles on and above the diagonal; return digest, known pairs and NaNs of each."""
    side = schema.tile_side(len(c2))
    tiles = {}
    for rows, cols in upper_blocks(len(c2), side):
        i, j = rows.start // side, cols.start // side
        part = c2[rows, cols]
        tile = store_writer.pad_to_chunk(part, side)
        above = len(part) * (len(part) - 1) // 2 if i == j else part.size
        tiles[schema.tile_key(index, i, j)] = _describe(tile, above)
        store_writer.write_chunk(target / "c2", (index, i, j), tile)
    return tiles


def _describe(tile: Float32[np.ndarray, "T T"], above: int) -> Record:
    """Return the manifest's entry of a tile with that many pairs above the diagonal."""
    pairs = tile.size - int(np.count_nonzero(np.isnan(tile)))
    digest = hashlib.sha256(tile.astype("<f4", copy=False).data).hexdigest()[:DIGEST_DIGITS]
    return {"sha256": digest, "pairs": pairs, "nans": above - pairs}


def _write_levels(target: Path, index: int, matrix: MaskedMatrix) -> None:
    side = schema.tile_side(len(matrix.value))
    for factor, means in block_means.level_means(matrix).items():
        for i, row in enumerate(range(0, len(means), side)):
            for j, col in enumerate(range(0, len(means), side)):
                tile = store_writer.pad_to_chunk(means[row : row + side, col : col + side], side)
                store_writer.write_chunk(target / f"level{factor}/c2", (index, i, j), tile)


def _write_cuts(target: Path, index: int, matrix: MaskedMatrix) -> None:
    n = len(matrix.value)
    ages, lags = block_means.age_edges(n), block_means.lag_edges(n)
    mean, count = block_means.cell_averages(matrix, ages, lags)
    store_writer.write_chunk(target / "cuts/c2", (index, 0, 0), mean)
    store_writer.write_chunk(target / "cuts/count", (index, 0, 0), count)
