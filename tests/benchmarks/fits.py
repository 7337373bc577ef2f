"""Whole fits: wall time, passes, memory and start-up; and ingest."""

import gc
import os
import shutil
import time
import timeit
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import homodyne_dask as hd
from homodyne_dask.assessment.assess import assess
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.minimize import FitRecord, SolverRequest, minimize
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.start.initial_values import find_start
from homodyne_dask.sweep.sweep import sweep_of
from tests.benchmarks import data
from tests.benchmarks.peers.programs import load_in_worker
from tests.benchmarks.process import Memory
from tests.synthetic import minimized

Row = dict[str, float]


def full(folder: Path, frames: int, memory: str = "auto") -> Row:
    """hd.fit without initial values, on a running cluster with nothing compiled."""
    scan = hd.open_dataset(data.store(folder, frames))
    began = time.perf_counter()
    with hd.local_cluster() as client:
        client.wait_for_workers(1)
        client.run(load_in_worker)
        started = time.perf_counter() - began
        with Memory(os.getpid()) as taken:
            began = time.perf_counter()
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client, memory=memory)
            wall = time.perf_counter() - began
        difference = from_optimum(scan, result, client)
    passes = [entry["seconds"] for entry in result.run.history if "level" not in entry]
    return {
        "wall s": wall,
        "of that, passes over all data s": sum(passes),
        "start-up of the cluster s": started,
        "passes": result.passes,
        "from the optimum (standard errors)": difference,
        "peak above imports MiB": (taken.peak - taken.base) / 2**20,
        "points of the matrix": len(scan.bins) * frames**2,
        "compilations": result.run.compilations["gram"],
    }


def from_optimum(scan, result, client) -> float:
    """Largest difference of a parameter from a fit continued to machine precision [stderr_naive]."""
    values = result.parameters["value"].to_series().to_dict()
    request = prepare(scan, hd.LAMINAR_FLOW, initial=values)
    options = replace(request.solver, decrement=1e-9, damping=0.0)
    exact = SolverRequest(request.search, options, request.scaling, request.sum_rounding)
    sweep = sweep_of(plan_for(request, client), scan.selection, request.problem, client)
    *_, last = minimize(exact, sweep, partial(find_start, request, [sweep]), FitRecord(0.0))
    difference = (last.theta - list(values.values())) / result.parameters["stderr_naive"].values
    return float(abs(difference).max())


def after_the_last_pass(folder: Path, frames: int, times: int = 1) -> Row:
    """CPU time, on one thread, of what follows the last pass of a fit in this process: errors and checks."""
    scan = hd.open_dataset(data.widened(folder, frames, times))
    request = prepare(scan, hd.LAMINAR_FLOW)
    sweep = sweep_of(plan_for(request, None), scan.selection, request.problem, None)
    state = minimized(request, sweep)
    seconds = timeit.repeat(
        lambda: assess(request, state, sweep), gc.enable, time.process_time, repeat=3, number=1
    )
    return {"CPU s": min(seconds), "CPU ms per bin": 1e3 * min(seconds) / len(scan.bins)}


def many_bins(folder: Path, rings: int, sectors: int, frames: int = 120) -> Row:
    """A second fit of many bins of few frames in a process, on one core: counted Gaussian speckle."""
    rng, pixels, modes, dt = np.random.default_rng(0), 300, 5, 0.1
    q, lag = np.geomspace(0.005, 0.02, rings), np.abs(np.subtract.outer(*[np.arange(frames)] * 2))
    c2 = np.empty((rings, sectors, frames, frames), np.float32)
    for ring, of_ring in zip(q, c2, strict=True):
        root = np.linalg.cholesky(np.exp(-8e3 * ring**2 * dt * lag) + 1e-9 * np.eye(frames))
        for sector in range(sectors):
            normal = rng.standard_normal((2, frames, pixels * modes))
            intensity = np.square(root @ normal).sum(0).reshape(frames, pixels, modes).mean(2) / 2
            counts = rng.poisson(0.5 * intensity)
            mean = counts.mean(1)
            of_ring[sector] = counts @ counts.T / pixels / np.outer(mean, mean)
    path, phi = (
        folder / f"{rings}x{sectors}.zarr",
        np.tile(360 / sectors * np.arange(sectors), rings),
    )
    matrices, began = c2.reshape(-1, frames, frames), time.process_time()
    hd.ingest(matrices, path, q=np.repeat(q, sectors), phi=phi, dt=dt, overwrite=True)
    ingested, seconds = time.process_time() - began, []
    for _ in range(2):
        began = time.process_time()
        result = hd.fit(path, "brownian")
        seconds.append(time.process_time() - began)
    scan = hd.open_dataset(path)
    request = prepare(scan, hd.BROWNIAN)
    sweep = sweep_of(plan_for(request, None), scan.selection, request.problem, None)
    state = minimized(request, sweep)
    began = time.process_time()
    sweep.gram(state.theta)
    of_pass = time.process_time() - began
    assess(request, state, sweep)
    after = time.process_time() - began - of_pass
    assert result.converged
    return {
        "ingest CPU s": ingested,
        "fit CPU s": seconds[1],
        "pass CPU s": of_pass,
        "after the passes / whole fit": after / seconds[1],
    }


def ingested(folder: Path, frames: int) -> Row:
    """Matrix data per second from the HDF5 file to the complete store."""
    source, target = data.source(folder, frames), folder / "rate_c2.zarr"
    seconds = timeit.repeat(
        lambda: hd.ingest(source, target), lambda: shutil.rmtree(target, True), repeat=3, number=1
    )
    return {"MB/s of matrix data": 23 * frames**2 * 4 / sorted(seconds)[1] / 1e6}


def posterior(folder: Path, frames: int) -> Row:
    """hd.posterior of a finished fit on a running cluster, and the memory of both."""
    scan = hd.open_dataset(data.store(folder, frames))
    with hd.local_cluster() as client:
        client.wait_for_workers(1)
        with Memory(os.getpid()) as of_fit:
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client)
        with Memory(os.getpid()) as of_posterior:
            began = time.perf_counter()
            draws = hd.posterior(result, scan, client=client).plain
            wall = time.perf_counter() - began
    return {
        "wall s": wall,
        **{f"{name} s": seconds for name, seconds in draws["seconds"].items()},
        "largest error of log p": draws["largest_error"],
        "R-hat": draws["r_hat"],
        "effective draws": draws["effective_draws"],
        "peak / that of the fit": of_posterior.peak / of_fit.peak,
    }
