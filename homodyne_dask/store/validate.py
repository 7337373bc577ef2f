"""Validation of a store before a fit uses it, and reading of its small arrays.

A store may be truncated, edited or partly replaced. Whatever differs from what ingest writes
(`schema.py`) is a StoreError naming the array or attribute, before any of it enters a fit.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
import zarr.errors
from pydantic import ValidationError

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.files import read_regular_file

MAX_BYTES = 1 << 30
"""Bytes of metadata or a manifest that are read."""


class _ArraySpec(NamedTuple):
    """The required metadata of an array."""

    dims: tuple[str, ...]
    dtype: str
    units: str | None = None


_BIN_DIMS, _CELL_DIMS, _SUM_DIMS = ("bin",), ("bin", "age", "lag"), ("bin", "i", "j")
_ROOT_ARRAYS = {
    "c2": _ArraySpec(("bin", "t", "t"), "float32"),
    "q": _ArraySpec(_BIN_DIMS, "float64", "1/angstrom"),
    "phi": _ArraySpec(_BIN_DIMS, "float64", "degree"),
    "label": _ArraySpec(_BIN_DIMS, "int64"),
    "n_pixels": _ArraySpec(_BIN_DIMS, "int64"),
    "beta_ingest": _ArraySpec(_BIN_DIMS, "float64"),
    "time": _ArraySpec(("t",), "float64", "s"),
    "frame_mask": _ArraySpec(("t",), "bool"),
    "sigma_row": _ArraySpec(("bin", "t"), "float64"),
    "intensity": _ArraySpec(("bin", "t"), "float64"),
    "cuts/c2": _ArraySpec(_CELL_DIMS, "float64"),
    "cuts/count": _ArraySpec(_CELL_DIMS, "int64"),
    "cuts/t1": _ArraySpec(_CELL_DIMS[1:], "float64", "s"),
    "cuts/t2": _ArraySpec(_CELL_DIMS[1:], "float64", "s"),
    "cuts/age_edges": _ArraySpec(("age_edge",), "int64"),
    "cuts/lag_edges": _ArraySpec(("lag_edge",), "int64"),
}
_SUM_ARRAYS = {
    f"sums/{name}": _ArraySpec(_SUM_DIMS, "int64" if name == "pairs" else "float64")
    for name in ("weight", "first", "second", "pairs")
}
_CHUNKED = ("c2", *(f"level{factor}/c2" for factor in schema.LEVELS))
"""Arrays whose chunks are read without zarr."""


def read_array(store: str | Path, name: str) -> np.ndarray:
    """Return a small array; raises StoreError where any of it is missing or damaged."""
    try:
        _only_files(Path(store, name))
        array = zarr.open_array(str(store), path=name, mode="r", zarr_format=3)
        return np.asarray(array.with_config({"read_missing_chunks": False})[...])
    except Exception as e:  # of zarr, a codec or the disk
        missing = isinstance(e, zarr.errors.ChunkNotFoundError)
        why = "a chunk of it is missing" if missing else _short(e)
        raise StoreError(
            f"{store} is damaged: {name} cannot be read ({why}); ingest it again"
        ) from e


def _only_files(folder: Path) -> None:
    """Refuse pipes and devices, which zarr would read without end."""
    for path in folder.rglob("*"):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(f"{path.relative_to(folder)} is a pipe or a device, not a file")


def read_attributes(store: str | Path, group: str = "") -> dict[str, Any]:
    """Return the attributes of a group as they are."""
    return read_metadata(store, group).get("attributes", {})


def read_metadata(store: str | Path, name: str = "") -> dict[str, Any]:
    """Return the metadata of a group or an array; raises StoreError where they cannot be read."""
    file = Path(store, name, "zarr.json")
    try:
        metadata = json.loads(read_regular_file(file, MAX_BYTES))
    except FileNotFoundError as e:
        why = f"is damaged: {name} is missing; ingest it again"
        raise StoreError(
            f"{store} {why if name else 'is not a Zarr store: make one with `homodyne-dask ingest`'}"
        ) from e
    except (OSError, ValueError, RecursionError) as e:
        raise StoreError(
            f"{store}: the metadata {file.relative_to(store)} cannot be read ({_short(e)}); "
            f"ingest it again"
        ) from e
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attributes", {}), dict):
        raise StoreError(f"{store}: {file.relative_to(store)} is no metadata; ingest it again")
    return metadata


def check_attributes(store: str | Path, attrs: dict[str, Any]) -> None:
    """Refuse a foreign store, another schema version, an unfinished ingest, and invalid attributes."""
    if attrs.get("format") != schema.FORMAT:
        raise StoreError(
            f"{store} is a Zarr store but not one of ours: make one with `homodyne-dask ingest`"
        )
    version = attrs.get("schema_version")
    if version != schema.VERSION:
        raise StoreError(
            f"{store} has schema version {version}, this program reads {schema.VERSION}: "
            f"ingest the source again"
        )
    if attrs.get("complete") is not True:
        raise StoreError(f"{store} is incomplete: run `homodyne-dask ingest` again to finish it")
    try:
        schema.Attributes.model_validate(attrs)
    except ValidationError as e:
        error = e.errors()[0]
        name = ".".join(map(str, error["loc"]))[:60]
        if error["type"] == "missing":
            wrong = f"lacks the attribute {name!r}"
        else:
            message = error["msg"][0].lower() + error["msg"][1:]
            wrong = f"has the attribute {name!r} = {str(error['input'])[:60]!r}: {message}"
        raise StoreError(f"{store} {wrong}; ingest the source again") from e


def check_manifest(store: str | Path, attrs: dict[str, Any]) -> None:
    """Refuse a manifest whose digest is not that in the attributes."""
    file = Path(store, schema.MANIFEST)
    found = (
        hashlib.sha256(read_regular_file(file, MAX_BYTES)).hexdigest()
        if file.is_file()
        else "no file"
    )
    if found != attrs["tiles_sha256"]:
        raise StoreError(
            f"{store}: {schema.MANIFEST} is not what tiles_sha256 says ({found[:16]}, not "
            f"{attrs['tiles_sha256'][:16]}); ingest it again"
        )


def check_arrays(store: str | Path) -> None:
    """Refuse arrays whose metadata are not those that ingest writes: shape, type, unit, codecs."""
    wanted = _ROOT_ARRAYS | (_SUM_ARRAYS if Path(store, "sums").is_dir() else {})
    metadata = {name: read_metadata(store, name) for name in wanted}
    sizes = _sizes(store, metadata)
    for factor in schema.LEVELS:
        if sizes[f"t{factor}"]:
            name = f"level{factor}/c2"
            wanted[name] = _ArraySpec(("bin", f"t{factor}", f"t{factor}"), "float32")
            metadata[name] = read_metadata(store, name)
    for name, array in wanted.items():
        shape = [sizes[dim] for dim in array.dims]
        if metadata[name].get("shape") != shape:
            raise StoreError(
                f"{store}: {name} has shape {metadata[name].get('shape')} where {shape} belongs; "
                f"ingest it again"
            )
    side = schema.tile_side(sizes["t"])
    for name, array in wanted.items():
        _check_storage(store, name, metadata[name], array, side if name in _CHUNKED else None)


def _sizes(store: str | Path, metadata: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the length of every dimension, from one array each."""

    def length(name: str, axis: int = 0) -> int:
        try:
            return int(metadata[name]["shape"][axis])
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise StoreError(f"{store}: {name} has no shape; ingest it again") from e

    bins, n = length("q"), length("time")
    ages, lags = length("cuts/c2", 1), length("cuts/c2", 2)
    tiles = -(-n // schema.tile_side(n))
    cells = {"age": ages, "lag": lags, "age_edge": ages + 1, "lag_edge": lags + 1}
    levels = {f"t{factor}": schema.level_frames(n, factor) for factor in schema.LEVELS}
    return {"bin": bins, "t": n, "i": tiles, "j": tiles} | cells | levels


def _check_storage(
    store: str | Path, name: str, metadata: dict[str, Any], array: _ArraySpec, side: int | None
) -> None:
    """Refuse an array whose type, chunks, units or codecs are not those of the schema."""
    wanted: dict[str, Any] = {
        "node_type": "array",
        "zarr_format": 3,
        "data_type": array.dtype,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    found = {key: metadata.get(key) for key in wanted}
    if side is not None:
        grid = {"name": "regular", "configuration": {"chunk_shape": [1, side, side]}}
        wanted["chunk_grid"], found["chunk_grid"] = grid, metadata.get("chunk_grid")
    wanted["units"], found["units"] = array.units, metadata.get("attributes", {}).get("units")
    wanted["codecs"], found["codecs"] = list(schema.CODECS), _codecs(metadata)
    for key, value in wanted.items():
        if found[key] != value:
            raise StoreError(
                f"{store}: {key} of {name} is {found[key]} where {value} belongs; ingest it again"
            )


def _codecs(metadata: dict[str, Any]) -> list[str] | str:
    """Return the names of the codecs; chunks hold their other settings, except the byte order."""
    codecs = metadata.get("codecs")
    if not isinstance(codecs, list) or not all(isinstance(codec, dict) for codec in codecs):
        return "no list"
    for codec in codecs:
        order = (codec.get("configuration") or {}).get("endian", "little")
        if order != "little":
            return f"{order}-endian"
    return [str(codec.get("name")) for codec in codecs]


def _short(error: BaseException) -> str:
    """Return an error as one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}"
