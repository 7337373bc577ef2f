"""Preferred workers of tasks: the worker that computed a task before, unless it has too many."""

from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import add_scheduler_plugin
from homodyne_dask.sweep.layout import Run

MAX_LOAD_RATIO = 1.05
"""Most work of a worker over its fair share."""


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
                owner = min(load, key=lambda one: (load[one], one != owner))
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
        """Keep the scheduler whose tasks these are."""
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Drop the preference of a task that would wait for its worker."""
        if finish == "no-worker":
            internals.drop_preference(self.scheduler, key)


def keep_preferences_soft(client: Client) -> None:
    """Let any worker take a task whose preferred worker has left, in a client's scheduler."""
    add_scheduler_plugin(client, SoftPreferences())
