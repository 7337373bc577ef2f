"""One pass: every block of a plan becomes a Gram, on a Dask cluster or on threads of this process.

A task takes an aligned run of 2^k blocks of one group and returns their merged Gram: a whole subtree
of a summation tree fixed by the order of the blocks. Grams are merged as they arrive, so that few are
held. Whichever worker computes a task, the sum has the same bits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES, Problem
from homodyne_dask.kernels.gram import AnyGram, CellSums, Gram, LinearParams, add
from homodyne_dask.machine.allocator_and_threads import in_thread
from homodyne_dask.store.scan import Selection
from homodyne_dask.sweep.blocks import NO_COST, BlockSource, Cost
from homodyne_dask.sweep.cell_sums import CELL_SUMS, AgeAndLagEdges
from homodyne_dask.sweep.layout import Layout, Run
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.tasks import (
    CANDIDATES,
    GRAM,
    WIDE_GRAM,
    AtTheta,
    Report,
    Task,
    TaskContext,
    warm_up,
)

if TYPE_CHECKING:
    from types import ModuleType

    from distributed import Client

Theta = Float[np.ndarray, " p"]
Thetas = Float[np.ndarray, "point p"]


class ArrivingGrams[G: AnyGram]:
    """The sums of a pass, in the order of arrival merged as `merge_runs` merges them in that of the plan."""

    def __init__(self, tasks: Sequence[Run]) -> None:
        self.subtrees: list[tuple[int, int, int]] = []
        """Group, first tile and length of each task."""
        for group, of_group in groupby(tasks, lambda task: task.group):
            first = 0
            for task in of_group:
                self.subtrees.append((group, first, task.length))
                first += task.length
        self.missing = set(range(len(tasks)))
        self.held: dict[tuple[int, int, int], G] = {}
        """Complete subtrees whose neighbour has not come, by group, first tile and length."""

    def add(self, n: int, gram: G) -> None:
        self.missing.remove(n)
        group, first, length = self.subtrees[n]
        # a run begins at a multiple of its length 2^k: its neighbour's begin differs in that bit
        while (neighbour := (group, first ^ length, length)) in self.held:
            gram = add(gram, self.held.pop(neighbour))
            first, length = min(first, neighbour[1]), 2 * length
        self.held[group, first, length] = gram

    def total(self, layout: Layout) -> G:
        assert not self.missing
        bins = sum(map(len, layout.groups))
        gram = next(iter(self.held.values()))
        arrays = [
            None if sums is None else np.zeros((bins, *sums.shape[1:]), sums.dtype) for sums in gram
        ]
        for group, keys in groupby(sorted(self.held), lambda key: key[0]):
            subtrees = [self.held[key] for key in keys]
            whole = reduce(lambda total, subtree: add(subtree, total), reversed(subtrees))
            for array, sums in zip(arrays, whole, strict=True):
                if array is not None:
                    array[list(layout.groups[group])] = sums
        return gram._make(arrays)


class Passes(Protocol):
    """The sums that fits are made of: over data (`Sweep`), or over averages (`SpeckleWeighting`)."""

    cost: Cost
    peak: int
    """Most memory that a process of the workers has had [bytes]."""

    @property
    def factor(self) -> int:
        """Frames averaged into one: 1 for all data."""
        ...

    def gram(self, theta: Theta, linear_params: LinearParams | None = None) -> Gram: ...

    def candidates(self, thetas: Thetas) -> list[Gram]: ...

    def wide(self, thetas: Thetas) -> Gram: ...

    def cells(self, edges: AgeAndLagEdges) -> CellSums: ...


type Executor = Callable[["Sweep", Task[Any], Any], Iterator[tuple[int, Any, Report]]]
"""Yields the number of each run of a sweep, its Gram and its report, in the order of arrival."""


@dataclass
class Sweep:
    """Passes over one plan; records which worker computed which task, as a preference for the next pass."""

    context: Any
    layout: Layout
    tasks: list[Run]
    client: "Client | None" = None
    threads: int = 1
    """Of this process, where there is no client."""
    task: Task[Gram] = GRAM
    execute: Executor = field(default_factory=lambda: executed)
    owners: dict[int, str] = field(default_factory=dict)
    compiled: dict[int, tuple[dict[str, int], dict[str, int]]] = field(default_factory=dict)
    """Compilations of each kernel by process: before its first task, and now."""
    cost: Cost = NO_COST
    peak: int = 0
    warming: list[Any] = field(default_factory=list)
    """Futures of workers or of a thread."""

    @property
    def factor(self) -> int:
        return self.layout.factor

    def gram(self, theta: Theta, linear_params: LinearParams | None = None) -> Gram:
        return self.over(self.task, AtTheta(theta, linear_params))

    def candidates(self, thetas: Thetas) -> list[Gram]:
        """Return the Gram of [1, y - 1, f] at every theta: a pass for each MAX_CANDIDATES of them."""
        shares = np.split(thetas, range(MAX_CANDIDATES, len(thetas), MAX_CANDIDATES))
        passes = (self.over(CANDIDATES, share) for share in shares if len(share))
        return [gram for grams in passes for gram in grams.each()]

    def wide(self, thetas: Thetas) -> Gram:
        return self.over(WIDE_GRAM, thetas)

    def cells(self, edges: AgeAndLagEdges) -> CellSums:
        return self.over(CELL_SUMS, edges)

    def over[G: AnyGram](self, task: Task[G], argument: object) -> G:
        """Return the sums of a task over all blocks: one pass."""
        grams: ArrivingGrams[G] = ArrivingGrams(self.tasks)
        self.cost = Cost()
        for n, gram, report in self.execute(self, task, argument):
            grams.add(n, gram)
            self.owners[n] = report.worker
            self.cost = self.cost.plus(report.cost)
            self.peak = max(self.peak, report.peak)
            self._count(report)
        return grams.total(self.layout)

    def warm_up(self) -> None:
        """Let the workers, or a thread, load libraries and compile while initial values are searched."""
        if self.client is not None:
            self.warming = _on_cluster().submit_warm_up(self.client, self.context)
        elif self.threads > 1:
            self.warming = [in_thread(partial(warm_up, self.context))]

    def _count(self, report: Report) -> None:
        before, after = report.compiled
        first, last = self.compiled.get(report.process, (before, after))
        self.compiled[report.process] = (
            {name: min(first.get(name, n), n) for name, n in before.items()},
            {name: max(last.get(name, n), n) for name, n in after.items()},
        )

    def compilations(self) -> dict[str, int]:
        if self.client is not None:
            reports = _on_cluster().warmed_up(self.client, self.warming)
        else:  # the first pass has raised what one raised
            reports = [task.result() for task in self.warming if task.exception() is None]
        for report in reports:
            self._count(report)
        of_processes = list(self.compiled.values())
        names = of_processes[0][1] if of_processes else {}
        return {
            name: max(last[name] - first[name] for first, last in of_processes) for name in names
        }


def sweep_of(
    plan: Plan,
    selection: Selection,
    problem: Problem,
    client: "Client | None",
    level: Layout | None = None,
) -> Sweep:
    layout = level or plan.layout
    cut = layout.side, layout.padded_bins, layout.factor, plan.device.place, layout.several_q
    context = TaskContext(BlockSource(selection, *cut), problem, plan.budget)
    return Sweep(context, layout, plan.tasks_of(layout), client, plan.workers.threads)


def _on_cluster() -> "ModuleType":
    from homodyne_dask.sweep import distributed_tasks  # lazy: Dask is of no use to a pass here

    return distributed_tasks


def executed[G: AnyGram](
    sweep: Sweep, task: Task[G], argument: Any
) -> Iterator[tuple[int, G, Report]]:
    if sweep.client is not None:
        where = sweep.client, sweep.context, sweep.tasks, sweep.owners
        yield from _on_cluster().computed_on_cluster(*where, task, argument)
    elif sweep.threads == 1:  # in that of the caller, which may be a task of Dask
        for n, run in enumerate(sweep.tasks):
            yield n, *task.function(sweep.context, run, argument)
    else:
        yield from _computed_on_threads(sweep, task, argument)


def _computed_on_threads[G: AnyGram](
    sweep: Sweep, task: Task[G], argument: Any
) -> Iterator[tuple[int, G, Report]]:
    runs, arrivals = deque(enumerate(sweep.tasks)), SimpleQueue[Any]()

    def compute() -> None:
        while runs:
            try:
                n, run = runs.popleft()
            except IndexError:  # another thread took the last
                return
            arrivals.put((n, *task.function(sweep.context, run, argument)))

    threads = [in_thread(compute) for _ in range(sweep.threads)]
    for thread in threads:
        thread.add_done_callback(arrivals.put)
    outstanding = len(sweep.tasks)
    try:
        while outstanding:
            if isinstance(arrived := arrivals.get(), Future):
                arrived.result()  # raises what a task has raised
            else:
                outstanding -= 1
                yield arrived
    finally:
        runs.clear()
        wait(threads)
