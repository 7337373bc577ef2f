"""What the program uses of Dask's undocumented parts does what it is for; no result is lost without."""

import asyncio
import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client

from homodyne_dask.cluster.local import known_workers, local_cluster, workers_of
from homodyne_dask.sweep.distributed_tasks import SoftPreferences, computed_on_cluster
from homodyne_dask.sweep.preflight import checked_workers
from homodyne_dask.sweep.tasks import GRAM


@pytest.mark.parametrize("loose", [True, False])
def test_only_a_preference_is_dropped_not_a_restriction(loose):
    task = SimpleNamespace(loose_restrictions=loose, worker_restrictions={"a"})
    plugin = SoftPreferences()
    scheduler: Any = SimpleNamespace(tasks={"key": task})
    asyncio.run(plugin.start(scheduler))
    plugin.transition("key", "waiting", "processing")
    assert task.worker_restrictions == {"a"}
    plugin.transition("key", "waiting", "no-worker")
    assert task.worker_restrictions == (None if loose else {"a"})


def test_workers_are_known_while_the_client_renews_what_it_holds(monkeypatch):
    """Every two seconds a client asks for all but the workers, and holds that answer instead."""
    renew = Client._update_scheduler_info

    async def renewed_again(client, n_workers=0):
        await renew(client, n_workers)
        await renew(client)

    monkeypatch.setattr(Client, "_update_scheduler_info", renewed_again)
    with Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as client:
        assert not client.scheduler_info(n_workers=-1)["workers"]
        assert len(known_workers(client)) == 2
        assert workers_of(client).threads == 2


CLOSED = """
import gc, weakref
from distributed import SchedulerPlugin
from homodyne_dask import local_cluster

with local_cluster(processes=1, threads=1) as client:
    client.wait_for_workers(1)
    client.register_plugin(SchedulerPlugin(), name="of no use")
    scheduler = weakref.ref(client.cluster.scheduler)
del client
gc.collect()
assert scheduler() is None, gc.get_referrers(scheduler())
"""


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_scheduler_that_is_closed_leaves_the_memory():
    """Three caches kept it or its client, with the dashboard: more than a megabyte after each fit."""
    subprocess.run([sys.executable, "-c", CLOSED], check=True)


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_result_is_not_lost_where_every_part_used_at_the_end_is_broken(monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise TypeError("another version of distributed")

    monkeypatch.setattr(Client, "cancel", broken)
    close = Client.__exit__

    def closed_and_broken(client, *args):
        close(client, *args)  # else it stays the default of the tests after this one
        broken()

    monkeypatch.setattr(Client, "__exit__", closed_and_broken)
    with local_cluster(processes=1, threads=1) as client:
        caplog.handler.setLevel(logging.WARNING)  # Dask may have silenced it with its own
        with checked_workers(client):
            monkeypatch.setattr(Client, "unregister_worker_plugin", broken)
            result = client.submit(sum, [1, 2]).result(timeout=60)
            assert not list(computed_on_cluster(client, None, (), {}, GRAM, None))
    assert result == 3
    for words in ("tasks were not cancelled", "was not removed", "did not close"):
        assert any(words in message for message in caplog.messages), words
