"""The store while it is written: its lock, arrays and chunks, and the averages and sums stored with them.

The weighted sums over a chunk are all that a fit needs of one in which the model is constant.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import StoreError, StoreInUse
from homodyne_dask.store import files, schema
from homodyne_dask.store.arrays import (
    OPTIONAL_ARRAYS,
    SMALL_ARRAYS,
    array_metadata,
    metadata_of_arrays,
)
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.chunks import encode_chunk
from homodyne_dask.store.files import DAMAGED, PARTIAL, AnyPath, remove_tree, write_atomic
from homodyne_dask.store.schema import WORK_FOLDER
from ingest.clean import BLOCK_SIDE, upper_blocks
from ingest.readers.source import Source

Edges = Int[np.ndarray, " edge"]
ALIKE = 0.02
"""Relative difference in known pairs up to which the means of a frame and of those beside it compare."""


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
    is_known: Bool[np.ndarray, "t t"]


def mask_matrix(c2: Float32[np.ndarray, "t t"], use: Bool[np.ndarray, " t"]) -> MaskedMatrix:
    """Return the known pairs of used frames, all above the diagonal; `c2` itself becomes the values."""
    is_known = np.zeros(c2.shape, dtype=bool)
    for rows, cols in upper_blocks(len(c2), BLOCK_SIDE):
        value = c2[rows, cols]
        usable = ~np.isnan(value)
        usable &= use[rows, None]
        usable &= use[cols]
        value -= 1
        value[~usable] = 0
        is_known[rows, cols] = usable
        if rows != cols:
            c2[cols, rows] = 0
    return MaskedMatrix(c2, is_known)


def cell_averages(
    matrix: MaskedMatrix, ages: Edges, lags: Edges
) -> tuple[Float[np.ndarray, "age lag"], Int[np.ndarray, "age lag"]]:
    """Return the mean of c2 and the number of known pairs of used frames in each cell."""
    total = _cells(matrix.value, ages, lags, np.float64)
    count = _cells(matrix.is_known, ages, lags, np.int64)
    return _mean(total, count) + 1, count


def frame_means(matrix: MaskedMatrix) -> Float[np.ndarray, " t"]:
    """Return the mean of c2 over the known pairs of each used frame.

    NaN where it has none, or fewer or more than the frames beside it: these are then of other lags.
    """
    total = matrix.value.sum(0, dtype=np.float64) + matrix.value.sum(1, dtype=np.float64)
    count = matrix.is_known.sum(0) + matrix.is_known.sum(1)
    mean = _mean(total, count) + 1
    neighbours = np.convolve(count, [0.25, 0.25, 0, 0.25, 0.25], "same")[2:-2]
    mean[2:-2][np.abs(count[2:-2] - neighbours) > ALIKE * count[2:-2]] = np.nan
    return mean


def _cells(values: np.ndarray, ages: Edges, lags: Edges, dtype) -> np.ndarray:
    """Sum over cells: a sheared view has the lag along its second axis.

    Element (i, l) of the view lies i·(n + 1) + l elements from the start, which is (i, i + l); past
    the last column it meets the next row below the diagonal, where there is nothing.
    """
    n, (row, column) = len(values), values.strides
    sheared = np.ndarray((n - 1, n), values.dtype, values, strides=(row + column, column))
    by_age = np.zeros((len(ages) - 1, n), dtype=dtype)
    for cell, (first, last) in enumerate(pairwise(ages)):
        by_age[cell, : n - first] = sheared[first:last, : n - first].sum(axis=0, dtype=dtype)
    return np.add.reduceat(by_age, lags[:-1], axis=1)


def level_means(matrix: MaskedMatrix) -> dict[int, Float32[np.ndarray, "i j"]]:
    """Return the means over blocks of each level, NaN on and below the block diagonal."""
    n, means, finest = len(matrix.value), {}, schema.LEVELS[0]
    if not schema.level_frames(n, finest):
        return means
    total, count = _upper_sums(matrix.value, np.float64), _upper_sums(matrix.is_known, np.uint16)
    for level in schema.LEVELS:
        if level != finest:
            total, count = _sums(total, level // finest), _sums(count, level // finest)
            finest = level
        if side := schema.level_frames(n, level):
            mean = (_mean(total, count) + 1)[:side, :side]
            mean[count[:side, :side] < level**2 / 2] = np.nan
            mean[np.tri(side, dtype=bool)] = np.nan
            means[level] = mean.astype(np.float32)
    return means


def _upper_sums(values: np.ndarray, dtype: type) -> np.ndarray:
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
    sums_of_chunks = []
    for rows, cols in upper_blocks(len(matrix.value), schema.tile_side(len(matrix.value))):
        is_known, value = matrix.is_known[rows, cols], matrix.value[rows, cols].astype(np.float64)
        # einsum here runs without BLAS and its threads
        sums = [
            float(np.einsum("i,ij->j", weight[rows], term) @ weight[cols])
            for term in (is_known.astype(np.float64), value, np.square(value))
        ]
        sums_of_chunks.append([*sums, int(np.count_nonzero(is_known))])
    return sums_of_chunks


def sums_by_chunk(sums: list[list[list[float]]], n_frames: int) -> dict[str, np.ndarray]:
    """Return the arrays (bin, i, j) of the group sums/; NaN, or no pair, below the diagonal."""
    tiles = schema.tiles_per_side(n_frames, 1)
    rows, columns = np.triu_indices(tiles)
    whole = np.full((4, len(sums), tiles, tiles), np.nan)
    whole[3] = 0
    whole[:, :, rows, columns] = np.moveaxis(np.array(sums), -1, 0)
    return dict(zip(("weight", "first", "second", "pairs"), whole, strict=True))


JOB_FILE, LOCK = "job.json", "lock"
MAX_JSON_BYTES = 2_000_000_000
"""Bytes of the largest JSON file of a store: the records of a bin list its chunks."""
NAMES = {"zarr.json", "c2", "cuts", "sums", *SMALL_ARRAYS, *OPTIONAL_ARRAYS}
NAMES |= {f"level{factor}" for factor in schema.LEVELS}
"""The names of what is in a store."""


def write_json(path: AnyPath, value: Any, *, durable: bool = True) -> str:
    """Write JSON atomically, always the same bytes for the same value; return their SHA-256."""
    content = json.dumps(value, sort_keys=True, allow_nan=False).encode()
    write_atomic(path, content, durable=durable)
    return hashlib.sha256(content).hexdigest()


def read_json(path: AnyPath) -> Any:
    try:
        return json.loads(files.read_regular_file(path, MAX_JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DAMAGED as error:
        raise StoreError(f"{path} is damaged ({error}): give --overwrite to start over") from error


def root_attributes(store: AnyPath) -> dict[str, Any]:
    match read_json(store / "zarr.json"):
        case {"attributes": dict(attributes)}:
            return attributes
    return {}


def check_no_foreign_files(store: AnyPath, overwrite: bool = False) -> None:
    """Raise StoreError for a target that holds files of other programs, or a damaged store not to replace."""
    if isinstance(store, Path) and not store.is_dir() and os.path.lexists(store):
        raise StoreError(f"{store} exists and is not a store: give another name")
    if files.exists(store / WORK_FOLDER) or not (children := files.children(store)):
        return
    whole = files.exists(store / schema.MANIFEST) and {path.name for path in children} <= NAMES
    # --overwrite removes what is surely a store: by its attributes or, where they are damaged, all its names
    if not (whole and overwrite) and root_attributes(store).get("format") != schema.FORMAT:
        if whole:
            raise StoreError(f"{store} is a damaged store: give --overwrite to replace it")
        raise StoreError(f"{store} exists and is not a store of homodyne_dask: give another name")


@contextmanager
def lock_store(store: AnyPath) -> Iterator[None]:
    """Lock the store for one ingest; refuse a link, whose files would be removed."""
    work = store / WORK_FOLDER
    if isinstance(work, Path):
        if work.is_symlink():
            raise StoreError(f"{work} is a link to {work.resolve()}: remove the link")
        work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        locked = False
        with suppress(FileNotFoundError):  # another ingest ends just now, and removes its folder
            locked = stack.enter_context(files.locked(work / LOCK))
        if not locked:
            raise StoreInUse(
                f"another ingest is writing {store}: {files.how_to_unlock(work / LOCK)}, or give another name"
            )
        yield


def clear(store: AnyPath) -> None:
    """Remove an earlier ingest, its metadata first, so that the store cannot be opened meanwhile."""
    remove_tree(store / "zarr.json")
    for path in (*files.children(store), *files.children(store / WORK_FOLDER)):
        if path.name not in (WORK_FOLDER, LOCK):
            remove_tree(path)


def remove_partial_files(store: AnyPath) -> None:
    if isinstance(store, Path):
        for path in store.rglob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)


def complete(store: AnyPath, attrs: dict[str, Any]) -> None:
    """Write the root attributes, which complete the store, and remove the working folder."""
    metadata = read_json(store / "zarr.json")
    write_json(store / "zarr.json", metadata | {"attributes": attrs})
    remove_working_folder(store)


def remove_working_folder(store: AnyPath) -> None:
    """Remove the working folder of a store that is complete, or leave it to an ingest that waits."""
    if isinstance(store, Path):
        with suppress(OSError):  # an ingest that waits makes its lock there
            remove_tree(store / WORK_FOLDER)
        return
    for path in files.children(store / WORK_FOLDER):
        if path.name != LOCK:  # which another process could take, and lose when it is released
            remove_tree(path)


def create_arrays(store: AnyPath, source: Source, sharded: bool) -> None:
    begun = {"format": schema.FORMAT, "schema_version": schema.VERSION, "complete": False}
    n = source.n_frames
    for group in ("", "cuts", "sums", *(f"level{factor}" for factor in schema.factors(n)[1:])):
        attributes = {} if group else begun
        metadata = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
        _write_metadata(store / group if group else store, metadata)
    for name, metadata in metadata_of_arrays(len(source.label), n, sharded).items():
        _write_metadata(store / name, metadata)
    ages, lags = age_edges(n), lag_edges(n)
    t1, t2 = cell_times(source.time, ages, lags)
    for name, values in {"age_edges": ages, "lag_edges": lags, "t1": t1, "t2": t2}.items():
        write_array(store, f"cuts/{name}", values)


def _write_metadata(folder: AnyPath, metadata: dict[str, Any]) -> None:
    _write(folder / "zarr.json", json.dumps(metadata, indent=2).encode())


def write_array(store: AnyPath, name: str, values: np.ndarray) -> None:
    spec = (SMALL_ARRAYS | OPTIONAL_ARRAYS)[name]
    values = np.asarray(values, spec.dtype)
    _write_metadata(store / name, array_metadata(spec, values.shape))
    write_bytes(store / name, (0,) * values.ndim, encode_chunk(values).content)


def write_bytes(array: AnyPath, key: tuple[int, ...], content: bytes) -> None:
    _write(array.joinpath("c", *map(str, key)), content)


def _write(path: AnyPath, content: bytes) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, durable=False)
