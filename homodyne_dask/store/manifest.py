"""The manifest of a store: checksums of all that is in it, by which every part is checked when it is read.

A chunk or an array proves by its own checksum that it is whole, and by the manifest that it is the one
that was ingested at its place. The root attribute `store_sha256` is the digest of the manifest.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int, UInt32

from homodyne_dask.errors import StoreError, why_unreadable
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import (
    MAX_BYTES,
    OPTIONAL_ARRAYS,
    SMALL_ARRAYS,
    array_digest,
    ingest_again,
    read_array,
)
from homodyne_dask.store.files import DAMAGED, AnyPath, inside, read_regular_file, twice

_APART = ("store_sha256", "complete")
"""Attributes that are known only after the manifest is written."""


@dataclass(frozen=True)
class Manifest:
    checksums: Mapping[int, UInt32[np.ndarray, "bin i j"]]
    """crc32c of each chunk on or above the diagonal, of c2 (factor 1) and of its levels."""
    pairs: Int[np.ndarray, "bin i j"]
    """Known pairs in each chunk of c2."""
    arrays: Mapping[str, str]
    """SHA-256 of each small array by name (`array_digest`); of `OPTIONAL_ARRAYS` those that the store has."""
    spans: Mapping[int, Int[np.ndarray, "bin i j 2"]] | None = None
    """First byte and number of bytes of each chunk in its shard; None where a chunk is a file."""
    kept: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """Averages that were read: each scan of a store of repeats takes its bins of them."""

    def read_array(self, store: str | AnyPath, name: str) -> np.ndarray:
        """Return a small array; StoreError if it is damaged, or not the one that was ingested."""
        if name in self.kept:
            return self.kept[name]
        values = read_array(store, name)
        if array_digest(values) != self.arrays[name]:
            raise StoreError(
                f"{store}: {name} differs from what was ingested: it was edited or replaced, "
                f"or the store was replaced; start again, or ingest the source again with --overwrite"
            )
        if wrong := (SMALL_ARRAYS | OPTIONAL_ARRAYS)[name].wrong_in(values):
            raise ingest_again(store, f"{name} {wrong}")
        values.flags.writeable = False
        if name.startswith("cuts/"):
            self.kept[name] = values
        return values


def attributes_digest(attrs: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in attrs.items() if name not in _APART}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def manifest_json(
    n_frames: int,
    records: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, str],
    attrs: Mapping[str, Any],
    sharded: bool = False,
) -> dict[str, Any]:
    """Return the content of the manifest's file; records: as `ingest/bin_task.py` writes them of each bin."""
    names = [schema.matrix_name(factor) for factor in schema.factors(n_frames)]
    content = {
        what: {name: [record[what][name] for record in records] for name in names}
        for what in ("chunks", *["sizes"] * sharded)
    }
    pairs = [record["pairs"] for record in records]
    return content | {"pairs": pairs, "arrays": arrays, "attributes": attributes_digest(attrs)}


def read_manifest(
    store: str | AnyPath, attrs: Mapping[str, Any], bins: int, frames: int
) -> Manifest:
    """Return the manifest of a store of that size, checked against the root attributes."""
    file, digest = inside(store, schema.MANIFEST), attrs["store_sha256"]

    def read() -> bytes:
        content = read_regular_file(file, MAX_BYTES)
        if (actual := hashlib.sha256(content).hexdigest()) != digest:
            raise ValueError(f"{actual[:60]}, not {digest}")
        return content

    try:
        content = twice(read)
    except DAMAGED as e:
        actual = "no file" if isinstance(e, FileNotFoundError) else why_unreadable(e)
        why = f"{schema.MANIFEST} does not match store_sha256 ({actual})"
        raise ingest_again(store, why) from e
    try:
        held = json.loads(content)
        manifest, of_attributes = _parsed(held, bins, frames), held["attributes"]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as e:
        why = f"{schema.MANIFEST} is not a manifest ({type(e).__name__}: {why_unreadable(e)})"
        raise ingest_again(store, why) from e
    if attributes_digest(attrs) != of_attributes:
        raise StoreError(
            f"{store}: the attributes in zarr.json differ from what was ingested: they were edited; "
            f"ingest the source again with --overwrite"
        )
    return manifest


def _parsed(held: Any, bins: int, frames: int) -> Manifest:
    tiles = {factor: schema.tiles_per_side(frames, factor) for factor in schema.factors(frames)}
    listed = {factor: held["chunks"][schema.matrix_name(factor)] for factor in tiles}
    pairs = _by_tile(held["pairs"], bins, tiles[1], np.int64)
    if pairs.min() < 0 or not 0 < pairs.max() <= schema.MAX_SIDE**2:
        raise ValueError("no bin has data, or a chunk more pairs than it can hold")
    names = (*SMALL_ARRAYS, *(OPTIONAL_ARRAYS.keys() & held["arrays"].keys()))
    return Manifest(
        {factor: _by_tile(listed[factor], bins, tiles[factor], np.uint32) for factor in tiles},
        pairs,
        {name: str(held["arrays"][name]) for name in names},
        None if "sizes" not in held else _spans(held["sizes"], bins, frames),
    )


def _spans(sizes: Any, bins: int, frames: int) -> dict[int, np.ndarray]:
    """Return the first byte and the number of bytes of chunks that fill their shards row by row."""
    spans = {}
    for factor in schema.factors(frames):
        tiles = schema.tiles_per_side(frames, factor)
        height = schema.shard_rows(tiles, schema.tile_side(frames))
        count = _by_tile(sizes[schema.matrix_name(factor)], bins, tiles, np.int64)
        first = np.zeros_like(count)
        for row in range(0, tiles, height):
            shard = count[:, row : row + height].reshape(bins, -1)
            first[:, row : row + height] = (shard.cumsum(1) - shard).reshape(bins, -1, tiles)
        spans[factor] = np.stack([first, count], axis=-1)
    return spans


def _by_tile(listed: Any, bins: int, tiles: int, dtype: type) -> np.ndarray:
    rows, columns = np.triu_indices(tiles)
    values = np.zeros((bins, tiles, tiles), dtype)
    values[:, rows, columns] = np.array(listed, dtype).reshape(bins, len(rows))
    return values
