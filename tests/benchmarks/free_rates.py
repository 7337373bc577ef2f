"""A pass with rates of free form beside one with power laws, and a fit: 47 parameters against 7."""

from pathlib import Path

import numpy as np

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.fitting.request import prepare
from homodyne_dask.models.spline_rates import of_power_law
from homodyne_dask.models.transport import positive_times
from homodyne_dask.sweep.sweep import sweep_of
from tests.benchmarks.passes import Row, processor_time, truth

FREE = {"rates": "spline", "knots": 23}
TURNS = 5


def passes_and_a_fit(store: Path) -> Row:
    """Processor seconds of a pass of each, taking turns; passes and peak memory of a fit of free rates."""
    scan = hd.open_dataset(store)
    requests = [
        prepare(scan, "laminar_flow"),
        prepare(scan, "laminar_flow", **FREE),
    ]
    theta = truth(scan)
    law, free = requests
    t = positive_times(law.problem.convention, scan.time, float(np.median(np.diff(scan.time))))
    thetas = [theta, of_power_law(free.problem.model, theta, t)]
    spent: list[list[float]] = [[], []]
    with local_cluster() as client:
        plan = hd.plan(scan, "laminar_flow", memory="resident", client=client, **FREE)
        sweeps = [sweep_of(plan, scan.selection, of.problem, client) for of in requests]
        for _ in range(TURNS + 1):
            for n, (sweep, at) in enumerate(zip(sweeps, thetas, strict=True)):
                before = processor_time(client)
                pairs = int(sweep(at).pairs.sum())
                spent[n].append(processor_time(client) - before)
        result = hd.fit(scan, "laminar_flow", client=client, **FREE)
    peak = max(e.get("peak_bytes", 0) for e in result.history)
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
