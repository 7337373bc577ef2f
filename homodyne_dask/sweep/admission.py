"""Workers of other code that join while a fit runs are removed before their first task."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distributed import Client, Status, Worker, WorkerPlugin, secede

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import failures_logged, with_timeout
from homodyne_dask.cluster.local import ANSWER_TIMEOUT, cluster_errors
from homodyne_dask.errors import ClusterError
from homodyne_dask.machine.allocator_and_threads import worker_address
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.preflight import (
    compute_on_own_threads,
    other_versions,
    package_versions,
    preflight,
)


class WorkerCheck(WorkerPlugin):
    """Refuses a worker that joins with other versions or code, which would give other bits."""

    def __init__(self, name: str) -> None:
        self.name, self.versions = name, package_versions()

    async def setup(self, worker: Worker) -> None:
        """Check a worker that registers; those that run have passed the preflight."""
        if worker.status is not Status.running:
            compute_on_own_threads(worker)
            theirs = await asyncio.to_thread(package_versions)
            who = f"worker {worker.name}"
            if failures := [*other_versions(who, theirs, "the workers", self.versions)]:
                await internals.refuse_worker(worker, self.name, "\n".join(failures))


@contextmanager
def checked_workers(
    client: Client, scan: Scan | None = None, plan: Plan | None = None
) -> Iterator[list[str]]:
    """Check a client's workers, and inside the `with` the code of every worker that joins.

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
    try:
        with internals.lost_connections_not_logged():
            with cluster_errors(client):
                client.subscribe_topic(name, lambda event: refused.append(event[1]))
            preflight(client, scan, plan)
            # kept for workers that join, even if one that leaves does not answer
            with failures_logged("not all workers have taken the check of those that join"):
                with_timeout(ANSWER_TIMEOUT, client.register_plugin, WorkerCheck(name), name)
            yield refused
    except ClusterError as e:
        if not refused:
            raise
        raise ClusterError("\n".join([str(e), *refused])) from e
    finally:
        if client.status == "running":
            with (
                failures_logged(f"the check of workers {name} was not removed"),
                suppress(ValueError),
            ):
                with_timeout(ANSWER_TIMEOUT, client.unregister_worker_plugin, name)
