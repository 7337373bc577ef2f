"""Which worker a task would like best, as a hint: a plugin of the scheduler that keeps it one.

Dask sends a task whose worker is gone to any other, but not one that became ready while there was
no worker at all: such a task waits for the very worker of its hint, whatever others come.
"""

from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

from homodyne_dask.errors import ClusterError


class Hints(SchedulerPlugin):
    """A task that no worker can take forgets which one it was meant for, where any may do it."""

    name = "homodyne_dask hints"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Remember whose tasks these are."""
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take the hint from a task that would wait for its worker."""
        if finish != "no-worker":
            return
        task = self.scheduler.tasks[key]
        if task.loose_restrictions:
            task.worker_restrictions = None


def only_hints(client: Client) -> None:
    """Let hints to workers be no more than that, in a client's scheduler."""
    register(client, Hints())


def register(client: Client, plugin: SchedulerPlugin) -> None:
    """Add a plugin to a client's scheduler; raises ClusterError where that has not this package."""
    try:
        client.register_plugin(plugin)
    except ImportError as e:
        raise ClusterError(
            f"the scheduler cannot load homodyne_dask ({e}): start it in the environment of the fit"
        ) from e
