"""Damage of any file of a store: single bits, and whole files deleted, cut, zeroed or from elsewhere."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, open_dataset

Damage = Callable[[], object]


def everything_read(store: Path) -> str:
    """Return a digest of all that a fit and its report read of a store."""
    scan = open_dataset(store)
    cuts = vars(scan.cuts())
    found = hashlib.sha256(json.dumps(scan.attrs, sort_keys=True).encode())
    small = [scan.time, scan.frame_mask, *scan.all_bins.values(), scan.chunk_sums, *cuts.values()]
    side = schema.tile_side(scan.n_frames)
    into = np.empty((side, side), np.float32)
    for array in small:
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    for factor in schema.factors(scan.n_frames):
        tiles = range(schema.tiles_per_side(scan.n_frames, factor))
        for place in ((b, i, j) for b in scan.bins for i in tiles for j in tiles if i <= j):
            scan.read_chunk(Chunk(factor, *place), into)
            found.update(into.tobytes())
    return found.hexdigest()


def files_of(store: Path) -> list[Path]:
    """Return every file of a store, by its name in it."""
    return sorted(path.relative_to(store) for path in store.rglob("*") if path.is_file())


def flipped(file: Path, bit: int) -> None:
    """Turn one bit of a file."""
    held = bytearray(file.read_bytes())
    held[bit // 8] ^= 1 << bit % 8
    file.write_bytes(held)


def bits(store: Path, number: int, seed: int) -> Iterator[tuple[str, Path, Damage]]:
    """Yield single bits to turn: in each file in turn, so that small ones have their share."""
    chosen, files = random.Random(seed), files_of(store)
    for n in range(number):
        file = files[n % len(files)]
        bit = chosen.randrange(8 * (store / file).stat().st_size)
        yield f"bit {bit} of {file}", file, lambda file=file, bit=bit: flipped(store / file, bit)


def directed(store: Path, other: Path) -> Iterator[tuple[str, Path, Damage]]:
    """Yield what is done to every file: other is a store of the same shape with other data."""
    files = files_of(store)
    for file in files:
        path = store / file
        held = path.read_bytes()
        yield f"{file} deleted", file, path.unlink
        for words, content in {
            "cut": held[:-10],
            "empty": b"",
            "of zeros": bytes(len(held)),
            "of another store": (other / file).read_bytes(),
        }.items():
            yield (
                f"{file} {words}",
                file,
                lambda path=path, content=content: path.write_bytes(content),
            )
        for like in files:
            if like != file and like.name == file.name:
                content = (store / like).read_bytes()
                yield (
                    f"{file} is {like}",
                    file,
                    lambda path=path, content=content: path.write_bytes(content),
                )


def outcomes(store: Path, changes: Iterator[tuple[str, Path, Damage]]) -> tuple[Counter, list[str]]:
    """Return how many changes end with a sentence or the same data, and those that do neither."""
    whole, counted, differ = everything_read(store), Counter(), []
    for words, file, damage in changes:
        held = (store / file).read_bytes()
        damage()
        try:
            if everything_read(store) == whole:
                counted["same"] += 1
            else:
                differ.append(words)
        except HomodyneDaskError as e:
            counted["several lines" if "\n" in str(e) else "sentence"] += 1
        except Exception as e:
            differ.append(f"{words}: {type(e).__name__}: {e}")
        (store / file).write_bytes(held)
    return counted, differ
