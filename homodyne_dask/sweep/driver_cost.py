"""What the tasks of a pass cost scheduler and driver, however many workers there are."""

from typing import TYPE_CHECKING, NamedTuple

from homodyne_dask.cluster.memory import DRIVER_BYTES, size

if TYPE_CHECKING:
    from homodyne_dask.sweep.plan import Plan

SCHEDULER_SECONDS = 0.001
"""Processor time of scheduler and driver for a task, one after the other [s]; docs/performance.md."""
BYTES_OF_TASK, BYTES_OF_WORKER = 30_000, 100_000
"""What scheduler and driver hold of a task, without its Gram, and of a worker, as measured."""


class DriverCost(NamedTuple):
    """Time and memory of scheduler and driver for a pass."""

    seconds: float
    """Processor time for all tasks, one after the other; no pass is shorter."""
    memory: int
    """Bytes: about one Gram for each thread is held."""

    def __str__(self) -> str:
        return f"{size(self.memory)}, {self.seconds:.2g} s of a pass for its tasks"


def driver_cost(plan: "Plan") -> DriverCost:
    """Return the projected cost of a plan; without workers there is no scheduler."""
    tasks, workers = len(plan.tasks), plan.workers
    if workers.local:
        return DriverCost(0.0, DRIVER_BYTES)
    grams = 8 * plan.layout.padded_bins * (plan.parameters + 3) ** 2 * min(workers.threads, tasks)
    known = BYTES_OF_TASK * tasks + BYTES_OF_WORKER * workers.processes
    return DriverCost(SCHEDULER_SECONDS * tasks, DRIVER_BYTES + grams + known)
