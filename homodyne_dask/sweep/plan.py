"""The plan of a fit: its workers, what they read and keep in memory, and the device that computes.

It is refused if the memory of a worker or of its GPU cannot hold it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from homodyne_dask.cluster.workers import (
    DRIVER_BYTES,
    PAIRS_PER_SECOND,
    Workers,
    local_workers,
    this_process,
    too_little,
)
from homodyne_dask.document.blocks import Document, Facts, Printed, Section
from homodyne_dask.errors import OptionError, PlanError
from homodyne_dask.kernels.gpus import GPU, KERNELS_AT_ONCE, Gpus, cuda_plugins
from homodyne_dask.sweep.layout import (
    IN_PROCESS_PAIRS,
    MIN_TASK_SECONDS,
    SCHEDULER_SECONDS,
    Layout,
    Run,
    longest_task,
    runs,
)
from homodyne_dask.text import counted, size

RESIDENT_SHARE = 0.4
"""Share of the workers' memory that decoded data may fill; of more, this process starts workers."""
PASSES_OF_A_FIT, PASSES_OF_A_PROFILE, PASSES_OF_A_POSTERIOR = 7, 8, 60
"""Passes over all pairs that a fit is expected to make, 4 to 9 in benchmarks; further ones for a parameter's
profile; and those of a posterior, of which most of the work is for many sets of parameters at once."""
FEW_THREADS, SHARE_OF_MANY = 4, 0.6
"""Threads up to which each has the typical rate, and the share of it that each of many has, as measured."""
GPU_START_SECONDS = 6.0
"""From the start of a worker to its first pass on a GPU: CUDA and compilation, on an H100 as measured."""
GPU_SECONDS_TO_SEND = 2.8e-9
"""Of a pair, which is read and sent to a GPU once, as measured; processors read while they compute."""
USABLE_SHARE = 0.9
WORKING_BYTES, WORKING_BYTES_OF_PARAMETER, WORKSPACE = 64, 20, 40_000_000
"""Memory of a kernel: for each pair of a block, its fields on the whole tile; for each pair and parameter; of
cuBLAS. Functions of users under a loss take what XLA reserves for an H100, transport models at most half."""
MOST_PARAMETERS = 9
"""Of more the columns are made for a part of a tile at a time."""
GPU_THREADS = 10
"""Threads of the typical rate that a GPU is taken for: 1.4 to 1.9e9 pairs/s of an H100, as measured."""
BYTES_OF_TASK, BYTES_OF_WORKER = 30_000, 100_000
"""What scheduler and driver hold of a task, without its Gram, and of a worker, as measured."""
_PROCESS_BYTES = 700_000_000
"""An idle worker with its libraries and compiled kernels."""
_BYTES_OF_BIN, _SECONDS_OF_BIN, _MANY_FRAMES = 1_000_000, 0.045, 700
"""What errors and checks of a bin take after the last pass, where the result is made: memory, and on one
core with many frames. With _MANY_FRAMES it is half of these seconds; as measured with 100 to 5,000 bins. Bins
that share their noise take less, and workers compute the noise of others."""
_CUDA_BYTES = 330_000_000
_OF_CELLS = (
    "c2 is the mean over cells of age and lag, and fits to such means run on processors only"
)


@dataclass(frozen=True)
class Device:
    name: str
    why: str
    gpus: Gpus | None = None
    place: str = ""

    def __str__(self) -> str:
        return f"{self.gpus or self.name} ({self.why})"

    @property
    def speed(self) -> int:
        """Threads of the typical rate that a worker's device is taken for, for each of its threads."""
        return 1 if self.gpus is None else GPU_THREADS

    def needed(self, layout: Layout, workers: Workers, parameters: int) -> int:
        threads = workers.threads_each
        of_pair = WORKING_BYTES + WORKING_BYTES_OF_PARAMETER * min(parameters, MOST_PARAMETERS)
        of_kernel = of_pair * (layout.block_bytes // 4) + WORKSPACE
        of_kernel += layout.tiles_at_once * layout.block_bytes  # all tiles of a call in one array
        return threads * layout.block_bytes + KERNELS_AT_ONCE * of_kernel

    def capacity(self, layout: Layout, workers: Workers, parameters: int) -> int:
        """Return the bytes of data that all GPUs may keep beside the work of a kernel."""
        assert self.gpus is not None
        working = self.needed(layout, workers, parameters)
        usable = int(USABLE_SHARE * self.gpus.memory)
        if working > usable:
            raise PlanError(
                f"{self.gpus.kind} would need {size(working)} to compute a block, but a fit may use "
                f"only {size(usable)} of its memory: end other programs that use it, or fit with device='cpu'"
            )
        return workers.processes * (usable - working)


ON_CPU = Device("cpu", "as requested")


def chosen_device(
    requested: str,
    layout: Layout,
    memory: str,
    find: Callable[[], Gpus | str],
    threads: int,
    passes: int = PASSES_OF_A_FIT,
) -> Device:
    """Return where passes are computed; `find` returns the GPUs, or why not; threads: of processors."""
    if requested == "cpu":
        return ON_CPU
    if requested == "gpu":
        if layout.cells:
            raise OptionError(f"device = 'gpu' is not available: {_OF_CELLS}; leave out device")
        if isinstance(gpus := find(), str):
            raise PlanError(f"device = 'gpu' is not available: {gpus}")
        return Device("gpu", "as requested", gpus, GPU)
    # the one that ends all passes first; GPUs are looked for only if one could
    on_cpu = seconds_of_passes(layout.pairs, threads, passes=passes)
    if layout.cells:
        return Device("cpu", _OF_CELLS)
    if memory == "stream":
        return Device("cpu", "data are read again in every pass")
    all_passes = f"all passes about {on_cpu:{',.1f' if on_cpu >= 1 else '.1g'}} s on processors"
    if on_cpu <= GPU_START_SECONDS:
        return Device("cpu", f"starting a GPU takes {GPU_START_SECONDS:g} s, {all_passes}")
    if isinstance(gpus := find(), str):
        return Device("cpu", gpus)
    data, capacity = layout.resident_bytes, int(USABLE_SHARE * gpus.memory) * gpus.number
    if data > capacity:
        return Device("cpu", f"the data need {size(data)}, but {gpus} can hold {size(capacity)}")
    on_gpu = seconds_of_passes(layout.pairs, 0, gpus.number, passes)
    if on_cpu <= on_gpu:
        return Device("cpu", f"{gpus} would take about {on_gpu:,.1f} s, {all_passes}")
    return Device("gpu", f"saves about {on_cpu - on_gpu:,.1f} s, {all_passes}", gpus, GPU)


def seconds_of_passes(
    pairs: int, threads: int, gpus: int = 0, passes: int = PASSES_OF_A_FIT
) -> float:
    if gpus:
        of_pair = GPU_SECONDS_TO_SEND + passes / PAIRS_PER_SECOND / GPU_THREADS
        return GPU_START_SECONDS + pairs * of_pair / gpus
    of_typical_rate = max(min(threads, FEW_THREADS), SHARE_OF_MANY * threads)
    return passes * pairs / PAIRS_PER_SECOND / of_typical_rate


class DriverCost(NamedTuple):
    seconds: float
    memory: int


@dataclass(frozen=True, repr=False)
class Plan(Printed):
    """The work of one pass and the memory it takes. `print(plan)` shows it."""

    layout: Layout
    workers: Workers
    resident: bool
    """Workers keep the decoded data in memory; else every pass reads the store."""
    bins: int
    model: str
    parameters: int
    levels: tuple[Layout, ...] = ()
    device: Device = ON_CPU
    capacity: int = 0
    """Bytes of decoded data that all workers may keep, in their memory or on their GPUs."""

    @cached_property
    def tasks(self) -> list[Run]:
        return self.tasks_of(self.layout)

    def tasks_of(self, level: Layout) -> list[Run]:
        return runs(level, self.workers.threads, MIN_TASK_SECONDS * self.device.speed)

    @property
    def seconds_per_pass(self) -> float:
        """Seconds of a pass over all pairs at the typical rate of threads or GPUs, besides reading."""
        threads = GPU_THREADS * self.gpus or self.workers.threads
        return max(self.layout.pairs / PAIRS_PER_SECOND / threads, self.driver.seconds)

    @property
    def longest_task(self) -> float:
        return longest_task(self.layout)

    @property
    def budget(self) -> int:
        """Bytes of decoded data a worker may keep: all, but at most 1.5 times its share of its memory."""
        above = 1.5 if self.device.gpus is None else 1.0
        share = int(above * self.capacity / self.workers.processes)
        return min(self.layout.resident_bytes, share) if self.resident else 0

    @property
    def memory_per_worker(self) -> int:
        """Projected peak of one worker process, bytes."""
        in_memory = self.resident and self.device.gpus is None
        share = -(-self.layout.resident_bytes * in_memory // self.workers.processes)
        working = self.layout.working_bytes(self.parameters, self.workers.threads_each)
        of_bins = _BYTES_OF_BIN * self.bins * self.workers.local
        return _PROCESS_BYTES + bool(cuda_plugins()) * _CUDA_BYTES + share + working + of_bins

    @property
    def driver(self) -> DriverCost:
        """Projected time and memory of scheduler and driver in a pass; without workers there is none."""
        tasks, workers = len(self.tasks), self.workers
        if workers.local:
            return DriverCost(0.0, DRIVER_BYTES)
        bytes_of_gram = 8 * self.layout.padded_bins * (self.parameters + 3) ** 2
        records = BYTES_OF_TASK * tasks + BYTES_OF_WORKER * workers.processes
        grams = bytes_of_gram * min(workers.threads, tasks) + _BYTES_OF_BIN * self.bins
        return DriverCost(SCHEDULER_SECONDS * tasks, DRIVER_BYTES + grams + records)

    @property
    def seconds_after_passes(self) -> float:
        """Seconds of errors and checks, at most, in the process that makes the result."""
        frames = self.layout.frames
        return 1.0 + _SECONDS_OF_BIN * self.bins * frames / (frames + _MANY_FRAMES)

    @property
    def gpus(self) -> int:
        return self.device.gpus.number if self.device.gpus else 0

    def _document(self) -> Document:
        return Document("", [Section("Plan", [Facts(self._rows())])])

    def _where(self) -> str:
        if self.workers.local:
            return self.workers.in_words
        counts = f"{counted(self.workers.processes, 'worker')}, {counted(self.workers.threads, 'thread')}"
        why = "as requested" if self.workers.asked else "a client is given"
        if self.workers.to_start:
            why = "one for each GPU" if self.gpus else "data that stay on disk"
        return f"on Dask: {counts} ({why})"

    def _rows(self) -> list[tuple[str, str]]:
        place = "in memory" if self.device.gpus is None else "on the GPU"
        reads = f"once, then kept {place}" if self.resident else "in every pass"
        tiles, driver = counted(self.tasks[0].length, "tile"), self.driver
        rate = PAIRS_PER_SECOND / 1e6 * self.device.speed
        of_each = f"{rate:.0f} million {self.layout.datum}/s per {'GPU' if self.gpus else 'thread'}"
        rows = [
            ("model", self.model),
            *self.layout.rows(),
            ("where", self._where()),
            ("device", str(self.device)),
            ("tasks per pass", f"{len(self.tasks)}, with up to {tiles} each"),
            (
                "time per pass",
                f"about {self.seconds_per_pass:.2g} s at {of_each}, less where f has decayed, more where "
                f"disks are slow",
            ),
            (
                "after the passes",
                f"at most about {float(f'{self.seconds_after_passes:.2g}'):g} s for errors and checks",
            ),
            ("longest task", f"{self.longest_task:.2g} s on a slow node, for the walltime of jobs"),
            ("bytes per pass", f"{size(self.layout.bytes_per_pass)}, read {reads}"),
            ("memory per worker", f"{size(self.memory_per_worker)} projected"),
        ]
        if self.gpus:
            rows.append(("memory of a GPU", self._gpu_memory()))
        if not self.workers.local:
            of_pass = f"{driver.seconds:.2g} s of each pass for its tasks"
            rows.append(("driver", f"{size(driver.memory)}, {of_pass}"))
        return rows

    def _gpu_memory(self) -> str:
        assert self.device.gpus is not None
        needed = self.device.needed(self.layout, self.workers, self.parameters)
        needed += -(-self.layout.resident_bytes // self.workers.processes) if self.resident else 0
        return f"{size(needed)} of {size(self.device.gpus.memory)} projected"


def workers_here(layout: Layout, memory: str = "auto") -> Workers:
    """Return the workers of a fit without a client: threads where data are few or stay in memory."""
    local = this_process(layout.blocks)
    stays_in_memory = memory != "stream" and layout.resident_bytes <= RESIDENT_SHARE * local.memory
    return local if stays_in_memory or layout.pairs < IN_PROCESS_PAIRS else local_workers()


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
        whose, capacity = (
            f"the workers' {size(workers.memory)}",
            int(RESIDENT_SHARE * workers.memory),
        )
    else:
        whose, capacity = (
            f"the memory of {device.gpus}",
            device.capacity(layout, workers, parameters),
        )
    fits = layout.resident_bytes <= capacity
    if memory == "resident" and not fits:
        raise PlanError(
            f"memory='resident' needs {size(layout.resident_bytes)}, but may use only {size(capacity)} of "
            f"{whose}: use memory='stream' or more workers"
        )
    resident, of_levels = fits and memory != "stream", tuple(levels)
    plan = Plan(layout, workers, resident, bins, model, parameters, of_levels, device, capacity)
    _require_memory(workers, plan.memory_per_worker)
    return plan


def _require_memory(workers: Workers, needed: int) -> None:
    allowed = workers.memory // workers.processes
    if needed > allowed and (workers.local or workers.to_start):
        raise too_little("this process" if workers.local else "a worker", needed, allowed)
    if needed > allowed:
        raise PlanError(
            f"a worker would need {size(needed)}, but has {size(allowed)}: give workers more "
            f"memory or fewer threads each"
        )


def require_memory_for_thetas(plan: Plan, points: int) -> None:
    layout, bins = plan.layout, plan.layout.padded_bins
    grams = max(len(run.tiles) for run in plan.tasks) * bins * (points + 2) ** 2
    waves = 4 * points * bins * layout.side
    of_threads = plan.workers.threads_each * 8 * (grams + waves)
    _require_memory(plan.workers, plan.memory_per_worker + of_threads)
