"""Validation of a store's attributes and metadata before a fit uses it.

A store may be truncated, edited or partly replaced. Whatever differs from what ingest writes
(`schema.py`) is a StoreError naming the array or attribute, before any of it enters a fit.
"""

from typing import Any

from pydantic import ValidationError

from homodyne_dask.errors import StoreError, shown
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import ingest_again, metadata_of_arrays, read_metadata
from homodyne_dask.store.files import AnyPath


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
        place, value, message = schema.first_mistake(e)
        name = ".".join(map(str, place))[:60]
        raise ingest_again(
            store, f"the attribute {name!r} is {str(value)[:60]!r}: {message}"
        ) from e


def check_arrays(store: str | AnyPath) -> tuple[int, int]:
    """Return the numbers of bins and frames, from the metadata of the arrays.

    Refuses metadata that are not those that ingest writes: shape, type, chunks, unit, codecs.
    """
    bins, n_frames = (_length(store, name) for name in ("q", "time"))
    # names of dimensions and transformers, which change no value, are left to the library that wrote them
    ignored = ("attributes", "dimension_names", "storage_transformers")
    sharded = schema.SHARDED in str(read_metadata(store, "c2").get("codecs"))
    for name, wanted in metadata_of_arrays(bins, n_frames, sharded).items():
        held = read_metadata(store, name)
        wanted["units"] = wanted["attributes"].get("units")
        held["units"] = held.get("attributes", {}).get("units")
        for key in wanted.keys() - {*ignored}:
            if held.get(key) != wanted[key]:
                found = f"{shown(held.get(key))} instead of {shown(wanted[key])}"
                raise ingest_again(store, f"{key} of {name} is {found}")
    return bins, n_frames


def _length(store: str | AnyPath, name: str) -> int:
    match read_metadata(store, name).get("shape"):
        case [int(length)] if length >= 1:
            return length
        case shape:
            why = f"shape of {name} is {shown(shape)}: it must be one number"
            raise ingest_again(store, why)
