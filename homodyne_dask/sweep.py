"""One pass: every block of a plan becomes a Gram, on a Dask cluster or in this process.

A task is a pure function of (store, blocks, model, theta). It takes an aligned run of 2^k blocks of
one group and returns their merged Gram, which is a whole subtree of a tree fixed by the blocks'
order: whoever does which task, the sum has the same bits.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, Future, as_completed
from jaxtyping import Float

from homodyne_dask import cluster
from homodyne_dask.allocation import keep_small
from homodyne_dask.blocks import SUMS, Place, Source, announce, block, stored_sums
from homodyne_dask.candidates import AT_ONCE
from homodyne_dask.cluster import finishing
from homodyne_dask.dataset import Selection, known_q, opened
from homodyne_dask.gram import Gram, gram_of_data, merge_runs, merge_tree
from homodyne_dask.kernel import Block
from homodyne_dask.kinds import Point, compilations, kind_of
from homodyne_dask.planning import Layout, Plan, Run, runs
from homodyne_dask.problem import Problem
from homodyne_dask.sharing import shares


class Work(NamedTuple):
    """What every task of a fit shares."""

    source: Source
    problem: Problem
    budget: int
    """Bytes of decoded blocks a worker process may keep."""


class Cost(NamedTuple):
    """What a pass, or a part of it, had to do: where f has decayed to nothing, nothing."""

    computed: int = 0
    """Sub-blocks computed, of all bins together."""
    sub_blocks: int = 0
    read: int = 0
    """Blocks whose data were needed."""
    blocks: int = 0
    reading: float = 0.0
    """Seconds of a thread until the data of its blocks lay in memory, decoded."""

    def plus(self, other: "Cost") -> "Cost":
        """Return the cost of both."""
        return Cost(
            self.computed + other.computed,
            self.sub_blocks + other.sub_blocks,
            self.read + other.read,
            self.blocks + other.blocks,
            self.reading + other.reading,
        )


NOTHING = Cost()


class Report(NamedTuple):
    """What a task tells beside its Gram."""

    worker: str
    process: int
    seconds: float
    compiled: tuple[dict[str, int], dict[str, int]]
    """Compilations of each kernel in this process before and after the task."""
    cost: Cost
    peak: int
    """Most memory the process has had [bytes]."""


def gram_of(work: Work, run: Run, theta: Float[np.ndarray, " p"]) -> tuple[Gram, Report]:
    """Return the merged Gram of a run of blocks; this is the task."""
    keep_small()
    began, before = time.perf_counter(), compilations()
    scan = opened(work.source.selection)
    at = kind_of(work.problem.model).point(work.problem, theta, scan.time, work.source.factor)
    places = [Place(run.members, tile) for tile in run.tiles]
    leaves, cost = [], Cost()
    for n, place in enumerate(places):
        if n + 1 < len(places):
            announce(work.source, places[n + 1])
        gram, part = _leaf(work, at, place)
        leaves.append(gram)
        cost = cost.plus(part)
    return merge_tree(leaves), reported(began, before, cost)


def candidates_of(
    work: Work, run: Run, thetas: Float[np.ndarray, "point p"]
) -> tuple[Gram, Report]:
    """Return the merged moments of [1, y - 1, f] of a run of blocks at every theta; a task, too."""
    keep_small()
    began, before = time.perf_counter(), compilations()
    times = opened(work.source.selection).time
    kind = kind_of(work.problem.model)
    points = [kind.point(work.problem, theta, times, work.source.factor) for theta in thetas]
    leaves = []
    for tile in run.tiles:
        data = block(work.source, Place(run.members, tile), work.budget)
        leaves.append(kind.candidates(points, data))
    return merge_tree(leaves), reported(began, before, NOTHING)


def _leaf(work: Work, at: Point, place: Place) -> tuple[Gram, Cost]:
    """Return the Gram of one block; one where nothing is left of f is not even read.

    The sums of the data alone are those of the store where they are of the same pairs, else those
    that an earlier pass found: which of them is decided by store and selection.
    """
    source, lag = work.source, work.problem.min_lag
    q = known_q(opened(source.selection))[place.members[0]]
    i, j = (side * source.side for side in place.tile)
    cut = at.sub_blocks(q, i, j, source.side)
    key = (source, place, lag)
    sums = stored_sums(source, place, lag)
    sums = SUMS.get(key) if sums is None else sums
    needed = cut.live > 0 or sums is None
    gram, reading = None, 0.0
    if needed:
        began = time.perf_counter()
        data = block(source, place, work.budget)
        reading = time.perf_counter() - began
        gram, sums = kind_of(work.problem.model).gram(at, data, sums)
        SUMS.put(key, sums)
    if gram is None or not cut.live:
        assert sums is not None
        gram = gram_of_data(sums[: len(place.members)], work.problem.model.size)
    return gram, Cost(cut.live, cut.number, int(needed), 1, reading)


def warm_up(work: Work) -> Report:
    """Compile the kernel in this process before any data come."""
    began, before = time.perf_counter(), compilations()
    side, slots = work.source.side, work.source.slots
    data, weights = np.zeros((slots, side, side), np.float32), np.zeros((slots, side))
    nothing = Block(data, weights, weights, np.ones(1), np.zeros(1), 0, 0)
    theta = np.ones(work.problem.model.size)
    kind = kind_of(work.problem.model)
    kind.gram(kind.point(work.problem, theta, np.arange(2.0)), nothing, None)
    return reported(began, before, NOTHING)


def reported(began: float, before: dict[str, int], cost: Cost) -> Report:
    """Return what a task reports that began at a time of perf_counter, kernels compiled as `before`."""
    seconds, peak = time.perf_counter() - began, getrusage(RUSAGE_SELF).ru_maxrss * 1024
    return Report(_worker(), os.getpid(), seconds, (before, compilations()), cost, peak)


def _worker() -> str:
    from distributed import get_worker

    try:
        return get_worker().address
    except ValueError:
        return ""


def gather(layout: Layout, tasks: list[Run], parts: dict[int, Gram]) -> Gram:
    """Return the Gram of all selected bins from the Grams of all tasks, each there exactly once."""
    assert sorted(parts) == list(range(len(tasks)))
    bins = sum(map(len, layout.groups))
    moments = np.zeros((bins, *parts[0].moments.shape[1:]))
    count = np.zeros(bins, np.int64)
    for group, members in enumerate(layout.groups):
        total = merge_runs([(t.length, parts[n]) for n, t in enumerate(tasks) if t.group == group])
        moments[list(members)], count[list(members)] = total
    return Gram(moments, count)


Task = Callable[[Any, Run, np.ndarray], tuple[Gram, Report]]


@dataclass
class Sweep:
    """Passes over one plan; remembers who did what, as a hint for the next pass."""

    work: Any
    """A `Work`, or what another task knows instead."""
    layout: Layout
    tasks: list[Run]
    compute: Callable[["Sweep", Task, np.ndarray], Iterator[tuple[int, Gram, Report]]]
    client: Client | None = None
    task: Task = gram_of
    owners: dict[int, str] = field(default_factory=dict)
    compiled: dict[int, tuple[dict[str, int], dict[str, int]]] = field(default_factory=dict)
    """Compilations of each kernel by process: before its first task, and now."""
    cost: Cost = NOTHING
    """Of the last pass."""
    peak: int = 0
    """Most memory that a process of the workers has had [bytes]."""
    warming: list[Future] = field(default_factory=list)

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram of all bins at theta: one pass over the data."""
        return self.over(self.task, theta)

    def candidates(self, thetas: Float[np.ndarray, "point p"]) -> list[Gram]:
        """Return the Gram of [1, y - 1, f] at every theta: a pass for each AT_ONCE of them."""
        found: list[Gram] = []
        for first in range(0, len(thetas), AT_ONCE):
            gram = self.over(candidates_of, thetas[first : first + AT_ONCE])
            found += [Gram(gram.moments[:, n], gram.pairs) for n in range(gram.moments.shape[1])]
        return found

    def over(self, task: Task, at: np.ndarray) -> Gram:
        """Return the Gram of all bins of any task: one pass over the data."""
        parts: dict[int, Gram] = {}
        self.cost = Cost()
        for n, gram, report in self.compute(self, task, at):
            parts[n] = gram
            self.owners[n] = report.worker
            self.cost = self.cost.plus(report.cost)
            self.peak = max(self.peak, report.peak)
            self._count(report)
        return gather(self.layout, self.tasks, parts)

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
        self.compiled[report.process] = (
            {name: min(first[name], before[name]) for name in before},
            {name: max(last[name], after[name]) for name in after},
        )

    def compilations(self) -> dict[str, int]:
        """Return the most compilations of each kernel that one process made for this fit."""
        for future in self.warming:
            if future.status == "finished":
                self._count(future.result())
        return {
            name: max(
                (last[name] - first[name] for first, last in self.compiled.values()), default=0
            )
            for name in compilations()
        }


def sweep_of(plan: Plan, selection: Selection, problem: Problem, client: Client | None) -> Sweep:
    """Return what makes passes over the plan, on the client's cluster or in this process."""
    return _sweep(plan, plan.layout, selection, problem, client)


def level_sweeps(
    plan: Plan, selection: Selection, problem: Problem, client: Client | None
) -> list[Sweep]:
    """Return what makes passes over the levels of a plan, the coarsest first."""
    return [_sweep(plan, level, selection, problem, client) for level in plan.levels]


def _sweep(
    plan: Plan, layout: Layout, selection: Selection, problem: Problem, client: Client | None
) -> Sweep:
    source = Source(selection, layout.side, layout.slots, layout.factor)
    work = Work(source, problem, plan.layout.resident_bytes if plan.resident else 0)
    tasks = runs(layout, plan.workers.threads)
    return Sweep(work, layout, tasks, _in_process if client is None else _on_cluster, client)


def sweep_over(work: Any, plan: Plan, task: Task, client: Client | None) -> Sweep:
    """Return what makes passes with any task over a plan of any data."""
    compute = _in_process if client is None else _on_cluster
    return Sweep(work, plan.layout, plan.tasks, compute, client, task)


def _in_process(sweep: Sweep, task: Task, at: np.ndarray) -> Iterator[tuple[int, Gram, Report]]:
    for n, run in enumerate(sweep.tasks):
        yield n, *task(sweep.work, run, at)


def _on_cluster(sweep: Sweep, task: Task, at: np.ndarray) -> Iterator[tuple[int, Gram, Report]]:
    client = sweep.client
    assert client is not None
    name = f"{task.__name__.removesuffix('_of')}-{os.urandom(3).hex()}"
    futures: dict[Future, int] = {}
    for owner, mine in shares(
        sweep.tasks, sweep.owners
    ).items():  # who holds the data, or at least their sums
        hint: dict[str, Any] = {"workers": [owner], "allow_other_workers": True} if owner else {}
        made = client.map(
            task,
            [sweep.work] * len(mine),
            [sweep.tasks[n] for n in mine],
            [at] * len(mine),
            key=[f"{name}-{n:05d}" for n in mine],
            pure=False,
            **hint,
        )
        futures |= zip(made, mine, strict=True)
    try:
        with finishing(client):
            for future, (gram, report) in _finished(client, set(futures)):
                future.release()
                yield futures[future], gram, report
    finally:
        if client.status == "running":
            client.cancel([f for f in futures if not f.done()], reason="the pass has ended")


def _finished(client: Client, waiting: set[Future]) -> Iterator[tuple[Future, tuple[Gram, Report]]]:
    """Yield futures with their results as they finish; TimeoutError if none does for too long."""
    while waiting:
        before = len(waiting)
        try:
            done = as_completed(
                waiting, client.loop, with_results=True, timeout=cluster.NO_PROGRESS
            )
            for future, result in done:
                if isinstance(result, BaseException):  # the scheduler is lost
                    raise result
                waiting = waiting - {future}
                yield future, result
        except TimeoutError:
            if len(waiting) == before:
                raise
