"""One pass: every block of a plan becomes a Gram, on a Dask cluster or in this process.

A task takes an aligned run of 2^k blocks of one group and returns their merged Gram: a whole subtree
of a summation tree fixed by the order of the blocks. Grams are merged as they arrive, so that few are
held. Whichever worker computes a task, the sum has the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES
from homodyne_dask.kernels.gram import AnyGram, Gram, add
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.store.scan import Selection
from homodyne_dask.sweep.blocks import NO_COST, BlockSource, Cost
from homodyne_dask.sweep.layout import Layout, Run
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.tasks import (
    CANDIDATES,
    GRAM,
    AtTheta,
    AtThetaAndLinear,
    Candidates,
    Report,
    Task,
    TaskContext,
)

if TYPE_CHECKING:
    from types import ModuleType

    from distributed import Client, Future


class ArrivingGrams[G: AnyGram]:
    """The sums of a pass, in the order of arrival merged as `merge_runs` merges them in that of the plan.

    A run of 2^k tiles is a subtree that starts at a multiple of its length; where its neighbour in the
    same larger subtree has come, the two are added. So about one Gram for each thread is held.
    """

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
        """Take the Gram of the n-th task; each comes exactly once."""
        self.missing.remove(n)
        group, first, length = self.subtrees[n]
        while (neighbour := (group, first ^ length, length)) in self.held:
            gram = add(gram, self.held.pop(neighbour))
            first, length = min(first, neighbour[1]), 2 * length
        self.held[group, first, length] = gram

    def total(self, layout: Layout) -> G:
        """Return the Gram of all selected bins, when those of all tasks are there."""
        assert not self.missing
        bins = sum(map(len, layout.groups))
        some = next(iter(self.held.values()))
        arrays = [
            None if part is None else np.zeros((bins, *part.shape[1:]), part.dtype) for part in some
        ]
        for group, members in enumerate(layout.groups):
            for array, part in zip(arrays, self._of_group(group), strict=True):
                if array is not None:
                    array[list(members)] = part
        return some._make(arrays)

    def _of_group(self, group: int) -> G:
        subtrees = [self.held[key] for key in sorted(self.held) if key[0] == group]
        return reduce(lambda total, one: add(one, total), reversed(subtrees))


@dataclass
class Sweep:
    """Passes over one plan; records which worker computed which task, as a preference for the next pass."""

    context: Any
    """A `TaskContext`, or the context of other tasks."""
    layout: Layout
    tasks: list[Run]
    compute: Callable[["Sweep", Task[Any], Any], Iterator[tuple[int, Any, Report]]]
    client: "Client | None" = None
    task: Task[Gram] = GRAM
    owners: dict[int, str] = field(default_factory=dict)
    compiled: dict[int, tuple[dict[str, int], dict[str, int]]] = field(default_factory=dict)
    """Compilations of each kernel by process: before its first task, and now."""
    cost: Cost = NO_COST
    """Of the last pass."""
    peak: int = 0
    """Most memory that a process of the workers has had [bytes]."""
    warming: "list[Future]" = field(default_factory=list)

    def __call__(
        self,
        theta: Float[np.ndarray, " p"],
        linear_params: Float[np.ndarray, "bin 2"] | None = None,
    ) -> Gram:
        """Return the Gram of all bins at theta: one pass over the data.

        With linear_params, (offset - 1, contrast) of the bins, it is that of the problem's loss.
        """
        return self.over(self.task, at_point(theta, linear_params))

    def candidates(self, thetas: Float[np.ndarray, "point p"]) -> list[Gram]:
        """Return the Gram of [1, y - 1, f] at every theta: a pass for each MAX_CANDIDATES of them."""
        all_grams: list[Gram] = []
        for first in range(0, len(thetas), MAX_CANDIDATES):
            grams = self.over(CANDIDATES, Candidates(thetas[first : first + MAX_CANDIDATES]))
            all_grams += grams.each()
        return all_grams

    def over[G: AnyGram](self, task: Task[G], at: object) -> G:
        """Return the Gram of all bins of any task at its argument: one pass over the data."""
        grams: ArrivingGrams[G] = ArrivingGrams(self.tasks)
        self.cost = Cost()
        for n, gram, report in self.compute(self, task, at):
            grams.add(n, gram)
            self.owners[n] = report.worker
            self.cost = self.cost.plus(report.cost)
            self.peak = max(self.peak, report.peak)
            self._count(report)
        return grams.total(self.layout)

    def warm_up(self) -> None:
        """Let the workers load their libraries and compile while initial values are searched."""
        if self.client is not None:
            self.warming = _distributed().submit_warm_up(self.client, self.context)

    def _count(self, report: Report) -> None:
        before, after = report.compiled
        first, last = self.compiled.get(report.process, (before, after))
        self.compiled[report.process] = (
            {name: min(first.get(name, n), n) for name, n in before.items()},
            {name: max(last.get(name, n), n) for name, n in after.items()},
        )

    def compilations(self) -> dict[str, int]:
        """Return the most compilations of each kernel that one process made for this fit."""
        if self.client is not None:
            for report in _distributed().warmed_up(self.client, self.warming):
                self._count(report)
        of_processes = list(self.compiled.values())
        names = of_processes[0][1] if of_processes else {}
        return {
            name: max(last[name] - first[name] for first, last in of_processes) for name in names
        }


def at_point(
    theta: Float[np.ndarray, " p"], linear_params: Float[np.ndarray, "bin 2"] | None
) -> AtTheta | AtThetaAndLinear:
    """Return the argument of a task at theta, and under a loss at the linear parameters."""
    if linear_params is None:
        return AtTheta(theta)
    return AtThetaAndLinear(theta, linear_params)


def sweep_of(plan: Plan, selection: Selection, problem: Problem, client: "Client | None") -> Sweep:
    """Return the sweep over a plan, on the client's cluster or in this process."""
    _keep_preferences_soft(client)
    return _sweep(plan, plan.layout, selection, problem, client)


def level_sweeps(
    plan: Plan, selection: Selection, problem: Problem, client: "Client | None"
) -> list[Sweep]:
    """Return the sweeps over the levels of a plan, the coarsest first."""
    return [_sweep(plan, level, selection, problem, client) for level in plan.levels]


def _sweep(
    plan: Plan, layout: Layout, selection: Selection, problem: Problem, client: "Client | None"
) -> Sweep:
    device = plan.device.place
    source = BlockSource(selection, layout.side, layout.padded_bins, layout.factor, device)
    context = TaskContext(source, problem, plan.budget)
    return Sweep(context, layout, plan.tasks_of(layout), _computed, client)


def sweep_over(context: object, plan: Plan, task: Task[Gram], client: "Client | None") -> Sweep:
    """Return a sweep with any task over a plan of any data."""
    _keep_preferences_soft(client)
    return Sweep(context, plan.layout, plan.tasks, _computed, client, task)


def _keep_preferences_soft(client: "Client | None") -> None:
    if client is not None:
        _distributed().keep_preferences_soft(client)


def _distributed() -> "ModuleType":
    """Return what sends tasks to a cluster: it loads Dask, which a pass in this process does without."""
    from homodyne_dask.sweep import distributed_tasks

    return distributed_tasks


def _computed[G: AnyGram](sweep: Sweep, task: Task[G], at: Any) -> Iterator[tuple[int, G, Report]]:
    if sweep.client is None:
        for n, run in enumerate(sweep.tasks):
            yield n, *task.function(sweep.context, run, at)
        return
    on_cluster = _distributed().computed_on_cluster
    yield from on_cluster(sweep.client, sweep.context, sweep.tasks, sweep.owners, task, at)
