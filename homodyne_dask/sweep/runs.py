"""The tasks of a pass: runs of tiles, as long as the workers and the scheduler ask for."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from homodyne_dask.cluster.workers import (
    COSTLIEST_PASS,
    MAX_TASK_SECONDS,
    PAIRS_PER_SECOND,
    SLOWEST_PAIRS_PER_SECOND,
)
from homodyne_dask.sweep.driver_cost import SCHEDULER_SECONDS

if TYPE_CHECKING:
    from homodyne_dask.sweep.plan import Layout

MIN_TASK_SECONDS = 0.03
"""Shortest task of a pass at the typical rate, where the scheduler is not the limit."""


class Run(NamedTuple):
    """Consecutive tiles of one group: the share of one task."""

    group: int
    members: tuple[int, ...]
    tiles: tuple[tuple[int, int], ...]
    length: int
    """2^k; the last run of a group may hold fewer tiles."""


def runs(layout: "Layout", threads: int, shortest: float = MIN_TASK_SECONDS) -> list[Run]:
    """Return the tasks of a pass in the order their Grams are merged.

    Each takes a thread's share of the remaining tiles, for `shortest` to 2 s of work at the typical rate: few
    tasks, and short ones at the end, so that no thread waits long for another. Where that would be more tasks
    than the scheduler can serve, the shortest are longer. Lengths never increase, so that every run starts at
    a multiple of its length. A cell of age and lag lies in many tiles: there is one task for a bin.
    """
    if layout.cells:
        length = 1 << (len(layout.tiles) - 1).bit_length()
        return [Run(n, members, layout.tiles, length) for n, members in enumerate(layout.groups)]
    computing = layout.pairs / PAIRS_PER_SECOND / threads
    while True:
        made = _runs_of(layout, threads, shortest)
        if len(made) * SCHEDULER_SECONDS <= computing + shortest or shortest >= MAX_TASK_SECONDS:
            return made
        shortest *= 2


def _runs_of(layout: "Layout", threads: int, seconds: float) -> list[Run]:
    """Return the tasks whose shortest take some seconds, but for the last of each group."""
    tiles_per_second = PAIRS_PER_SECOND / max(layout.pairs / layout.blocks, 1)
    shortest, longest = seconds * tiles_per_second, MAX_TASK_SECONDS * tiles_per_second
    made, left, length = [], layout.blocks, layout.blocks
    for group, members in enumerate(layout.groups):
        first = 0
        while first < len(layout.tiles):
            wanted = min(max(left / threads, shortest), longest, len(layout.tiles), length)
            length = 2 ** int(np.log2(max(wanted, 1)))
            made.append(Run(group, members, layout.tiles[first : first + length], length))
            left -= len(made[-1].tiles)
            first += length
    return made


def longest_task(layout: "Layout") -> float:
    """Return the longest time of a task, in seconds: in the most expensive pass on the slowest node."""
    tiles = max(len(run.tiles) for run in runs(layout, 1))
    return COSTLIEST_PASS * tiles * layout.pairs / layout.blocks / SLOWEST_PAIRS_PER_SECOND
