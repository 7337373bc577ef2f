"""Ingest into a store by URL and into shards: the chunks of a store on disk, complete last, resumed."""

import subprocess
import sys

import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, StoreError, StoreInUse
from homodyne_dask.store import object_stores as objects
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS
from homodyne_dask.store.files import locked
from homodyne_dask.store.object_stores import url_path
from homodyne_dask.store.scan import Chunk, Scan
from tests import object_server
from tests.ingest_files import interrupt_ingest, simulated

pytestmark = pytest.mark.usefixtures("server")

ROOT = f"s3://{object_server.BUCKET}"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("source") / "A.hdf", n=600)


@pytest.fixture(scope="module")
def plain(source):
    return hd.open_dataset(ingest.ingest(source).store)


def chunks(scan: Scan) -> dict[Chunk, bytes]:
    from homodyne_dask.store.chunks import read_bytes

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
    objects_of_bin = 0
    for factor in schema.factors(frames):
        tiles = schema.tiles_per_side(frames, factor)
        objects_of_bin += -(-tiles // schema.shard_shape(frames, factor)[1])
    objects_of_store = 1 + 2 * len(SMALL_ARRAYS) + 2 * 3 + 2  # metadata, small arrays, manifest
    assert bins * objects_of_bin + objects_of_store < 1000


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

    interrupt_ingest(source, target, bins=1)
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
    foreign = url_path("other", f"{ROOT}/notes/today.txt")
    objects.write(foreign, b"mine")
    with pytest.raises(StoreError, match="exists and is not a store of homodyne_dask"):
        ingest.ingest(source, f"{ROOT}/notes", overwrite=True)
    for write in (
        lambda: objects.write(url_path("there", "https://host/a"), b""),
        lambda: ingest.ingest(source, "https://host/a"),
    ):
        with pytest.raises(OptionError, match=r"https://host/a.* cannot be written: give s3://"):
            write()
    assert objects.read(foreign, 10) == b"mine"


RACE = """
import sys
from homodyne_dask.errors import StoreInUse
from ingest import ingest
def hold(done, total):
    print("begun", flush=True)
    input()
try:
    ingest(sys.argv[1], sys.argv[2], progress=hold)
    print("done")
except StoreInUse as e:
    print(e)
"""


def ingesting(source, target) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RACE, str(source), target]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_of_two_ingests_into_one_store_one_writes_and_the_other_is_refused(source, plain):
    target = f"{ROOT}/race.zarr"
    both = [ingesting(source, target) for _ in range(2)]
    first = {process: process.stdout.readline() for process in both}
    (writing,) = (process for process in both if first[process] == "begun\n")
    (refused,) = (process for process in both if process is not writing)
    assert (
        f"another ingest is writing {target}: wait until it ends (process {writing.pid}"
        in first[refused]
    )
    assert writing.communicate("\n" * 3)[0].endswith("done\n")
    refused.communicate()
    assert chunks(hd.open_dataset(target)) == chunks(plain)


@pytest.mark.long
def test_the_lock_of_a_killed_ingest_stays_and_is_told_with_the_remedy(source, plain):
    target = f"{ROOT}/killed.zarr"
    killed = ingesting(source, target)
    assert killed.stdout.readline() == "begun\n"
    killed.kill()
    killed.communicate()
    lock = f"{target}/.ingest/lock"
    with pytest.raises(StoreInUse, match=f"{killed.pid} of .*if it was killed, remove {lock} with"):
        ingest.ingest(source, target)
    objects.remove(url_path("lock", lock))
    ingest.ingest(source, target)
    assert chunks(hd.open_dataset(target)) == chunks(plain)
    assert not [path for path in objects.below(url_path("store", target)) if ".ingest" in str(path)]


def test_a_lock_is_of_one_holder_who_knows_it_again_and_leaves_nothing(monkeypatch):
    path = url_path("lock", f"{ROOT}/lock")
    with locked(path) as first_holds, locked(path) as second_holds:
        assert (first_holds, second_holds) == (True, False)
    assert not list(objects.below(path))

    def answer_lost(*args: object, create: bool) -> bool:
        return written(*args, create=create) and False

    written = objects.write
    monkeypatch.setattr(objects, "write", answer_lost)
    with locked(path) as is_locked:
        assert is_locked
