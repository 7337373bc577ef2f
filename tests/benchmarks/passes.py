"""Rates of passes on a running cluster."""

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import homodyne_dask as hd
from homodyne_dask.cluster.local import workers_of
from homodyne_dask.cluster.workers import Workers, available_memory
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.blocks import forget
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of

Row = dict[str, float]
RUNS = 7


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
