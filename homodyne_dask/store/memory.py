"""How glibc's allocator treats arrays: large ones go back to the system, smaller ones are kept."""

import ctypes
from functools import cache

LARGE = 8 * 2**20
"""Bytes; the kernel's tables are below, blocks of data above."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""


@cache
def set_allocator_thresholds(spare: int = 2 * LARGE) -> None:
    """Set this process's allocator, once; other C libraries than glibc are left as they are.

    spare: bytes that each thread keeps for what it asks for next.

    Dask starts workers with a threshold of 64 kB, above which every freed array is returned: asking
    for the kernel's tables anew in each call costs a tenth of it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE)
        mallopt(_TRIM_THRESHOLD, spare)


def trim_memory() -> None:
    """Return to the system what this process has freed and its allocator keeps: after a search."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
