"""What Dask would keep for ever of fits that are done and of clusters that are closed."""

import gc
import sys
import time
import weakref
from importlib.metadata import FastPath

import pytest
from distributed import span

from homodyne_dask.cluster._dask_internals import forget_spans
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.sweep.distributed_tasks import keep_preferences_soft

pytestmark = pytest.mark.cluster


def test_a_scheduler_forgets_old_passes_and_is_let_go_when_it_is_closed():
    with local_cluster(processes=1, threads=1) as client:
        keep_preferences_soft(client)
        scheduler = client.cluster.scheduler
        spans = scheduler.extensions["spans"]
        for fit in "abc":
            for number in range(2):
                with span(f"fit {fit}", f"pass {number}"):
                    assert (
                        client.submit(sum, [1, number], key=f"{fit}{number}").result() == 1 + number
                    )
        with span("of somebody else"):
            assert client.submit(sum, [2], key="e").result() == 2
        forget_spans(scheduler, "fit ", most=3)
        assert [root.name for root in spans.root_spans] == [
            ("fit b",), ("fit c",), ("fit c",), ("of somebody else",),
        ]  # fmt: skip
        assert len(spans.spans) == 3 * 2 + 1
        assert not any("fit a" in name for name in spans.spans_search_by_name)
        assert [len(spans.spans_search_by_tag[f"pass {n}"]) for n in range(2)] == [1, 2]
        with span("fit d", "pass 0"):
            assert client.submit(sum, [3], key="d").result() == 3
    gone, folder = weakref.ref(scheduler), scheduler.local_directory
    del client, scheduler, spans
    until = time.monotonic() + 30
    while gone() is not None and time.monotonic() < until:  # its last callbacks may still run
        gc.collect()
        time.sleep(0.1)
    assert gone() is None
    assert folder not in sys.path_importer_cache
    assert all(str(path.root) != folder for path in remembered(FastPath))


def remembered(kind):
    return [one for one in gc.get_objects() if type(one) is kind]
