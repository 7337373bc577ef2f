"""Preferred workers of tasks: who had a task before gets it again, as long as no one gets too much."""

from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import add_scheduler_plugin
from homodyne_dask.sweep.plan import Run

TOO_MUCH = 1.05
"""Times a worker's fair share."""


def weight(run: Run) -> float:
    """Return the work of a task, in tiles; half of one on the diagonal counts."""
    return sum(0.5 if i == j else 1.0 for i, j in run.tiles)


def assign_tasks(tasks: Sequence[Run], owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the tasks that prefer each worker, by address; "" holds those without an owner.

    An owner keeps the data of its tasks, so a task moves only from one with more than its fair
    share, to that with the least. The first pass is shared out while workers start, unevenly.
    """
    load = dict.fromkeys(owners.values(), 0.0)
    fair = sum(weight(tasks[n]) for n in owners) / max(len(load), 1)
    found: dict[str, list[int]] = {}
    for n, task in enumerate(tasks):
        owner = owners.get(n, "")
        if owner:
            if load[owner] + weight(task) > TOO_MUCH * fair:
                owner = min(load, key=lambda one: (load[one], one != owner))
            load[owner] += weight(task)
        found.setdefault(owner, []).append(n)
    return found


class SoftPreferences(SchedulerPlugin):
    """Keeps preferences soft: a task that no worker can take forgets which worker it prefers.

    Dask sends a task whose worker is gone to any other, but not one that became ready while there was
    no worker at all: such a task waits for its preferred worker, whatever others come.
    """

    name = "homodyne_dask preferences"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Remember whose tasks these are."""
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Drop the preference of a task that would wait for its worker."""
        if finish == "no-worker":
            internals.drop_preference(self.scheduler, key)


def keep_preferences_soft(client: Client) -> None:
    """Let any worker take a task whose preferred worker is gone, in a client's scheduler."""
    add_scheduler_plugin(client, SoftPreferences())
