"""The allocator of this process, and calls in threads of their own."""

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from threading import Thread

LARGE_BYTES = 8 * 2**20
"""Bytes; the kernel's tables are below, blocks of data above."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""


@cache
def set_allocator_thresholds(spare: int = 2 * LARGE_BYTES) -> None:
    """Set the thresholds of this process's allocator, once; without glibc this does nothing.

    spare: freed bytes that each thread keeps. Dask's threshold is 64 kB, above which every freed array is
    returned to the system: allocating the kernel's tables anew takes a tenth of its time.
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


def worker_address() -> str:
    """Return the address of the Dask worker that this thread computes a task of, '' outside of a task."""
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # it computes none
            return distributed.get_worker().address
    return ""


def in_thread[T](call: Callable[[], T], *, daemon: bool = False) -> Future[T]:
    """Return what a call returns or raises in a thread of its own; daemon: the process may end before."""
    # threads of a ThreadPoolExecutor do not start any more when the main thread has ended
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as e:  # it is raised again in the thread that waits
            answer.set_exception(e)

    Thread(target=run, daemon=daemon).start()
    return answer
