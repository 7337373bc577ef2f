"""This process: its code, its memory and its processors, and the command that starts another one like it."""

import ctypes
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from threading import Thread

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The same as -P in the environment of a job, whatever command starts its Python."""
OUR_CODE = "code of homodyne-dask"
"""How `code_digest` is called beside the versions of packages."""
LARGE_BYTES = 8 * 2**20
"""Bytes; the kernel's tables are below, blocks of data above."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""
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


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with arguments; its own child processes get -P, too.

    Python puts the working folder first on the path of a program that is started with -m or -c: a file
    json.py or dask.py that lies there, of a stranger's data perhaps, would be run.
    """
    return [sys.executable, "-P", *words]


def digest_of_sources() -> str:
    """Return the digest of the sources of homodyne_dask and ingest as they are on disk: 16 hex digits.

    That of a version would be the same for all copies of a repository between two releases.
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    files = (
        file for package in ("homodyne_dask", "ingest") for file in (root / package).rglob("*.py")
    )
    for file in sorted(map(str, files)):
        content = Path(file).read_bytes()
        digest.update(f"{file.removeprefix(str(root))} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def code_digest() -> str:
    """Return the digest of the code that this process runs: of the sources when it was first asked for."""
    return digest_of_sources()


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


def cores() -> int:
    """Return the processors this process may use: of its affinity, its batch job and its cgroups."""
    asked = [os.environ.get(name, "") for name in _PROCESSORS_OF_JOB]
    limits = [len(os.sched_getaffinity(0))]
    limits += [int(number) for number in asked if number.isdecimal() and int(number)]
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


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package; workers that start in this process change sys.path."""
    return next(iter(distributions(name=package, path=[*sys.path]))).version


def worker_address() -> str:
    """Return the address of the Dask worker that this thread computes a task of, '' outside of a task."""
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # it computes none
            return distributed.get_worker().address
    return ""


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


def in_thread[T](call: Callable[[], T], *, daemon: bool = False) -> Future[T]:
    """Return what a call returns or raises in a thread of its own; daemon: the process may end before.

    Those of a ThreadPoolExecutor do not start any more when the main thread has ended.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as e:  # it is raised again in the thread that waits
            answer.set_exception(e)

    Thread(target=run, daemon=daemon).start()
    return answer


def on_cores[Of, Made](function: Callable[[Of], Made], of: Iterable[Of]) -> list[Made]:
    """Return the results of a function that leaves the interpreter's lock to others, in order."""
    with ThreadPoolExecutor(min(cores(), _MOST_AT_ONCE)) as pool:
        return list(pool.map(function, of))


@cache
def processor() -> str | None:
    """Return the model of the processor and its instructions; None where they are unknown."""
    first, _, _ = system_text(_CPU_INFO).partition("\n\n")
    lines = [line.partition(":") for line in first.splitlines()]
    known = {name.strip(): value.strip() for name, _, value in lines}
    model = {name: known[name] for name in _MODEL if name in known}
    return repr(model) if {"flags", "Features"} & set(model) else None
