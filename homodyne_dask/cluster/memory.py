"""How much memory this process may still take: what is free, less where a cgroup or ulimit -v limits it."""

import resource

import psutil

from homodyne_dask.errors import PlanError
from homodyne_dask.machine.cores_and_cgroup_limits import cgroups, system_text
from homodyne_dask.text import size

UNUSED_ADDRESSES = 1_500_000_000
"""Bytes of address space that a fit reserves and does not use, mostly stacks of JAX's threads."""
DRIVER_BYTES = 600_000_000
"""A driver with its libraries, while it writes a result."""
NANNY_BYTES = 100_000_000
"""The process that starts a worker, and starts it again."""
IDLE_WORKER_BYTES = 200_000_000
"""A worker that has loaded its libraries, before it compiles a kernel."""
JAX_BYTES = 200_000_000
"""What JAX adds to a process that compiles and evaluates a model, as measured."""


def available_memory() -> int:
    """Return the bytes that this process and those it starts may still take; 0 where nothing is left."""
    free = min(psutil.virtual_memory().available, *_free_in_cgroups())
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        free = min(free, addresses - UNUSED_ADDRESSES)
    return max(0, int(free))


def too_little(who: str, needed: float, allowed: float) -> PlanError:
    """Return the error that says what is needed and what there is."""
    return PlanError(
        f"{who} would need {size(needed)}, but only {size(allowed)} is available here: "
        f"free memory, or raise the limit (of the job or of ulimit -v)"
    )


def require_memory(who: str, needed: float) -> None:
    """Raise PlanError where this process may not take so many more bytes for what it is to do with JAX.

    Without room for its threads JAX ends the process.
    """
    if (allowed := available_memory()) < needed:
        raise too_little(who, needed, allowed)


def require_addresses(who: str, needed: int) -> None:
    """Raise PlanError where the address space, if it is limited, has not so many bytes left.

    Libraries without room for a thread or a small allocation print their insides, or end the process.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        allowed = max(0, limit - psutil.Process().memory_info().vms)
        if allowed < needed:
            raise too_little(who, needed, allowed)


def memory_for_workers(processes: int) -> int:
    """Return the bytes for all worker processes started here: three quarters, less with little memory."""
    free = available_memory()
    beside = DRIVER_BYTES + processes * NANNY_BYTES - psutil.Process().memory_info().rss
    return max(0, int(min(0.75 * free, free - beside)))


def _free_in_cgroups() -> list[int]:
    """Return what is free below the limit of each cgroup of this process; cached files can be dropped."""
    free = [psutil.virtual_memory().total]
    for folder, version in cgroups("memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used, cached = names
        most, now = system_text(folder / limit).strip(), system_text(folder / used).strip()
        if most.isdigit() and now.isdigit():
            stat = dict(row.split() for row in system_text(folder / "memory.stat").splitlines())
            free.append(int(most) - int(now) + int(stat.get(cached, 0)))
    return free
