"""Passes on a running cluster: rates, skipping, overhead of Dask, accuracy of forecasts."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster, workers_of
from homodyne_dask.fitting.request import prepare
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.sweep.blocks import NO_COST
from homodyne_dask.sweep.layout import Run, layout, runs
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from homodyne_dask.sweep.tasks import AtTheta, Report, Task, TaskContext
from tests.benchmarks import data

Row = dict[str, float]
RUNS = 7
FAST = 60.0
"""Times D0 at which f is below 1e-16 beyond a tenth of the record."""


def truth(scan) -> np.ndarray:
    return np.array([scan.attrs["truth"]["parameters"][n] for n in hd.LAMINAR_FLOW.names])


@contextmanager
def passes_over(store: str | Path, memory: str, processes: int, threads: int) -> Iterator[Sweep]:
    scan = hd.open_dataset(store)
    request = prepare(scan, hd.LAMINAR_FLOW, memory=memory)
    with local_cluster(processes=processes, threads=threads) as client:
        client.wait_for_workers(processes)
        plan = make_plan(
            layout(scan), workers_of(client), "laminar_flow", 7, len(scan.bins), memory
        )
        yield sweep_of(plan, scan.selection, request.problem, client)


def processor_time(client) -> float:
    """Of all workers and of this process, which holds the scheduler [s]."""
    return sum(client.run(time.process_time).values()) + time.process_time()


def timed(sweep: Sweep, theta: np.ndarray, runs: int = RUNS) -> Row:
    """Wall and processor time of passes after a first one that compiles."""
    pairs = int(sweep(theta).pairs.sum())
    seconds, cpu = [], []
    for _ in range(runs):
        before, began = processor_time(sweep.client), time.perf_counter()
        sweep(theta)
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


def skipping(folder: Path) -> Row:
    """A pass where f has decayed beyond a tenth of the record, compared with one without skipping."""
    store = data.store(folder, 2950)
    slow = truth(hd.open_dataset(store))
    fast = slow.copy()
    fast[0] *= FAST
    found: Row = {}
    for memory, words in (("resident", "resident"), ("stream", "streaming")):
        with passes_over(store, memory, 1, 2) as sweep:
            whole, skipping = (timed(sweep, theta) for theta in (slow, fast))
            cost = sweep.cost
        for name, row in (("whole", whole), ("skipping", skipping)):
            found[f"{words}, {name} pass s"] = row["pairs"] / row["M pairs/s"] / 1e6
        found[f"{words}, times shorter"] = skipping["M pairs/s"] / whole["M pairs/s"]
        found |= {
            "sub-blocks computed": cost.computed / cost.sub_blocks,
            "chunks needed": cost.read / cost.blocks,
        }
    return found


def nothing(context: TaskContext, run: Run, at: AtTheta) -> tuple[Gram, Report]:
    """A task that computes nothing and returns what a task returns."""
    gram = Gram(np.zeros((len(run.members), 10, 10)), np.zeros(len(run.members), np.int64))
    none = {"gram": 0, "candidates": 0}
    return gram, Report("", os.getpid(), 0.0, (none, none), NO_COST, 0)


def overhead(folder: Path, tiles: int = 100_000) -> Row:
    """Overhead of Dask for the tasks of 10⁵ tiles, and for tiles / 10 tasks of one tile each."""
    store = data.store(folder, 2950)
    side = int(np.sqrt(2 * tiles))
    with passes_over(store, "stream", 2, 1) as sweep:
        many = replace(
            sweep.layout,
            tiles=tuple((i, j) for i in range(side) for j in range(i, side))[:tiles],
            pairs=sweep.layout.pairs // sweep.layout.blocks * tiles,
        )
        row: Row = {}
        single = [Run(0, many.groups[0], (tile,), 1) for tile in many.tiles[: tiles // 10]]
        for name, tasks in (("", runs(many, 2)), ("one tile each, ", single)):
            part = replace(sweep, layout=many, tasks=tasks)
            before, began = processor_time(sweep.client), time.perf_counter()
            done = sum(
                1 for _ in part.compute(part, Task(nothing, "nothing"), AtTheta(np.zeros(7)))
            )
            seconds = time.perf_counter() - began
            cpu = processor_time(sweep.client) - before
            row[f"{name}tasks"] = done
            row[f"{name}ms per task"] = seconds / done * 1e3
            row[f"{name}ms of CPU per task"] = cpu / done * 1e3
        row["tiles"] = tiles
        row["scheduler and driver MiB"] = psutil.Process().memory_info().rss / 2**20
    return row


def forecast_accuracy(folder: Path, frames: int, memory: str) -> Row:
    """Ratios of what `plan` predicts to what a fit then measures."""
    scan = hd.open_dataset(data.store(folder, frames))
    with local_cluster() as client:
        predicted = hd.forecast(scan, hd.LAMINAR_FLOW, memory=memory, client=client)
    with local_cluster() as client:
        result = hd.fit(scan, hd.LAMINAR_FLOW, memory=memory, client=client)
    full = [entry for entry in result.history if "level" not in entry]
    later = sorted(entry["seconds"] for entry in full[1:])
    return {
        "tiles read: plan / fit": predicted.needed
        / (full[-1]["read"] * predicted.plan.layout.blocks),
        "sub-blocks: plan / fit": predicted.computed / full[-1]["computed"],
        "time of a pass: plan / fit": predicted.later / later[len(later) // 2],
        "peak memory: plan / fit": predicted.peak / full[-1]["peak_bytes"],
        "s per pass, measured": later[len(later) // 2],
        "peak MiB, measured": full[-1]["peak_bytes"] / 2**20,
    }
