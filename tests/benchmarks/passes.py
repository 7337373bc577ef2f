"""Rates of passes on a running cluster, and of one core, half and all of them beside kernels alone."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import homodyne_dask as hd
from homodyne_dask.cluster.local import workers_of
from homodyne_dask.cluster.workers import Workers, available_memory
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.sweep.blocks import forget
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from tests.benchmarks import data
from tests.benchmarks.__main__ import ONE_THREAD

Row = dict[str, float]
RUNS = 7
KERNEL = "from tests.benchmarks import kernel; print(kernel.run()['M pairs/s'])"


def truth(scan) -> np.ndarray:
    return np.array([scan.attrs["truth"]["parameters"][n] for n in hd.LAMINAR_FLOW.names])


def timed(sweep: Sweep, theta: np.ndarray) -> Row:
    """Wall and processor time of passes after a first one that compiles."""
    pairs = int(sweep.gram(theta).pairs.sum())
    seconds, cpu = [], []
    for _ in range(RUNS):
        before, began = processor_time(sweep.client), time.perf_counter()
        sweep.gram(theta)
        seconds.append(time.perf_counter() - began)
        cpu.append(processor_time(sweep.client) - before)
    return {
        "M pairs/s": pairs / np.median(seconds) / 1e6,
        f"best of {RUNS}": pairs / min(seconds) / 1e6,
        "ns of CPU per pair": np.median(cpu) / pairs * 1e9,
        "pairs": pairs,
        "tasks": len(sweep.tasks),
    }


def processor_time(client) -> float:
    """Of all workers and of this process, which holds the scheduler [s]."""
    workers = {} if client is None else client.run(time.process_time)
    return sum(workers.values()) + time.process_time()


def rate(store: str | Path, memory: str, processes: int, threads: int) -> Row:
    """Time passes of so many worker processes, or without any on threads of this process."""
    scan = hd.open_dataset(store)
    request, cut = prepare(scan, hd.LAMINAR_FLOW, memory=memory), layout(scan)
    with ExitStack() as held:
        client, workers = None, Workers(1, threads, available_memory(), local=True)
        if processes:
            client = held.enter_context(hd.local_cluster(processes=processes, threads=threads))
            client.wait_for_workers(processes)
            workers = workers_of(client)
        plan = make_plan(cut, workers, "laminar_flow", 7, len(scan.bins), memory)
        row = timed(sweep_of(plan, scan.selection, request.problem, client), truth(scan))
        forget()
    return row


def of_cores(folder: Path) -> Iterator[Row]:
    """Millions of pairs per second of all kernels and of each way, and the best way beside the kernels."""
    store, total = data.widened(folder, 2950, 10), cores()
    for n in sorted({1, max(1, total // 2), total}):
        ways = {
            "a worker of as many threads": (1, n),
            "as many threads": (0, n),
            "as many workers": (n, 1),
        }
        name = "all cores" if n == total else f"cores {n}"
        kernels, rates = sum(lone_kernels(n)), []
        yield {f"{name}, lone kernels": kernels}
        for way, (processes, threads) in [*ways.items()][: 1 if n == 1 else None]:
            rates.append(rate(store, "resident", processes, threads)["M pairs/s"])
            yield {f"{name}, {way}": rates[-1]}
        yield {f"{name}, passes / lone kernels": max(rates) / kernels}


def lone_kernels(number: int) -> list[float]:
    """Return the millions of pairs per second of each of so many kernels, at once, a thread each."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", KERNEL], env=os.environ | ONE_THREAD, stdout=subprocess.PIPE
        )
        for _ in range(number)
    ]
    return [float(process.communicate()[0]) for process in started]
