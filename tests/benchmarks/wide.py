"""The wide pass of a posterior beside a pass of a fit, and a posterior as a whole."""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_backend import wide_gram as transport_wide_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from homodyne_dask.models import LAMINAR_FLOW
from tests.benchmarks import data, fits
from tests.benchmarks.kernel import GAP, MIN_LAG, RUNS, THETA, TIME, blocks

COLUMNS = 40
"""Besides that of the optimum."""


def pass_beside_a_fits() -> dict[str, float]:
    """Seconds of the wide kernel over those of the Gram's, taking turns, on some blocks."""
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG)
    scan = blocks()[:4]
    points = [transport_point(problem, THETA * (1 + 1e-3 * n), TIME) for n in range(COLUMNS + 1)]
    sums = [transport_gram(points[0], block)[1] for block in scan]
    transport_wide_gram(points, scan[0], sums[0])
    pairs = float(sum(s[:, 3].sum() for s in sums))
    wide, one = [], []
    for _ in range(RUNS // 3):
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_wide_gram(points, block, known)
        wide.append(time.perf_counter() - began)
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_gram(points[0], block, known)
        one.append(time.perf_counter() - began)
    rate, gram = pairs / statistics.median(wide), pairs / statistics.median(one)
    return {
        "M pairs/s": rate / 1e6,
        "of the Gram": gram / 1e6,
        "passes of a fit": gram / rate,
    }


def posterior(folder: Path, frames: int) -> dict[str, float]:
    """hd.posterior of a finished fit on a running cluster, and the memory of both."""
    scan = hd.open_dataset(data.store(folder, frames))
    with local_cluster() as client:
        client.wait_for_workers(1)
        pids: Any = client.run(os.getpid)
        processes = [os.getpid(), *pids.values()]
        with fits.Memory(processes) as of_fit:
            result = hd.fit(scan, hd.LAMINAR_FLOW, client=client)
        with fits.Memory(processes) as of_posterior:
            began = time.perf_counter()
            found = hd.posterior(result, scan, client=client)
            wall = time.perf_counter() - began
    return {
        "wall s": wall,
        **{f"{name} s": seconds for name, seconds in found.plain["seconds"].items()},
        "pairs": result.ndata,
        "columns": found.plain["columns"],
        "largest error of log p": found.plain["largest_error"],
        "Pareto k": found.plain["pareto_k"],
        "peak / that of the fit": of_posterior.peak / of_fit.peak,
    }
