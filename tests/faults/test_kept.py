"""Of a cluster that is closed nothing is kept."""

import gc
import logging
import time
import weakref

import pytest

from homodyne_dask.cluster.local import local_cluster


@pytest.fixture
def no_log_records():
    """pytest keeps each record with its traceback, and so the frames of the scheduler that wrote it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.cluster
@pytest.mark.usefixtures("no_log_records")
def test_a_scheduler_is_let_go_when_its_cluster_is_closed():
    with local_cluster(processes=1, threads=1) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        gone = weakref.ref(client.cluster.scheduler)
    del client
    until = time.monotonic() + 30
    while gone() is not None and time.monotonic() < until:  # its last callbacks may still run
        gc.collect()
        time.sleep(0.1)
    assert gone() is None
