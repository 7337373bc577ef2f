"""NumPy arrays: .npy with numbers from the command line, .npz holding its own, the cache of homodyne."""

import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, SourceError, shown
from homodyne_dask.store.files import is_failure
from homodyne_dask.text import joined_with_and
from ingest.readers.array_axes import Index, MatrixAxes, layout_of
from ingest.readers.source import IngestOptions, Source, decimal, per_bin

MAX_SMALL_BYTES = 800_000_000
"""Bytes of an array that is none of matrices."""
READ_BYTES = 1 << 22
"""Bytes read at once."""
KNOWN = ("c2", "q", "phi", "dt", "time", "sigma", "counts", "pixels", "t1", "t2")
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, zipfile.BadZipFile)
CACHE_MATRICES = "c2_exp"
CACHE_Q, CACHE_PHI, CACHE_T1, CACHE_T2 = "wavevector_q_list", "phi_angles_list", "t1", "t2"
CACHE_METADATA = "cache_metadata_json"
"""Names in the cache of homodyne and xpcsjax."""
Contents = dict[str, np.ndarray]


def open_npy(path: Path, options: IngestOptions) -> Source:
    """Return the bins of one array (N, N), (bin, N, N), or with its axes in another order."""
    with as_source_error(path):
        c2 = np.load(path, mmap_mode="r", allow_pickle=False)
    layout = layout_of(
        path, "c2", c2.shape, c2.dtype, options.axes, lambda one, n: c2[one.index_of(n)]
    )
    reader = partial(read_npy, layout=layout)
    return source_of(path, "npy", layout.size, {}, options, reader, layout.names("c2"))


def open_npz(path: Path, options: IngestOptions) -> Source:
    """Return the bins of an archive with c2, q, phi, dt or time or t1 and t2, and optionally sigma."""
    keys = array_names(path)
    name = options.dataset or "c2"
    given = {"q": options.q_dataset, "phi": options.phi_dataset, "time": options.time_dataset}
    missing = [one for one in (name, *given.values()) if one is not None and one not in keys]
    if missing:
        raise SourceError(
            f"{path.name} has no array {missing[0]}; it has {', '.join(keys) or 'none'}: give "
            f"--dataset NAME for the matrices, --q-dataset, --phi-dataset and --time-dataset for the others"
        )
    known = {key: given.get(key) or key for key in KNOWN[1:]}
    held = small_arrays(path, [one for one in known.values() if one in keys])
    held = {key: held[one] for key, one in known.items() if one in held}
    if options.time_dataset is not None and held["time"].size == 1:
        held["dt"] = held.pop("time")
    if "time" not in held and {CACHE_T1, CACHE_T2} <= held.keys():
        held["time"] = _cache_times(path, held)
    layout = _layout(path, name, options)
    ignored = [key for key in keys if key not in (name, *known.values())]
    notes = (f"ignored in {path.name}: {', '.join(ignored)}",) if ignored else ()
    reader = partial(read_npz, layout=layout)
    return source_of(path, "npz", layout.size, held, options, reader, layout.names(name), notes)


ARRAY = "array.npz"
"""The name of the file in which arrays are saved for the readers."""
_OF_ARRAYS = {
    "its frame spacing": "dt in s",
    "q": "q in 1/Å",
    "phi": "phi in degrees, or nan for whole rings",
}


@contextmanager
def saved_arrays(source: Any, beside: Path | None, **others: Any) -> Iterator[Path]:
    """Yield an .npz file of an array of matrices and of others, in a folder of its own that is removed.

    source: what NumPy makes an array of. beside: a store on the same disk, None for the folder of temporary
    files. others: by their names in the file, None where unknown. Raises OptionError for what is not an
    array.
    """
    with warnings.catch_warnings(action="ignore"):
        arrays: dict[str, Any] = {"c2": _as_array("c2", source)}
        arrays |= {name: _as_array(name, of) for name, of in others.items() if of is not None}
    folder = None
    if beside is not None:
        folder = beside.absolute().parent
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".array-", dir=folder) as made:
        path = Path(made, ARRAY)
        np.savez(path, **arrays)
        yield path


def _as_array(name: str, given: Any) -> np.ndarray:
    try:
        found = np.ascontiguousarray(given)
    except (TypeError, ValueError, RuntimeError, AttributeError, OSError) as error:
        found, why = np.empty(0, object), f" ({error})"
    else:
        found, why = found.reshape(np.shape(given)), ""
    if found.dtype.kind not in "fiu" or found.size == 0 or (name == "c2" and found.ndim < 2):
        what = "source" if name == "c2" else name
        how = "the path of a file, or an array (t, t) or (bin, t, t)" if name == "c2" else "numbers"
        raise OptionError(f"{what} = {shown(given)} cannot be used{why}: give {how}")
    return found


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file."""
    with as_source_error(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _layout(path: Path, name: str, options: IngestOptions) -> MatrixAxes:
    """Return the layout of the matrices under a name of a .npz file, reading as little as tells it."""
    with as_source_error(path), zipfile.ZipFile(path) as archive:
        shape, dtype = _claimed(path, archive, name)
    return layout_of(
        path, name, shape, dtype, options.axes, lambda one, n: read_npz(path, f"{name}[{n}]", one)
    )


def small_arrays(path: Path, names: list[str]) -> Contents:
    """Return the small arrays of these names of a .npz file."""
    check_small(path, names)
    with as_source_error(path), np.load(path, allow_pickle=False) as archive:
        held = {name: np.asarray(archive[name]) for name in names}
    for name, value in held.items():
        if value.dtype.kind not in "fiu" or value.size == 0:
            raise SourceError(f"{name} of {path.name} contains {value.dtype}, not numbers")
    return held


def check_small(path: Path, names: list[str]) -> None:
    """Raise SourceError for arrays of these names of a .npz file that claim more than MAX_SMALL_BYTES."""
    with as_source_error(path), zipfile.ZipFile(path) as archive:
        for name in names:
            shape, dtype = _claimed(path, archive, name)
            if math.prod(shape) * dtype.itemsize > MAX_SMALL_BYTES:
                raise SourceError(
                    f"{name} of {path.name} claims {math.prod(shape) * dtype.itemsize:,} bytes, "
                    f"more than the limit of {MAX_SMALL_BYTES:,}: it is damaged"
                )


def read_npy(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    """Return one matrix of a .npy file."""
    with as_source_error(path):
        c2 = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.array(c2[layout.index_of(_number_in(where))])


def read_npz(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    """Return one matrix of a .npz file, as 'c2[3]', reading no other into memory."""
    name, index = where.rpartition("[")[0], layout.index_of(_number_in(where))
    with (
        as_source_error(path),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        shape, fortran, dtype = _header(path, member)
        if fortran:
            return _read_index(member, shape[::-1], dtype, index[::-1]).T
        return _read_index(member, shape, dtype, index)


def _read_index(
    member: IO[bytes], shape: tuple[int, ...], dtype: np.dtype, index: Index
) -> np.ndarray:
    """Return a part of an array that is read from its start, some slabs of its first long axis at a time."""
    n_bytes = math.prod(shape[1:]) * dtype.itemsize
    if not isinstance(index[0], slice):
        left = index[0] * n_bytes
        if index[0] < shape[0] - 1:
            member.seek(left, os.SEEK_CUR)
            left = 0
        while left > 0:  # before the last matrix all is read: the checksum is compared at its end
            if not (got := len(member.read(min(left, READ_BYTES)))):
                raise EOFError("it ends early")
            left -= got
        return _read_index(member, shape[1:], dtype, index[1:])
    kept = (n for n, at in zip(shape, index, strict=True) if at == slice(None))
    found = np.empty(tuple(kept), dtype)
    at_once = max(1, READ_BYTES // max(n_bytes, 1))
    for first in range(0, shape[0], at_once):
        rows = found[first : first + at_once]
        read = np.frombuffer(member.read(len(rows) * n_bytes), dtype)
        rows[...] = read.reshape(-1, *shape[1:])[(slice(None), *index[1:])]
    return found


def _number_in(where: str) -> int:
    return int(where.rpartition("[")[2].removesuffix("]"))


def _header(path: Path, member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise SourceError(
        f"an array of {path.name} is in .npy version {version}: save it again with NumPy"
    )


@contextmanager
def as_source_error(path: Path):
    """Turn the exceptions of NumPy for an unreadable file into a SourceError."""
    try:
        yield
    except UNREADABLE as error:
        if is_failure(error):
            raise
        raise SourceError(
            f"{path} cannot be read as NumPy arrays ({error}): it is truncated or contains objects"
        ) from error


def _claimed(path: Path, archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of an array; raises SourceError where it has not the bytes for them."""
    with archive.open(f"{name}.npy") as member:
        shape, _, dtype = _header(path, member)
        held = archive.getinfo(f"{name}.npy").file_size - member.tell()
    if math.prod(shape) * dtype.itemsize != held and not dtype.hasobject:
        raise SourceError(
            f"{name} of {path.name} claims {math.prod(shape):,} numbers, but has {held:,} bytes for them: "
            f"it is damaged"
        )
    return shape, dtype


def source_of(
    path, kind, shape, held: Contents, options: IngestOptions, reader, names, said=()
) -> Source:
    """Return the source of matrices of these names and of the other arrays of a file, with notes."""
    n_bins, n_frames = shape
    _check_complete(path, held, options)
    time, notes = _time(path, held, options, n_frames)
    return Source(
        path=path,
        format=kind,
        reader=reader,
        matrices=tuple(names),
        label=np.arange(1, n_bins + 1),
        q=_from_file_or_option(path, held, "q", options.q, "1/Å", n_bins),
        phi=_from_file_or_option(path, held, "phi", options.phi, "degrees", n_bins),
        n_pixels=_pixels(path, held, n_bins),
        intensity=_counts(path, held, n_bins, n_frames),
        n_frames=n_frames,
        frame_time=float(f"{np.median(np.diff(time)):.12g}"),
        time=time,
        sigma=_sigma(path, held, n_bins),
        notes=(*notes, *said),
    )


def _check_complete(path: Path, held: Contents, options: IngestOptions) -> None:
    """Raise OptionError that names all that neither the file nor an option gives."""
    missing = {}
    if options.q is None and "q" not in held:
        missing["q"] = "--q in 1/Å, one number or one per bin, or nan if it is unknown"
    if options.phi is None and "phi" not in held:
        missing["phi"] = "--phi in degrees, one number or one per bin; nan for whole rings"
    if options.frame_time is None and held.keys().isdisjoint(("time", "dt")):
        missing["its frame spacing"] = "--frame-time in s"
    if missing and path.name == ARRAY:  # Python's own spelling
        spelled = [_OF_ARRAYS[name] for name in missing]
        raise OptionError(
            f"an array does not include {joined_with_and(list(missing))}: give {' and '.join(spelled)}"
        )
    if missing:
        raise OptionError(
            f"{path.name} does not contain {joined_with_and(list(missing))}: give "
            f"{'; '.join(missing.values())} (or --q-dataset, --phi-dataset, --time-dataset if the file "
            f"contains them)"
        )


def _from_file_or_option(
    path: Path, held: Contents, name: str, option, unit: str, n_bins: int
) -> np.ndarray:
    if name not in held:
        return per_bin(name, option, n_bins)
    values = tuple(decimal(value) for value in held[name].ravel())
    found = per_bin(f"{name} of {path.name}", values, n_bins)
    if option is not None and not np.allclose(found, per_bin(name, option, n_bins), equal_nan=True):
        raise OptionError(f"{name} = {option}, but {path.name} has {values}: leave out {name}")
    if np.isinf(found).any() or (name == "q" and (found <= 0).any()):
        positive = " and positive" * (name == "q")
        raise SourceError(f"{name} of {path.name} must be finite{positive}, not {values}")
    return found


def _sigma(path: Path, held: Contents, n_bins: int) -> np.ndarray | None:
    if "sigma" not in held:
        return None
    values = held["sigma"].astype(np.float64)
    if values.size not in (1, n_bins):
        raise SourceError(
            f"sigma of {path.name} has shape {values.shape}: give one number or one per bin"
        )
    if not np.isfinite(values).all() or (values <= 0).any():
        raise SourceError(
            f"sigma of {path.name} must be finite and positive, not {values.min()}: correct it or "
            "leave it out to have it measured"
        )
    return per_bin("sigma", tuple(values.ravel()), n_bins)


def _pixels(path: Path, held: Contents, n_bins: int) -> np.ndarray:
    """Return the pixels of each bin, 0 where they are unknown."""
    if "pixels" not in held:
        return np.zeros(n_bins, dtype=np.int64)
    values = held["pixels"].astype(np.float64).ravel()
    found = per_bin(f"pixels of {path.name}", tuple(values), n_bins)
    if not (np.isfinite(found).all() and (found >= 1).all() and (found == np.round(found)).all()):
        raise SourceError(
            f"pixels of {path.name} must be whole numbers of at least 1: one number, or one per bin"
        )
    return found.astype(np.int64)


def _counts(path: Path, held: Contents, n_bins: int, n_frames: int) -> np.ndarray | None:
    """Return the counts per pixel and frame of each bin, None where they are unknown."""
    if "counts" not in held:
        return None
    if "pixels" not in held:
        raise OptionError(
            f"{path.name} has counts, but no pixels: also give the number of pixels of each bin"
        )
    values = held["counts"].astype(np.float64)
    row = values.reshape(1, -1)
    whole = {(): row, (n_bins,): row.T, (n_frames,): row, (n_bins, n_frames): values}
    if values.shape == (n_bins,) == (n_frames,):
        raise SourceError(
            f"counts of {path.name} may be per bin or per frame: give an array (bin, t)"
        )
    shaped = whole.get(values.shape)
    if shaped is None:
        raise SourceError(
            f"counts of {path.name} have shape {values.shape}: give counts per pixel and frame as one "
            f"number, ({n_bins},), ({n_frames},) or ({n_bins}, {n_frames})"
        )
    if not np.isfinite(shaped).all() or (shaped < 0).any() or not shaped.any():
        raise SourceError(f"counts of {path.name} must be finite and not negative, and not all 0")
    return np.broadcast_to(shaped, (n_bins, n_frames)).copy()


def _time(
    path: Path, held: Contents, options: IngestOptions, n_frames: int
) -> tuple[np.ndarray, list[str]]:
    """Return seconds since the first frame."""
    if "time" in held:
        return _times_in_file(path, held, n_frames)
    if "dt" not in held:
        assert options.frame_time is not None  # checked before
        return np.arange(n_frames) * options.frame_time, []
    if held["dt"].size != 1:
        raise SourceError(f"dt of {path.name} must be one number, not {held['dt'].size}")
    dt = decimal(held["dt"].ravel()[0])
    if not np.isfinite(dt) or dt <= 0:
        raise SourceError(f"dt of {path.name} is {dt}: it must be a positive time in seconds")
    return np.arange(n_frames) * dt, []


def _times_in_file(path: Path, held: Contents, n_frames: int) -> tuple[np.ndarray, list[str]]:
    time = np.array([decimal(value) for value in held["time"].ravel()])
    if len(time) != n_frames:
        raise SourceError(f"time of {path.name} has {len(time)} entries for {n_frames} frames")
    step = np.diff(time)
    if not np.isfinite(time).all() or (step <= 0).any():
        frame = int(np.argmin(np.where(np.isfinite(step), step, -np.inf)))
        raise SourceError(f"time of {path.name} must increase: it does not after frame {frame}")
    dt = held["dt"].ravel()[0] if "dt" in held else None
    if dt is not None and not np.isclose(dt, np.median(step), rtol=1e-6):
        raise SourceError(
            f"{path.name} has dt = {dt:g} s, but its times are {np.median(step):g} s apart: correct one of "
            f"them"
        )
    note = f"time began at {time[0]:g} s and was shifted to 0 (to keep an age, give --time-offset)"
    return time - time[0], [note] * bool(time[0])


def open_homodyne(path: Path, options: IngestOptions) -> Source:
    """Return the bins of a cache written by homodyne 2.x or xpcsjax."""
    keys = array_names(path)
    missing = [key for key in (CACHE_Q, CACHE_PHI, CACHE_T1, CACHE_T2) if key not in keys]
    if missing:
        raise SourceError(
            f"{path.name} has {CACHE_MATRICES}, but no {', '.join(missing)}: a cache of homodyne has "
            f"{CACHE_MATRICES}, {CACHE_Q}, {CACHE_PHI}, {CACHE_T1} and {CACHE_T2}"
        )
    held = small_arrays(path, [CACHE_Q, CACHE_PHI, CACHE_T1, CACHE_T2])
    known = {"q": held[CACHE_Q], "phi": held[CACHE_PHI], "time": _cache_times(path, held)}
    layout = _layout(path, CACHE_MATRICES, options)
    names, reader = layout.names(CACHE_MATRICES), partial(read_npz, layout=layout)
    source = source_of(path, "homodyne", layout.size, known, options, reader, names)
    first, last = (_cache_metadata(path, keys).get(key) for key in ("start_frame", "end_frame"))
    if not (isinstance(first, int) and isinstance(last, int)):
        return source
    note = (
        f"cut by homodyne to frames {first} to {last} of its source, counted from 1: times count from the "
        f"first of these frames"
    )
    notes = (*source.notes, note) if first > 1 else source.notes
    return replace(source, begin_frame=first, end_frame=last, notes=notes)


def _cache_times(path: Path, held: dict[str, np.ndarray]) -> Float[np.ndarray, " t"]:
    """Return the times of the frames; older caches store them as two matrices."""
    t1, t2 = held[CACHE_T1], held[CACHE_T2]
    if t1.ndim == t2.ndim == 2:
        t1, t2 = (t1[:, 0], t2[0]) if t1[0, 0] == t1[0, -1] else (t1[0], t2[:, 0])
    if t1.ndim != 1 or not np.array_equal(t1, t2):
        raise SourceError(f"t1 and t2 of {path.name} differ: the file is damaged")
    return t1


def _cache_metadata(path: Path, keys: list[str]) -> dict[str, Any]:
    """Return the metadata of the cache, empty if it has none."""
    if CACHE_METADATA not in keys:
        return {}
    with as_source_error(path):
        check_small(path, [CACHE_METADATA])
        with np.load(path, allow_pickle=False) as archive:
            found = json.loads(str(archive[CACHE_METADATA].item()))
    return found if isinstance(found, dict) else {}
