"""The table of codecs: bytes per pair, the rates of writing and reading, for each codec and side.

The same tiles of two bins of the `ageing` scan are written with each codec and read back from the page
cache; all readers must return the same bits. Ratios and rates count 4 bytes for a pair and nothing for
the diagonal and the padding of the last row. With one thread times are processor times, which other
programs disturb least; two threads read a bin each, and times are wall times. blosc itself uses one
thread; the environment is that of a worker.
"""

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import blosc

from homodyne_dask.cluster.settings import worker_environment
from homodyne_dask.store.scan import open_dataset
from tests.benchmarks import data, passes
from tests.benchmarks.codecs import (
    WAYS,
    Codec,
    Read,
    Tiles,
    blosc_name,
    codecs,
    kept_bits,
    reader,
    tiles,
    write,
)
from tests.benchmarks.kernel import aligned

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
