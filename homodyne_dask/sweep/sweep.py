"""One pass: every block of a plan becomes a Gram, on a Dask cluster or in this process.

A task takes an aligned run of 2^k blocks of one group and returns their merged Gram: a whole subtree
of a summation tree fixed by the order of the blocks. Whichever worker computes a task, the sum has the
same bits.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from distributed import Client, Future, as_completed
from jaxtyping import Float

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster import local as cluster
from homodyne_dask.cluster.local import cluster_errors
from homodyne_dask.kernels.gram import AnyGram, Gram, RobustGram, merge_runs
from homodyne_dask.kernels.interface import MAX_CANDIDATES
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.store.scan import Selection
from homodyne_dask.sweep.affinity import assign_tasks, keep_preferences_soft
from homodyne_dask.sweep.blocks import BlockSource
from homodyne_dask.sweep.cost import NO_COST, Cost
from homodyne_dask.sweep.plan import Layout, Plan, Run, runs
from homodyne_dask.sweep.tasks import (
    CANDIDATES,
    GRAM,
    AtTheta,
    AtThetaAndLinear,
    Candidates,
    Report,
    Task,
    TaskContext,
    warm_up,
)

LOG = logging.getLogger(__name__)


def gather[G: AnyGram](layout: Layout, tasks: list[Run], parts: dict[int, G]) -> G:
    """Return the Gram of all selected bins from the Grams of all tasks, each there exactly once."""
    assert sorted(parts) == list(range(len(tasks)))
    bins = sum(map(len, layout.groups))
    arrays = [np.zeros((bins, *part.shape[1:]), part.dtype) for part in parts[0]]
    for group, members in enumerate(layout.groups):
        total = merge_runs([(t.length, parts[n]) for n, t in enumerate(tasks) if t.group == group])
        for array, part in zip(arrays, total, strict=True):
            array[list(members)] = part
    return parts[0]._make(arrays)


@dataclass
class Sweep:
    """Passes over one plan; records which worker computed which task, as a preference for the next pass."""

    context: Any
    """A `TaskContext`, or the context of other tasks."""
    layout: Layout
    tasks: list[Run]
    compute: Callable[["Sweep", Task[Any], Any], Iterator[tuple[int, Any, Report]]]
    client: Client | None = None
    task: Task[Gram] | Task[Gram | RobustGram] = GRAM
    owners: dict[int, str] = field(default_factory=dict)
    compiled: dict[int, tuple[dict[str, int], dict[str, int]]] = field(default_factory=dict)
    """Compilations of each kernel by process: before its first task, and now."""
    cost: Cost = NO_COST
    """Of the last pass."""
    peak: int = 0
    """Most memory that a process of the workers has had [bytes]."""
    warming: list[Future] = field(default_factory=list)

    @overload
    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram: ...
    @overload
    def __call__(
        self,
        theta: Float[np.ndarray, " p"],
        linear_params: Float[np.ndarray, "bin 2"] | None,
    ) -> Gram | RobustGram: ...
    def __call__(
        self,
        theta: Float[np.ndarray, " p"],
        linear_params: Float[np.ndarray, "bin 2"] | None = None,
    ) -> Gram | RobustGram:
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

    def over[G: AnyGram](self, task: Task[G], at: Any) -> G:
        """Return the Gram of all bins of any task at its argument: one pass over the data."""
        parts: dict[int, G] = {}
        self.cost = Cost()
        for n, gram, report in self.compute(self, task, at):
            parts[n] = gram
            self.owners[n] = report.worker
            self.cost = self.cost.plus(report.cost)
            self.peak = max(self.peak, report.peak)
            self._count(report)
        return gather(self.layout, self.tasks, parts)

    def warm_up(self) -> None:
        """Let the workers load their libraries and compile while initial values are searched."""
        if self.client is not None:
            self.warming = [
                self.client.submit(
                    warm_up, self.context, key=f"warm-{os.urandom(3).hex()}", pure=False
                )
                for _ in self.client.scheduler_info(n_workers=-1)["workers"] or [None]
            ]

    def _count(self, report: Report) -> None:
        before, after = report.compiled
        first, last = self.compiled.get(report.process, (before, after))
        self.compiled[report.process] = (
            {name: min(first.get(name, n), n) for name, n in before.items()},
            {name: max(last.get(name, n), n) for name, n in after.items()},
        )

    def compilations(self) -> dict[str, int]:
        """Return the most compilations of each kernel that one process made for this fit."""
        for future in self.warming:
            if future.status == "finished":
                self._count(future.result())
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


def sweep_of(plan: Plan, selection: Selection, problem: Problem, client: Client | None) -> Sweep:
    """Return the sweep over a plan, on the client's cluster or in this process."""
    if client is not None:
        keep_preferences_soft(client)
    return _sweep(plan, plan.layout, selection, problem, client)


def level_sweeps(
    plan: Plan, selection: Selection, problem: Problem, client: Client | None
) -> list[Sweep]:
    """Return the sweeps over the levels of a plan, the coarsest first."""
    return [_sweep(plan, level, selection, problem, client) for level in plan.levels]


def _sweep(
    plan: Plan, layout: Layout, selection: Selection, problem: Problem, client: Client | None
) -> Sweep:
    source = BlockSource(selection, layout.side, layout.padded_bins, layout.factor)
    context = TaskContext(source, problem, plan.budget)
    tasks = runs(layout, plan.workers.threads)
    return Sweep(context, layout, tasks, _in_process if client is None else _on_cluster, client)


def sweep_over(context: Any, plan: Plan, task: Task[Gram], client: Client | None) -> Sweep:
    """Return a sweep with any task over a plan of any data."""
    if client is not None:
        keep_preferences_soft(client)
    compute = _in_process if client is None else _on_cluster
    return Sweep(context, plan.layout, plan.tasks, compute, client, task)


def _in_process[G: AnyGram](
    sweep: Sweep, task: Task[G], at: Any
) -> Iterator[tuple[int, G, Report]]:
    for n, run in enumerate(sweep.tasks):
        yield n, *task.function(sweep.context, run, at)


def _on_cluster[G: AnyGram](
    sweep: Sweep, task: Task[G], at: Any
) -> Iterator[tuple[int, G, Report]]:
    client = sweep.client
    assert client is not None
    name = f"{task.key}-{os.urandom(3).hex()}"
    futures: dict[Future, int] = {}
    # the workers that cache the data, or at least their sums
    owners = sweep.owners if internals.preferences_can_be_dropped() else {}
    for owner, numbers in assign_tasks(sweep.tasks, owners).items():
        preference: dict[str, Any] = (
            {"workers": [owner], "allow_other_workers": True} if owner else {}
        )
        made = client.map(
            task.function,
            [sweep.context] * len(numbers),
            [sweep.tasks[n] for n in numbers],
            [at] * len(numbers),
            key=[f"{name}-{n:05d}" for n in numbers],
            pure=False,
            **preference,
        )
        futures |= zip(made, numbers, strict=True)
    try:
        with cluster_errors(client):
            for future, (gram, report) in _finished(client, set(futures)):
                future.release()
                yield futures[future], gram, report
    finally:
        _cancel(client, [future for future in futures if not future.done()])


def _cancel(client: Client, futures: list[Future]) -> None:
    """Cancel the remaining tasks of a pass; a failure must neither cost its result nor hide its error.

    Also where none is left: the answer comes when the scheduler has forgotten the others, and only
    then do the tasks of the next pass have a span of their own.
    """
    if client.status == "running":
        try:
            client.cancel(futures, reason="the pass has ended")
        except Exception as e:
            LOG.warning("tasks were not cancelled: %s: %s", type(e).__name__, e)


def _finished(client: Client, waiting: set[Future]) -> Iterator[tuple[Future, tuple[Any, Report]]]:
    """Yield futures with their results as they finish; TimeoutError if none does for too long."""
    while waiting:
        before = len(waiting)
        try:
            done = as_completed(
                waiting,
                client.loop,
                with_results=True,
                timeout=cluster.time_limit("no-progress", cluster.NO_PROGRESS_TIMEOUT),
            )
            for future, result in done:
                if isinstance(result, BaseException):  # the connection to the scheduler is lost
                    raise result
                waiting = waiting - {future}
                yield future, result
        except TimeoutError:
            if len(waiting) == before:
                raise
