"""Sweeps and fits of the real thing: rates, wall time, passes, memory."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

import homodyne_dask as hd
from homodyne_dask.cluster import local_cluster, workers_of
from homodyne_dask.fitting import prepare
from homodyne_dask.planning import layout, make_plan
from homodyne_dask.sweep import sweep_of
from tests.benchmarks import data


def sweep(folder: Path, frames: int, memory: str, processes: int, threads: int) -> dict[str, float]:
    """Rate and processor time per pair of passes on a started cluster, the first left out."""
    scan = hd.open_dataset(data.store(folder, frames))
    request = prepare(scan, hd.LAMINAR_FLOW, memory=memory)
    theta = _truth(scan)
    with local_cluster(processes=processes, threads=threads) as client:
        client.wait_for_workers(processes)
        plan = make_plan(layout(scan), workers_of(client), "laminar_flow", len(scan.bins), memory)
        passes = sweep_of(plan, scan.selection, request.problem, client)
        gram = passes(theta)
        seconds, cpu = [], []
        for _ in range(5):
            before, began = _cpu(client), time.perf_counter()
            gram = passes(theta)
            seconds.append(time.perf_counter() - began)
            cpu.append(_cpu(client) - before)
    pairs = int(gram.pairs.sum())
    best, middle = min(seconds), sorted(seconds)[2]
    return {
        "M pairs/s": pairs / middle / 1e6,
        "best of 5": pairs / best / 1e6,
        "ns of CPU per pair": sorted(cpu)[2] / pairs * 1e9,
        "pairs": pairs,
    }


def _cpu(client) -> float:
    return sum(client.run(time.process_time).values())


def _truth(scan):
    import numpy as np

    return np.array([scan.attrs["truth"]["parameters"][n] for n in hd.LAMINAR_FLOW.names])


def full(folder: Path, frames: int, memory: str = "auto") -> dict[str, float]:
    """hd.fit without a start from the user, on a started cluster with nothing compiled."""
    scan = hd.open_dataset(data.store(folder, frames))
    began = time.perf_counter()
    with local_cluster() as client:
        client.wait_for_workers(1)
        client.run(_load)
        started = time.perf_counter() - began
        processes = [os.getpid(), *client.run(os.getpid).values()]
        with Memory(processes) as memory_of:
            began = time.perf_counter()
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client, memory=memory)
            wall = time.perf_counter() - began
    return {
        "wall s": wall,
        "start-up of the cluster s": started,
        "passes": result.passes,
        "decrement (standard errors)": result.history[-1]["decrement"],
        "peak above imports MiB": memory_of.peak / 2**20,
        "points of the matrix": len(scan.bins) * frames**2,
        "compilations": result.compilations["gram"],
    }


def _load() -> None:
    import jax.numpy as jnp

    import homodyne_dask.sweep  # noqa: F401

    jnp.zeros(1).block_until_ready()


class Memory:
    """Peak of the summed PSS of some processes above what it was on entry, sampled every 40 ms."""

    def __init__(self, processes: list[int]) -> None:
        self.processes = [psutil.Process(pid) for pid in processes]
        self.peak = 0
        self.running = True

    def _now(self) -> int:
        return sum(p.memory_full_info().pss for p in self.processes)

    def _watch(self) -> None:
        while self.running:
            self.peak = max(self.peak, self._now() - self.base)
            time.sleep(0.04)

    def __enter__(self) -> "Memory":
        self.base = self._now()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.running = False
        self.thread.join()


def cold(folder: Path, frames: int = 300) -> dict[str, float]:
    """A whole process from nothing to a result: imports, workers, compilation, fit."""
    store = data.store(folder, frames)
    script = f"import homodyne_dask as hd; print(hd.fit({str(store)!r}, hd.LAMINAR_FLOW).outcome)"
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return {"wall s": sorted(seconds)[1], "points of the matrix": 23 * frames**2}


def ingested(folder: Path, frames: int) -> dict[str, float]:
    """Matrix data per second from the HDF5 file to the complete store."""
    import shutil

    import ingest

    source = data.source(folder, frames)
    target = folder / "rate_c2.zarr"
    seconds = []
    for _ in range(3):
        shutil.rmtree(target, ignore_errors=True)
        began = time.perf_counter()
        ingest.ingest(source, target)
        seconds.append(time.perf_counter() - began)
    shutil.rmtree(target)
    return {"MB/s of matrix data": 23 * frames**2 * 4 / sorted(seconds)[1] / 1e6}
