"""What a pass costs scheduler and driver: real ones, with stub tasks on many light workers."""

import asyncio
import logging
import subprocess
import sys
import time

import dask.config
import numpy as np
import psutil
from distributed import Client, SpecCluster, Worker

import homodyne_dask as hd
from homodyne_dask.cluster.local import MONITOR_SETTINGS, SCHEDULER_SETTINGS, _Scheduler
from homodyne_dask.cluster.workers import Workers
from homodyne_dask.fitting.request import prepare
from homodyne_dask.sweep.plan import Layout, make_plan
from homodyne_dask.sweep.sweep import sweep_of
from homodyne_dask.sweep.tasks import AtTheta, Task
from tests.benchmarks.data import store
from tests.benchmarks.passes import Row, nothing

THREADS, BINS, SIDE = 8, 23, 512
PAIRS = (1e6, 1e8, 1e9, 1e10, 1e11)
"""The first is a pass of one task."""
RUNS = 5
IDLE_SECONDS = 3.0
WORKERS = (10, 100)


def layout_of(pairs: float) -> Layout:
    """The tiles of so many pairs; nothing of them is anywhere."""
    side = int((2 * pairs / BINS) ** 0.5) // SIDE + 1
    tiles = tuple((i, j) for i in range(side) for j in range(i, side))
    return Layout(SIDE, BINS, (tuple(range(BINS)),), tiles, int(pairs))


def model(folder) -> Row:
    """The time of a pass as l + a·tasks + u·workers that take one, and what it predicts.

    l is that of a pass of one task; a and u follow from passes of 1e10 and 1e11 pairs.
    """
    row: Row = {}
    passes = {n: cost(folder, n, row) for n in WORKERS}
    of_pass = min(taken[0][1] for taken in passes.values())
    terms = {n: [(k, min(k, n), s - of_pass) for k, s in taken] for n, taken in passes.items()}
    large = np.array([one for of in terms.values() for one in of[-2:]])
    (of_task, of_worker), *_ = np.linalg.lstsq(
        large[:, :2] / large[:, 2:], np.ones(len(large)), rcond=None
    )
    row |= {"ms a pass": of_pass * 1e3, "ms a task": of_task * 1e3, "ms a worker": of_worker * 1e3}
    for n, of in terms.items():
        for pairs, (k, used, s) in list(zip(PAIRS, of, strict=True))[1:]:
            ratio = (of_pass + k * of_task + used * of_worker) / (of_pass + s)
            row[f"{n} workers, {pairs:.0e}: predicted / measured"] = ratio
    return row


def cost(folder, workers: int, row: Row) -> list[tuple[int, float]]:
    """Tasks, and processor time of scheduler and driver, of passes of stub tasks; the least of a few.

    What the process takes when nothing runs is subtracted. All of it goes into the row.
    """
    scan = hd.open_dataset(store(folder, 60))
    request = prepare(scan, hd.LAMINAR_FLOW)
    here = {"cls": _Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with (
        dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS),
        SpecCluster(workers={}, scheduler=here, silence_logs=40) as cluster,  # pyright: ignore
        Client(cluster) as client,
        subprocess.Popen(
            [sys.executable, "-m", __name__, cluster.scheduler_address, str(workers)]
        ) as others,
    ):
        client.wait_for_workers(workers, timeout=300)
        began = time.process_time()
        time.sleep(IDLE_SECONDS)
        idle = (time.process_time() - began) / IDLE_SECONDS
        row[f"{workers} workers, idle, % of a core"] = 100 * idle
        seconds, tasks = [], []
        for pairs in PAIRS:
            of = Workers(workers, workers * THREADS, workers * 10**11)
            plan = make_plan(layout_of(pairs), of, "laminar_flow", 7, BINS)
            sweep = sweep_of(plan, scan.selection, request.problem, client)
            taken = []
            for _ in range(RUNS):
                began, at = time.process_time(), time.perf_counter()
                sweep.over(Task(nothing, "nothing"), AtTheta(np.zeros(7)))
                waited = time.perf_counter() - at
                taken.append(time.process_time() - began - idle * waited)
                sweep.owners.clear()
            seconds.append(min(taken))
            tasks.append(len(plan.tasks))
            row[f"{workers} workers, {pairs:.0e}: tasks"] = tasks[-1]
            row[f"{workers} workers, {pairs:.0e}: s of CPU"] = seconds[-1]
        others.kill()
    row[f"{workers} workers, MiB"] = psutil.Process().memory_info().rss / 2**20
    return list(zip(tasks, seconds, strict=True))


async def _host(address: str, workers: int) -> None:
    """Run light workers, all in this process."""
    logging.getLogger("distributed").setLevel(40)
    made = [
        Worker(address, nthreads=THREADS, memory_limit=10**11, dashboard=False, host="127.0.0.1")
        for _ in range(workers)
    ]
    for worker in made:
        await worker
    await asyncio.gather(*[worker.finished() for worker in made])


if __name__ == "__main__":
    asyncio.run(_host(sys.argv[1], int(sys.argv[2])))
