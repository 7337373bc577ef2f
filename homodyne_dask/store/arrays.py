"""The attributes, arrays and manifest of a store: what each must be, and reading those that are small.

Everything but c2 and its levels is small: such an array is read whole. It is stored in chunks of the same
encoding as those of c2 and decoded without zarr, whose decoder believes sizes that a damaged chunk gives.
Whatever differs from what ingest writes (`schema.py`) is a StoreError that names the array or attribute.

The manifest lists checksums of all that is in the store. A chunk or an array proves by its own checksum that
it is whole, and by the manifest that it is the one that was ingested at its place. The root attribute
`store_sha256` is the digest of the manifest.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt32
from pydantic import ValidationError

from homodyne_dask.errors import StoreError, shown, why_unreadable
from homodyne_dask.store import schema
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.chunks import COMPRESSOR, LEVEL, SHUFFLE, ByteRange, read_decoded
from homodyne_dask.store.files import DAMAGED, AnyPath, inside, read_regular_file, twice

MAX_SPACING_VARIATION = 0.01
MAX_BYTES = 1 << 30
"""Bytes of metadata, a manifest or a small array that are read."""


class ArraySpec(NamedTuple):
    dims: tuple[str, ...]
    dtype: str
    units: str | None = None
    whole: bool = True
    """One chunk holds all; else each bin had its own in stores of version 4."""
    least: float = -1e100
    """The least value; the largest is 1e100, whose square is a number."""

    def wrong_in(self, values: np.ndarray) -> str:
        """Return what is wrong with the values, "" if nothing is; NaN is an unknown one."""
        wrong = values[(values < self.least) | (values > 1e100)]
        if wrong.size:
            return f"is {wrong[0]:g} somewhere"
        rises = not self.dims[0].endswith("edge") or (
            values.min() >= 0 and (np.diff(values) > 0).all()
        )
        return "" if rises else "does not rise from 0 on"


_BIN, _CELL, _SUM = ("bin",), ("bin", "age", "lag"), ("bin", "i", "j")
SMALL_ARRAYS = {
    "q": ArraySpec(_BIN, "float64", "1/angstrom"),
    "phi": ArraySpec(_BIN, "float64", "degree"),
    "label": ArraySpec(_BIN, "int64"),
    "n_pixels": ArraySpec(_BIN, "int64", least=0),
    "beta_ingest": ArraySpec(_BIN, "float64"),
    "time": ArraySpec(("t",), "float64", "s"),
    "frame_mask": ArraySpec(("t",), "bool"),
    "sigma_row": ArraySpec(("bin", "t"), "float64"),
    "intensity": ArraySpec(("bin", "t"), "float64", least=0),
    "cuts/c2": ArraySpec(_CELL, "float64", whole=False),
    "cuts/count": ArraySpec(_CELL, "int64", whole=False, least=0),
    "cuts/frames": ArraySpec(("bin", "t"), "float64", whole=False),
    "cuts/t1": ArraySpec(_CELL[1:], "float64", "s"),
    "cuts/t2": ArraySpec(_CELL[1:], "float64", "s"),
    "cuts/age_edges": ArraySpec(("age_edge",), "int64"),
    "cuts/lag_edges": ArraySpec(("lag_edge",), "int64"),
    "sums/weight": ArraySpec(_SUM, "float64", least=0),
    "sums/first": ArraySpec(_SUM, "float64"),
    "sums/second": ArraySpec(_SUM, "float64", least=0),
    "sums/pairs": ArraySpec(_SUM, "int64", least=0),
}
OPTIONAL_ARRAYS = {
    "flux": ArraySpec(("t",), "float64"),
    "mean_image": ArraySpec(("y", "x"), "float64"),
    "cuts/g2": ArraySpec(("bin", "t"), "float64"),
}
"""Of stores whose source has them."""


def array_metadata(
    spec: ArraySpec, shape: Sequence[int], chunk: Sequence[int] = (), shard: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the metadata of an array in the order in which zarr writes them; chunk, shard: their shapes."""
    dtype, chunk = np.dtype(spec.dtype), [*chunk] or [*shape]
    blosc = {"typesize": dtype.itemsize, "cname": COMPRESSOR, "clevel": LEVEL, "shuffle": SHUFFLE}
    plain = {"name": "bytes", "configuration": {"endian": "little"}}
    checksum = {"name": "crc32c"}
    codecs: list[dict[str, Any]] = [plain if dtype.itemsize > 1 else {"name": "bytes"}]
    codecs += [{"name": "blosc", "configuration": blosc | {"blocksize": 0}}, checksum]
    if shard:
        inside = {"chunk_shape": chunk, "codecs": codecs, "index_codecs": [plain, checksum]}
        inside["index_location"] = "end"
        codecs, chunk = [{"name": schema.SHARDED, "configuration": inside}], [*shard]
    return {
        "shape": [*shape],
        "data_type": spec.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if dtype.kind == "f" else dtype.type(0).item(),
        "codecs": codecs,
        "attributes": {"units": spec.units} if spec.units else {},
        "dimension_names": [*spec.dims],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def metadata_of_arrays(
    bins: int, n_frames: int, sharded: bool, version: int = schema.VERSION
) -> dict[str, dict[str, Any]]:
    """Return the metadata of every array of a store, but OPTIONAL_ARRAYS, by name."""
    side, tiles = schema.tile_side(n_frames), schema.tiles_per_side(n_frames, 1)
    ages, lags = (len(edges(n_frames)) - 1 for edges in (age_edges, lag_edges))
    sizes = {"bin": bins, "t": n_frames, "i": tiles, "j": tiles, "age": ages, "lag": lags}
    sizes |= {"age_edge": ages + 1, "lag_edge": lags + 1}
    metadata, spec = {}, ArraySpec(("bin", "t1", "t2"), "float32")
    for factor in schema.factors(n_frames):
        tiles = schema.tiles_per_side(n_frames, factor)
        rows = n_frames if factor == 1 else schema.level_frames(n_frames, factor)
        bins_of_shard, height = schema.shard_shape(n_frames, factor, version)
        shard = (bins_of_shard, height * side, tiles * side) if sharded else ()
        matrix = array_metadata(spec, (bins, rows, rows), (1, side, side), shard)
        metadata[schema.matrix_name(factor)] = matrix
    for name, spec in SMALL_ARRAYS.items():
        shape = [sizes[dim] for dim in spec.dims]
        whole = spec.whole or version > 4
        metadata[name] = array_metadata(spec, shape, shape if whole else [1, *shape[1:]])
    return metadata


def is_uneven(time: Float[np.ndarray, " t"]) -> bool:
    return _is_uneven(np.asarray(time, float).tobytes())  # it is asked of each bin


@lru_cache(4)
def _is_uneven(time: bytes) -> bool:
    steps = np.diff(np.frombuffer(time))
    return bool(np.ptp(steps) > MAX_SPACING_VARIATION * np.median(steps))


def sigma_words(source: str) -> str:
    return "constant in each bin" if source == "constant" else f"from {source}"


def spacing_text(time: Float[np.ndarray, " t"], frame_time: float) -> str:
    steps, spaced = np.diff(time), f"of {frame_time:g} s"
    return f"spaced by {steps.min():.3g} to {steps.max():.3g} s" if is_uneven(time) else spaced


def what_is_wrong(
    time: Float[np.ndarray, " t"],
    q: Float[np.ndarray, " bin"],
    phi: Float[np.ndarray, " bin"],
    sigma: Float[np.ndarray, " n"] | None,
) -> str:
    """Return which of these numbers no measurement has, "" if none; NaN is an unknown q or φ."""
    steps = np.diff(time)
    values = {"q": q, "phi": phi, "time": time, "sigma": sigma, "frame_time": steps}
    for name, (low, high, unit) in schema.RANGES.items():
        if name == "frame_time" and not (np.isfinite(time).all() and (steps > 0).all()):
            frame = int(np.argmin(np.where(np.isfinite(steps), steps, -np.inf)))
            return f"time must increase, but does not after frame {frame}"
        if (held := values[name]) is not None:
            size = held if low > 0 else np.abs(held)
            wrong = held[(size < low) | (size > high)]
            if wrong.size:
                return f"{name} = {wrong[0]:g} ({unit}) is implausible: plausible are {low:g} to {high:g}"
    return "sigma must be known" if sigma is not None and np.isnan(sigma).any() else ""


def ingest_again(store: str | AnyPath, why: str) -> StoreError:
    return StoreError(f"{store}: {why}; ingest it again with --overwrite")


def read_metadata(store: str | AnyPath, name: str = "") -> dict[str, Any]:
    file = f"{name}/zarr.json".lstrip("/")
    try:
        metadata = twice(lambda: json.loads(read_regular_file(inside(store, file), MAX_BYTES)))
    except FileNotFoundError as e:
        why = f"is damaged: {name} is missing; ingest it again with --overwrite"
        raise StoreError(
            f"{store} {why if name else 'is not a Zarr store: make one with `homodyne-dask ingest`'}"
        ) from e
    except DAMAGED as e:
        raise ingest_again(store, f"the metadata {file} cannot be read ({_short(e)})") from e
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attributes", {}), dict):
        raise ingest_again(store, f"{file} is not metadata")
    return metadata


def read_array(store: str | AnyPath, name: str) -> np.ndarray:
    """Return a small array; whether it is the one that was ingested there, `Manifest.read_array` says."""
    spec = (SMALL_ARRAYS | OPTIONAL_ARRAYS)[name]
    try:
        metadata = read_metadata(store, name)
        shape = tuple(int(length) for length in metadata["shape"])
        by_bin = not spec.whole and metadata["chunk_grid"]["configuration"]["chunk_shape"][0] == 1
        size = np.dtype(spec.dtype).itemsize * int(np.prod(shape, dtype=object))
        if len(shape) != len(spec.dims) or min(shape) < 1 or size > MAX_BYTES:
            raise ValueError(f"its shape is {list(shape)}")
        values = np.empty(shape, spec.dtype)
        for first, chunk in enumerate(values if by_bin else [values]):
            place = [first, *[0] * (len(shape) - 1)]
            read_decoded(ByteRange(inside(store, name, "c", *map(str, place))), chunk)
    except (*DAMAGED, TypeError, KeyError) as e:
        missing = isinstance(e, FileNotFoundError)
        why = "a chunk of it is missing" if missing else _short(e)
        raise StoreError(
            f"{store} is damaged: {name} cannot be read ({why}); ingest it again with --overwrite"
        ) from e
    return values


def array_digest(values: np.ndarray) -> str:
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    head = f"{values.dtype.name} {list(values.shape)} ".encode()
    return hashlib.sha256(head + values.tobytes()).hexdigest()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {why_unreadable(error)[:200]}"


def checked_attributes(store: str | AnyPath, attrs: dict[str, Any]) -> schema.Attributes:
    """Return the attributes of a store; StoreError for a foreign store, another schema version, an unfinished
    ingest, and invalid attributes.
    """
    if attrs.get("format") != schema.FORMAT:
        raise StoreError(
            f"{store} is a Zarr store, but not one that ingest wrote: make one with `homodyne-dask ingest`"
        )
    version = attrs.get("schema_version")
    if version not in schema.READ_VERSIONS:
        raise StoreError(
            f"{store} has schema version {version}, but this program reads "
            f"{' and '.join(map(str, schema.READ_VERSIONS))}: "
            f"ingest the source again"
        )
    if attrs.get("complete") is not True:
        raise StoreError(f"{store} is incomplete: run `homodyne-dask ingest` again to finish it")
    try:
        return schema.Attributes.model_validate(attrs)
    except ValidationError as e:
        place, value, message = schema.first_mistake(e)
        name = ".".join(map(str, place))[:60]
        raise ingest_again(
            store, f"the attribute {name!r} is {str(value)[:60]!r}: {message}"
        ) from e


def check_arrays(store: str | AnyPath, version: int) -> tuple[int, int]:
    """Return the numbers of bins and frames; refuses metadata of arrays that ingest does not write."""
    bins, n_frames = (_length(store, name) for name in ("q", "time"))
    # names of dimensions and transformers, which change no value, are left to the library that wrote them
    ignored = {"attributes", "dimension_names", "storage_transformers"}
    sharded = schema.SHARDED in str(read_metadata(store, "c2").get("codecs"))
    for name, expected in metadata_of_arrays(bins, n_frames, sharded, version).items():
        held = read_metadata(store, name)
        for metadata in (expected, held):
            metadata["units"] = metadata.get("attributes", {}).get("units")
        for key in expected.keys() - ignored:
            if held.get(key) != expected[key]:
                difference = f"{shown(held.get(key))} instead of {shown(expected[key])}"
                raise ingest_again(store, f"{key} of {name} is {difference}")
    return bins, n_frames


def _length(store: str | AnyPath, name: str) -> int:
    match read_metadata(store, name).get("shape"):
        case [int(length)] if length >= 1:
            return length
        case shape:
            why = f"shape of {name} is {shown(shape)}: it must be one number"
            raise ingest_again(store, why)


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
    hashed = {name: value for name, value in attrs.items() if name not in _APART}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


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
        record_field: {name: [record[record_field][name] for record in records] for name in names}
        for record_field in ("chunks", *["sizes"] * sharded)
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
        version = int(attrs["schema_version"])
        manifest, of_attributes = _parsed(held, bins, frames, version), held["attributes"]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as e:
        why = f"{schema.MANIFEST} is not a manifest ({type(e).__name__}: {why_unreadable(e)})"
        raise ingest_again(store, why) from e
    if attributes_digest(attrs) != of_attributes:
        raise StoreError(
            f"{store}: the attributes in zarr.json differ from what was ingested: they were edited; "
            f"ingest the source again with --overwrite"
        )
    return manifest


def _parsed(held: Any, bins: int, frames: int, version: int) -> Manifest:
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
        None if "sizes" not in held else _spans(held["sizes"], bins, frames, version),
    )


def _spans(sizes: Any, bins: int, frames: int, version: int) -> dict[int, np.ndarray]:
    """Return the first byte and the number of bytes of chunks that fill their shards one after the other."""
    spans = {}
    for factor in schema.factors(frames):
        tiles = schema.tiles_per_side(frames, factor)
        bins_of_shard, height = schema.shard_shape(frames, factor, version)
        count = _by_tile(sizes[schema.matrix_name(factor)], bins, tiles, np.int64)
        first = np.zeros_like(count)
        for b, row in product(range(0, bins, bins_of_shard), range(0, tiles, height)):
            place = slice(b, b + bins_of_shard), slice(row, row + height)
            shard = count[place]
            first[place] = (shard.cumsum() - shard.ravel()).reshape(shard.shape)
        spans[factor] = np.stack([first, count], axis=-1)
    return spans


def _by_tile(listed: Any, bins: int, tiles: int, dtype: type) -> np.ndarray:
    rows, columns = np.triu_indices(tiles)
    values = np.zeros((bins, tiles, tiles), dtype)
    values[:, rows, columns] = np.array(listed, dtype).reshape(bins, len(rows))
    return values
