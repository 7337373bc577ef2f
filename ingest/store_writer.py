"""The store while it is written: its lock, its arrays, its chunks and its metadata."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import StoreError, StoreInUse
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import (
    OPTIONAL_ARRAYS,
    SMALL_ARRAYS,
    array_metadata,
    metadata_of_arrays,
)
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.chunk_codec import encode_chunk
from homodyne_dask.store.files import (
    DAMAGED,
    PARTIAL,
    AnyPath,
    children,
    exists,
    read_regular_file,
    remove_tree,
    write_atomic,
)
from homodyne_dask.store.lock import how_to_unlock, locked
from homodyne_dask.store.schema import WORK_FOLDER
from ingest.averages_and_sums import cell_times
from ingest.readers.source import Source

JOB_FILE, LOCK = "job.json", "lock"
MAX_JSON_BYTES = 2_000_000_000
"""Bytes of the largest JSON file of a store: the records of a bin list its chunks."""
NAMES = {"zarr.json", "c2", "cuts", "sums", *SMALL_ARRAYS, *OPTIONAL_ARRAYS}
NAMES |= {f"level{factor}" for factor in schema.LEVELS}
"""Of what is in a store."""


def write_json(path: AnyPath, value: Any, *, durable: bool = True) -> str:
    """Write JSON atomically, always the same bytes for the same value; return their SHA-256."""
    content = json.dumps(value, sort_keys=True, allow_nan=False).encode()
    write_atomic(path, content, durable=durable)
    return hashlib.sha256(content).hexdigest()


def read_json(path: AnyPath) -> Any:
    """Return the content of a JSON file, None if there is no such file."""
    try:
        return json.loads(read_regular_file(path, MAX_JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DAMAGED as error:
        raise StoreError(f"{path} is damaged ({error}): give --overwrite to start over") from error


def root_attributes(store: AnyPath) -> dict[str, Any]:
    """Return the root attributes, empty where there is no group yet."""
    metadata = read_json(store / "zarr.json")
    found = metadata.get("attributes") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def check_no_foreign_files(store: AnyPath, overwrite: bool = False) -> None:
    """Raise StoreError for a target that holds files of other programs, or a damaged store not to replace."""
    if isinstance(store, Path):
        if not store.exists() and not store.is_symlink():
            return
        if not store.is_dir():
            raise StoreError(f"{store} exists and is not a store: give another name")
    if exists(store / WORK_FOLDER) or not (held := children(store)):
        return
    if exists(store / schema.MANIFEST) and {path.name for path in held} <= NAMES:
        if overwrite or root_attributes(store).get("format") == schema.FORMAT:
            return
        raise StoreError(f"{store} is a damaged store: give --overwrite to replace it")
    if root_attributes(store).get("format") != schema.FORMAT:
        raise StoreError(f"{store} exists and is not a store of homodyne_dask: give another name")


@contextmanager
def lock_store(store: AnyPath) -> Iterator[None]:
    """Lock the store for one ingest.

    Raises StoreInUse if another one holds the lock, StoreError for a link, whose files would be removed.
    """
    work = store / WORK_FOLDER
    if isinstance(work, Path):
        if work.is_symlink():
            raise StoreError(f"{work} is a link to {work.resolve()}: remove the link")
        work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        held = False
        with suppress(FileNotFoundError):  # the other one ends, and removes its folder
            held = stack.enter_context(locked(work / LOCK))
        if not held:
            raise StoreInUse(
                f"another ingest is writing {store}: {how_to_unlock(work / LOCK)}, or give another name"
            )
        yield


def clear(store: AnyPath) -> None:
    """Remove an earlier ingest, its metadata first, so that the store cannot be opened meanwhile."""
    remove_tree(store / "zarr.json")
    for path in children(store):
        if path.name != WORK_FOLDER:
            remove_tree(path)
    for path in children(store / WORK_FOLDER):
        if path.name != LOCK:
            remove_tree(path)


def remove_partial_files(store: AnyPath) -> None:
    """Remove the partial files of an interrupted ingest; by URL there are none."""
    if isinstance(store, Path):
        for path in store.rglob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)


def complete(store: AnyPath, attrs: dict[str, Any]) -> None:
    """Write the root attributes, which complete the store, and remove the working folder."""
    metadata = read_json(store / "zarr.json")
    write_json(store / "zarr.json", metadata | {"attributes": attrs})
    remove_working_folder(store)


def remove_working_folder(store: AnyPath) -> None:
    """Remove the working folder of a store that is complete, or leave it to an ingest that waits.

    By URL the lock stays until it is released: another process could take it, and lose it then.
    """
    if isinstance(store, Path):
        with suppress(OSError):  # the other one makes its lock there
            remove_tree(store / WORK_FOLDER)
        return
    for path in children(store / WORK_FOLDER):
        if path.name != LOCK:
            remove_tree(path)


def create_arrays(store: AnyPath, source: Source, sharded: bool) -> None:
    """Create the groups and the arrays that tasks write."""
    begun = {"format": schema.FORMAT, "schema_version": schema.VERSION, "complete": False}
    _write_metadata(store, _group(begun))
    n = source.n_frames
    for group in ("cuts", "sums", *(f"level{factor}" for factor in schema.factors(n)[1:])):
        _write_metadata(store / group, _group({}))
    for name, metadata in metadata_of_arrays(len(source.label), n, sharded).items():
        _write_metadata(store / name, metadata)
    ages, lags = age_edges(n), lag_edges(n)
    t1, t2 = cell_times(source.time, ages, lags)
    for name, values in {"age_edges": ages, "lag_edges": lags, "t1": t1, "t2": t2}.items():
        write_array(store, f"cuts/{name}", values)


def _group(attributes: dict[str, Any]) -> dict[str, Any]:
    return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}


def _write_metadata(folder: AnyPath, metadata: dict[str, Any]) -> None:
    _write(folder / "zarr.json", json.dumps(metadata, indent=2).encode())


def write_array(store: AnyPath, name: str, values: np.ndarray) -> None:
    """Write a small array as one chunk, with its metadata."""
    spec = (SMALL_ARRAYS | OPTIONAL_ARRAYS)[name]
    values = np.asarray(values, spec.dtype)
    _write_metadata(store / name, array_metadata(spec, values.shape))
    write_chunk(store / name, (0,) * values.ndim, values)


def write_chunk(array: AnyPath, key: tuple[int, ...], values: np.ndarray) -> None:
    """Write one chunk atomically, at position `key` in the grid of the array in that folder."""
    write_bytes(array, key, encode_chunk(values).content)


def write_bytes(array: AnyPath, key: tuple[int, ...], content: bytes) -> None:
    """Write a chunk, or a shard, of an array atomically."""
    _write(array.joinpath("c", *map(str, key)), content)


def _write(path: AnyPath, content: bytes) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, durable=False)
