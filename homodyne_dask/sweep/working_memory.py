"""The memory that a task needs beside the data that stay with a worker: of a fit, and of wide passes."""

from typing import TYPE_CHECKING

from homodyne_dask.cluster.memory import too_little
from homodyne_dask.store.byte_range import REQUESTS
from homodyne_dask.store.chunk_reader import most_bytes

if TYPE_CHECKING:
    from homodyne_dask.sweep.plan import Layout, Plan

AHEAD = 3
"""Blocks that are fetched while one is computed."""
AHEAD_BYTES = 64_000_000
"""Most bytes of blocks that a thread fetches ahead."""
_GRAMS, _FIELDS, _TABLES = 8, 28, 3
"""Held while a kernel assembles a Gram: Grams, sums over frames of a block, tables over all frames."""
_FEW_BINS, _FRAME_BLOCKS, _LEAVES = 8, 33, 6
"""Errors of fewer bins need the sums of all pairs of so many blocks of frames, of so many tiles at once."""
_CELL_ARRAYS = 8
"""Arrays over the cells of a bin with a column for each of a Gram."""


def working_memory(layout: "Layout", tiles: int, parameters: int) -> int:
    """Return the bytes: a block, a copy being decoded, tables and Grams of a model, sums by cell.

    tiles: of the longest task.
    """
    columns, bins = parameters + 3, layout.padded_bins
    frames = layout.side * (1 + max(tile[1] for tile in layout.tiles))
    numbers = (_GRAMS + tiles) * bins * columns**2
    numbers += _FIELDS * bins * layout.side + _TABLES * columns * frames
    numbers += _CELL_ARRAYS * layout.cells * columns
    if sum(map(len, layout.groups)) < _FEW_BINS:
        numbers += _LEAVES * bins * _FRAME_BLOCKS**2 * 3 * columns
    return 2 * layout.block_bytes + 8 * numbers


def fetched_memory(layout: "Layout", threads: int) -> int:
    """Return the bytes of a store by URL that a process holds: what its threads fetch ahead, and requests."""
    most = most_bytes(layout.side)
    ahead = min(AHEAD_BYTES, (1 + AHEAD) * layout.padded_bins * most)
    return threads * ahead + REQUESTS * most


def require_memory_for_thetas(plan: "Plan", points: int) -> None:
    """Raise PlanError where a worker cannot hold the wide Grams of a task beside what a fit needs."""
    layout, bins = plan.layout, plan.layout.padded_bins
    grams = max(len(run.tiles) for run in plan.tasks) * bins * (points + 2) ** 2
    waves = 4 * points * bins * layout.side
    needed = plan.memory_per_worker + plan.workers.threads_each * 8 * (grams + waves)
    allowed = plan.workers.memory // plan.workers.processes
    if needed > allowed:
        raise too_little("this process" if plan.workers.local else "a worker", needed, allowed)
