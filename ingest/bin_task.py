"""One task of an ingest: one matrix → its chunks, averages, sums, and a record of them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.allocator import set_allocator_thresholds
from homodyne_dask.store.chunk_codec import encode_chunk, shard_content
from homodyne_dask.store.files import AnyPath
from ingest import block_means, chunk_sums, noise, store_writer
from ingest.block_means import MaskedMatrix
from ingest.clean import clean, measure_contrast, measure_scatter, upper_blocks
from ingest.noise import Record
from ingest.outliers import exclude_outliers
from ingest.readers.source import Source

_KEYS = {
    "baseline", "dead", "zeros", "infinite", "one_sided", "contrast", "scatter", "pairs",
    "chunks", "sizes", "sums", "outliers",
}  # fmt: skip


def write_bin(
    source: Source, target: AnyPath, index: int, use: Bool[np.ndarray, " t"], sharded: bool
) -> Record:
    """Write the only bin of `source` at position `index`, its record last; return the record."""
    set_allocator_thresholds(spare=2 * 2**20)
    side = schema.tile_side(source.n_frames)
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
    record["pairs"] = _pairs(cleaned.c2)
    written = {"c2": _write_matrix(target / "c2", index, cleaned.c2, side, sharded)}
    matrix = block_means.mask_matrix(cleaned.c2, use)
    record["sums"] = chunk_sums.tile_sums(matrix, chunk_sums.weights(rows[0]))
    for factor, means in block_means.level_means(matrix).items():
        name = schema.matrix_name(factor)
        written[name] = _write_matrix(target / name, index, means, side, sharded)
    record["chunks"] = {name: [chunk.checksum for chunk in written[name]] for name in written}
    record["sizes"] = {name: [chunk.size for chunk in written[name]] for name in written}
    sigma = max(float(np.median(rows[0])) ** 2, record["scatter"] or 0.0)
    record["outliers"] = exclude_outliers(matrix, sigma, source.time)
    _write_cuts(target, index, matrix)
    store_writer.write_json(target / store_writer.WORK_FOLDER / f"bin-{index:06d}.json", record)
    return record


def read_record(path: AnyPath) -> Record:
    """Return the record of a bin that was written earlier; raises StoreError where it is damaged."""
    record = store_writer.read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS:
        raise StoreError(f"{path} is damaged: give --overwrite to start over")
    return record


def _pairs(c2: Float32[np.ndarray, "t t"]) -> list[int]:
    """Return the known pairs of each chunk on and above the diagonal, row by row."""
    blocks = upper_blocks(len(c2), schema.tile_side(len(c2)))
    return [int(np.count_nonzero(~np.isnan(c2[rows, cols]))) for rows, cols in blocks]


class _Written(NamedTuple):
    """A chunk that was written."""

    checksum: int
    size: int
    """Bytes."""


def _write_matrix(
    array: AnyPath, index: int, values: Float32[np.ndarray, "m m"], side: int, sharded: bool
) -> list[_Written]:
    """Write the chunks on and above the diagonal, row by row, each by itself or together in shards."""
    tiles = -(-len(values) // side)
    height = schema.shard_rows(tiles, side)
    written, shard = [], dict[tuple[int, int], bytes]()
    for rows, cols in upper_blocks(len(values), side):
        chunk = encode_chunk(store_writer.pad_to_chunk(values[rows, cols], side))
        written.append(_Written(chunk.checksum, len(chunk.content)))
        i, j = rows.start // side, cols.start // side
        if not sharded:
            store_writer.write_bytes(array, (index, i, j), chunk.content)
            continue
        shard[i % height, j] = chunk.content
        if j == tiles - 1 and (i == tiles - 1 or (i + 1) % height == 0):
            content = shard_content(shard, height, tiles)
            store_writer.write_bytes(array, (index, i // height, 0), content)
            shard.clear()
    return written


def _write_cuts(target: AnyPath, index: int, matrix: MaskedMatrix) -> None:
    n = len(matrix.value)
    ages, lags = block_means.age_edges(n), block_means.lag_edges(n)
    mean, count = block_means.cell_averages(matrix, ages, lags)
    store_writer.write_chunk(target / "cuts/c2", (index, 0, 0), mean)
    store_writer.write_chunk(target / "cuts/count", (index, 0, 0), count)
