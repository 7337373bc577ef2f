"""Cores, and the limits that batch jobs and cgroups of containers set for this process."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_PROCESSORS_OF_JOB = (
    *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
    *("NCPUS", "PBS_NUM_PPN", "NSLOTS", "LSB_DJOB_NUMPROC"),
)
"""Variables in which SLURM, PBS, Grid Engine and LSF write how many processors a job may use."""
_CPU_INFO = Path("/proc/cpuinfo")
_MOST_AT_ONCE = 4
"""Calls that are under way: each holds arrays of its own."""
_MODEL = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)
"""Lines of /proc/cpuinfo that tell one sort of processor from another, of x86 and of ARM."""


def cores() -> int:
    """Return the processors this process may use: of its affinity, its batch job and its cgroups."""
    of_jobs = [os.environ.get(name, "") for name in _PROCESSORS_OF_JOB]
    limits = [len(os.sched_getaffinity(0))]
    limits += [int(number) for number in of_jobs if number.isdecimal() and int(number)]
    if quota := cpu_quota():
        limits.append(math.ceil(quota))
    return max(1, min(limits))


def cpu_quota() -> float | None:
    """Return the processors that the cgroups of this process allow on average, None without a limit."""
    quotas = []
    for folder, version in cgroups("cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(system_text(folder / name) for name in names).split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # not of "max", or -1
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cgroups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the cgroups that limit this process, the outer ones too, with their version."""
    for line in system_text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = CGROUPS / controller if controllers else CGROUPS
            if controllers and not root.exists():  # a link to the folder of them all, by habit
                root = CGROUPS / controllers
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(root):
                    yield folder, 1 if controllers else 2


def jax_threads() -> int:
    """Return the size of JAX's pool: the variables that set it count where they hold a number."""
    for name in ("PJRT_NPROC", "NPROC"):
        if (number := os.environ.get(name, "")).isdigit() and int(number) > 0:
            return int(number)
    return cores()


def system_text(path: Path) -> str:
    """Return what the system says in a file, '' where it has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def on_cores[Of, Made](function: Callable[[Of], Made], values: Iterable[Of]) -> list[Made]:
    """Return the results of a function that leaves the interpreter's lock to others, in order."""
    with ThreadPoolExecutor(min(cores(), _MOST_AT_ONCE)) as pool:
        return list(pool.map(function, values))


@cache
def processor() -> str | None:
    """Return the model of the processor and its instructions; None where they are unknown."""
    first, _, _ = system_text(_CPU_INFO).partition("\n\n")
    lines = [line.partition(":") for line in first.splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    model = {name: fields[name] for name in _MODEL if name in fields}
    return repr(model) if {"flags", "Features"} & set(model) else None
