"""The processors and the pool of threads on which this process computes."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_MOST_AT_ONCE = 4
"""Calls that are under way: each holds arrays of its own."""
_OF_THE_MODEL = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",  # x86
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",  # Arm
)  # fmt: skip
"""Lines of /proc/cpuinfo that tell one sort of processor from another."""


def cores() -> int:
    """Return the processors this process may use."""
    return len(os.sched_getaffinity(0))


def jax_threads() -> int:
    """Return the size of JAX's pool: the variables that set it count where they hold a number."""
    for name in ("PJRT_NPROC", "NPROC"):
        if (number := os.environ.get(name, "")).isdigit() and int(number) > 0:
            return int(number)
    return cores()


def on_cores[Of, Made](function: Callable[[Of], Made], of: Iterable[Of]) -> list[Made]:
    """Return the results of a function that leaves the interpreter's lock to others, in order."""
    with ThreadPoolExecutor(min(cores(), _MOST_AT_ONCE)) as pool:
        return list(pool.map(function, of))


@cache
def processor() -> str | None:
    """Return the model of the processor and its instructions; None where they are unknown."""
    try:
        first, _, _ = _CPU_INFO.read_text().partition("\n\n")
    except OSError:
        return None
    lines = [line.partition(":") for line in first.splitlines()]
    known = {name.strip(): value.strip() for name, _, value in lines}
    found = {name: known[name] for name in _OF_THE_MODEL if name in known}
    return repr(found) if {"flags", "Features"} & set(found) else None
