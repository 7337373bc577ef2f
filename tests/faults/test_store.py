"""What is damaged, missing or edited in a store is named, or counted and left out; never believed."""

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice, product
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, OptionError, StoreError
from homodyne_dask.fitting.events import on_pass
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.views.fit_figures import save_all
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS
from homodyne_dask.store.scan import Chunk, open_dataset
from tests.result_bits import result_bits
from tests.synthetic import FLOW, angles, fit_here, measured, module_scan, started_as_given, store

whole = module_scan(lambda: measured(FLOW, 600, angles(3)))
"""3 angles of 600 frames: 3 chunks of each bin, and one each of two levels."""
other = module_scan(lambda: measured(FLOW, 600, angles(3), seed=1))
"""Of the same shape, in which nothing is wrong."""


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole.path, tmp_path / "copy.zarr"))


def fit(path, **options):
    return fit_here(open_dataset(path), hd.LAMINAR_FLOW, gap="200 um", **options)


def flipped(file: Path, at: float = 0.5) -> None:
    held = bytearray(file.read_bytes())
    held[int(at * len(held))] ^= 4
    file.write_bytes(held)


WRONG = "its checksum is wrong"
DAMAGE = {
    "a bit turned": (flipped, WRONG),
    "a bit of the checksum turned": (lambda file: flipped(file, 0.999999), WRONG),
    "missing": (Path.unlink, "it is missing"),
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-10]), WRONG),
    "empty": (lambda file: file.write_bytes(b""), f"{WRONG}|it has"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "Is a directory"),
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("word", DAMAGE)
def test_a_damaged_chunk_is_named_by_bin_and_tile(copy, word):
    damage, says = DAMAGE[word]
    damage(copy / "c2/c/1/0/1")
    with pytest.raises(StoreError, match=rf"chunk \(0, 1\) of the bin labelled 2 .*({says})"):
        fit(copy)


def edited(path: Path, name: str, **changes) -> None:
    """Change the metadata of an array, or the attributes of the root where no name is given."""
    file = path / name / "zarr.json"
    held = json.loads(file.read_text())
    (held if name else held["attributes"]).update(changes)
    file.write_text(json.dumps(held))


BIG = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "blosc"}, {"name": "crc32c"}]
PLAIN = [{"name": "bytes", "configuration": {"endian": "little"}}]
GRIDS = [{}, *({"configuration": {"chunk_shape": [1, side, side]}} for side in (256, 600))]
METADATA = [
    ("shape", lambda shape: [n - 1 for n in shape], "shape of"),
    ("shape", lambda shape: [*shape, 1], "shape of"),
    ("shape", "all", "shape of"),
    ("data_type", "float16", "data_type of .* is 'float16' instead of"),
    ("codecs", BIG, "codecs of .*big"),
    ("codecs", PLAIN, "codecs of .*bytes"),
    ("codecs", None, "codecs of .* is None"),
    ("chunk_key_encoding", {"name": "v2"}, "chunk_key_encoding of"),
    *(("chunk_grid", {"name": "regular"} | grid, "chunk_grid of .* is") for grid in GRIDS),
    ("fill_value", 7, "fill_value of .* is 7 instead of"),
    ("attributes", {"units": "fortnight"}, "units of .* is 'fortnight' instead of"),
    ("attributes", [], "is not metadata"),
    ("node_type", "group", "node_type of .* is 'group'"),
    ("zarr_format", 4, "zarr_format of"),
]
"""What is said of a value in place of the one that is there."""


@pytest.mark.parametrize("name", ["c2", "level4/c2", *SMALL_ARRAYS])
def test_edited_metadata_of_any_array_are_refused(copy, name):
    file = copy / name / "zarr.json"
    before = file.read_text()
    for key, value, says in METADATA:
        edited(copy, name, **{key: value(json.loads(before)[key]) if callable(value) else value})
        with pytest.raises(StoreError, match=says):
            open_dataset(copy)
        file.write_text(before)
    for text in ("", "{", "[]", "null", "\x00", "[" * 100_000, before[:-40]):
        file.write_text(text)
        with pytest.raises(StoreError, match=r"metadata|no metadata") as caught:
            open_dataset(copy)
        assert "\n" not in str(caught.value)
        file.write_text(before)
    file.unlink()
    with pytest.raises(StoreError, match=f"is damaged: {name} is missing"):
        open_dataset(copy)


ATTRIBUTES = {
    "schema_version": [1, None],
    "complete": ["yes"],
    "frame_time": [0.0, "1 s", 0.3],
    "gap_angstrom": [-2e6, [1], 6e6],
    "sigma_source": ["guess"],
    "baseline_reference": [0],
    "populated_elements": ["all"],
    "truth": [{"model": "static"}, {"parameters": {"D0": "1"}}],
    "notes": ["none", [1]],
    "source_file": [7, "B.npz"],
    "source_sha256": ["abc"],
    "store_sha256": ["abc", "0" * 64],
}
"""Values of a wrong type, out of range, or other than what was ingested."""


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_edited_attributes_are_refused(copy, name):
    before = (copy / "zarr.json").read_text()
    for value in ATTRIBUTES[name]:
        edited(copy, "", **{name: value})
        with pytest.raises(StoreError, match=r"copy\.zarr") as caught:
            open_dataset(copy)
        assert "\n" not in str(caught.value)
        (copy / "zarr.json").write_text(before)


def test_a_manifest_edited_or_missing_is_refused(copy):
    file = copy / schema.MANIFEST
    file.write_text(file.read_text().replace('"pairs": [[1', '"pairs": [[2', 1))
    with pytest.raises(StoreError, match="does not match store_sha256"):
        open_dataset(copy)
    file.unlink()
    with pytest.raises(StoreError, match="no file"):
        open_dataset(copy)


START = dict(zip(hd.LAMINAR_FLOW.names, FLOW * [1.5, 1, 1, 1.5, 1, 1, 1], strict=True))


FLOWING = {"model": "laminar_flow", "gap": "200 um", "initial": START}


def skipping(path, **options):
    return hd.fit(path, **FLOWING, on_bad_tile="skip", **options)


def spoil(path: Path) -> None:
    """One chunk far from the diagonal, one on it, one of a level."""
    flipped(path / "c2/c/1/0/1")
    (path / "c2/c/2/1/1").unlink()
    flipped(path / "level4/c2/c/0/0/0")


def test_bad_chunks_left_out_give_the_fit_of_data_without_their_pairs(copy, tmp_path):
    spoil(copy)
    scans = measured(FLOW, 600, angles(3))
    scans.c2[1, :512, 512:] = float("nan")
    scans.c2[2, 512:, 512:] = float("nan")
    with started_as_given():  # the averages that are searched hold the pairs of the chunks
        result, without = skipping(copy), skipping(store(scans, tmp_path))
    numbers = ["value", "stderr_naive"]
    assert result.parameters[numbers].equals(without.parameters[numbers])
    assert (result.chisqr, result.passes) == (without.chisqr, without.passes)
    assert result.ndata == 3 * 600 * 599 // 2 - 512 * 88 - 88 * 87 // 2
    (damaged,) = result.findings.of("damaged-chunks")
    assert damaged.about == ("(0, 1) of the bin labelled 2", "(1, 1) of the bin labelled 3")
    assert damaged.numbers == {"chunks": 2, "pairs": 48_884, "datum": "pairs"}
    assert "2 damaged chunks" in str(result)


@pytest.fixture(scope="module")
def client():
    with hd.local_cluster(processes=2, threads=1) as client:
        yield client


@pytest.mark.cluster
@pytest.mark.slow
def test_what_is_left_out_is_the_same_on_workers(copy, client):
    spoil(copy)
    assert result_bits(skipping(copy, client=client)) == result_bits(skipping(copy))


@pytest.mark.long(whole=True)
@pytest.mark.cluster
@pytest.mark.parametrize("on_workers", [False, True])
def test_a_store_replaced_between_two_passes_ends_the_fit(copy, other, client, on_workers):
    passes = []

    def replaced(event):
        passes.append(event.number)
        shutil.rmtree(copy)
        shutil.copytree(other.path, copy)

    workers = client if on_workers else None
    with pytest.raises(StoreError, match=r"chunk .* it was swapped or replaced"):
        hd.fit(copy, **FLOWING, memory="stream", callbacks=[on_pass(replaced)], client=workers)
    assert passes == [1]


@pytest.mark.long
def test_two_fits_at_once_and_leaving_out_nothing_change_no_bit(copy):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: result_bits(hd.fit(copy, **FLOWING)), range(2))
    assert first == second == result_bits(skipping(copy))


def test_a_store_without_a_readable_chunk_is_refused(copy):
    shutil.rmtree(copy / "c2" / "c")
    with pytest.raises(StoreError, match="no chunk of c2 can be read"):
        skipping(copy)


@pytest.mark.long
def test_the_pictures_leave_out_what_the_fit_left_out(copy, tmp_path):
    spoil(copy)
    save_all(FitView(skipping(copy), open_dataset(copy)), tmp_path / "pictures")
    assert (tmp_path / "pictures" / "maps.png").exists()


@pytest.mark.long
def test_a_fit_is_not_resumed_on_a_store_that_lost_chunks_since(copy, tmp_path):
    path = tmp_path / "fit.ckpt"
    skipping(copy, checkpoint=path, max_passes=2)
    spoil(copy)
    with pytest.raises(OptionError, match=r"excluded chunks was \[\], now \[\[1, 1, 0, 1\], "):
        skipping(copy, checkpoint=path, resume=True)


Damage = tuple[Path, bytes | None]
"""A file, and what it holds after the damage; None: it is deleted."""


def everything_read(path: Path) -> str:
    """A digest of all that a fit and its report read of a store."""
    scan = open_dataset(path)
    digest = hashlib.sha256(json.dumps(scan.attrs, sort_keys=True).encode())
    small = [scan.time, scan.frame_mask, *scan.all_bins.values(), scan.chunk_sums]
    side = schema.tile_side(scan.n_frames)
    tile = np.empty((side, side), np.float32)
    for array in (*small, *vars(scan.cuts()).values()):
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    for factor in schema.factors(scan.n_frames):
        tiles = range(schema.tiles_per_side(scan.n_frames, factor))
        for b, i, j in product(scan.bins, tiles, tiles):
            if i <= j:
                scan.read_chunk(Chunk(factor, b, i, j), tile)
                digest.update(tile.tobytes())
    return digest.hexdigest()


def contents(path: Path) -> dict[Path, bytes]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files}


def bits(path: Path, number: int, seed: int) -> Iterator[Damage]:
    """Single bits turned: in each file in turn, so that small ones have their share."""
    chosen = random.Random(seed)
    for file, content in islice(cycle(contents(path).items()), number):
        held, bit = bytearray(content), chosen.randrange(8 * len(content))
        held[bit // 8] ^= 1 << bit % 8
        yield file, bytes(held)


def directed(path: Path, other: Path) -> Iterator[Damage]:
    """What is done to every file: other is a store of the same shape with other data."""
    files = contents(path)
    for file, held in files.items():
        of_other = (other / file.relative_to(path)).read_bytes()
        yield from ((file, to) for to in (None, held[:-10], b"", bytes(len(held)), of_other))
        yield from (
            (file, to) for like, to in files.items() if like != file and like.name == file.name
        )


def outcomes(path: Path, changes: Iterable[Damage]) -> tuple[Counter, list[str]]:
    """How many changes end with a sentence or the same data, and those that do neither."""
    whole, counted, differ = everything_read(path), Counter(), []
    for file, content in changes:
        held = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        try:
            if everything_read(path) == whole:
                counted["same"] += 1
            else:
                differ.append(f"{file} {content!r:.99}")
        except HomodyneDaskError as e:
            counted["several lines" if "\n" in str(e) else "sentence"] += 1
        except Exception as e:
            differ.append(f"{file} {content!r:.99}: {type(e).__name__}: {e}")
        file.write_bytes(held)
    return counted, differ


SAMPLES = [(False, 1), pytest.param(True, 2, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.mark.long
@pytest.mark.parametrize(("all_of_them", "seed"), SAMPLES)
def test_a_bit_turned_or_a_file_exchanged_is_a_sentence_or_changes_nothing(
    copy, other, all_of_them, seed
):
    exchanged = list(directed(copy, Path(other.path)))
    if not all_of_them:
        exchanged = random.Random(seed).sample(exchanged, 60)
    number = 6000 if all_of_them else len(contents(copy))
    counted, differ = outcomes(copy, [*bits(copy, number, seed), *exchanged])
    print(dict(counted), len(differ))
    assert not differ
    assert counted["sentence"] > counted["same"]
