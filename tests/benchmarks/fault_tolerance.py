"""The cost of fault tolerance in an undisturbed fit: processor time of each of its parts."""

import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import psutil
from distributed import Scheduler

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.solver import checkpoint
from homodyne_dask.sweep.distributed_tasks import SoftPreferences
from tests.benchmarks import data

PLACES: dict[str, tuple[Any, str]] = {
    "checkpoint": (checkpoint, "save"),
    "plugin": (SoftPreferences, "transition"),
    "watchdog, silent workers": (Scheduler, "check_worker_ttl"),
    "watchdog, no workers": (Scheduler, "_check_no_workers"),
}
"""Functions whose time is counted; they run in this process, which holds the scheduler."""


def counted(function: Callable, seconds: dict[str, float], name: str) -> Callable:
    """The same function, with the processor time of its thread summed."""

    async def awaited(*args, **kwargs):
        began = time.thread_time()
        try:
            return await function(*args, **kwargs)
        finally:
            seconds[name] += time.thread_time() - began

    def timed(*args, **kwargs):
        began = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] += time.thread_time() - began

    return awaited if iscoroutinefunction(function) else timed


@contextmanager
def counting(seconds: dict[str, float]):
    """Count during a `with`."""
    with ExitStack() as stack:
        for name, (where, what) in PLACES.items():
            seconds[name] = 0.0
            function = getattr(where, what)
            setattr(where, what, counted(function, seconds, name))
            stack.callback(setattr, where, what, function)
        yield


def cost(folder: Path, frames: int) -> dict[str, float]:
    """Processor time of checkpoints, plugin, watchdog and nannies, relative to a fit without start-up."""
    store, seconds = data.store(folder, frames), {}
    with counting(seconds), local_cluster() as client:
        client.wait_for_workers(1)
        nannies = [psutil.Process(w.process.pid) for w in client.cluster.workers.values()]
        workers = [child for nanny in nannies for child in nanny.children(recursive=True)]
        before = [used(part) for part in (nannies, [*workers, psutil.Process()])]
        hd.fit(store, hd.LAMINAR_FLOW, client=client, checkpoint=folder / "of_the_fit.json")
        after = [used(part) for part in (nannies, [*workers, psutil.Process()])]
    seconds["nannies"] = after[0] - before[0]
    whole = after[1] - before[1] + seconds["nannies"]
    parts = {f"{name} % of CPU": 100 * spent / whole for name, spent in seconds.items()}
    return parts | {"all of it % of CPU": sum(parts.values()), "CPU s of the fit": whole}


def used(processes: list[psutil.Process]) -> float:
    """Processor time of processes [s]."""
    return sum(p.cpu_times().user + p.cpu_times().system for p in processes)
