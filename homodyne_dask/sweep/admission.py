"""Workers that join while a fit runs are checked before their first task, and removed if they fail.

A plugin of the scheduler sends the check to every worker that registers; the worker starts to listen
for tasks once it has passed.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin, Worker, WorkerPlugin, secede

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import failures_logged, with_timeout
from homodyne_dask.cluster.local import ANSWER_TIMEOUT, add_scheduler_plugin, cluster_errors
from homodyne_dask.errors import ClusterError
from homodyne_dask.store.processes import worker_address
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.preflight import Requirements, inspect, preflight, requirements, unmet


class WorkerCheck(WorkerPlugin):
    """Checks the worker that registers; one that does not meet the requirements is refused."""

    def __init__(self, name: str, required: Requirements) -> None:
        self.name, self.required = name, required

    async def setup(self, worker: Worker) -> None:
        """Check the worker that registers."""
        failures = None
        try:
            failures = await self._failures(worker)
        finally:  # Dask logs what is raised here, and would use the worker all the same
            if failures is None:
                failures = f"worker {worker.name} cannot be examined ({sys.exception()!r})"
            if failures:
                await internals.refuse_worker(worker, self.name, failures)

    async def _failures(self, worker: Worker) -> str:
        """Return the requirements that a worker does not meet, a sentence each; '' for none."""
        info = await asyncio.to_thread(inspect, self.required, worker)
        # Client.scheduler_info needs a client, which a worker has after it has registered
        registered: Any = await worker.scheduler.identity(n_workers=-1)
        on_host = [
            info._replace(  # taken to be of the same environment
                name=f"worker {other['name']}",
                threads=other["nthreads"],
                limit=other["memory_limit"] or 0,
                pool=other["nthreads"],
                used=other["metrics"].get("memory", 0),
            )
            for address, other in registered["workers"].items()
            if other["host"] == worker.ip and address != worker.address
        ]
        on_host.append(info)
        return "\n".join(unmet(info, on_host, self.required))


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
    if (
        worker_address()
    ):  # the fit is a task itself, and waits for others that the worker may compute
        with suppress(KeyError):  # its thread was given up before
            secede()
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
        if client.status == "running":
            with failures_logged(f"the check of workers {name} was not removed"):
                with_timeout(ANSWER_TIMEOUT, client.run_on_scheduler, remove_check, name=name)
