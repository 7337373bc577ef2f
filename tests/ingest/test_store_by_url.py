"""Ingest into a store by URL and into shards: the chunks of a store on disk, complete last, resumed."""

import threading
import time

import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, StoreError
from homodyne_dask.store import lock as lease
from homodyne_dask.store import objects, schema
from homodyne_dask.store.arrays import SMALL_ARRAYS
from homodyne_dask.store.scan import Chunk, Scan
from homodyne_dask.store.url_path import url_path
from tests import object_server
from tests.ingest_files import simulated

pytestmark = pytest.mark.usefixtures("server")

ROOT = f"s3://{object_server.BUCKET}"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """3 bins of 600 frames: three chunks each."""
    return simulated(tmp_path_factory.mktemp("source") / "A.hdf", n=600)


@pytest.fixture(scope="module")
def plain(source):
    """Its store on disk, a file a chunk."""
    return hd.open_dataset(ingest.ingest(source).store)


def chunks(scan: Scan) -> dict[Chunk, bytes]:
    """The bytes of every chunk as stored."""
    from homodyne_dask.store.chunk_reader import read_bytes

    places = [(0, 0), (0, 1), (1, 1)]
    every = [Chunk(1, b, *tile) for b in range(3) for tile in places]
    every += [Chunk(factor, b, 0, 0) for factor in (4, 16) for b in range(3)]
    every = [chunk for chunk in every if chunk.factor in scan.manifest.checksums]
    return {chunk: b"".join(read_bytes(scan.place_of(chunk), 2**21, 4)) for chunk in every}


@pytest.mark.parametrize("rows", [1, 2])
def test_shards_on_disk_hold_the_chunks_of_single_files(plain, source, tmp_path, monkeypatch, rows):
    monkeypatch.setattr("homodyne_dask.store.schema.SHARD_BYTES", rows * 2 * 4 * 512**2)
    there = hd.open_dataset(ingest.ingest(source, tmp_path / "s.zarr", sharded=True).store)
    assert chunks(there) == chunks(plain)
    files = [file for file in (tmp_path / "s.zarr/c2/c").rglob("*") if file.is_file()]
    assert len(files) == 3 * 2 // rows
    assert there.dataset["c2"].equals(plain.dataset["c2"])  # as Zarr reads them by its own index


@pytest.mark.parametrize(("bins", "frames"), [(1, 44722), (23, 9326), (100, 4473), (180, 3334)])
def test_a_thousand_million_pairs_are_fewer_than_1000_objects(bins, frames):
    assert bins * frames * (frames - 1) / 2 > 1e9
    side, each = schema.tile_side(frames), 2  # the averages over age and lag
    for factor in schema.factors(frames):
        tiles = schema.tiles_per_side(frames, factor)
        each += -(-tiles // schema.shard_rows(tiles, side))
    others = 1 + 2 * len(SMALL_ARRAYS) + 2 * 3 + 2  # metadata, small arrays, manifest
    assert bins * each + others < 1000


@pytest.mark.long
def test_a_store_by_url_holds_the_same_chunks_in_few_objects(plain, source):
    report = ingest.ingest(source, f"{ROOT}/A_c2.zarr")
    assert str(report.store) == f"{ROOT}/A_c2.zarr"
    there = hd.open_dataset(str(report.store))
    assert chunks(there) == chunks(plain)
    assert there.manifest.arrays == plain.manifest.arrays
    assert there.dataset["c2"].equals(plain.dataset["c2"])
    names = [path.key for path in objects.below(url_path("store", str(report.store)))]
    assert sum(name.startswith("A_c2.zarr/c2/c/") for name in names) == 3
    assert not [name for name in names if ".ingest" in name]
    assert ingest.ingest(source, report.store).skipped
    with pytest.raises(StoreError, match="the same file with other options: give overwrite=True"):
        ingest.ingest(source, report.store, sharded=False)


@pytest.mark.long
def test_an_interrupted_ingest_is_incomplete_and_goes_on(source, plain):
    target, seen = f"{ROOT}/interrupted.zarr", []

    def stop(done: int, _: int) -> None:
        raise EOFError

    with pytest.raises(EOFError):
        ingest.ingest(source, target, progress=stop)
    with pytest.raises(StoreError, match="is incomplete: run `homodyne-dask ingest` again"):
        hd.open_dataset(target)
    first = url_path("target", f"{target}/c2/c/0/0/0")
    before = objects.connection(first.root).get(first.key).meta["last_modified"]
    ingest.ingest(source, target, progress=lambda done, _: seen.append(done))
    assert seen[-1] == 3
    assert len(seen) <= 2  # what was written is not written again
    assert objects.connection(first.root).get(first.key).meta["last_modified"] == before
    assert chunks(hd.open_dataset(target)) == chunks(plain)


def test_objects_of_other_programs_are_left_alone(source):
    other = url_path("other", f"{ROOT}/notes/today.txt")
    objects.write(other, b"mine")
    with pytest.raises(StoreError, match="exists and is not a store of homodyne_dask"):
        ingest.ingest(source, f"{ROOT}/notes", overwrite=True)
    for write in (
        lambda: objects.write(url_path("there", "https://host/a"), b""),
        lambda: ingest.ingest(source, "https://host/a"),
    ):
        with pytest.raises(OptionError, match=r"https://host/a.* cannot be written: give s3://"):
            write()
    assert objects.read(other, 10) == b"mine"


def test_a_holder_that_stood_still_leaves_the_lock_to_the_one_that_took_it_over(monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.05)
    path = url_path("lock", f"{ROOT}/taken")
    with lease.leased(path) as held:
        assert held
        objects.write(path, b"of another")
        written = objects.version(path)
        time.sleep(0.3)
        assert objects.version(path) == written
    assert objects.read(path, 100) == b"of another"


def test_a_lock_is_held_while_its_holder_lives_and_taken_over_when_it_is_dead(monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.1)
    monkeypatch.setattr(lease, "PATIENCE", 3.0)
    path = url_path("lock", f"{ROOT}/lock")
    with lease.leased(path) as held, lease.leased(path) as other:
        assert (held, other) == (True, False)
    assert objects.version(path) is None
    objects.write(path, b"of a process that was killed")
    monkeypatch.setattr(lease, "PATIENCE", 0.2)
    with lease.leased(path) as held:
        assert held
        assert threading.active_count() > 1
    assert objects.version(path) is None
