"""An ingest that is doubled, half done or loses its workers ends whole, or says why not."""

import threading
import time

import numpy as np
import pytest

import ingest
from homodyne_dask.cluster.local import SCHEDULER_SETTINGS, local_cluster
from homodyne_dask.errors import ClusterError, StoreError
from homodyne_dask.store.scan import open_dataset
from ingest import store_writer
from tests.faults.local_workers import processes
from tests.faults.processes import finish, start
from tests.ingest_files import arrays, files_of_store, interrupt_ingest, simulated

pytestmark = pytest.mark.timeout(240)
BINS, FRAMES = 6, 900


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of 20 MB, its undisturbed store beside it."""
    path = simulated(tmp_path_factory.mktemp("source") / "A.hdf", n=FRAMES, bins=BINS)
    ingest.ingest(path, path.with_name("quiet.zarr"))
    return path


@pytest.mark.long
def test_two_ingests_into_one_target_at_once_are_one_and_a_reason(source, tmp_path):
    store = tmp_path / "both.zarr"
    both = [start("ingest", source, store, folder=tmp_path) for _ in range(2)]
    said = [finish(process) for process in both]
    statuses = sorted(process.returncode for process in both)
    assert statuses in ([0, 2], [0, 0])  # the second may come when the first has ended
    if statuses == [0, 2]:
        assert "another ingest is writing" in "".join(said)
    assert files_of_store(store) == files_of_store(source.with_name("quiet.zarr"))


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "text", ["{", '{"tiles": {}}', *(pytest.param(t, marks=pytest.mark.slow) for t in ("", "[]"))]
)
def test_a_damaged_record_of_an_unfinished_ingest_is_named(source, tmp_path, text):
    store = tmp_path / "damaged.zarr"
    interrupt_ingest(source, store, bins=2)
    next((store / store_writer.WORK_FOLDER).glob("bin-*.json")).write_text(text)
    with pytest.raises(StoreError, match="give overwrite=True to start over"):
        ingest.ingest(source, store)
    ingest.ingest(source, store, overwrite=True)
    assert files_of_store(store) == files_of_store(source.with_name("quiet.zarr"))


@pytest.mark.long
@pytest.mark.cluster
def test_an_ingest_whose_workers_die_with_every_task_ends_as_ours(source, tmp_path, monkeypatch):
    """A worker is killed whenever there is one, as by a system short of memory."""
    monkeypatch.setitem(SCHEDULER_SETTINGS, "distributed.scheduler.allowed-failures", 1)
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
