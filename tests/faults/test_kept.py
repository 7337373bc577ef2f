"""What Dask would keep for ever of clusters that are closed."""

import gc
import sys
import time
import weakref
from importlib.metadata import FastPath

import pytest

from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.sweep.distributed_tasks import keep_preferences_soft

pytestmark = pytest.mark.cluster


def test_a_scheduler_is_let_go_when_it_is_closed():
    with local_cluster(processes=1, threads=1) as client:
        keep_preferences_soft(client)
        scheduler = client.cluster.scheduler
        assert client.submit(sum, [1, 2]).result() == 3
    gone, folder = weakref.ref(scheduler), scheduler.local_directory
    del client, scheduler
    until = time.monotonic() + 30
    while gone() is not None and time.monotonic() < until:  # its last callbacks may still run
        gc.collect()
        time.sleep(0.1)
    assert gone() is None
    assert folder not in sys.path_importer_cache
    assert all(str(path.root) != folder for path in remembered(FastPath))


def remembered(kind):
    return [one for one in gc.get_objects() if type(one) is kind]
