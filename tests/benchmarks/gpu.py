"""Passes on a GPU beside one core of this machine, in one run; where there is no GPU the row says so."""

import statistics
import time
from dataclasses import replace
from pathlib import Path

import jax

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.request import prepare
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport import transport_gram
from homodyne_dask.kernels.transport_point import transport_point
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.sweep.sweep import sweep_of
from tests.benchmarks import data, passes
from tests.benchmarks.kernel import GAP, MIN_LAG, RUNS, THETA, TIME, blocks


def run(folder: Path) -> dict[str, float]:
    """Pairs per second of passes over resident and streamed data, and the seconds of a fit."""
    found = gpus_of_machine()
    if isinstance(found, str):
        print(f"gpu: no GPU: {found}")
        return {}
    print(f"gpu: {found}")
    store = data.store(folder, 2950)
    scan, rates = hd.open_dataset(store), {}
    one = passes.rate(store, "resident", 1, 1)["M pairs/s"]
    with local_cluster(gpus=1) as client:
        client.wait_for_workers(1)
        for memory in ("resident", "stream"):
            request = prepare(scan, hd.LAMINAR_FLOW, memory=memory, device="gpu")
            sweep = sweep_of(plan_for(request, client), scan.selection, request.problem, client)
            rates[memory] = passes.timed(sweep, passes.truth(scan))["M pairs/s"]
        began = time.perf_counter()
        result = hd.fit(scan, hd.LAMINAR_FLOW, client=client, device="gpu")
        wall = time.perf_counter() - began
    return {
        "one core M pairs/s": one,
        **{f"{memory} M pairs/s": rate for memory, rate in rates.items()},
        **{f"{memory}, times one core": rate / one for memory, rate in rates.items()},
        "fit wall s": wall,
        "passes of the fit": result.passes,
        "points of the matrix": len(scan.bins) * len(scan.time) ** 2,
    }


def tiles(precision: str = "float64") -> dict[str, float]:
    """Processor time of the loop over whole tiles on this processor, in turn with that over sub-blocks."""
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    at, here = transport_point(problem, THETA, TIME), blocks()[:4]
    there = [replace(b, c2=jax.device_put(b.c2, jax.devices("cpu")[0])) for b in here]
    sums = [transport_gram(at, block)[1] for block in here]
    pairs = float(sum(s[:, 3].sum() for s in sums))
    seconds: dict[str, list[float]] = {"sub-blocks": [], "tiles": []}
    for _ in range(1 + RUNS // 3):  # the first compiles
        for name, those in (("sub-blocks", here), ("tiles", there)):
            began = time.process_time()
            for block, known in zip(those, sums, strict=True):
                transport_gram(at, block, known)
            seconds[name].append(time.process_time() - began)
    rates = {name: pairs / statistics.median(of[1:]) / 1e6 for name, of in seconds.items()}
    found = {f"{name}, M pairs per CPU s": rate for name, rate in rates.items()}
    return found | {"tiles / sub-blocks": rates["tiles"] / rates["sub-blocks"]}
