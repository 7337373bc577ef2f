"""Passes and fits on a GPU beside one core, all cores and homodyne, in one run; without one the row says so.

homodyne is run where `make benchmark-peers` has installed it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import homodyne_dask as hd
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.kernels.devices import jax_device
from homodyne_dask.kernels.gpus import GPU, gpus_of_machine
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from tests.benchmarks import data, passes
from tests.benchmarks.passes import Row
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import data as peers_data
from tests.benchmarks.peers.gallery import markdown, table

FRAMES, WIDER, LIMIT = 2950, 10, 3600.0
"""Frames of the matrix of 2e8 points; times as many bins for 1e9 pairs; seconds that homodyne may take."""


def run(folder: Path) -> Iterator[Row]:
    """Pairs per second beside one core; fits of 2e8 points beside all cores and homodyne; bits and memory."""
    gpus = gpus_of_machine()
    print(f"gpu: {gpus}")
    if isinstance(gpus, str):
        return
    store, wide = data.store(folder, FRAMES), data.widened(folder, FRAMES, WIDER)
    theta = passes.truth(hd.open_dataset(store))
    core = passes.rate(store, "resident", 1, 1)["M pairs/s"]
    yield {"one core M pairs/s": core}
    with hd.local_cluster(gpus=1) as client:
        client.wait_for_workers(1)
        for name, path, options in (
            ("resident", wide, {}),
            ("resident, 2e8 points", store, {}),
            ("resident, mixed", wide, {"precision": "mixed"}),
            ("streaming", store, {"memory": "stream"}),
        ):
            rate = passes.timed(sweep_on("gpu", path, client, **options)[0], theta)["M pairs/s"]
            yield {f"{name} M pairs/s": rate, f"{name}, times one core": rate / core}
        sweep, _ = sweep_on("gpu", store, client)
        first, second = sweep.gram(theta).moments, sweep.gram(theta).moments
        reference = sweep_on("cpu", store, client)[0].gram(theta).moments
        size = np.sqrt(np.einsum("kii->ki", reference))
        apart = abs(first - reference) / (size[:, :, None] * size[:, None, :])
        yield {"same bits in two passes": float(first.tobytes() == second.tobytes())}
        yield {"largest difference from processors": float(apart.max())}
        answers: Any = client.run(lambda: jax_device(GPU).memory_stats()["peak_bytes_in_use"])
        [peak] = answers.values()
        _, plan = sweep_on("gpu", wide, client)
        planned = plan.device.needed(plan.layout, plan.workers, plan.parameters)
        planned += plan.layout.resident_bytes
        yield {"peak of the GPU GB": peak / 1e9, "peak / the plan's": peak / planned}
    yield from fits(folder)


def sweep_on(device: str, store: Path, client: Client, **options: Any) -> tuple[Sweep, Plan]:
    scan = hd.open_dataset(store)
    request = prepare(scan, hd.LAMINAR_FLOW, device=device, **options)
    plan = plan_for(request, client)
    return sweep_of(plan, scan.selection, request.problem, client), plan


def fits(folder: Path) -> Iterator[Row]:
    """Fits of the same 2e8 points, each in a process of its own, in shared scaling."""
    case, rows = peers_data.make(23, FRAMES), []
    peers_data.save(case, folder / "data.npz")
    for program in ("homodyne_dask, GPU", "homodyne_dask", "homodyne"):
        if program == "homodyne" and not Path(peers.PYTHONS["peers"]).exists():
            print("gpu: homodyne is not installed: make benchmark-peers installs it")
            continue
        rows.append(peers.measure(program, "shared", case, folder, LIMIT))
        on_gpu, seconds = rows[0].fit_seconds, rows[-1].fit_seconds
        if seconds is not None:
            yield {f"fit by {program}, s": seconds}
        if on_gpu and seconds and "GPU" not in program:
            yield {f"fit by {program} / on the GPU": seconds / on_gpu}
    print(markdown(table(rows)))
