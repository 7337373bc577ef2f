"""Whole fits and posteriors: wall time, passes, memory and start-up; and ingest."""

import gc
import os
import shutil
import threading
import time
import timeit
from dataclasses import replace
from pathlib import Path

import psutil

import homodyne_dask as hd
import ingest
from homodyne_dask.assessment.assess import assess
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.sweep import sweep_of
from tests.benchmarks import data
from tests.benchmarks.peers.homodyne_dask import load
from tests.synthetic import minimized


def full(folder: Path, frames: int, memory: str = "auto") -> dict[str, float]:
    """hd.fit without initial values, on a running cluster with nothing compiled."""
    scan = hd.open_dataset(data.store(folder, frames))
    began = time.perf_counter()
    with local_cluster() as client:
        client.wait_for_workers(1)
        client.run(load)
        started = time.perf_counter() - began
        processes = [os.getpid(), *client.run(os.getpid).values()]
        with Memory(processes) as memory_of:
            began = time.perf_counter()
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client, memory=memory)
            wall = time.perf_counter() - began
        difference = from_optimum(scan, result, client)
    full = [entry["seconds"] for entry in result.run.history if "level" not in entry]
    return {
        "wall s": wall,
        "of that, passes over all data s": sum(full),
        "start-up of the cluster s": started,
        "passes": result.passes,
        "from the optimum (standard errors)": difference,
        "peak above imports MiB": memory_of.peak / 2**20,
        "points of the matrix": len(scan.bins) * frames**2,
        "compilations": result.run.compilations["gram"],
    }


def from_optimum(scan, result, client) -> float:
    """Largest difference of a parameter from a fit continued to machine precision [stderr_naive]."""
    values = result.parameters["value"].to_series().to_dict()
    request = prepare(scan, hd.LAMINAR_FLOW, initial=values)
    exact = replace(request, solver=replace(request.solver, decrement=1e-9, damping=0.0))
    sweep = sweep_of(plan_for(exact, client), scan.selection, exact.problem, client)
    last = minimized(exact, sweep)
    difference = (last.theta - list(values.values())) / result.parameters["stderr_naive"].values
    return float(abs(difference).max())


def after_the_last_pass(store: Path) -> dict[str, float]:
    """CPU time, on one thread, of what follows the last pass of a fit in this process: errors and checks."""
    scan = hd.open_dataset(store)
    request = prepare(scan, hd.LAMINAR_FLOW)
    sweep = sweep_of(plan_for(request, None), scan.selection, request.problem, None)
    state = minimized(request, sweep)
    seconds = timeit.repeat(
        lambda: assess(request, state, sweep), gc.enable, time.process_time, repeat=3, number=1
    )
    return {"CPU s": min(seconds), "CPU ms per bin": 1e3 * min(seconds) / len(scan.bins)}


class Memory:
    """Peak of the summed PSS of some processes above that on entry, sampled every 40 ms."""

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


def ingested(folder: Path, frames: int) -> dict[str, float]:
    """Matrix data per second from the HDF5 file to the complete store."""
    source = data.source(folder, frames)
    target = folder / "rate_c2.zarr"
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        ingest.ingest(source, target)
        seconds.append(time.perf_counter() - began)
        shutil.rmtree(target)
    return {"MB/s of matrix data": 23 * frames**2 * 4 / sorted(seconds)[1] / 1e6}


def posterior(folder: Path, frames: int) -> dict[str, float]:
    """hd.posterior of a finished fit on a running cluster, and the memory of both."""
    scan = hd.open_dataset(data.store(folder, frames))
    with local_cluster() as client:
        client.wait_for_workers(1)
        processes = [os.getpid(), *client.run(os.getpid).values()]
        with Memory(processes) as of_fit:
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client)
        with Memory(processes) as of_posterior:
            began = time.perf_counter()
            found = hd.posterior(result, scan, client=client)
            wall = time.perf_counter() - began
    return {
        "wall s": wall,
        **{f"{name} s": seconds for name, seconds in found.plain["seconds"].items()},
        "pairs": result.ndata,
        "columns": found.plain["columns"],
        "largest error of log p": found.plain["largest_error"],
        "R-hat": found.plain["r_hat"],
        "effective draws": found.plain["effective_draws"],
        "peak / that of the fit": of_posterior.peak / of_fit.peak,
    }
