"""An ingest that is killed, doubled or begun by another version ends whole, or says why not."""

import json
import random
import signal
import threading
import time

import numpy as np
import pytest

import ingest
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.errors import ClusterError, StoreError
from homodyne_dask.store.scan import open_dataset
from ingest import store_writer
from tests.faults.local_workers import everything, processes
from tests.faults.processes import finish, start
from tests.ingest_files import arrays, manifest, simulated

pytestmark = pytest.mark.timeout(240)
BINS, FRAMES = 6, 900


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of 20 MB, its undisturbed store beside it."""
    path = simulated(tmp_path_factory.mktemp("source") / "A.hdf", n=FRAMES, bins=BINS)
    ingest.ingest(path, path.with_name("quiet.zarr"))
    return path


def chunks(store) -> dict[str, bytes]:
    """Every file of a store but the metadata."""
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in store.rglob("*")
        if file.is_file() and file.name != "zarr.json"
    }


def moments(seed, number):
    rng = random.Random(seed)
    kinds = [signal.SIGKILL, signal.SIGTERM]
    return [(rng.choice(kinds), rng.uniform(0.0, 1.1)) for _ in range(number)]


@pytest.mark.parametrize(
    ("sent", "moment"),
    [(signal.SIGKILL, 0.5), *[pytest.param(*at, marks=pytest.mark.slow) for at in moments(7, 20)]],
)
def test_an_ingest_killed_at_any_moment_never_opens_and_is_completed_by_the_next(
    source, tmp_path, sent, moment
):
    """Moments are shares of the time an ingest takes from its first file on; 1.1 may be after it."""
    store = tmp_path / "killed.zarr"
    began = time.perf_counter()
    ingest.ingest(source, tmp_path / "timed.zarr")
    whole = time.perf_counter() - began
    process = start("ingest", source, store, folder=tmp_path)
    while not store.exists():
        time.sleep(0.001)
    time.sleep(moment * whole)
    process.send_signal(sent)
    finish(process)
    assert process.returncode in (0, -sent, 130)
    quiet = source.with_name("quiet.zarr")
    if store_writer.root_attributes(store).get("complete"):  # it was done but for its goodbye
        assert chunks(store).items() >= chunks(quiet).items()
    else:
        with pytest.raises(StoreError, match=r"incomplete|not a Zarr store"):
            open_dataset(store)
    ingest.ingest(source, store)
    assert manifest(store) == manifest(quiet)
    assert chunks(store) == chunks(quiet)
    assert store_writer.root_attributes(store) == store_writer.root_attributes(quiet)
    open_dataset(store)


@pytest.mark.long
def test_two_ingests_into_one_target_at_once_are_one_and_a_reason(source, tmp_path):
    store = tmp_path / "both.zarr"
    both = [start("ingest", source, store, folder=tmp_path) for _ in range(2)]
    said = [finish(process) for process in both]
    statuses = sorted(process.returncode for process in both)
    assert statuses in ([0, 2], [0, 0])  # the second may come when the first has ended
    if statuses == [0, 2]:
        assert "another ingest is writing" in "".join(said)
    assert chunks(store) == chunks(source.with_name("quiet.zarr"))


def begun(source, store) -> None:
    """Leave an ingest as if killed after two bins."""

    def stop(done, total):
        if done == 2:
            raise InterruptedError

    with pytest.raises(StoreError, match="cannot be written"):
        ingest.ingest(source, store, progress=stop)


def test_an_unfinished_ingest_of_an_older_version_is_begun_again(source, tmp_path):
    """Its records lack what this version writes."""
    store = tmp_path / "older.zarr"
    begun(source, store)
    work = store / store_writer.WORK_FOLDER
    job = json.loads((work / store_writer.JOB_FILE).read_text())
    del job["records"]
    (work / store_writer.JOB_FILE).write_text(json.dumps(job))
    for file in work.glob("bin-*.json"):
        record = json.loads(file.read_text())
        del record["sums"]
        file.write_text(json.dumps(record))
    done = []
    ingest.ingest(source, store, progress=lambda k, _: done.append(k))
    assert done == list(range(1, BINS + 1))
    assert chunks(store) == chunks(source.with_name("quiet.zarr"))


@pytest.mark.parametrize(
    "text", ["{", '{"tiles": {}}', *(pytest.param(t, marks=pytest.mark.slow) for t in ("", "[]"))]
)
def test_a_damaged_record_of_an_unfinished_ingest_is_named(source, tmp_path, text):
    store = tmp_path / "damaged.zarr"
    begun(source, store)
    next((store / store_writer.WORK_FOLDER).glob("bin-*.json")).write_text(text)
    with pytest.raises(StoreError, match="give overwrite=True to start over"):
        ingest.ingest(source, store)
    ingest.ingest(source, store, overwrite=True)
    assert chunks(store) == chunks(source.with_name("quiet.zarr"))


@pytest.mark.long
@pytest.mark.cluster
def test_an_ingest_whose_workers_die_with_every_task_ends_as_ours(source, tmp_path, monkeypatch):
    """A worker is killed whenever there is one, as by a system short of memory."""
    from homodyne_dask.cluster import local as cluster

    monkeypatch.setitem(cluster.SCHEDULER_SETTINGS, "distributed.scheduler.allowed-failures", 1)
    over = threading.Event()

    with local_cluster(processes=1, threads=1) as client:
        killer = threading.Thread(target=killing, args=(client, over))
        killer.start()
        try:
            with pytest.raises(ClusterError, match="the workers cannot finish the ingest"):
                ingest.ingest(source, tmp_path / "lost.zarr", client=client)
        finally:
            over.set()
            killer.join()
    with pytest.raises(StoreError, match="incomplete"):
        open_dataset(tmp_path / "lost.zarr")
    ingest.ingest(source, tmp_path / "lost.zarr")
    quiet = arrays(source.with_name("quiet.zarr"))
    for name, values in arrays(tmp_path / "lost.zarr").items():
        np.testing.assert_array_equal(values, quiet[name])


def killing(client, over: threading.Event) -> None:
    """Kill every worker process that holds a task, until it is over.

    Not while its nanny is still starting: Dask gives up one whose first worker dies at once.
    """
    scheduler = client.cluster.scheduler
    while not over.is_set():
        held = any(worker.processing for worker in list(scheduler.workers.values()))
        if held and not scheduler._starting_nannies:
            for process in processes(client):
                process.kill()
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.cluster
def test_an_ingest_that_loses_its_workers_for_good_says_so(source, tmp_path, monkeypatch):
    from homodyne_dask.cluster import local as cluster

    monkeypatch.setitem(
        cluster.SCHEDULER_SETTINGS, "distributed.scheduler.no-workers-timeout", "2s"
    )

    def leave(done, total):
        for process in everything(client):
            process.kill()

    with local_cluster(processes=1, threads=1) as client:
        client.wait_for_workers(1, timeout=120)
        with pytest.raises(ClusterError, match="there have been no workers for too long"):
            ingest.ingest(source, tmp_path / "lost.zarr", client=client, progress=leave)
