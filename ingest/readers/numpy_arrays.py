"""NumPy arrays: .npy with numbers from the command line, .npz holding its own, the cache of homodyne."""

import io
import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from homodyne_dask.errors import OptionError, SourceError, shown
from homodyne_dask.request.ingest_options import IngestOptions, converted, decimals
from homodyne_dask.store.files import is_failure, opened_once
from ingest.readers.any_hdf5 import Index, MatrixAxes, layout_of
from ingest.readers.cells_of_arrays import has_cells, open_cells
from ingest.readers.source import Source, counts_and_pixels, place, source_of, times_or_spacing

MAX_SMALL_BYTES = 800_000_000
"""Bytes of an array of anything but matrices; one that claims more is damaged."""
READ_BYTES = 1 << 22
"""Bytes read at once from an archive."""
KNOWN = ("q", "phi", "dt", "time", "sigma", "counts", "pixels", "t1", "t2")
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, zipfile.BadZipFile)
CACHE_MATRICES, CACHE_METADATA = "c2_exp", "cache_metadata_json"
CACHE = {"q": "wavevector_q_list", "phi": "phi_angles_list", "t1": "t1", "t2": "t2"}
"""Names in the cache of homodyne 2.x and xpcsjax."""
Contents = dict[str, np.ndarray]


def open_npy(path: Path, options: IngestOptions) -> Source:
    with as_source_error(path):
        c2 = np.load(path, mmap_mode="r", allow_pickle=False)
    layout = layout_of(path, "c2", c2.shape, c2.dtype, options.axes)
    return source_of(path, "npy", options, *layout.matrices("c2", read_npy))


def open_npz(path: Path, options: IngestOptions) -> Source:
    """Return the bins of an archive with c2, q, phi, dt or time or t1 and t2, or of a cache of homodyne."""
    with as_source_error(path), zipfile.ZipFile(path) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist()]
    if CACHE_MATRICES in keys:
        return _matrices(path, options, keys, CACHE_MATRICES, CACHE)
    name, required = options.dataset or "c2", options.dataset_names
    _check_present(path, keys, [name, *required.values()])
    if has_cells(keys):
        arrays = {key: _numbers(path, key) for key in keys} | {"c2": _numbers(path, name)}
        return open_cells(path, options, arrays)
    return _matrices(path, options, keys, name, dict(zip(KNOWN, KNOWN, strict=True)) | required)


def _matrices(
    path: Path, options: IngestOptions, keys: list[str], name: str, names: dict[str, str]
) -> Source:
    """Return the bins of an archive with matrices; names: of its other arrays."""
    if of_cache := name == CACHE_MATRICES:
        _check_present(path, keys, list(names.values()))
    arrays = {what: _numbers(path, names[what]) for what in names if names[what] in keys}
    layout = layout_of(path, name, *_claimed(path, name), options.axes)
    notes = list[str]()
    for what, unit in options.dataset_units.items():
        arrays[what] = converted(what, arrays[what], unit, names[what], notes)
    fields = _times(path, arrays, notes)
    fields |= counts_and_pixels(path, arrays, layout.n_bins, layout.n_frames)
    fields |= {what: arrays.get(what) for what in ("q", "phi", "sigma")}
    ignored = [key for key in keys if key not in (name, *names.values())]
    if of_cache:
        fields |= _cache_frames(path, notes) if CACHE_METADATA in keys else {}
    elif ignored:
        notes.append(f"ignored in {path.name}: {', '.join(ignored)}")
    format, matrices = "homodyne" if of_cache else "npz", layout.matrices(name, read_npz)
    return source_of(path, format, options, *matrices, notes=notes, **fields)


def _check_present(path: Path, keys: list[str], required: list[str]) -> None:
    if missing := [key for key in required if key not in keys]:
        raise SourceError(
            f"{path.name} has no array {missing[0]}; it has {', '.join(keys) or 'none'}: give --dataset NAME "
            f"for the matrices, --q-dataset, --phi-dataset and --time-dataset for the others"
        )


def _numbers(path: Path, name: str) -> np.ndarray:
    value = small_array(path, name)
    if value.dtype.kind not in "fiu" or value.size == 0:
        raise SourceError(f"{name} of {path.name} contains {value.dtype}, not numbers")
    return value


ARRAY = "array.npz"
"""The name of the file in which arrays are saved for the readers."""


@contextmanager
def saved_arrays(source: Any, store: Path | None, **others: Any) -> Iterator[Path]:
    """Yield an .npz file of matrices and other arrays by name, in a folder beside a store if there is one."""
    by_name = {"c2": source} | {
        name: values for name, values in others.items() if values is not None
    }
    # arrays of other libraries warn where NumPy reads them
    with warnings.catch_warnings(action="ignore"):
        arrays: dict[str, Any] = {name: _as_array(name, values) for name, values in by_name.items()}
    if (folder := store and store.absolute().parent) is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".array-", dir=folder) as made:
        path = Path(made, ARRAY)
        np.savez(path, **arrays)
        yield path


def _as_array(name: str, values: Any) -> np.ndarray:
    why = ""
    try:
        values = np.ma.filled(values, np.nan) if np.ma.is_masked(values) else values
        array = np.ascontiguousarray(values).reshape(np.shape(values))
    except (TypeError, ValueError, RuntimeError, AttributeError, OSError) as error:
        array, why = np.empty(0, object), f" ({error})"
    if array.dtype.kind not in "fiu" or array.size == 0 or (name == "c2" and array.ndim < 2):
        what = "source" if name == "c2" else name
        how = "the path of a file, or an array (t, t) or (bin, t, t)" if name == "c2" else "numbers"
        raise OptionError(f"{what} = {shown(values)} cannot be used{why}: give {how}")
    return array


def small_array(path: Path, name: str) -> np.ndarray:
    shape, dtype = _claimed(path, name)
    if (size := math.prod(shape) * dtype.itemsize) > MAX_SMALL_BYTES:
        raise SourceError(
            f"{name} of {path.name} claims {size:,} bytes, more than the limit of {MAX_SMALL_BYTES:,}: it is "
            "damaged"
        )
    with as_source_error(path), np.load(path, allow_pickle=False) as archive:
        return np.asarray(archive[name])


def read_npy(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    with as_source_error(path):
        c2 = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.array(c2[layout.index_of(place(where)[1])])


def read_npz(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    """Return one matrix of a .npz file, as 'c2[3]', reading no other into memory."""
    name, number = place(where)
    index = layout.index_of(number)
    with _member(path, name) as (member, _, (shape, fortran, dtype)):
        if fortran:
            return _read_index(member, shape[::-1], dtype, index[::-1]).T
        return _read_index(member, shape, dtype, index)


def _read_index(
    member: IO[bytes], shape: tuple[int, ...], dtype: np.dtype, index: Index
) -> np.ndarray:
    """Return a part of an array from a stream that is at its first byte."""
    n_bytes = math.prod(shape[1:]) * dtype.itemsize
    if not isinstance(index[0], slice):
        skipped = index[0] * n_bytes
        if index[0] < shape[0] - 1:
            member.seek(skipped, os.SEEK_CUR)
            skipped = 0
        # before the last matrix all is read: only at its end is the checksum compared
        while skipped > 0:
            if not (n_read := len(member.read(min(skipped, READ_BYTES)))):
                raise EOFError("it ends early")
            skipped -= n_read
        return _read_index(member, shape[1:], dtype, index[1:])
    kept = (n for n, position in zip(shape, index, strict=True) if position == slice(None))
    values = np.empty(tuple(kept), dtype)
    # not row by row, which takes long, nor all at once, which takes the memory of all bins
    at_once = max(1, READ_BYTES // max(n_bytes, 1))
    for first in range(0, shape[0], at_once):
        rows = values[first : first + at_once]
        read = np.frombuffer(member.read(len(rows) * n_bytes), dtype)
        rows[...] = read.reshape(-1, *shape[1:])[(slice(None), *index[1:])]
    return values


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""What reads the header of an array, by the version of its format."""


@contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[IO[bytes], int, Any]]:
    """Yield an array of an archive after its header, the bytes that follow, and shape, order and dtype."""
    with (
        as_source_error(path),
        opened_once(path, zipfile.ZipFile) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        version = np.lib.format.read_magic(member)
        if version not in HEADERS:
            raise SourceError(
                f"an array of {path.name} is in .npy version {version}: save it again with NumPy"
            )
        length = member.read(2 * version[0])
        content = length + member.read(int.from_bytes(length, "little"))
        header = _header(version, content)
        yield member, archive.getinfo(f"{name}.npy").file_size - member.tell(), header


@lru_cache(16)
def _header(version: tuple[int, int], content: bytes) -> Any:
    """Return shape, order and dtype, which the many bins of an array have in common."""
    return HEADERS[version](io.BytesIO(content))


@contextmanager
def as_source_error(path: Path):
    try:
        yield
    except UNREADABLE as error:
        if is_failure(error):
            raise
        raise SourceError(
            f"{path} cannot be read as NumPy arrays ({error}): it is truncated or contains objects"
        ) from error


def _claimed(path: Path, name: str) -> tuple[tuple[int, ...], np.dtype]:
    with _member(path, name) as (_, n_bytes, (shape, _, dtype)):
        if math.prod(shape) * dtype.itemsize != n_bytes and not dtype.hasobject:
            raise SourceError(
                f"{name} of {path.name} claims {math.prod(shape):,} numbers, but has {n_bytes:,} bytes for "
                f"them: it is damaged"
            )
        return shape, dtype


def _times(path: Path, arrays: Contents, notes: list[str]) -> dict[str, Any]:
    time = arrays.get("time")
    if time is None and "t1" in arrays and "t2" in arrays:
        t1, t2 = arrays["t1"], arrays["t2"]
        if t1.ndim == t2.ndim == 2:  # older caches store them as two matrices
            t1, t2 = (t1[:, 0], t2[0]) if t1[0, 0] == t1[0, -1] else (t1[0], t2[:, 0])
        if t1.ndim != 1 or not np.array_equal(t1, t2):
            raise SourceError(f"t1 and t2 of {path.name} differ: the file is damaged")
        time = t1
    times = {} if time is None else times_or_spacing(decimals(time), notes)
    if "dt" in arrays and "dt" not in times:
        if arrays["dt"].size != 1:
            raise SourceError(f"dt of {path.name} must be one number, not {arrays['dt'].size}")
        (times["dt"],) = decimals(arrays["dt"])
    return times


def _cache_frames(path: Path, notes: list[str]) -> dict[str, Any]:
    with as_source_error(path):
        metadata = json.loads(str(small_array(path, CACHE_METADATA).item()))
    match metadata:
        case {"start_frame": int(first), "end_frame": int(last)}:
            if first > 1:
                notes.append(
                    f"cut by homodyne to frames {first} to {last} of its source, counted from 1: times "
                    f"count from the first of these frames"
                )
            return {"begin_frame": first, "end_frame": last}
    return {}
