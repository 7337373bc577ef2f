"""Workers that join while a fit runs: each is checked before its first task, and leaves if it must.

A plugin of the scheduler hands the examination to every worker that registers; the worker starts to
listen for tasks when it is through.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin, WorkerPlugin
from distributed import Worker as DaskWorker
from distributed.core import Status
from distributed.protocol.pickle import dumps

from homodyne_dask.cluster.hints import register
from homodyne_dask.errors import ClusterError
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.preflight import (
    InspectedWorker,
    Requirements,
    WorkerInfo,
    differences,
    inspect,
    preflight,
    requirements,
    too_little_memory,
    too_many_threads,
)

ENDING = 10.0
"""Seconds to wait for a scheduler that is told to examine no more."""


class WorkerCheck(WorkerPlugin):
    """A worker that is not what a fit asks for says so and leaves, and no task was begun on it."""

    def __init__(self, name: str, required: Requirements) -> None:
        self.name, self.required = name, required

    async def setup(self, worker: DaskWorker) -> None:
        """Examine the worker that registers."""
        try:
            said = await self._said(worker)
        except Exception as e:  # Dask would go on with it
            said = f"worker {worker.name} cannot be examined ({type(e).__name__}: {e})"
        if said:
            worker.status = Status.paused
            await worker.scheduler.log_event(topic=self.name, msg=said)
            await worker.scheduler.retire_workers(
                workers=[worker.address], close_workers=False, remove=True
            )

    async def _said(self, worker: DaskWorker) -> str:
        """Return what is wrong with a worker, '' for nothing."""
        found = await asyncio.to_thread(inspect, self.required.chunk)
        known: Any = await worker.scheduler.identity(n_workers=-1)
        here = [
            _neighbour(info, found)
            for address, info in known["workers"].items()
            if info["host"] == worker.ip and address != worker.address
        ]
        limit = worker.memory_manager.memory_limit or 0
        mine = InspectedWorker(f"worker {worker.name}", worker.state.nthreads, limit, found)
        here.append(mine)
        told = [*differences(mine, self.required), *too_many_threads(here)]
        told += too_little_memory(here, self.required)
        return "\n".join(words for words in told if words.startswith(f"{mine.name} "))


def _neighbour(info: dict[str, Any], found: WorkerInfo) -> InspectedWorker:
    """Return a worker beside one that was examined: another process of the same kind."""
    used = info["metrics"].get("memory", 0)
    beside = found._replace(used=used, pool=info["nthreads"])
    return InspectedWorker(
        f"worker {info['name']}", info["nthreads"], info["memory_limit"] or 0, beside
    )


class WorkerCheckInstaller(SchedulerPlugin):
    """Hands the examination of a fit to every worker that registers, as long as its client is there."""

    def __init__(self, name: str, examination: bytes, client: str) -> None:
        self.name, self.examination, self.client = name, examination, client

    async def start(self, scheduler: Scheduler) -> None:
        """Begin."""
        scheduler.worker_plugins[self.name] = self.examination

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End with the program that fits, however that ends."""
        if client == self.client:
            end(scheduler, self.name)


def end(dask_scheduler: Scheduler, name: str) -> None:
    """End an examination and let go of what was said in it; runs in the scheduler."""
    dask_scheduler.worker_plugins.pop(name, None)
    dask_scheduler.plugins.pop(name, None)
    dask_scheduler._broker._topics.pop(name, None)


@contextmanager
def checked_workers(client: Client | None, scan: Scan, plan: Plan) -> Iterator[list[str]]:
    """Examine a client's workers, and inside the `with` every one that joins.

    Yields what there is to say against workers that joined; they have left again. Raises
    ClusterError, a sentence for each thing, where those that are there cannot do what the plan asks;
    a ClusterError inside the `with` is told with what was said of those that joined.
    """
    refused: list[str] = []
    if client is None:
        yield refused
        return
    name = f"homodyne_dask-examination-{os.urandom(3).hex()}"
    examination = dumps(WorkerCheck(name, requirements(scan, plan)))
    client.subscribe_topic(name, lambda event: refused.append(event[1]))
    register(client, WorkerCheckInstaller(name, examination, client.id))
    try:
        preflight(client, scan, plan)
        yield refused
    except ClusterError as e:
        if not refused:
            raise
        raise ClusterError("\n".join([str(e), *refused])) from e
    finally:
        if client.status == "running":
            with suppress(OSError, TimeoutError):  # the scheduler is gone, and all with it
                client.sync(client._run_on_scheduler, end, name=name, callback_timeout=ENDING)
        client._event_handlers.pop(name, None)
