"""Which worker is asked first for a task: who had it before, as long as nobody gets too much."""

from collections.abc import Mapping, Sequence

from homodyne_dask.sweep.plan import Run

TOO_MUCH = 1.05
"""Times a worker's fair share."""


def weight(run: Run) -> float:
    """Return the work of a task, in tiles; half of one on the diagonal counts."""
    return sum(0.5 if i == j else 1.0 for i, j in run.tiles)


def assign_tasks(tasks: Sequence[Run], owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the tasks to hint at each worker, by address; "" holds those without an owner.

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
