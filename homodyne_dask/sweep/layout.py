"""How the selected data are cut: into tiles, and into runs of tiles, one for each task of a pass."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from homodyne_dask.cluster.workers import (
    COSTLIEST_PASS,
    MAX_TASK_SECONDS,
    PAIRS_PER_SECOND,
    SLOWEST_PAIRS_PER_SECOND,
)
from homodyne_dask.errors import SelectionError
from homodyne_dask.kernels.backend_interface import coarse_min_lag
from homodyne_dask.store import schema
from homodyne_dask.store.chunks import REQUESTS, most_bytes
from homodyne_dask.store.object_stores import is_url
from homodyne_dask.store.scan import Scan, coarse_use
from homodyne_dask.text import counted

MAX_BLOCK_BYTES = 33_554_432
"""Most bytes of a block: 32 bins of 512 frames, or more bins of fewer frames."""
TILES_AT_ONCE, BYTES_AT_ONCE = 64, 16 * MAX_BLOCK_BYTES
"""Most tiles that a GPU computes in one call, and most bytes of their data."""
SHARED_BLOCK_BYTES = MAX_BLOCK_BYTES // 8
"""Bytes up to which bins of few frames and different q share a block: the cost of a block, as of reading it
and calling its kernel, is that of computing a tenth of this."""
IN_PROCESS_PAIRS = 4_000_000
"""Below this number of pairs a fit runs in the caller's process, and is one task of many fits."""
MIN_PAIRS_FOR_LEVELS = 20_000_000
"""Number of pairs from which a fit starts with the coarser levels of the store."""
MIN_TASK_SECONDS = 0.03
"""Shortest task of a pass at the typical rate, where the scheduler is not the limit."""
SCHEDULER_SECONDS = 0.001
"""Processor time of scheduler and driver for a task, one after the other [s]; docs/performance.md."""


AHEAD = 3
AHEAD_BYTES = 64_000_000
_GRAMS, _FIELDS, _TABLES = 8, 28, 3
"""Held while a kernel assembles a Gram: Grams, sums over frames of a block, tables over all frames."""
_FEW_BINS, _FRAME_BLOCKS, _LEAVES = 8, 33, 6
"""Errors of fewer bins need the sums of all pairs of so many blocks of frames, of so many tiles at once."""
_CELL_ARRAYS = 8
"""Arrays over the cells of a bin with a column for each of a Gram."""


class Run(NamedTuple):
    group: int
    members: tuple[int, ...]
    tiles: tuple[tuple[int, int], ...]
    length: int
    """2^k; the last run of a group may hold fewer tiles."""


@dataclass(frozen=True)
class Layout:
    """How the selected data are cut into blocks: from the store and the selection alone."""

    side: int
    """Frames of a block's rows and columns, T: those of a chunk."""
    padded_bins: int
    """Bins in the array of a block, those of the largest group; smaller groups are padded."""
    groups: tuple[tuple[int, ...], ...]
    """Indices into the selection's bins; those of a group share a block."""
    tiles: tuple[tuple[int, int], ...]
    """Rows and columns of the grid of chunks that hold selected pairs, in the order they are summed."""
    pairs: int
    """Selected pairs of frames times bins, or points, before unknown values are excluded."""
    factor: int = 1
    """Frames averaged into one: 1 is the full resolution, others are the store's levels."""
    cells: int = 0
    """Cells of age and lag of a bin, of data that are means over cells: a task takes all tiles of a bin."""
    by_url: bool = False
    """The store is not on a disk: what is fetched ahead lies in the memory of a worker."""
    datum: str = "pairs"
    several_q: bool = False
    """Bins of a group may differ in q."""

    @property
    def block_bytes(self) -> int:
        return self.padded_bins * self.side**2 * 4

    @property
    def tiles_at_once(self) -> int:
        return tiles_at_once(self.block_bytes)

    @property
    def blocks(self) -> int:
        return len(self.groups) * len(self.tiles)

    @property
    def resident_bytes(self) -> int:
        """Memory of all decoded blocks, or of the data of all cells."""
        return 16 * len(self.groups) * self.cells or self.blocks * self.block_bytes

    @property
    def bytes_per_pass(self) -> int:
        """Decoded bytes of all blocks, without padded bins."""
        return sum(map(len, self.groups)) * len(self.tiles) * self.block_bytes // self.padded_bins

    @property
    def frames(self) -> int:
        """Frames of the record, up to the end of the last chunk."""
        return self.side * (1 + max(tile[1] for tile in self.tiles))

    def working_bytes(self, parameters: int, threads: int = 1) -> int:
        """Return the memory of tasks beside resident data: blocks, copies, Grams, what is fetched ahead."""
        columns, bins = parameters + 3, self.padded_bins
        numbers = (_GRAMS + _longest_run(self)) * bins * columns**2
        numbers += _FIELDS * bins * self.side + _TABLES * columns * self.frames
        numbers += _CELL_ARRAYS * self.cells * columns
        if sum(map(len, self.groups)) < _FEW_BINS:
            numbers += _LEAVES * bins * _FRAME_BLOCKS**2 * 3 * columns
        of_thread, of_process = 2 * self.block_bytes + 8 * numbers, 0
        if self.by_url:
            chunk = most_bytes(self.side)
            of_thread += min(AHEAD_BYTES, (1 + AHEAD) * bins * chunk)
            of_process = REQUESTS * chunk
        return threads * of_thread + of_process

    def rows(self) -> list[tuple[str, str]]:
        bins = sum(map(len, self.groups))
        return [
            (
                "bins",
                f"{bins} in {counted(len(self.groups), 'group')}{' of equal q' * (not self.several_q)}",
            ),
            (self.datum, f"{self.pairs:,}"),
            ("tiles", f"{self.blocks} of {self.side} × {self.side} frames"),
        ]


def tiles_at_once(block_bytes: int) -> int:
    """Return how many blocks of so many bytes a GPU computes in one call, whatever the tasks are."""
    return min(TILES_AT_ONCE, BYTES_AT_ONCE // block_bytes)


def layout(
    scan: Scan, min_lag: int = 1, factor: int = 1, apart: Int[np.ndarray, " bin"] | None = None
) -> Layout:
    """Return how a level is cut; apart: a number for each bin, the same in all bins of a group."""
    side = schema.tile_side(scan.n_frames)
    lag = coarse_min_lag(min_lag, factor)
    used = coarse_use(scan, factor).astype(np.int64)
    n = np.arange(len(used))
    later = np.concatenate([np.cumsum(used[::-1])[::-1], [0]])
    partners = used * later[np.minimum(n + lag, len(n))]
    if scan.is_table:  # pairs with the first frame alone
        partners = partners[:1]
    pairs = int(partners.sum()) * len(scan.bins)
    if pairs == 0:
        raise SelectionError(
            f"no pair of frames is left: {int(used.sum())} of {len(used)} frames are in use and "
            f"min_lag is {min_lag}; widen the selection or lower min_lag"
        )
    with_frames = sorted({int(i) // side for i in np.flatnonzero(used)})
    tiles = tuple(
        (i, j) for i in with_frames for j in with_frames if i <= j and (j - i + 1) * side > lag
    )
    apart = np.zeros(len(scan.bins), int) if apart is None else apart
    groups, cells, by_url = _groups(scan.q, apart, side), 0, is_url(scan.path)
    of_one_q = len(groups)
    if scan.cells is not None and factor == 1:
        scan.cells.check_any_in(scan.frames, min_lag)
        groups, cells = tuple((b,) for b in range(len(scan.bins))), scan.cells.number
    elif schema.tiles_per_side(scan.n_frames, 1) == 1:
        groups = _joined(groups, apart, SHARED_BLOCK_BYTES // (4 * side**2))
    cut = side, max(map(len, groups)), groups, tiles, pairs, factor, cells, by_url
    return Layout(*cut, scan.datum, len(groups) < of_one_q)


def coarse_levels(scan: Scan, fine: Layout, min_lag: int) -> list[Layout]:
    """Return how the coarser levels are cut, the coarsest first; none where data are few."""
    if fine.pairs < MIN_PAIRS_FOR_LEVELS:
        return []
    return [
        layout(scan, min_lag, factor)
        for factor in sorted(schema.LEVELS, reverse=True)
        if schema.level_frames(scan.n_frames, factor) and coarse_use(scan, factor).sum() >= 8
    ]


def _groups(q: np.ndarray, apart: np.ndarray, side: int) -> tuple[tuple[int, ...], ...]:
    """Return bins of equal q and number together, in equal shares of at most MAX_BLOCK_BYTES."""
    most = MAX_BLOCK_BYTES // (4 * side**2)
    q_or_unknown = np.nan_to_num(q, nan=-1.0)  # one value for all that are unknown
    groups: list[tuple[int, ...]] = []
    for number, value in dict.fromkeys(zip(apart.tolist(), q_or_unknown.tolist(), strict=True)):
        members = np.flatnonzero((q_or_unknown == value) & (apart == number))
        shares = np.array_split(members, -(-len(members) // most))
        groups += [tuple(int(b) for b in share) for share in shares]
    return tuple(groups)


def _joined(
    groups: tuple[tuple[int, ...], ...], apart: np.ndarray, most: int
) -> tuple[tuple[int, ...], ...]:
    """Return groups of at most so many bins, which hold whole groups of one number beside each other."""
    joined: list[tuple[int, ...]] = []
    for group in groups:
        last = joined[-1] if joined else ()
        if last and apart[last[0]] == apart[group[0]] and len(last) + len(group) <= most:
            joined[-1] = last + group
        else:
            joined.append(group)
    return tuple(joined)


def runs(layout: Layout, threads: int, shortest: float = MIN_TASK_SECONDS) -> list[Run]:
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
        tasks = _runs_of(layout, threads, shortest)
        if len(tasks) * SCHEDULER_SECONDS <= computing + shortest or shortest >= MAX_TASK_SECONDS:
            return tasks
        shortest *= 2


def _runs_of(layout: Layout, threads: int, seconds: float) -> list[Run]:
    tiles_per_second = PAIRS_PER_SECOND / max(layout.pairs / layout.blocks, 1)
    shortest, longest = seconds * tiles_per_second, MAX_TASK_SECONDS * tiles_per_second
    tasks, remaining, length = [], layout.blocks, layout.blocks
    for group, members in enumerate(layout.groups):
        first = 0
        while first < len(layout.tiles):
            work = min(max(remaining / threads, shortest), longest, len(layout.tiles), length)
            length = 2 ** int(np.log2(max(work, 1)))
            tasks.append(Run(group, members, layout.tiles[first : first + length], length))
            remaining -= len(tasks[-1].tiles)
            first += length
    return tasks


def longest_task(layout: Layout) -> float:
    """Return the longest time of a task, in seconds: in the most expensive pass on the slowest node."""
    pairs = _longest_run(layout) * layout.pairs / layout.blocks
    return COSTLIEST_PASS * pairs / SLOWEST_PAIRS_PER_SECOND


def _longest_run(layout: Layout) -> int:
    return max(len(run.tiles) for run in runs(layout, 1))
