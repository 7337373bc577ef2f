"""Where the passes of a fit are computed, on processors or GPUs, and why; the memory that GPUs need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from homodyne_dask.cluster.memory import size
from homodyne_dask.errors import OptionError, PlanError
from homodyne_dask.kernels.gpus import GPU, KERNELS_AT_ONCE, Gpus

if TYPE_CHECKING:
    from homodyne_dask.cluster.workers import Workers
    from homodyne_dask.sweep.plan import Layout

AUTO_PAIRS = 20_000_000
"""Number of pairs from which a fit of resident data takes a GPU where there is one."""
USABLE_SHARE = 0.9
"""Share of what JAX may take of a GPU's memory that a plan fills."""
WORKING_BYTES, WORKING_BYTES_OF_PARAMETER, WORKSPACE = 40, 16, 40_000_000
"""Memory of a kernel: for each pair of a block, its fields on the whole tile; for each pair and parameter; of
cuBLAS. Functions of users take what XLA reserves for an H100, transport models at most two thirds of it."""
GPU_THREADS = 10
"""Threads of the typical rate that a GPU is taken for in the size of tasks; no result depends on it."""
_OF_CELLS = "c2 is the mean over cells of age and lag, and such means are computed on processors"


@dataclass(frozen=True)
class Device:
    """Where the passes of a fit are computed."""

    name: str
    """'cpu' or 'gpu'."""
    why: str
    gpus: Gpus | None = None
    """One for each worker."""
    place: str = ""
    """The device of a worker for its blocks, '' for processors (`kernels.devices.jax_device`)."""

    def __str__(self) -> str:
        return f"{self.gpus or self.name} ({self.why})"

    @property
    def speed(self) -> int:
        """Threads of the typical rate that a worker's device is taken for, for each of its threads."""
        return 1 if self.gpus is None else GPU_THREADS

    def needed(self, layout: "Layout", workers: "Workers", parameters: int) -> int:
        """Return the bytes of a GPU's memory for blocks that come in and for the work of kernels."""
        threads = workers.threads_each
        of_pair = WORKING_BYTES + WORKING_BYTES_OF_PARAMETER * parameters
        of_kernel = of_pair * (layout.block_bytes // 4) + WORKSPACE
        return threads * layout.block_bytes + KERNELS_AT_ONCE * of_kernel

    def room(self, layout: "Layout", workers: "Workers", parameters: int) -> int:
        """Return the bytes of data that all GPUs may keep beside the work of a kernel.

        Raises PlanError where one could not even compute a block.
        """
        assert self.gpus is not None
        working = self.needed(layout, workers, parameters)
        usable = int(USABLE_SHARE * self.gpus.memory)
        if working > usable:
            raise PlanError(
                f"{self.gpus.kind} would need {size(working)} to compute a block, and of its memory a fit "
                f"may take {size(usable)}: end other programs that use it, or fit with device='cpu'"
            )
        return workers.processes * (usable - working)


ON_CPU = Device("cpu", "as asked for")


def chosen_device(
    wanted: str, layout: "Layout", memory: str, find: Callable[[], Gpus | str]
) -> Device:
    """Return where a fit is computed; `find` returns the GPUs, or why there are none.

    Raises OptionError and PlanError where a GPU is asked for and cannot be had.
    """
    if wanted == "cpu":
        return ON_CPU
    if wanted == "auto" and (against := _against(layout, memory)):
        return Device("cpu", against)
    if layout.cells:
        raise OptionError(f"device = 'gpu' cannot be had: {_OF_CELLS}; leave device out")
    found = find()
    if isinstance(found, str):
        if wanted == "gpu":
            raise PlanError(f"device = 'gpu' cannot be had: {found}")
        return Device("cpu", found)
    needed, room = layout.resident_bytes, int(USABLE_SHARE * found.memory) * found.number
    if wanted == "auto" and needed > room:
        return Device(
            "cpu", f"the data take {size(needed)}, and {found} have room for {size(room)}"
        )
    why = "as asked for" if wanted == "gpu" else f"{AUTO_PAIRS:,} pairs or more"
    return Device("gpu", why, found, GPU)


def _against(layout: "Layout", memory: str) -> str:
    """Return why a fit takes no GPU by itself, '' where it does."""
    if layout.cells:
        return _OF_CELLS
    if layout.pairs < AUTO_PAIRS:
        return f"fewer than {AUTO_PAIRS:,} pairs"
    return "data are read again in every pass" if memory == "stream" else ""
