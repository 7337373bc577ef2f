"""One bin: matrix → tiles, averages, sums, and a record of them; what one task does."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.memory import set_allocator_thresholds
from ingest import (
    block_means as summary,
)
from ingest import (
    chunk_sums as sums,
)
from ingest import (
    clean as matrix,
)
from ingest import (
    noise,
)
from ingest import (
    store_writer as store,
)
from ingest.outliers import without_jumps
from ingest.readers.source import Source

Record = dict[str, Any]
_KEYS = {
    "baseline", "dead", "zeros", "infinite", "one_sided", "beta", "scatter", "tiles", "sums", "jumps",
}  # fmt: skip
DIGEST = 16
"""Hexadecimal digits of a tile's SHA-256 that the manifest keeps."""


def write_bin(source: Source, target: Path, index: int, use: Bool[np.ndarray, " t"]) -> Record:
    """Write the only bin of `source` at position `index`, its record last; return the record."""
    set_allocator_thresholds(spare=2 * 2**20)
    found = matrix.clean(source.read(0), source.n_frames, source.name(0))
    record = {
        "baseline": found.baseline,
        "dead": found.dead.tolist(),
        "zeros": found.zeros,
        "infinite": found.infinite,
        "one_sided": found.one_sided,
        "beta": matrix.contrast(found.c2),
        "scatter": matrix.scatter(found.c2),
    }
    rows = noise.sigma_rows(source, [record]).rows
    record["tiles"] = _write_tiles(target, index, found.c2)
    filled = summary.fill(found.c2, use)
    record["sums"] = sums.tile_sums(filled, sums.weights(rows[0]))
    sigma = max(float(np.median(rows[0])) ** 2, record["scatter"] or 0.0)
    leave_out = partial(without_jumps, sigma=sigma, time=source.time)
    record["jumps"] = _write_averages(target, index, filled, leave_out)
    store.write_json(target / store.WORK / f"bin-{index:06d}.json", record)
    return record


def read_record(path: Path) -> Record:
    """Return the record of a bin that was written earlier; raises StoreError where it is damaged."""
    record = store.read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS:
        raise StoreError(f"{path} is damaged: give --overwrite to start over")
    return record


def _write_tiles(target: Path, index: int, c2: Float32[np.ndarray, "t t"]) -> dict[str, Any]:
    """Write the tiles on and above the diagonal; return digest, known pairs and NaNs of each."""
    side = schema.tile_side(len(c2))
    tiles = {}
    for rows, cols in matrix.blocks(len(c2), side):
        i, j = rows.start // side, cols.start // side
        part = c2[rows, cols]
        tile = store.pad_to_chunk(part, side)
        above = len(part) * (len(part) - 1) // 2 if i == j else part.size
        tiles[schema.tile_key(index, i, j)] = _describe(tile, above)
        store.write_chunk(target / "c2", (index, i, j), tile)
    return tiles


def _describe(tile: Float32[np.ndarray, "T T"], above: int) -> Record:
    """Return the manifest's entry of a tile with that many pairs above the diagonal."""
    pairs = tile.size - int(np.count_nonzero(np.isnan(tile)))
    digest = hashlib.sha256(tile.astype("<f4", copy=False).data).hexdigest()[:DIGEST]
    return {"sha256": digest, "pairs": pairs, "nans": above - pairs}


def _write_averages(
    target: Path, index: int, filled: summary.Filled, leave_out: Callable[[summary.Filled], int]
) -> int:
    """Write block means and averages over age and lag; return how many pairs the latter leave out."""
    n = len(filled.value)
    side = schema.tile_side(n)
    for factor, means in summary.levels(filled).items():
        for i, row in enumerate(range(0, len(means), side)):
            for j, col in enumerate(range(0, len(means), side)):
                tile = store.pad_to_chunk(means[row : row + side, col : col + side], side)
                store.write_chunk(target / f"level{factor}/c2", (index, i, j), tile)
    left_out = leave_out(filled)
    mean, count = summary.cuts(filled, summary.age_edges(n), summary.lag_edges(n))
    store.write_chunk(target / "cuts/c2", (index, 0, 0), mean)
    store.write_chunk(target / "cuts/count", (index, 0, 0), count)
    return left_out
