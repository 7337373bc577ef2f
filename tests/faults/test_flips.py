"""Any file of a store damaged or exchanged: a sentence, or every number as before."""

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, open_dataset
from tests.synthetic import FLOW, angles, measured, store

Damage = tuple[str, Path, bytes | None]
"""What is done, the file, and what it then holds; None: it is deleted."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two scans of 3 angles and 600 frames: 3 chunks of each bin, and one each of two levels."""
    folder = tmp_path_factory.mktemp("flips")
    scans = (measured(FLOW, 600, angles(3), seed=seed) for seed in range(2))
    return [Path(store(scan, folder, f"scan{n}").path) for n, scan in enumerate(scans)]


@pytest.fixture
def copy(stores, tmp_path) -> Path:
    return Path(shutil.copytree(stores[0], tmp_path / "copy.zarr"))


def everything_read(path: Path) -> str:
    """A digest of all that a fit and its report read of a store."""
    scan = open_dataset(path)
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


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def bits(path: Path, number: int, seed: int) -> Iterator[Damage]:
    """Single bits turned: in each file in turn, so that small ones have their share."""
    chosen, files = random.Random(seed), files_of(path)
    for n in range(number):
        file = files[n % len(files)]
        held = bytearray(file.read_bytes())
        bit = chosen.randrange(8 * len(held))
        held[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", file, bytes(held)


def directed(path: Path, other: Path) -> Iterator[Damage]:
    """What is done to every file: other is a store of the same shape with other data."""
    files = {file: file.read_bytes() for file in files_of(path)}
    for file, held in files.items():
        of_other = (other / file.relative_to(path)).read_bytes()
        changes = {"deleted": None, "cut": held[:-10], "empty": b"", "of zeros": bytes(len(held))}
        yield from ((words, file, to) for words, to in (changes | {"another's": of_other}).items())
        for like, content in files.items():
            if like != file and like.name == file.name:
                yield f"is {like}", file, content


def outcomes(path: Path, changes: Iterable[Damage]) -> tuple[Counter, list[str]]:
    """How many changes end with a sentence or the same data, and those that do neither."""
    whole, counted, differ = everything_read(path), Counter(), []
    for words, file, content in changes:
        held = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        try:
            if everything_read(path) == whole:
                counted["same"] += 1
            else:
                differ.append(f"{file} {words}")
        except HomodyneDaskError as e:
            counted["several lines" if "\n" in str(e) else "sentence"] += 1
        except Exception as e:
            differ.append(f"{file} {words}: {type(e).__name__}: {e}")
        file.write_bytes(held)
    return counted, differ


def test_a_bit_turned_or_a_file_exchanged_is_a_sentence_or_changes_nothing(stores, copy):
    """A sample of what the slow test does."""
    every = list(directed(copy, stores[1]))
    some = [*bits(copy, len(files_of(copy)), 1), *random.Random(1).sample(every, 60)]
    counted, differ = outcomes(copy, some)
    assert not differ
    assert counted["sentence"] > counted["same"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_bits_and_every_exchange_are_sentences_or_change_nothing(stores, copy):
    for changes in (bits(copy, 6000, 2), directed(copy, stores[1])):
        counted, differ = outcomes(copy, changes)
        print(dict(counted), len(differ))
        assert not differ
