"""Validation of a store's attributes and metadata before a fit uses it.

A store may be truncated, edited or partly replaced. Whatever differs from what ingest writes
(`schema.py`) is a StoreError naming the array or attribute, before any of it enters a fit.
"""

from typing import Any

import numpy as np
from pydantic import ValidationError

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS, ArraySpec, ingest_again, read_metadata
from homodyne_dask.store.files import AnyPath

_MATRIX = ArraySpec(("bin", "t", "t"), "float32", whole=False)


def check_attributes(store: str | AnyPath, attrs: dict[str, Any]) -> None:
    """Refuse a foreign store, another schema version, an unfinished ingest, and invalid attributes."""
    if attrs.get("format") != schema.FORMAT:
        raise StoreError(
            f"{store} is a Zarr store, but not one that ingest wrote: make one with `homodyne-dask ingest`"
        )
    version = attrs.get("schema_version")
    if version != schema.VERSION:
        raise StoreError(
            f"{store} has schema version {version}, but this program reads {schema.VERSION}: "
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
        raise StoreError(f"{store} {wrong}; ingest the source again with --overwrite") from e


def check_arrays(store: str | AnyPath) -> tuple[int, int]:
    """Return the numbers of bins and frames, from the metadata of the arrays.

    Refuses metadata that are not those that ingest writes: shape, type, chunks, unit, codecs.
    """
    wanted = {"c2": _MATRIX} | SMALL_ARRAYS
    metadata = {name: read_metadata(store, name) for name in wanted}
    sizes = _sizes(store, metadata)
    sharded, matrices = _codecs(metadata["c2"]) == [schema.SHARDED], {"c2"}
    for factor in schema.factors(sizes["t"])[1:]:
        name, dim = schema.matrix_name(factor), f"t{factor}"
        wanted[name] = _MATRIX._replace(dims=("bin", dim, dim))
        metadata[name] = read_metadata(store, name)
        matrices.add(name)
    for name, array in wanted.items():
        shape = [sizes[dim] for dim in array.dims]
        if metadata[name].get("shape") != shape:
            held = metadata[name].get("shape")
            raise ingest_again(store, f"{name} has shape {held} instead of {shape}")
        side, chunk, shard = schema.tile_side(sizes["t"]), shape, None
        if array.dtype == _MATRIX.dtype:
            chunk, tiles = [1, side, side], -(-shape[1] // side)
            if sharded and name in matrices:
                shard = [1, schema.shard_rows(tiles, side) * side, tiles * side]
        elif not array.whole:
            chunk = [1, *shape[1:]]
        _check_storage(store, name, metadata[name], array, chunk, shard)
    return sizes["bin"], sizes["t"]


def _sizes(store: str | AnyPath, metadata: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the length of every dimension, from one array each."""

    def length(name: str, axis: int = 0) -> int:
        try:
            return int(metadata[name]["shape"][axis])
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise ingest_again(store, f"{name} has no shape") from e

    bins, n = length("q"), length("time")
    ages, lags = length("cuts/c2", 1), length("cuts/c2", 2)
    tiles = -(-n // schema.tile_side(n))
    cells = {"age": ages, "lag": lags, "age_edge": ages + 1, "lag_edge": lags + 1}
    levels = {f"t{factor}": schema.level_frames(n, factor) for factor in schema.LEVELS}
    return {"bin": bins, "t": n, "i": tiles, "j": tiles} | cells | levels


def _check_storage(
    store: str | AnyPath, name: str, metadata: dict[str, Any], array: ArraySpec, chunk: list[int],
    shard: list[int] | None,
) -> None:  # fmt: skip
    """Refuse an array whose type, chunks, units or codecs are not those of the schema."""
    empty = np.zeros((), array.dtype).item()
    wanted: dict[str, Any] = {
        "node_type": "array",
        "zarr_format": 3,
        "data_type": array.dtype,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard or chunk}},
        "fill_value": "NaN" if array.dtype.startswith("float") else empty,
    }
    found = {key: metadata.get(key) for key in wanted}
    wanted["units"], found["units"] = array.units, metadata.get("attributes", {}).get("units")
    wanted["codecs"], found["codecs"] = list(schema.CODECS), _codecs(metadata)
    if shard:
        inner = (
            metadata["codecs"][0].get("configuration")
            if found["codecs"] == [schema.SHARDED]
            else {}
        )
        wanted["codecs"], inner = [schema.SHARDED], inner if isinstance(inner, dict) else {}
        found["chunks in shards"], wanted["chunks in shards"] = inner.get("chunk_shape"), chunk
        found["codecs in shards"], wanted["codecs in shards"] = _codecs(inner), list(schema.CODECS)
    for key, value in wanted.items():
        if found[key] != value:
            raise ingest_again(store, f"{key} of {name} is {found[key]} instead of {value}")


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
