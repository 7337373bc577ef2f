"""What a pass costs scheduler and driver: real ones, with stub tasks on many light workers."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import dask.config
import numpy as np
import psutil
from distributed import Client, SpecCluster, Worker

import homodyne_dask as hd
from homodyne_dask.cluster.local import _Scheduler
from homodyne_dask.cluster.settings import MONITOR_SETTINGS, SCHEDULER_SETTINGS
from homodyne_dask.cluster.workers import Workers
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.layout import Layout, Run
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from homodyne_dask.sweep.tasks import AtTheta, Task
from tests.benchmarks.data import store
from tests.benchmarks.passes import Row, nothing

THREADS, BINS, SIDE = 8, 23, 512
PAIRS = (1e8, 1e9, 1e10, 1e11)
FITTED = {10: (10, 80, 500), 100: (100, 800)}
"""Tasks of the passes that the terms are fitted to, by the number of workers."""
SLOTS = 9
"""Tasks that Dask sends to a worker of eight threads; others wait in the scheduler (worker-saturation)."""
RUNS = 7
IDLE_SECONDS = 5.0
WORKERS_PER_PROCESS = 250
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "10s",
}
"""Settings of stub workers: each would have a thread that samples its stack a hundred times a second."""


def layout_of(pairs: float) -> Layout:
    """The tiles of so many pairs; nothing of them is anywhere."""
    side = int((2 * pairs / BINS) ** 0.5) // SIDE + 1
    tiles = tuple((i, j) for i in range(side) for j in range(i, side))
    return Layout(SIDE, BINS, (tuple(range(BINS)),), tiles, int(pairs))


def model(folder: Path, sizes: tuple[int, ...]) -> Row:
    """Processor time of a pass, l + a·tasks + u·workers that take one + w·tasks that wait; its predictions.

    l is that of a pass of one task; a, u and w are fitted to passes of other numbers of tasks. The first
    pass that reaches a worker connects to it; what that takes is beside them.
    """
    row: Row = {}
    fitted, measured, single = [], dict[tuple[int, float], tuple[int, float]](), []
    for workers in sizes:
        with cluster(folder, workers) as stubs:
            row[f"{workers} workers, idle, % of a core"] = 100 * stubs.idle
            single.append(stubs.least(stubs.of(1)))
            connecting = stubs.seconds(each := stubs.of(workers)) - stubs.least(each)
            row[f"{workers} workers, ms a connection"] = connecting / workers * 1e3
            fitted += [
                (terms(k, workers), stubs.least(stubs.of(k))) for k in FITTED.get(workers, ())
            ]
            for pairs in PAIRS:
                planned = stubs.planned(pairs)
                measured[workers, pairs] = len(planned.tasks), stubs.least(planned)
            row[f"{workers} workers, MiB"] = psutil.Process().memory_info().rss / 2**20
    of_pass, seconds = min(single), np.array([s for _, s in fitted])
    columns = np.array([of for of, _ in fitted]) / seconds[:, None]
    each_of, *_ = np.linalg.lstsq(columns, 1 - of_pass / seconds, rcond=None)
    names = ("ms a pass", "ms a task", "ms a worker", "ms a task that waits")
    row |= dict(zip(names, (1e3 * np.array([of_pass, *each_of])).tolist(), strict=True))
    for (workers, pairs), (tasks, taken) in measured.items():
        name = f"{workers} workers, {pairs:.0e}"
        row |= {f"{name}: tasks": tasks, f"{name}: s of CPU": taken}
        predicted = of_pass + float(np.dot(terms(tasks, workers), each_of))
        row[f"{name}: predicted / measured"] = predicted / taken
    return row


def terms(tasks: int, workers: int) -> tuple[int, int, int]:
    """The numbers of tasks, of workers that take one, and of tasks that wait in the scheduler."""
    return tasks, min(tasks, workers), max(0, tasks - SLOTS * workers)


@dataclass
class Stubs:
    """Workers that compute nothing, and the scheduler and the driver they work for."""

    workers: int
    idle: float
    """Share of a core that scheduler and driver take when nothing runs."""
    sweep: Sweep

    def planned(self, pairs: float) -> Sweep:
        """The passes over so many pairs."""
        asked = Workers(self.workers, self.workers * THREADS, self.workers * 10**11)
        cut = layout_of(pairs)
        plan = make_plan(cut, asked, "laminar_flow", 7, BINS)
        return replace(self.sweep, layout=cut, tasks=plan.tasks)

    def of(self, tasks: int) -> Sweep:
        """Passes of so many tasks."""
        cut = replace(self.sweep.layout, tiles=tuple((n, n) for n in range(tasks)))
        return replace(
            self.sweep, layout=cut, tasks=[Run(0, cut.groups[0], (tile,), 1) for tile in cut.tiles]
        )

    def least(self, sweep: Sweep) -> float:
        """Processor time of scheduler and driver for a pass, the least of a few [s]."""
        return min(self.seconds(sweep) for _ in range(RUNS))

    def seconds(self, sweep: Sweep) -> float:
        """Processor time of scheduler and driver for a pass, less that of being idle [s]."""
        began, at = time.process_time(), time.perf_counter()
        sweep.over(Task(nothing, "nothing"), AtTheta(np.zeros(7)))
        waited = time.perf_counter() - at
        sweep.owners.clear()
        return time.process_time() - began - self.idle * waited


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Stubs]:
    """Yield a scheduler and a driver in this process, and stub workers in others."""
    scan = hd.open_dataset(store(folder, 60))
    request = prepare(scan, hd.LAMINAR_FLOW)
    here = {"cls": _Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with (
        dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS),
        SpecCluster(workers={}, scheduler=here, silence_logs=40) as running,  # pyright: ignore
        Client(running) as client,
        ExitStack() as others,
    ):
        address = client.scheduler_info()["address"]
        for first in range(0, workers, WORKERS_PER_PROCESS):
            part = min(workers - first, WORKERS_PER_PROCESS)
            command = [sys.executable, "-m", __name__, address, str(part)]
            stubs = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            others.callback(others.enter_context(stubs).kill)
        client.wait_for_workers(workers, timeout=600)
        time.sleep(IDLE_SECONDS)  # heartbeats become rare where workers are many
        began = time.process_time()
        time.sleep(IDLE_SECONDS)
        idle = (time.process_time() - began) / IDLE_SECONDS
        asked = Workers(workers, workers * THREADS, workers * 10**11)
        plan = make_plan(layout_of(PAIRS[0]), asked, "laminar_flow", 7, BINS)
        yield Stubs(workers, idle, sweep_of(plan, scan.selection, request.problem, client))


async def _host(address: str, workers: int) -> None:
    """Run light workers, all in this process."""
    logging.getLogger("distributed").setLevel(40)
    dask.config.set(QUIET)
    made = [
        Worker(address, nthreads=THREADS, memory_limit=10**11, dashboard=False, host="127.0.0.1")
        for _ in range(workers)
    ]
    for worker in made:
        await worker
    await asyncio.gather(*[worker.finished() for worker in made])


if __name__ == "__main__":
    asyncio.run(_host(sys.argv[1], int(sys.argv[2])))
