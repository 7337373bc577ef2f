"""Passes on a running cluster: rates, free rates, stores by URL."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import homodyne_dask as hd
import ingest
from homodyne_dask.cluster.local import local_cluster, workers_of
from homodyne_dask.cluster.workers import Workers, available_memory
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models.spline_rates import of_power_law
from homodyne_dask.models.transport import positive_times
from homodyne_dask.sweep.blocks import forget
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from tests.benchmarks import data
from tests.object_server import free_port

Row = dict[str, float]
RUNS = 7


def truth(scan) -> np.ndarray:
    return np.array([scan.attrs["truth"]["parameters"][n] for n in hd.LAMINAR_FLOW.names])


@contextmanager
def passes_over(store: str | Path, memory: str, processes: int, threads: int) -> Iterator[Sweep]:
    """Passes of so many worker processes, or without any on threads of this process."""
    scan = hd.open_dataset(store)
    request, cut = prepare(scan, hd.LAMINAR_FLOW, memory=memory), layout(scan)
    with ExitStack() as held:
        client, workers = None, Workers(1, threads, available_memory(), local=True)
        if processes:
            client = held.enter_context(local_cluster(processes=processes, threads=threads))
            client.wait_for_workers(processes)
            workers = workers_of(client)
        plan = make_plan(cut, workers, "laminar_flow", 7, len(scan.bins), memory)
        yield sweep_of(plan, scan.selection, request.problem, client)
        forget()


def processor_time(client) -> float:
    """Of all workers and of this process, which holds the scheduler [s]."""
    workers = {} if client is None else client.run(time.process_time)
    return sum(workers.values()) + time.process_time()


def timed(sweep: Sweep, theta: np.ndarray, runs: int = RUNS) -> Row:
    """Wall and processor time of passes after a first one that compiles."""
    pairs = int(sweep.gram(theta).pairs.sum())
    seconds, cpu = [], []
    for _ in range(runs):
        before, began = processor_time(sweep.client), time.perf_counter()
        sweep.gram(theta)
        seconds.append(time.perf_counter() - began)
        cpu.append(processor_time(sweep.client) - before)
    middle = sorted(seconds)[runs // 2]
    return {
        "M pairs/s": pairs / middle / 1e6,
        f"best of {runs}": pairs / min(seconds) / 1e6,
        "ns of CPU per pair": sorted(cpu)[runs // 2] / pairs * 1e9,
        "pairs": pairs,
        "tasks": len(sweep.tasks),
    }


def rate(store: Path, memory: str, processes: int, threads: int) -> Row:
    with passes_over(store, memory, processes, threads) as sweep:
        return timed(sweep, truth(hd.open_dataset(store)))


FREE = {"rates": "spline", "knots": 23}
TURNS = 5


def free_rates(store: Path) -> Row:
    """Processor seconds of a pass of each, taking turns; passes and peak memory of a fit of free rates."""
    scan = hd.open_dataset(store)
    requests = [prepare(scan, "laminar_flow"), prepare(scan, "laminar_flow", **FREE)]
    theta = truth(scan)
    _, free = requests
    t = positive_times(scan.time, float(np.median(np.diff(scan.time))))
    thetas = [theta, of_power_law(free.problem.model, theta, t)]
    spent: list[list[float]] = [[], []]
    with local_cluster() as client:
        plan = hd.plan(scan, "laminar_flow", memory="resident", client=client, **FREE)
        sweeps = [sweep_of(plan, scan.selection, of.problem, client) for of in requests]
        for _ in range(TURNS + 1):
            for n, (sweep, at) in enumerate(zip(sweeps, thetas, strict=True)):
                before = processor_time(client)
                pairs = int(sweep.gram(at).pairs.sum())
                spent[n].append(processor_time(client) - before)
        result = hd.fit(scan, "laminar_flow", client=client, **FREE)
    peak = max(e.get("peak_bytes", 0) for e in result.run.history)
    seconds = [float(np.median(one[1:])) for one in spent]
    return {
        "pairs": float(pairs),
        "7 parameters, s": seconds[0],
        f"{len(thetas[1])} parameters, s": seconds[1],
        "ratio": seconds[1] / seconds[0],
        "passes of the fit": result.passes,
        "peak memory of a worker, MB": peak / 1e6,
        "peak / the plan's": peak / plan.memory_per_worker,
        "converged": float(result.converged),
    }


CONFIGURATION = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  sendfile on;
  keepalive_requests 1000000;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Yield the URL at which nginx serves a folder.

    nginx is installed apart from Python (`apt install nginx-light`); moto answers 50 requests a second,
    which would be the rate that is measured.
    """
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(folder=folder, port=port))
    with subprocess.Popen(["nginx", "-c", str(file), "-g", "daemon off; user root;"]) as process:
        time.sleep(1)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def streaming_by_url(folder: Path, frames: int = 2950, angles: int = 9, threads: int = 1) -> Row:
    """Rates of passes that read every chunk: single files on disk, shards on disk, shards by URL."""
    once = data.store(folder, frames, angles)
    sharded = once.with_name(f"sharded_{once.name}")
    if not sharded.exists():
        ingest.ingest(data.source(folder, frames, angles), sharded, sharded=True)
    found: Row = {}
    theta = truth(hd.open_dataset(once))
    with web_server(folder) as url:
        for name, store in (
            ("files", str(once)), ("shards", str(sharded)), ("URL", f"{url}/{sharded.name}"),
        ):  # fmt: skip
            with passes_over(store, "stream", 1, threads) as sweep:
                row = timed(sweep, theta)
            found |= {
                f"{name}, M pairs/s": row["M pairs/s"],
                f"{name}, ns": row["ns of CPU per pair"],
            }
            found[f"{name}, best"] = row["best of 7"]
    found["of the rate on disk"] = found["URL, M pairs/s"] / found["shards, M pairs/s"]
    found["best of the best on disk"] = found["URL, best"] / found["shards, best"]
    found["shards / files"] = found["shards, M pairs/s"] / found["files, M pairs/s"]
    return found
