"""One task of an ingest: one matrix, or some small ones → chunks, averages, sums, and a record of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.machine.allocator_and_threads import set_allocator_thresholds
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.chunks import encode_chunk, shard_content
from homodyne_dask.store.files import (
    DAMAGED,
    AnyPath,
    files_kept_open,
    read_regular_file,
    write_atomic,
)
from homodyne_dask.store.same_noise import signs_of_noise
from ingest import noise_and_beam_trips as noise
from ingest import store_writer
from ingest.clean import (
    CleanMatrix,
    NoDataError,
    distinct,
    largest_contrast,
    long_steps,
    measure_contrast,
    measure_periods,
    measure_smoothness,
    median,
    upper_blocks,
)
from ingest.noise_and_beam_trips import BinRecord
from ingest.readers.source import Source
from ingest.repeats_and_copies import cleaned_scan, mean_of_scans
from ingest.store_writer import MaskedMatrix

MAX_DEVIATION = 8.0
"""Least distance of an outlier from the median of its neighbours, in σ and in units of their spread."""
MIN_STEP = 5.5
"""Difference from the next pair, in σ, above which a pair is examined: noise exceeds it once in 10⁴ pairs."""
NEIGHBOURS = (-2, -1, 0, 1, 2)
"""Offsets of the neighbours along the lag diagonal, where c2 changes slowly at any decay; 0 is the pair."""
MIN_NEIGHBOURS = 3
"""A pair with fewer known neighbours, itself included, is kept."""


def exclude_outliers(matrix: MaskedMatrix, sigma: float, time: Float[np.ndarray, " t"]) -> int:
    """Mark pairs far from their neighbours as unknown; return how many.

    sigma: of one pair. Where it is above 1, photons are so few that a single pair of them adds σ² to c2: a
    pair counts as far from 8 σ² on. Between frames that are not evenly spaced in time, neighbours differ
    without being outliers: no pair is excluded.
    """
    if is_uneven(time):
        return 0
    sigma, n = max(sigma, sigma**2), len(matrix.value)
    i, j = distinct(long_steps(matrix.value, MIN_STEP * sigma), n)
    is_known = matrix.is_known[i, j]
    i, j = i[is_known], j[is_known]
    if not len(i):
        return 0
    around = np.full((len(NEIGHBOURS), len(i)), np.nan)
    for row, by in zip(around, NEIGHBOURS, strict=True):
        inside = np.flatnonzero((i + by >= 0) & (j + by < n))
        pairs = i[inside] + by, j[inside] + by
        row[inside] = np.where(matrix.is_known[pairs], matrix.value[pairs], np.nan)
    enough = np.isfinite(around).sum(axis=0) >= MIN_NEIGHBOURS
    i, j, around = i[enough], j[enough], around[:, enough]
    if not len(i):
        return 0
    middle = _medians(around)
    spread = 1.4826 * _medians(np.abs(around - middle))
    far = np.abs(matrix.value[i, j] - middle) > MAX_DEVIATION * np.maximum(sigma, spread)
    matrix.value[i[far], j[far]], matrix.is_known[i[far], j[far]] = 0, False
    return int(np.count_nonzero(far))


def _medians(values: Float[np.ndarray, "value n"]) -> Float[np.ndarray, " n"]:
    """Return the medians of columns without their NaN; `np.nanmedian` takes ten times as long for few."""
    ordered, column = np.sort(values, axis=0), np.arange(values.shape[1])
    number = (~np.isnan(values)).sum(axis=0)
    return (ordered[(number - 1) // 2, column] + ordered[number // 2, column]) / 2


@dataclass(frozen=True)
class _Matrices:
    """Writes the chunks of some bins: each to a file, or all to shards, which are written when full."""

    target: AnyPath
    n_frames: int
    sharded: bool
    last: int
    """The last of the bins."""
    shards: dict[int, dict[tuple[int, int, int], bytes]] = field(default_factory=dict)
    """By factor."""

    def write(
        self, factor: int, index: int, values: Float32[np.ndarray, "m m"]
    ) -> list[tuple[int, int]]:
        """Write the chunks on and above the diagonal, row by row; return the checksum and bytes of each."""
        side, array = schema.tile_side(self.n_frames), self.target / schema.matrix_name(factor)
        tiles = schema.tiles_per_side(self.n_frames, factor)
        bins, height = schema.shard_shape(self.n_frames, factor)
        written, shard = [], self.shards.setdefault(factor, {})
        for rows, cols in upper_blocks(len(values), side):
            padded = np.full((side, side), np.nan, np.float32)  # NaN past the edges of the array
            padded[: rows.stop - rows.start, : cols.stop - cols.start] = values[rows, cols]
            chunk = encode_chunk(padded)
            written.append((chunk.checksum, len(chunk.content)))
            i, j = rows.start // side, cols.start // side
            if not self.sharded:
                store_writer.write_bytes(array, (index, i, j), chunk.content)
                continue
            shard[index % bins, i % height, j] = chunk.content
            full = j == tiles - 1 and (i == tiles - 1 or (i + 1) % height == 0)
            if full and (bins == 1 or index == self.last):
                content = shard_content(shard, (bins, height, tiles))
                store_writer.write_bytes(array, (index // bins, i // height, 0), content)
                shard.clear()
        return written


def write_bins(
    sources: Sequence[Source],
    target: AnyPath,
    first: int,
    use: Bool[np.ndarray, " t"],
    sharded: bool,
    left_out: Mapping[int, str],
) -> list[BinRecord]:
    """Write bins that follow one another, each the only one of a source, and return their records.

    first: the position of the first. left_out: by position, the reasons to write some without data.
    """
    set_allocator_thresholds(spare=2 * 2**20)
    last = first + len(sources) - 1
    matrices = _Matrices(target, sources[0].n_frames, sharded, last)
    with files_kept_open():
        records = [
            _write_bin(source, matrices, index, use, left_out.get(index, ""))
            for index, source in enumerate(sources, first)
        ]
    path = target / store_writer.WORK_FOLDER / f"bin-{first:06d}.json"
    # last: bins with records are complete; these need not outlast a crash, as the chunks may not
    content = json.dumps(records, allow_nan=False).encode()
    write_atomic(path, _digest(first, content) + b"\n" + content, durable=False)
    return records


def _write_bin(
    source: Source, matrices: _Matrices, index: int, use: Bool[np.ndarray, " t"], left_out: str
) -> BinRecord:
    cleaned, record, row = _without_data(source, left_out) if left_out else _measured(source)
    record |= cleaned._asdict() | {"dead": cleaned.dead.tolist()}
    del record["c2"]
    blocks = upper_blocks(source.n_frames, schema.tile_side(source.n_frames))
    record["pairs"] = [int(np.count_nonzero(~np.isnan(cleaned.c2[block]))) for block in blocks]
    written = {1: matrices.write(1, index, cleaned.c2)}
    matrix = store_writer.mask_matrix(cleaned.c2, use)
    record["sums"] = store_writer.tile_sums(matrix, 1 / np.square(row))
    for factor, means in store_writer.level_means(matrix).items():
        written[factor] = matrices.write(factor, index, means)
    for field_of_chunk, n in (("chunks", 0), ("sizes", 1)):
        record[field_of_chunk] = {
            schema.matrix_name(factor): [chunk[n] for chunk in chunks]
            for factor, chunks in written.items()
        }
    means = store_writer.frame_means(matrix)  # of all pairs: many of an odd frame are outliers
    # c2 may scatter more than counts say: not each of its pairs is then an outlier
    sigma = max(median(row) ** 2, record["scatter"] or 0.0)
    record["outliers"] = exclude_outliers(matrix, sigma, source.time)
    ages, lags = age_edges(source.n_frames), lag_edges(source.n_frames)
    mean, count = store_writer.cell_averages(matrix, ages, lags)
    cuts = {"c2": mean, "count": count, "frames": means}
    record["cuts"] = {f"cuts/{name}": values.tobytes().hex() for name, values in cuts.items()}
    return record


def _measured(source: Source) -> tuple[CleanMatrix, BinRecord, Float[np.ndarray, " t"]]:
    """Return a clean matrix, what is recorded of its noise, and its sigma_row."""
    try:
        made = mean_of_scans(source) if source.mean_of else (*cleaned_scan(source), None)
        cleaned, scatter, spread = made
        record: BinRecord = {"scatter": scatter, "spread": spread, "left_out": ""}
        record["contrast"] = measure_contrast(cleaned.c2)
        counted = source.intensity is not None  # what counts say of σ depends on it
        record["largest_contrast"] = largest_contrast(cleaned.c2) if counted else None
        record["smoothness"], record["periods"] = None, []
        if source.g2 is None and source.measurement.cells is None and not is_uneven(source.time):
            record["smoothness"] = measure_smoothness(cleaned.c2)
            record["periods"] = measure_periods(cleaned.c2)
        record["signs"] = signs_of_noise(cleaned.c2, source.n_frames).tobytes().hex()
        return cleaned, record, noise.sigma_rows(source, [record]).rows[0]
    except NoDataError as error:
        return _without_data(source, str(error))


def _without_data(
    source: Source, left_out: str
) -> tuple[CleanMatrix, BinRecord, Float[np.ndarray, " t"]]:
    nothing = np.full((source.n_frames, source.n_frames), np.nan, np.float32)
    cleaned = CleanMatrix(nothing, 1, np.empty(0, int), 0, 0, 0, [], 0.0)
    measured = "scatter spread contrast largest_contrast smoothness periods signs"
    record = dict.fromkeys(measured.split()) | {"left_out": left_out}
    return cleaned, record, np.ones(source.n_frames)


def cuts_of(records: Sequence[BinRecord], n_frames: int) -> dict[str, np.ndarray]:
    """Return the averages of all bins over cells of age and lag, and over the pairs with each frame."""
    cells = len(age_edges(n_frames)) - 1, len(lag_edges(n_frames)) - 1
    cuts = {
        "cuts/c2": ("f8", cells),
        "cuts/count": ("i8", cells),
        "cuts/frames": ("f8", (n_frames,)),
    }
    return {
        name: np.stack(
            [np.frombuffer(bytes.fromhex(r["cuts"][name]), kind).reshape(shape) for r in records]
        )
        for name, (kind, shape) in cuts.items()
    }


def read_records(path: AnyPath) -> dict[int, BinRecord]:
    """Return the records that `write_bins` has written, by the position of their bins."""
    first, held = int(path.name[4:-5]), b""
    with suppress(*DAMAGED):
        held = read_regular_file(path, store_writer.MAX_JSON_BYTES)
    digest, _, content = held.partition(b"\n")
    if digest != _digest(first, content):
        raise StoreError(f"{path} is damaged: give --overwrite to start over")
    return dict(enumerate(json.loads(content), first))


def _digest(first: int, content: bytes) -> bytes:
    return hashlib.sha256(b"%d %b" % (first, content)).hexdigest().encode()
