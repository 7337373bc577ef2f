"""Settings of processes: how freed memory returns to the system, and what child processes may import."""

import ctypes
import sys
from functools import cache

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The same as -P in the environment of a job, whatever command starts its Python."""
LARGE_BYTES = 8 * 2**20
"""Bytes; the kernel's tables are below, blocks of data above."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with arguments; its own child processes get -P, too.

    Python puts the working folder first on the path of a program that is started with -m or -c: a file
    json.py or dask.py that lies there, of a stranger's data perhaps, would be run.
    """
    return [sys.executable, "-P", *words]


@cache
def set_allocator_thresholds(spare: int = 2 * LARGE_BYTES) -> None:
    """Set the thresholds of this process's allocator, once; without glibc this does nothing.

    spare: freed bytes that each thread keeps for its next allocations.

    Dask starts workers with a threshold of 64 kB, above which every freed array is returned to the
    system: allocating the kernel's tables anew then takes a tenth of the time of a kernel call.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, spare)


def trim_memory() -> None:
    """Return to the system the memory that this process has freed; without glibc this does nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
