"""One pass: every block of a plan becomes a Gram, on a Dask cluster or in this process.

A task is a pure function of (store, blocks, model, theta). It takes an aligned run of 2^k blocks of
one group and returns their merged Gram, which is a whole subtree of a tree fixed by the blocks'
order: whoever does which task, the sum has the same bits.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, Future, as_completed
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError
from jaxtyping import Float

from homodyne_dask.blocks import SUMS, block
from homodyne_dask.dataset import Selection, opened
from homodyne_dask.errors import ClusterError
from homodyne_dask.gram import Gram, merge_tree
from homodyne_dask.kernel import Block, block_gram, compilations, point
from homodyne_dask.planning import Layout, Plan
from homodyne_dask.problem import Problem

NO_PROGRESS = 300.0
"""Seconds without any finished task after which a pass is given up."""


class Work(NamedTuple):
    """What every task of a fit shares."""

    selection: Selection
    layout: Layout
    problem: Problem
    budget: int
    """Bytes of decoded blocks a worker process may keep."""


class Run(NamedTuple):
    """Consecutive tiles of one group: the share of one task."""

    group: int
    first: int
    stop: int


class Report(NamedTuple):
    """What a task tells beside its Gram."""

    worker: str
    process: int
    seconds: float
    compiled: tuple[int, int]
    """Compilations of the kernel in this process before and after the task."""


def gram_of(work: Work, run: Run, theta: Float[np.ndarray, " p"]) -> tuple[Gram, Report]:
    """Return the merged Gram of a run of blocks; this is the task."""
    began, before = time.perf_counter(), compilations()
    at = point(work.problem, theta, opened(work.selection).time)
    leaves = []
    for tile in work.layout.tiles[run.first : run.stop]:
        data = block(work.selection, work.layout, run.group, tile, work.budget)
        key = (work.selection, work.layout, run.group, tile, work.problem.min_lag)
        gram, sums = block_gram(at, data, SUMS.get(key))
        SUMS.put(key, sums)
        leaves.append(gram)
    report = Report(_worker(), os.getpid(), time.perf_counter() - began, (before, compilations()))
    return merge_tree(leaves), report


def warm_up(work: Work) -> Report:
    """Compile the kernel in this process before any data come."""
    began, before = time.perf_counter(), compilations()
    side, slots = work.layout.side, work.layout.slots
    data, weights = np.zeros((slots, side, side), np.float32), np.zeros((slots, side))
    nothing = Block(data, weights, weights, np.ones(1), np.zeros(1), 0, 0)
    theta = np.ones(work.problem.model.size)
    block_gram(point(work.problem, theta, np.arange(2.0)), nothing)
    return Report(_worker(), os.getpid(), time.perf_counter() - began, (before, compilations()))


def _worker() -> str:
    from distributed import get_worker

    try:
        return get_worker().address
    except ValueError:
        return ""


def runs(layout: Layout, length: int) -> list[Run]:
    """Return the tasks of a pass in the order their Grams are merged."""
    tiles = len(layout.tiles)
    return [
        Run(group, first, min(first + length, tiles))
        for group in range(len(layout.groups))
        for first in range(0, tiles, length)
    ]


def gather(layout: Layout, tasks: list[Run], parts: dict[int, Gram]) -> Gram:
    """Return the Gram of all selected bins from the Grams of all tasks, each there exactly once."""
    assert sorted(parts) == list(range(len(tasks)))
    bins = sum(map(len, layout.groups))
    k = parts[0].moments.shape[-1]
    moments, count = np.zeros((bins, k, k)), np.zeros(bins, np.int64)
    for group, members in enumerate(layout.groups):
        total = merge_tree([parts[n] for n, task in enumerate(tasks) if task.group == group])
        moments[list(members)], count[list(members)] = total
    return Gram(moments, count)


@dataclass
class Sweep:
    """Passes over one plan; remembers who did what, as a hint for the next pass."""

    work: Work
    tasks: list[Run]
    compute: Callable[["Sweep", Float[np.ndarray, " p"]], Iterator[tuple[int, Gram, Report]]]
    client: Client | None = None
    owners: dict[int, str] = field(default_factory=dict)
    compiled: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Compilations of the kernel by process: before its first task, and now."""
    passes: int = 0
    warming: list[Future] = field(default_factory=list)

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram of all bins at theta: one pass over the data."""
        parts: dict[int, Gram] = {}
        self.passes += 1
        for n, gram, report in self.compute(self, theta):
            parts[n] = gram
            self.owners[n] = report.worker
            self._count(report)
        return gather(self.work.layout, self.tasks, parts)

    def warm_up(self) -> None:
        """Let the workers load their libraries and compile while first values are searched."""
        if self.client is not None:
            self.warming = [
                self.client.submit(
                    warm_up, self.work, key=f"warm-{os.urandom(3).hex()}", pure=False
                )
                for _ in self.client.scheduler_info(n_workers=-1)["workers"] or [None]
            ]

    def _count(self, report: Report) -> None:
        before, after = report.compiled
        first, last = self.compiled.get(report.process, (before, after))
        self.compiled[report.process] = min(first, before), max(last, after)

    def compilations(self) -> dict[str, int]:
        """Return the most compilations of each kernel that one process made for this fit."""
        for future in self.warming:
            if future.status == "finished":
                self._count(future.result())
        return {"gram": max((last - first for first, last in self.compiled.values()), default=0)}


def sweep_of(plan: Plan, selection: Selection, problem: Problem, client: Client | None) -> Sweep:
    """Return what makes passes over the plan, on the client's cluster or in this process."""
    budget = plan.layout.resident_bytes if plan.resident else 0
    work = Work(selection, plan.layout, problem, budget)
    tasks = runs(plan.layout, plan.run)
    return Sweep(work, tasks, _in_process if client is None else _on_cluster, client)


def _in_process(sweep: Sweep, theta: Float[np.ndarray, " p"]) -> Iterator[tuple[int, Gram, Report]]:
    for n, task in enumerate(sweep.tasks):
        yield n, *gram_of(sweep.work, task, theta)


def _on_cluster(sweep: Sweep, theta: Float[np.ndarray, " p"]) -> Iterator[tuple[int, Gram, Report]]:
    client = sweep.client
    assert client is not None
    name = f"gram-{os.urandom(3).hex()}"
    futures = {}
    for n, task in enumerate(sweep.tasks):
        owner: dict[str, Any] = {}
        if sweep.work.budget and sweep.owners.get(n):
            owner = {"workers": [sweep.owners[n]], "allow_other_workers": True}
        key = f"{name}-{n:05d}"
        futures[client.submit(gram_of, sweep.work, task, theta, key=key, pure=False, **owner)] = n
    try:
        for future, (gram, report) in _finished(set(futures)):
            future.release()
            yield futures[future], gram, report
    except (KilledWorker, NoValidWorkerError, FutureCancelledError) as e:
        raise ClusterError(
            f"the workers cannot finish a pass ({e}): look at the workers' logs for what ends them"
        ) from e
    except TimeoutError as e:
        raise ClusterError(
            f"no task finished within {NO_PROGRESS:g} s: are there workers? see the dashboard at "
            f"{client.dashboard_link}"
        ) from e
    finally:
        client.cancel([f for f in futures if not f.done()], reason="the pass has ended")


def _finished(waiting: set[Future]) -> Iterator[tuple[Future, tuple[Gram, Report]]]:
    """Yield futures with their results as they finish; TimeoutError if none does for too long."""
    while waiting:
        before = len(waiting)
        try:
            for future, result in as_completed(waiting, with_results=True, timeout=NO_PROGRESS):
                waiting = waiting - {future}
                yield future, result
        except TimeoutError:
            if len(waiting) == before:
                raise
