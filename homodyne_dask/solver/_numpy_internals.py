"""All uses of what is behind NumPy: the threads of its linear algebra, OpenBLAS.

NumPy has no public way to choose them; the variable OPENBLAS_NUM_THREADS counts only before NumPy is
loaded. Seen in numpy 2.5. Where another library is behind NumPy, it keeps its threads: slower,
with the same numbers.

threadpoolctl (3.8) finds the same libraries as quickly, but lets only one thread of a process set their
threads, and ignores the others: of two searches at once, the longer one would end on all cores.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

_MAPS = Path("/proc/self/maps")
_NAMES = tuple(
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("", "scipy_")
    for suffix in ("", "64_", "_64")
)
"""The functions that read and set the number of threads, by builds of the library."""
_LOCK = Lock()
_before: list[list[int]] = []
"""Threads of each library before each `with` that has not ended: those of the first count."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let linear algebra compute in the thread that calls it, for all threads of this process.

    Matrices of a fit have some hundred rows. On more threads each product takes longer: they wait for
    each other at full speed, and after a product for the next one, on cores that others need.
    """
    with _LOCK:
        _before.append([get() for get, _ in _libraries()])
        _set([1] * len(_libraries()))
    try:
        yield
    finally:
        with _LOCK:
            if len(_before) == 1:  # the last one gives back what the first one found
                _set(_before[0])
            del _before[-1]


def _set(threads: list[int]) -> None:
    for (_, set_threads), number in zip(_libraries(), threads, strict=True):
        set_threads(number)


@cache
def _libraries() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    maps = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in maps if "openblas" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    return [
        (getattr(library, get), getattr(library, set_threads))
        for library in libraries
        for get, set_threads in _NAMES
        if hasattr(library, get) and hasattr(library, set_threads)
    ]
