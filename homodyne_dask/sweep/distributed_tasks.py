"""The tasks of a pass on a Dask cluster: sent to the workers that have their data, gathered as they finish.

Dask repeats the tasks of a worker that is lost on others: preferences of workers are hints.
"""

import logging
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dask.typing import Key
from distributed import Client, Future, Scheduler, SchedulerPlugin

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import failures_logged, with_timeout
from homodyne_dask.cluster.local import (
    ANSWER_TIMEOUT,
    answered,
    cluster_errors,
    finished,
    gathered,
    known_workers,
)
from homodyne_dask.errors import ClusterError
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.tasks import Report, Task, TaskContext, warm_up

MAX_LOAD_RATIO = 1.05
"""Most work of a worker over its fair share."""
LOG = logging.getLogger(__name__)


def submit_warm_up(client: Client, context: TaskContext) -> list[Future]:
    workers = answered(client, known_workers, client)
    with cluster_errors(client):
        return [
            client.submit(warm_up, context, key=f"warm-{os.urandom(3).hex()}", pure=False)
            for _ in workers or [None]
        ]


def warmed_up(client: Client, futures: Sequence[Future]) -> list[Report]:
    """Return the reports of those that have warmed up; none of a scheduler that is lost: a result is kept."""
    try:
        return gathered(client, [future for future in futures if future.status == "finished"])
    except ClusterError as e:
        LOG.warning("compilations were not counted: %s", e)
        return []


def weight(run: Run) -> float:
    """Return the work of a task, in tiles; one on the diagonal counts half."""
    return sum(0.5 if i == j else 1.0 for i, j in run.tiles)


def assign_tasks(tasks: Sequence[Run], owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the tasks that prefer each worker, by address; "" holds those without an owner.

    An owner keeps the data of its tasks, so a task moves only from one with more than its fair
    share, to that with the least. The first pass is shared out while workers start, unevenly.
    """
    load = dict.fromkeys(owners.values(), 0.0)
    fair = sum(weight(tasks[n]) for n in owners) / max(len(load), 1)
    assigned: dict[str, list[int]] = {}
    for n, task in enumerate(tasks):
        owner = owners.get(n, "")
        if owner:
            if load[owner] + weight(task) > MAX_LOAD_RATIO * fair:
                owner = min(load, key=lambda worker: (load[worker], worker != owner))
            load[owner] += weight(task)
        assigned.setdefault(owner, []).append(n)
    return assigned


class SoftPreferences(SchedulerPlugin):
    """Keeps preferences soft: a task that no worker can take forgets which worker it prefers.

    Dask sends a task whose worker has left to any other, but not one that became ready while there was
    no worker at all: such a task waits for its preferred worker, even when others join.
    """

    name = "homodyne_dask preferences"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def transition(self, key: Key, start: str, finish: str, *_: object, **__: object) -> None:
        if finish == "no-worker":
            internals.drop_preference(self.scheduler, key)


def keep_preferences_soft(client: Client) -> None:
    try:
        answered(client, client.register_plugin, SoftPreferences())
    except ImportError as e:
        raise ClusterError(
            f"the scheduler cannot load homodyne_dask ({e}): start it in the environment of the fit"
        ) from e


def computed_on_cluster[G](
    client: Client,
    context: object,
    runs: Sequence[Any],
    owners: Mapping[int, str],
    task: Task[G],
    argument: object,
) -> Iterator[tuple[int, G, Report]]:
    """Yield number, result and report of tasks as they arrive; owners: workers that cache their data."""
    name = f"{task.key}-{os.urandom(3).hex()}"
    futures: dict[Future, int] = {}
    try:
        with cluster_errors(client):
            for owner, numbers in assign_tasks(runs, owners).items():
                submitted = client.map(
                    operator.call,
                    # Dask would search tuples, of many bins, for futures
                    [partial(task.function, context, runs[n], argument) for n in numbers],
                    key=[f"{name}-{n:05d}" for n in numbers],
                    pure=False,
                    workers=owner or None,
                    allow_other_workers=bool(owner),
                )
                futures |= zip(submitted, numbers, strict=True)
            for future, (gram, report) in finished(client, futures):
                future.release()
                yield futures[future], gram, report
    finally:
        # of a pass that was interrupted: workers would compute the others, too
        unfinished = [future for future in futures if not future.done()]
        if client.status == "running":
            with failures_logged("tasks were not cancelled"):
                with_timeout(ANSWER_TIMEOUT, client.cancel, unfinished, reason="the pass has ended")
