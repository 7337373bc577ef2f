"""The table of codecs: bytes per pair, the rates of writing and reading, for each codec and side.

The same tiles of two bins of the `ageing` scan are written with each codec and read back from the page
cache; all readers must return the same bits. Ratios and rates count 4 bytes for a pair and nothing for
the diagonal and the padding of the last row. With one thread times are processor times, which other
programs disturb least; two threads read a bin each, and times are wall times. blosc itself uses one
thread; the environment is that of a worker. With every codec a chunk is one file that ends with its
crc32c. The readers:

    direct   as store/chunk_reader.py: read the file, check the crc32c, decode into an aligned buffer
    zarr     the pipeline of zarr-python, get_basic_selection with out=
    zarrs    the same with the pipeline of the package zarrs
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc, registry
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.codecs import numcodecs as wrapped

from homodyne_dask.cluster.settings import worker_environment
from homodyne_dask.store.scan import open_dataset
from tests.benchmarks import data, passes
from tests.benchmarks.kernel import aligned

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
    for tile, bins_c2 in found.items():
        for b, part in enumerate(bins_c2):
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


FRAMES, BINS, SIDES, RUNS = 2950, (0, 11), (256, 512, 1024), 7
COLUMNS = ("ratio", "encode", *(f"{way} x{n}" for way in WAYS for n in (1, 2)))
SWEEP = "streamed sweep, ns of CPU per pair"

Row = dict[str, float]
Table = dict[str, Row]


def run(folder: Path) -> Table:
    """The table, and a streamed sweep with the codec and side of the store."""
    scan = open_dataset(data.store(folder, FRAMES))
    keepbits = kept_bits(float(np.median(scan.sigma_row**2)))
    stored: Any = zarr.open_array(Path(scan.path, "c2"), mode="r")
    c2 = np.stack([np.asarray(stored[b]) for b in BINS])
    chosen = stored.metadata.codecs[1]
    default = blosc_name(chosen.cname, chosen.clevel, chosen.shuffle)
    table: Table = {}
    with tempfile.TemporaryDirectory() as place:
        for threads in (1, 2):  # zarr fixes its number of threads once in a process
            os.environ |= worker_environment(threads)  # the allocator is part of the measurement
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                part = process.submit(rates, Path(place), c2, keepbits, threads).result()
            for name, row in part.items():
                table.setdefault(name, {}).update(row)
    sweep = passes.rate(data.store(folder, FRAMES), "stream", 1, 2)
    table[f"{default}, {stored.chunks[-1]}"][SWEEP] = sweep["ns of CPU per pair"]
    return table


def rates(folder: Path, c2: np.ndarray, keepbits: int, threads: int) -> Table:
    """Ratio and rates [MB of pairs per second] with this number of threads, by codec and side."""
    blosc.set_nthreads(1)
    zarr.config.set({"threading.max_workers": threads, "async.concurrency": threads})
    table: Table = {}
    size = 4 * len(c2) * c2.shape[1] * (c2.shape[1] - 1) // 2
    for side in SIDES:
        found, into = tiles(c2, side), aligned((len(c2), side, side))
        for name, codec in codecs(keepbits).items():
            row = table[f"{name}, {side}"] = {}
            place = folder / f"{name}, {side}"
            if threads == 1:
                seconds, total = write(codec, found, place)
                row |= {"ratio": size / total, "encode": size / seconds / 1e6}
            for way in WAYS:
                read = reader(codec, place, way, threads)
                if read is not None:
                    seconds = decoding(codec, read, found, into, threads)
                    row[f"{way} x{threads}"] = size / seconds / 1e6
    return table


def decoding(codec: Codec, read: Read, found: Tiles, into: np.ndarray, threads: int) -> float:
    """Seconds to read all chunks, the best of RUNS passes after a pass whose values are checked."""
    for tile, truth in found.items():
        into.fill(0.0)
        read(tile, into)
        assert np.array_equal(into, codec.kept(truth), equal_nan=True)
    seconds, clock = [], time.process_time if threads == 1 else time.perf_counter
    for _ in range(RUNS):
        began = clock()
        for tile in found:
            read(tile, into)
        seconds.append(clock() - began)
    return min(seconds)


def text(table: Table) -> str:
    """The table and a sentence that compares its rows."""
    head = f"{'codec, side of a chunk':<44}" + "".join(f"{name:>11}" for name in COLUMNS)
    lines = ["MB of pairs per second, a pair 4 bytes; ratio: these 4 to the bytes stored", head]
    for name, row in table.items():
        cells = (row.get(column) for column in COLUMNS)
        shown = ("-" if v is None else f"{v:.2f}" if v < 10 else f"{v:.0f}" for v in cells)
        lines.append(f"{name:<44}" + "".join(f"{cell:>11}" for cell in shown))
    return "\n".join([*lines, verdict(table)])


def verdict(table: Table) -> str:
    """The codec and side of the store compared with other codecs and other sides."""
    default = next(name for name, row in table.items() if SWEEP in row)
    codec, side = default.rsplit(", ")
    default_row = table[default]

    def against(other: Row) -> str:
        smaller, slower = (
            other["ratio"] / default_row["ratio"],
            other["encode"] / default_row["encode"],
        )
        reading = 4000 / default_row["direct x1"] - 4000 / other["direct x1"]
        return f"bytes x{smaller:.2f}, reading {reading:+.2f} ns, writing x{slower:.2g}"

    others = [n for n in table if n != default and (n.endswith(side) or n.startswith(codec))]
    return (
        f"{default} is stored: a pair is read in {4000 / default_row['direct x1']:.2f} ns of a streamed "
        f"sweep's {default_row[SWEEP]:.2f} (CPU); per pair, relative to it, "
        + "; ".join(f"{name}: {against(table[name])}" for name in others)
        + "."
    )
