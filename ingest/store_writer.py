"""The store while it is written: its lock, its arrays, its chunks and its metadata."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.chunk_codec import COMPRESSOR, LEVEL, SHUFFLE, encode_chunk
from homodyne_dask.store.files import (
    PARTIAL,
    links_below,
    read_regular_file,
    replacing,
    write_atomic,
)
from homodyne_dask.store.lock import locked
from ingest import block_means
from ingest.readers.source import Source

if TYPE_CHECKING:
    import zarr

WORK_FOLDER = ".ingest"
"""Folder inside the store while it is being made: the lock, the job and one record per bin."""
JOB_FILE = "job.json"
MAX_JSON_BYTES = 2_000_000_000
"""Bytes of the largest JSON file of a store: the records of a bin list its chunks."""
CONFIG: Any = {"write_empty_chunks": True}


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, always the same bytes for the same value."""
    write_atomic(path, json.dumps(value, sort_keys=True, allow_nan=False))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, None if there is no such file."""
    try:
        return json.loads(read_regular_file(path, MAX_JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}): give --overwrite to start over") from error


def root_attributes(store: Path) -> dict[str, Any]:
    """Return the root attributes, empty where there is no group yet."""
    metadata = read_json(store / "zarr.json")
    found = metadata.get("attributes") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def check_no_foreign_files(store: Path) -> None:
    """Raise StoreError for a target that holds files of other programs."""
    if not store.exists() and not store.is_symlink():
        return
    if not store.is_dir():
        raise StoreError(f"{store} exists and is no store: give another name")
    ours = (store / WORK_FOLDER).is_dir() or root_attributes(store).get("format") == schema.FORMAT
    if any(store.iterdir()) and not ours:
        raise StoreError(f"{store} exists and is no store of homodyne_dask: give another name")


@contextmanager
def lock_store(store: Path) -> Iterator[None]:
    """Lock the store for one ingest.

    Raises StoreError if another one holds the lock, or if the store has a link to another place.
    """
    if link := next(links_below(store), None):
        raise StoreError(
            f"{link} is a link to {link.resolve()}, and a store is written in one folder of its own: "
            f"remove the link, or give another name"
        )
    work = store / WORK_FOLDER
    work.mkdir(parents=True, exist_ok=True)
    with locked(work / "lock") as held:
        if not held:
            raise StoreError(f"another ingest is writing {store}: wait for it or give another name")
        yield


def clear(store: Path) -> None:
    """Remove an earlier ingest, its metadata first, so that the store cannot be opened meanwhile."""
    (store / "zarr.json").unlink(missing_ok=True)
    for path in store.iterdir():
        if path.name != WORK_FOLDER:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (store / WORK_FOLDER).iterdir():
        if path.name != "lock":
            path.unlink()


def remove_partial_files(store: Path) -> None:
    """Remove the partial files of an interrupted ingest."""
    for path in store.rglob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)


def complete(store: Path, attrs: dict[str, Any]) -> None:
    """Write the root attributes, which complete the store, and remove the working folder."""
    metadata = read_json(store / "zarr.json")
    write_json(store / "zarr.json", metadata | {"attributes": attrs})
    remove_work(store)


def remove_work(store: Path) -> None:
    """Remove the working folder, its lock last."""
    shutil.rmtree(store / WORK_FOLDER)


def open_root(store: Path) -> "zarr.Group":
    """Open the root group; Zarr is loaded where it is needed: a first look at a file needs none."""
    import zarr

    return zarr.open_group(store, mode="r+", zarr_format=3)


def create_arrays(store: Path, source: Source) -> None:
    """Create the group and the arrays that tasks write."""
    import zarr

    root = zarr.create_group(
        store,
        zarr_format=3,
        attributes={
            "format": schema.FORMAT,
            "schema_version": schema.VERSION,
            "complete": False,
        },
    )
    bins, n = len(source.label), source.n_frames
    side = schema.tile_side(n)
    _create(root, "c2", (bins, n, n), "float32", ("bin", "t1", "t2"), (1, side, side))
    ages, lags = block_means.age_edges(n), block_means.lag_edges(n)
    cells = (len(ages) - 1, len(lags) - 1)
    cut = root.create_group("cuts")
    _create(cut, "c2", (bins, *cells), "float64", ("bin", "age", "lag"), (1, *cells))
    _create(cut, "count", (bins, *cells), "int64", ("bin", "age", "lag"), (1, *cells))
    for name, edges in (("age_edges", ages), ("lag_edges", lags)):
        write_array(cut, name, edges, (name.removesuffix("s"),))
    for name, times in zip(
        ("t1", "t2"), block_means.cell_times(source.time, ages, lags), strict=True
    ):
        write_array(cut, name, times, ("age", "lag"), units="s")
    for factor in schema.factors(n)[1:]:
        blocks = schema.level_frames(n, factor)
        level = root.create_group(f"level{factor}")
        shape = (bins, blocks, blocks)
        _create(level, "c2", shape, "float32", ("bin", "t1", "t2"), (1, side, side))


def _create(group: "zarr.Group", name, shape, dtype, dims, chunks, units: str | None = None):
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=np.nan if np.dtype(dtype).kind == "f" else None,
        serializer=BytesCodec(endian="little"),
        compressors=[BloscCodec(cname=COMPRESSOR, clevel=LEVEL, shuffle=SHUFFLE), Crc32cCodec()],
        dimension_names=dims,
        attributes={"units": units} if units else {},
        config=CONFIG,
        overwrite=True,
    )


def write_array(
    group: "zarr.Group", name: str, values, dims: tuple[str, ...], units: str | None = None
) -> None:
    """Write a small array as one chunk."""
    values = np.asarray(values)
    array = _create(group, name, values.shape, values.dtype, dims, values.shape, units)
    array[...] = values


def write_chunk(array: Path, key: tuple[int, ...], values: np.ndarray) -> int:
    """Write one chunk atomically, at position `key` in the grid of the array in that folder.

    Returns its checksum.
    """
    path = array.joinpath("c", *map(str, key))
    path.parent.mkdir(parents=True, exist_ok=True)
    chunk = encode_chunk(values)
    with replacing(path, durable=False) as partial:
        partial.write_bytes(chunk.content)
    return chunk.checksum


def pad_to_chunk(part: Float32[np.ndarray, "rows cols"], side: int) -> Float32[np.ndarray, "T T"]:
    """Return a part of a matrix as a chunk of full size, NaN past the edges of the array."""
    if part.shape == (side, side):
        return np.ascontiguousarray(part)
    chunk = np.full((side, side), np.nan, dtype=np.float32)
    chunk[: part.shape[0], : part.shape[1]] = part
    return chunk
