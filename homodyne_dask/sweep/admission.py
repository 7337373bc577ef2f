"""Workers that join while a fit runs are checked before their first task, and removed if they fail.

A plugin of the scheduler sends the check to every worker that registers; the worker starts to listen
for tasks once it has passed.
"""

import asyncio
import logging
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distributed import Client, Scheduler, SchedulerPlugin, Worker, WorkerPlugin

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import with_timeout
from homodyne_dask.cluster.local import ANSWER_TIMEOUT, add_scheduler_plugin, cluster_errors
from homodyne_dask.errors import ClusterError
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.preflight import (
    InspectedWorker,
    Requirements,
    differences,
    inspect,
    preflight,
    requirements,
    too_little_memory,
    too_many_threads,
)

LOG = logging.getLogger(__name__)


class WorkerCheck(WorkerPlugin):
    """Checks the worker that registers; one that does not meet the requirements is refused."""

    def __init__(self, name: str, required: Requirements) -> None:
        self.name, self.required = name, required

    async def setup(self, worker: Worker) -> None:
        """Check the worker that registers."""
        try:
            failures = await self._failures(worker)
        except Exception as e:  # Dask would use the worker all the same
            failures = f"worker {worker.name} cannot be examined ({type(e).__name__}: {e})"
        if failures:
            await internals.refuse_worker(worker, self.name, failures)

    async def _failures(self, worker: Worker) -> str:
        """Return the requirements that a worker does not meet, a sentence each; '' for none."""
        required = self.required
        info = await asyncio.to_thread(inspect, required.chunk, worker, gpu=required.gpu)
        registered = await internals.registered_workers(worker)
        here = []
        for address, known in registered.items():
            if known["host"] == worker.ip and address != worker.address:
                # taken to be of the same environment
                used, threads = known["metrics"].get("memory", 0), known["nthreads"]
                beside = info._replace(used=used, pool=threads)
                name, limit = f"worker {known['name']}", known["memory_limit"] or 0
                here.append(InspectedWorker(name, threads, limit, beside))
        limit = internals.memory_limit(worker)
        mine = InspectedWorker(f"worker {worker.name}", worker.state.nthreads, limit, info)
        here.append(mine)
        failures = [*differences(mine, self.required), *too_many_threads(here)]
        failures += too_little_memory(here, self.required)
        return "\n".join(sentence for sentence in failures if sentence.startswith(f"{mine.name} "))


class WorkerCheckInstaller(SchedulerPlugin):
    """Sends the check of a fit to every worker that registers, as long as the fit's client is connected."""

    def __init__(self, name: str, check: bytes, client: str) -> None:
        self.name, self.check, self.client = name, check, client

    async def start(self, scheduler: Scheduler) -> None:
        """Send the check to workers that register from now on."""
        await internals.add_for_new_workers(scheduler, self.name, self.check)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Remove the check when the fit's client disconnects, for whatever reason."""
        if client == self.client:
            remove_check(scheduler, self.name)


def remove_check(dask_scheduler: Scheduler, name: str) -> None:
    """Remove a check; runs in the scheduler."""
    internals.remove_for_new_workers(dask_scheduler, name)
    with suppress(ValueError):  # it is removed already
        dask_scheduler.remove_plugin(name)


@contextmanager
def checked_workers(
    client: Client, scan: Scan | None = None, plan: Plan | None = None
) -> Iterator[list[str]]:
    """Check a client's workers, and inside the `with` every worker that joins.

    Yields a list that receives a message for each worker that joined and was refused. Raises
    ClusterError, a sentence for each failure, where the present workers cannot do what the plan
    needs, or without one have other versions or code; a ClusterError inside the `with` is raised with
    those messages added.
    """
    refused: list[str] = []
    name = f"homodyne_dask-check-{os.urandom(3).hex()}"
    check = pickle.dumps(WorkerCheck(name, requirements(scan, plan)))
    with cluster_errors(client):
        client.subscribe_topic(name, lambda event: refused.append(event[1]))
    add_scheduler_plugin(client, WorkerCheckInstaller(name, check, client.id))
    try:
        with internals.lost_connections_not_logged():
            preflight(client, scan, plan)
            yield refused
    except ClusterError as e:
        if not refused:
            raise
        raise ClusterError("\n".join([str(e), *refused])) from e
    finally:
        _remove_check(client, name)


def _remove_check(client: Client, name: str) -> None:
    """Remove a check; a failure is logged, because it must not cost a fit its result."""
    if client.status == "running":
        try:
            with_timeout(ANSWER_TIMEOUT, client.run_on_scheduler, remove_check, name=name)
        except (Exception, asyncio.CancelledError) as e:  # the scheduler may have ended
            LOG.warning(
                "the check of workers %s was not removed: %s: %s", name, type(e).__name__, e
            )
