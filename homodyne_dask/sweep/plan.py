"""The plan of a fit: what it will read and keep in memory; refused if it does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from homodyne_dask.cluster.memory import size, too_little
from homodyne_dask.cluster.workers import Workers
from homodyne_dask.errors import PlanError, SelectionError
from homodyne_dask.kernels.gpus import has_plugin
from homodyne_dask.kernels.problem import coarse_min_lag
from homodyne_dask.store import level_weights, schema
from homodyne_dask.store.scan import Scan
from homodyne_dask.store.url_path import is_url
from homodyne_dask.sweep.device_plan import ON_CPU, Device
from homodyne_dask.sweep.driver_cost import DriverCost, driver_cost
from homodyne_dask.sweep.runs import MIN_TASK_SECONDS, Run, longest_task, runs
from homodyne_dask.sweep.size_label import size_in_words
from homodyne_dask.sweep.working_memory import fetched_memory, working_memory
from homodyne_dask.text import html_table, lines_of

MAX_PADDED_BINS = 32
"""Most bins of one q in a block."""
IN_PROCESS_PAIRS = 4_000_000
"""Below this number of pairs a fit runs in the caller's process: starting workers takes longer."""
MIN_PAIRS_FOR_LEVELS = 20_000_000
"""Number of pairs from which a fit starts with the coarser levels of the store."""
RESIDENT_SHARE = 0.4
"""Share of the workers' memory that decoded data may fill."""
_PROCESS_BYTES = 700_000_000
"""An idle worker with its libraries and compiled kernels."""
_CUDA_BYTES = 330_000_000
"""The libraries of CUDA in it, where JAX has them."""


@dataclass(frozen=True)
class Layout:
    """How the selected data are cut into blocks: from the store and the selection alone."""

    side: int
    """Frames of a block's rows and columns, T."""
    padded_bins: int
    """Bins in the array of a block, those of the largest group; smaller groups are padded."""
    groups: tuple[tuple[int, ...], ...]
    """Indices into the selection's bins; those of a group have one q and share a block."""
    tiles: tuple[tuple[int, int], ...]
    """Rows and columns of the grid of chunks that hold selected pairs, in the order they are summed."""
    pairs: int
    """Selected pairs of frames times bins, before unknown values are excluded."""
    factor: int = 1
    """Frames averaged into one: 1 is the full resolution, others are the store's levels."""
    cells: int = 0
    """Cells of age and lag of a bin, of data that are means over cells: a task takes all tiles of a bin."""
    by_url: bool = False
    """The store is not on a disk: what is fetched ahead lies in the memory of a worker."""

    @property
    def block_bytes(self) -> int:
        """Memory of one decoded block."""
        return self.padded_bins * self.side**2 * 4

    @property
    def blocks(self) -> int:
        """Blocks of a pass."""
        return len(self.groups) * len(self.tiles)

    @property
    def resident_bytes(self) -> int:
        """Memory of all decoded blocks, or of the data of all cells."""
        return 16 * len(self.groups) * self.cells or self.blocks * self.block_bytes

    @property
    def bytes_per_pass(self) -> int:
        """Decoded bytes of all blocks, without padded bins."""
        return sum(map(len, self.groups)) * len(self.tiles) * self.side**2 * 4

    def working_bytes(self, parameters: int, threads: int = 1) -> int:
        """Return the memory of the tasks of a model in a process, beside data that stay in memory."""
        of_task = working_memory(self, max(len(run.tiles) for run in runs(self, 1)), parameters)
        return threads * of_task + (fetched_memory(self, threads) if self.by_url else 0)

    @property
    def why_here(self) -> str:
        """Why a fit runs in the caller's process."""
        return f"fewer than {IN_PROCESS_PAIRS:,} pairs"

    @property
    def why_workers(self) -> str:
        """Why workers are started for a fit."""
        return f"{IN_PROCESS_PAIRS:,} pairs or more"

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of a plan about the data, as (name, text)."""
        bins = sum(map(len, self.groups))
        return [
            ("bins", f"{bins} in {len(self.groups)} groups of one q"),
            ("pairs", f"{self.pairs:,}"),
            ("size", size_in_words(self.pairs)),
            ("tiles", f"{self.blocks} of {self.side} x {self.side} frames"),
        ]


def layout(scan: Scan, min_lag: int = 1, factor: int = 1) -> Layout:
    """Return how a level of the scan is cut; raises SelectionError where no pair is left."""
    side = schema.tile_side(scan.n_frames)
    lag = coarse_min_lag(min_lag, factor)
    used = level_weights.coarse_use(scan, factor).astype(np.int64)
    n = np.arange(len(used))
    later = np.concatenate([np.cumsum(used[::-1])[::-1], [0]])
    pairs = int((used * later[np.minimum(n + lag, len(n))]).sum()) * len(scan.bins)
    if pairs == 0:
        raise SelectionError(
            f"no pair of frames is left: {int(used.sum())} of {len(used)} frames are in use and "
            f"min_lag is {min_lag}; widen the selection or lower min_lag"
        )
    with_frames = sorted({int(i) // side for i in np.flatnonzero(used)})
    tiles = tuple(
        (i, j) for i in with_frames for j in with_frames if i <= j and (j - i + 1) * side > lag
    )
    groups, cells = _groups(scan.q), 0
    if scan.cells is not None and factor == 1:
        scan.cells.check_any_in(scan.frames, min_lag)
        groups, cells = tuple((b,) for b in range(len(scan.bins))), scan.cells.number
    return Layout(
        side, max(map(len, groups)), groups, tiles, pairs, factor, cells, is_url(scan.path)
    )


def coarse_levels(scan: Scan, fine: Layout, min_lag: int) -> list[Layout]:
    """Return how the levels below the full resolution are cut, the coarsest first.

    An empty list where a pass over all data takes no longer than the passes over a level.
    """
    if fine.pairs < MIN_PAIRS_FOR_LEVELS:
        return []
    stored = [
        f for f in sorted(schema.LEVELS, reverse=True) if schema.level_frames(scan.n_frames, f)
    ]
    used = {factor: level_weights.coarse_use(scan, factor).sum() for factor in stored}
    return [layout(scan, min_lag, factor) for factor in stored if used[factor] >= 8]


def _groups(q: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Return bins of equal q together, in equal shares of at most MAX_PADDED_BINS."""
    known = np.nan_to_num(q, nan=-1.0)  # one value for all that are unknown
    groups: list[tuple[int, ...]] = []
    for value in dict.fromkeys(known.tolist()):
        members = np.flatnonzero(known == value)
        shares = np.array_split(members, -(-len(members) // MAX_PADDED_BINS))
        groups += [tuple(int(b) for b in share) for share in shares]
    return tuple(groups)


@dataclass(frozen=True)
class Plan:
    """The work of one pass and the memory it takes. `print(plan)` shows it."""

    layout: Layout
    workers: Workers
    resident: bool
    """Workers keep the decoded data in memory; else every pass reads the store."""
    bins: int
    model: str
    parameters: int
    levels: tuple[Layout, ...] = ()
    """Coarser levels that a fit begins with, the coarsest first."""
    device: Device = ON_CPU
    room: int = 0
    """Bytes of decoded data that all workers may keep, in their memory or on their GPUs."""

    @cached_property
    def tasks(self) -> list[Run]:
        """Tasks of a pass."""
        return self.tasks_of(self.layout)

    def tasks_of(self, level: Layout) -> list[Run]:
        """Return the tasks of a pass over a level."""
        return runs(level, self.workers.threads, MIN_TASK_SECONDS * self.device.speed)

    @property
    def longest_task(self) -> float:
        """Seconds that a task may take, however few and slow the workers are."""
        return longest_task(self.layout)

    @property
    def bytes_per_pass(self) -> int:
        """Decoded bytes read from the store in a pass, once if resident."""
        return self.layout.bytes_per_pass

    @property
    def budget(self) -> int:
        """Bytes of decoded data a worker may keep: all, but at most 1.5 times its share of its memory."""
        above = 1.5 if self.device.gpus is None else 1.0
        share = int(above * self.room / self.workers.processes)
        return min(self.layout.resident_bytes, share) if self.resident else 0

    @property
    def memory_per_worker(self) -> int:
        """Projected peak of one worker process, bytes."""
        kept = self.layout.resident_bytes if self.resident and self.device.gpus is None else 0
        share = -(-kept // self.workers.processes)
        working = self.layout.working_bytes(self.parameters, self.workers.threads_each)
        return _PROCESS_BYTES + has_plugin() * _CUDA_BYTES + share + working

    @property
    def driver(self) -> DriverCost:
        """Projected time and memory of scheduler and driver in a pass."""
        return driver_cost(self)

    @property
    def gpus(self) -> int:
        """GPUs, one for each worker; 0 where processors compute."""
        return 0 if self.device.gpus is None else self.device.gpus.number

    @property
    def why_workers(self) -> str:
        """Why a fit runs on workers."""
        if not self.workers.to_start:
            return "as asked" if self.workers.asked else "a client is given"
        return "one for each GPU" if self.gpus else self.layout.why_workers

    def __str__(self) -> str:
        """Return the plan as a small table."""
        return lines_of(self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the plan as a table for Jupyter."""
        return html_table(f"plan of a fit of {self.model}", self._rows(), header=False)

    def _rows(self) -> list[tuple[str, str]]:
        where = (
            f"in this process ({self.layout.why_here})"
            if self.workers.local
            else f"on Dask: {self.workers.processes} workers, {self.workers.threads} threads "
            f"({self.why_workers})"
        )
        kept = "in memory" if self.device.gpus is None else "on the GPU"
        reads = f"once, then kept {kept}" if self.resident else "in every pass"
        return [
            ("model", self.model),
            *self.layout.rows(),
            ("where", where),
            ("device", str(self.device)),
            ("tasks per pass", f"{len(self.tasks)} of up to {self.tasks[0].length} tiles"),
            ("longest task", f"{self.longest_task:.2g} s on a slow node, for the walltime of jobs"),
            ("bytes per pass", f"{size(self.bytes_per_pass)}, read {reads}"),
            ("memory per worker", f"{size(self.memory_per_worker)} projected"),
            *([("memory of a GPU", self._gpu_memory())] if self.gpus else []),
            *([] if self.workers.local else [("driver", str(self.driver))]),
        ]

    def _gpu_memory(self) -> str:
        assert self.device.gpus is not None
        needed = self.device.needed(self.layout, self.workers, self.parameters)
        needed += -(-self.layout.resident_bytes // self.workers.processes) if self.resident else 0
        return f"{size(needed)} of {size(self.device.gpus.memory)} projected"


def make_plan(
    layout: Layout,
    workers: Workers,
    model: str,
    parameters: int,
    bins: int,
    memory: str = "auto",
    levels: Sequence[Layout] = (),
    device: Device = ON_CPU,
) -> Plan:
    """Return the plan; raises PlanError where the memory of workers or of their GPUs cannot hold it."""
    if device.gpus is None:
        of, room = f"the workers' {size(workers.memory)}", int(RESIDENT_SHARE * workers.memory)
    else:
        of, room = f"the memory of {device.gpus}", device.room(layout, workers, parameters)
    fits = layout.resident_bytes <= room
    if memory == "resident" and not fits:
        raise PlanError(
            f"memory='resident' needs {size(layout.resident_bytes)} but may use {size(room)} of {of}: "
            f"use memory='stream' or more workers"
        )
    resident, of_levels = fits and memory != "stream", tuple(levels)
    plan = Plan(layout, workers, resident, bins, model, parameters, of_levels, device, room)
    allowed = workers.memory // workers.processes
    if plan.memory_per_worker > allowed:
        raise _too_little(plan, allowed)
    return plan


def _too_little(plan: Plan, allowed: int) -> PlanError:
    if plan.workers.local or plan.workers.to_start:
        who = "this process" if plan.workers.local else "a worker"
        return too_little(who, plan.memory_per_worker, allowed)
    return PlanError(
        f"a worker would need {size(plan.memory_per_worker)} but has {size(allowed)}: give workers more "
        f"memory or fewer threads each"
    )
