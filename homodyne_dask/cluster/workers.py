"""Workers: how many, with how much memory and which settings, and how long a task may occupy one."""

import resource
from dataclasses import dataclass

import psutil

from homodyne_dask.errors import OptionError, PlanError
from homodyne_dask.machine.allocator_and_threads import worker_address
from homodyne_dask.machine.cores_and_cgroup_limits import cgroups, cores, jax_threads, system_text
from homodyne_dask.text import counted, size

UNUSED_ADDRESSES = 1_500_000_000
"""Bytes of address space that a fit reserves and does not use, mostly stacks of JAX's threads."""
DRIVER_BYTES = 600_000_000
"""A driver with its libraries, while it writes a result."""
NANNY_BYTES = 100_000_000
IDLE_WORKER_BYTES = 200_000_000
"""A worker that has loaded its libraries, before it compiles a kernel."""
JAX_BYTES = 200_000_000
"""What JAX adds to a process that compiles and evaluates a model, as measured."""


def available_memory() -> int:
    free = min(psutil.virtual_memory().available, *_free_in_cgroups())
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        free = min(free, addresses - UNUSED_ADDRESSES)
    return max(0, int(free))


def too_little(who: str, needed: float, allowed: float) -> PlanError:
    return PlanError(
        f"{who} would need {size(needed)}, but only {size(allowed)} is available here: "
        f"free memory, or raise the limit (of the job or of ulimit -v)"
    )


def require_memory(who: str, needed: float) -> None:
    """Raise PlanError where this process may not take so many bytes: JAX without threads ends the process."""
    if (allowed := available_memory()) < needed:
        raise too_little(who, needed, allowed)


def require_addresses(who: str, needed: int) -> None:
    """Raise PlanError where a limited address space has not so many bytes left: libraries would end it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        allowed = max(0, limit - psutil.Process().memory_info().vms)
        if allowed < needed:
            raise too_little(who, needed, allowed)


def memory_for_workers(processes: int) -> int:
    """Return the bytes for all worker processes started here: three quarters, less with little memory."""
    free = available_memory()
    of_others = DRIVER_BYTES + processes * NANNY_BYTES - psutil.Process().memory_info().rss
    return max(0, int(min(0.75 * free, free - of_others)))


def _free_in_cgroups() -> list[int]:
    """Return what is free below the limit of each cgroup of this process; cached files can be dropped."""
    free = [psutil.virtual_memory().total]
    for folder, version in cgroups("memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used, cached = names
        most, current = (system_text(folder / name).strip() for name in (limit, used))
        if most.isdigit() and current.isdigit():  # not of "max"
            stat = dict(row.split() for row in system_text(folder / "memory.stat").splitlines())
            free.append(int(most) - int(current) + int(stat.get(cached, 0)))
    return free


PAIRS_PER_SECOND = 150e6
"""Typical rate of a thread, for which tasks are sized; no result depends on it."""
MAX_TASK_SECONDS = 2.0
"""Longest task of a pass at that rate."""
SLOWEST_PAIRS_PER_SECOND = 25e6
"""Pairs per second and thread of the slowest supported node; `doctor` warns below it."""
COSTLIEST_PASS = 4.2
LONGEST_TASK_SECONDS = (
    COSTLIEST_PASS * MAX_TASK_SECONDS * PAIRS_PER_SECOND / SLOWEST_PAIRS_PER_SECOND
)
"""Seconds that a task of any plan may take on the slowest node."""
THREADS_OF_ASKED, BYTES_OF_ASKED = 8, 2_000_000_000
"""Threads of a worker, and memory of a thread, where workers are asked for by their number alone."""
MAX_THREADS_PER_WORKER = 4


@dataclass(frozen=True)
class Workers:
    processes: int
    threads: int
    """Of all processes, as memory [bytes]."""
    memory: int
    local: bool = False
    """The caller's own process, which computes on threads: no cluster."""
    to_start: bool = False
    """Not running yet: a fit starts them on this machine."""
    asked: bool = False
    """Of a hypothetical cluster: a plan says what it would do."""

    @property
    def threads_each(self) -> int:
        return -(-self.threads // self.processes)

    @property
    def memory_each(self) -> int:
        return self.memory // self.processes

    @property
    def in_words(self) -> str:
        if self.local:
            return "in this process" + (f" on {self.threads} threads" if self.threads > 1 else "")
        workers, threads = counted(self.processes, "Dask worker"), counted(self.threads, "thread")
        return f"on {workers} with {threads}"


class JobCluster:
    """Interface of a cluster whose workers are jobs; `cluster.slurm` has one for each batch system."""

    expected: Workers
    task: float
    """Seconds of the longest task that its workers' lifetimes allow."""

    @property
    def given_up(self) -> bool:
        raise NotImplementedError

    def missing(self) -> str:
        raise NotImplementedError


def this_process(tasks: int = 1) -> Workers:
    """Return the caller's process, with at most a thread per task; one inside a task of Dask."""
    threads = 1 if worker_address() else min(cores(), jax_threads(), tasks)
    return Workers(1, threads, available_memory(), local=True)


def local_workers(
    gpus: int = 0,
    processes: int | None = None,
    threads: int | None = None,
    memory: int | None = None,
) -> Workers:
    total = cores()
    threads_each = threads or min(MAX_THREADS_PER_WORKER, total)
    processes = gpus or processes or max(1, total // threads_each)
    threads = threads or max(1, total // processes)
    memory = memory or memory_for_workers(processes)
    return Workers(processes, threads * processes, memory, to_start=True)


def workers_asked(number: int | str, client: object = None) -> Workers:
    """Return workers of a hypothetical cluster, from 1000 or '1000:8:32GB'."""
    from dask.utils import parse_bytes

    if client is not None:
        raise OptionError(
            "workers describe a hypothetical cluster, but a client has its own: give only one of them"
        )
    parts = str(number).split(":")
    try:
        processes, threads = (int(n) for n in (*parts[:2], THREADS_OF_ASKED)[:2])
        memory = int(parse_bytes(parts[2])) if len(parts) > 2 else threads * BYTES_OF_ASKED
        if min(processes, threads, memory) < 1 or len(parts) > 3 or isinstance(number, bool):
            raise ValueError
    except ValueError:
        raise OptionError(
            f"workers = {number!r} is not a number of workers, optionally with threads and "
            "memory of each: write 1000, or "
            f"1000:{THREADS_OF_ASKED}:{size(THREADS_OF_ASKED * BYTES_OF_ASKED)}"
        ) from None
    return Workers(processes, processes * threads, processes * memory, asked=True)


SCHEDULER_SETTINGS = {
    # an innocent task is blamed for each death of a worker that holds it
    "distributed.scheduler.allowed-failures": 10,
    "distributed.scheduler.no-workers-timeout": "120s",
    "distributed.scheduler.worker-ttl": "60s",
    # a worker that died is started again by its nanny, on a busy machine slowly
    "distributed.deploy.lost-worker-timeout": "120s",
}
MONITOR_SETTINGS = {
    # at its default rate the monitor of an idle process takes 4 % of a core
    "distributed.admin.tick.interval": "200ms",
    "distributed.worker.profile.interval": "100ms",
    # a worker keeps what ran in each of so many cycles, 100 kB, and as many steps of tasks
    "distributed.worker.profile.cycle": "600s",
    "distributed.admin.low-level-log-length": 100,
    # a nanny that asks ten times a second what memory its worker has takes 0.4 % of a core for that
    "distributed.worker.memory.monitor-interval": "500ms",
}
"""Settings of Dask's configuration for schedulers and workers: how often they monitor themselves."""


def worker_environment(threads: int) -> dict[str, str]:
    return {
        "NPROC": str(threads),
        # kernels run in the worker's own threads, side by side: in a pool they would wait for each other
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }


def monitor_environment() -> dict[str, str]:
    names = {key: key.upper().replace(".", "__").replace("-", "_") for key in MONITOR_SETTINGS}
    return {f"DASK_{names[key]}": str(value) for key, value in MONITOR_SETTINGS.items()}
