"""Codecs for the chunks of c2, and readers of encoded chunks.

With every codec a chunk is one file that ends with its crc32c. The readers:

    direct   as store/chunk_reader.py: read the file, check the crc32c, decode into an aligned buffer
    zarr     the pipeline of zarr-python, get_basic_selection with out=
    zarrs    the same with the pipeline of the package zarrs
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc, registry
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.codecs import numcodecs as wrapped

SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
WAYS = ("direct", *PIPELINES)

Tile = tuple[int, int]
Tiles = dict[Tile, np.ndarray]
Read = Callable[[Tile, np.ndarray], object]
"""Decodes one tile, all its bins, into a buffer."""


@dataclass(frozen=True)
class Codec:
    """A codec of float32 chunks, for numcodecs and for zarr."""

    encode: Callable[[np.ndarray], Any]
    decode: Callable[[bytes, np.ndarray], Any]
    zarr: dict[str, Any] = field(default_factory=dict)
    kept: Callable[[np.ndarray], np.ndarray] = np.asarray
    """Returns an array as it is read back."""


def codecs(keepbits: int) -> dict[str, Codec]:
    found = {"none": Codec(lambda c2: c2, _copy)}
    for name, level in (("lz4", 5), ("zstd", 1), ("zstd", 3)):
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")[name == "lz4" :]:
            found[blosc_name(name, level, shuffle)] = _blosc(name, level, shuffle)
    zstd: Any = registry.get_codec({"id": "zstd", "level": 1})
    found["zstd-1"] = Codec(zstd.encode, zstd.decode, {"compressors": [ZstdCodec(level=1)]})
    if find_spec("pcodec"):
        for level in (4, 8):
            pco: Any = registry.get_codec({"id": "pcodec", "level": level})
            options = {"serializer": wrapped.PCodec(level=level)}
            found[f"pcodec-{level}"] = Codec(pco.encode, pco.decode, options)
    for name, level in (("lz4", 5), ("zstd", 1)):
        inner = blosc_name(name, level, "bitshuffle")
        found[f"rounded, {inner}"] = _rounded(found[inner], keepbits)
    return found


def blosc_name(name: str, level: int, shuffle: str) -> str:
    return f"blosc-{name}-{level} {shuffle}"


def _copy(stored: bytes, into: np.ndarray) -> None:
    np.copyto(into, np.frombuffer(stored, np.float32).reshape(into.shape))


def _blosc(name: Any, level: int, shuffle: Any) -> Codec:
    return Codec(
        lambda c2: blosc.compress(c2, name.encode(), level, SHUFFLES[shuffle]),
        blosc.decompress,
        {"compressors": [BloscCodec(cname=name, clevel=level, shuffle=shuffle, typesize=4)]},
    )


def _rounded(inner: Codec, keepbits: int) -> Codec:
    rounding: Any = registry.get_codec({"id": "bitround", "keepbits": keepbits})

    def rounded(c2: np.ndarray) -> np.ndarray:
        return rounding.encode(c2).view(np.float32)

    # rounded values are decoded like all others
    return Codec(lambda c2: inner.encode(rounded(c2)), inner.decode, inner.zarr, rounded)


def kept_bits(sigma: float) -> int:
    """Bits of mantissa that keep the rounding of values from 1 to 2 within σ/32."""
    return int(np.ceil(np.log2(16 / sigma)))


def tiles(c2: np.ndarray, side: int) -> Tiles:
    """The chunks on and above the diagonal, all bins of each: (bin, side, side)."""
    found = {}
    count = -(-c2.shape[-1] // side)
    for i in range(count):
        for j in range(i, count):
            tile = np.full((len(c2), side, side), np.nan, np.float32)
            part = c2[:, i * side : (i + 1) * side, j * side : (j + 1) * side]
            tile[:, : part.shape[1], : part.shape[2]] = part
            found[i, j] = tile
    return found


def write(codec: Codec, found: Tiles, folder: Path) -> tuple[float, int]:
    """Write an array; return the processor time of encoding and checksums, and the bytes written."""
    bins, side, _ = found[0, 0].shape
    whole = (max(found)[0] + 1) * side
    compressors = [*codec.zarr.get("compressors", []), Crc32cCodec()]
    zarr.create_array(
        folder, shape=(bins, whole, whole), chunks=(1, side, side), dtype="float32",
        fill_value=np.nan, **codec.zarr | {"compressors": compressors},
    )  # fmt: skip
    seconds, total = 0.0, 0
    for tile, data in found.items():
        for b, part in enumerate(data):
            began = time.process_time()
            body = bytes(memoryview(codec.encode(part)).cast("B"))
            checksum = google_crc32c.value(body).to_bytes(4, "little")
            seconds += time.process_time() - began
            path = Path(folder, "c", str(b), *map(str, tile))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body + checksum)
            total += len(body) + 4
    return seconds, total


def reader(codec: Codec, folder: Path, way: str, threads: int) -> Read | None:
    """A reader, None where its package is not installed or does not know the codec."""
    if way == "direct":
        return _direct(codec, folder, threads)
    if find_spec(way) is None:
        return None
    try:
        return _through_zarr(folder, way)
    except RuntimeError as e:
        print(f"{folder.name}: {way} cannot read it ({e})", file=sys.stderr)
        return None


def _direct(codec: Codec, folder: Path, threads: int) -> Read:
    spread = ThreadPoolExecutor(threads).map if threads > 1 else map

    def chunk(path: Path, into: np.ndarray) -> None:
        raw = path.read_bytes()
        body = raw[:-4]
        assert google_crc32c.value(body) == int.from_bytes(raw[-4:], "little")
        codec.decode(body, into)

    def read(tile: Tile, into: np.ndarray) -> object:
        paths = [Path(folder, "c", str(b), *map(str, tile)) for b in range(len(into))]
        return list(spread(chunk, paths, into))

    return read


def _through_zarr(folder: Path, pipeline: str) -> Read:
    settings = {"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}
    with zarr.config.set(settings):
        stored: Any = zarr.open_array(folder, mode="r")

    def read(tile: Tile, into: np.ndarray) -> object:
        side = into.shape[-1]
        i, j = (slice(at * side, (at + 1) * side) for at in tile)
        out = cpu.NDBuffer.from_numpy_array(into)
        return stored.get_basic_selection((slice(None), i, j), out=out)

    return read
