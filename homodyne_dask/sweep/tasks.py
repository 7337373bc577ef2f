"""The tasks of a pass: each returns the Gram of a run of blocks, and a report of its cost.

A task is a pure function of (store, blocks, model, theta): on any worker, and repeated any number of
times, it returns a Gram of the same bits.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import batched
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.backend_interface import (
    MAX_CANDIDATES,
    Block,
    GramColumns,
    ModelPoint,
    Problem,
    TileWork,
)
from homodyne_dask.kernels.cell_grams import cell_gram
from homodyne_dask.kernels.gram import (
    AnyGram,
    CellMeans,
    DataSums,
    Gram,
    LinearParams,
    gram_of_data,
    merge_tree,
)
from homodyne_dask.machine.allocator_and_threads import set_allocator_thresholds, worker_address
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep.blocks import (
    NO_COST,
    SUMS,
    BlockSource,
    Cost,
    Place,
    block,
    dtype_of,
    placed,
    prefetched,
    stored_sums,
)
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.layout import Run

Thetas = Float[np.ndarray, "point p"]


class Leaf(NamedTuple):
    place: Place
    cost: Cost
    sums: DataSums | None
    data: Any = None


type Compute[G] = Callable[[Sequence[Leaf]], list[tuple[G, Any]]]
"""From blocks the Gram of each, and the sums of its data."""


class TaskContext(NamedTuple):
    source: BlockSource
    problem: Problem
    budget: int
    """Bytes of decoded blocks a worker process may keep."""


class AtTheta(NamedTuple):
    theta: Float[np.ndarray, " p"] | Float[np.ndarray, "bin p"]
    """Or the parameters of every selected bin, the same in all bins of a group."""
    linear_params: LinearParams | None = None
    """(offset - 1, contrast) of every bin, under a loss: its weights depend on the residuals."""

    def of_run(self, run: Run) -> tuple[Float[np.ndarray, " p"], LinearParams | None]:
        """Return the parameters of the group of a run, and those of its bins."""
        theta = self.theta if np.ndim(self.theta) == 1 else self.theta[run.members[0]]
        linear = self.linear_params
        return theta, None if linear is None else linear[list(run.members)]


class Report(NamedTuple):
    worker: str
    process: int
    seconds: float
    compiled: tuple[dict[str, int], dict[str, int]]
    """Of each kernel in this process, before and after the task."""
    cost: Cost
    peak: int


@dataclass(frozen=True)
class Task[G]:
    """A task of an executor: what it computes, its Dask key, and the name of the pass in progress reports."""

    compute: Callable[[Any, Any, Any], tuple[G, Cost]]
    """Of (context, its share of the work, argument): of a pass, a `Run` of blocks."""
    key: str
    """First word of its Dask keys, as in gram-3fa2c1-00012."""
    label: str | None = None
    """Name of the pass in progress reports; None for passes of the iteration, which are numbered."""

    def function(self, context: Any, share: Any, argument: Any) -> tuple[G, Report]:
        set_allocator_thresholds()
        began, before = time.perf_counter(), compilations()
        result, cost = self.compute(context, share, argument)
        seconds, peak = time.perf_counter() - began, getrusage(RUSAGE_SELF).ru_maxrss * 1024
        compiled = before, compilations()
        return result, Report(worker_address(), os.getpid(), seconds, compiled, cost, peak)


@dataclass(frozen=True)
class BlockGrams:
    """The Gram of each of some blocks, on a device of all in one call, and the sums of its data."""

    context: TaskContext
    points: Sequence[ModelPoint]
    columns: GramColumns
    linear_params: LinearParams | None = None
    """Under a loss."""

    @property
    def width(self) -> int | None:
        """Columns of a Gram where f has decayed; None where every block is read: under a loss all residuals
        count, and for candidates no sums of the data are kept."""
        if self.linear_params is not None or self.columns is GramColumns.POINTS:
            return None
        if self.columns is GramColumns.CHANGES:
            return len(self.points) + 2
        return self.context.problem.model.size + 3

    def __call__(self, leaves: Sequence[Leaf]) -> list[tuple[Gram, Any]]:
        grams = self._on_device(leaves) if self.context.source.device else self._by_block(leaves)
        if self.columns is GramColumns.DERIVATIVES and self.linear_params is None:
            for leaf, (_, sums) in zip(leaves, grams, strict=True):
                SUMS[self.context.source, leaf.place, self.context.problem.min_lag] = sums
        return grams

    def _on_device(self, leaves: Sequence[Leaf]) -> list[tuple[Gram, Any]]:
        source, backend = self.context.source, backend_of(self.context.problem.model)
        blocks, sums = [leaf.data for leaf in leaves], [leaf.sums for leaf in leaves]
        frames = len(open_selection(source.selection).time)
        of_loss = self.linear_params
        work = TileWork(blocks, sums, source.tiles_at_once, frames, self.columns, of_loss)
        return backend.tile_grams(self.points, work)

    def _by_block(self, leaves: Sequence[Leaf]) -> list[tuple[Gram, Any]]:
        backend, linear = backend_of(self.context.problem.model), self.linear_params
        first, *_ = points = self.points
        if linear is not None:
            return [(backend.robust_gram(first, leaf.data, linear), leaf.sums) for leaf in leaves]
        if self.columns is GramColumns.POINTS:
            return [(backend.candidate_grams(points, leaf.data), None) for leaf in leaves]
        if self.columns is GramColumns.CHANGES:
            return [backend.wide_gram(points, leaf.data, leaf.sums) for leaf in leaves]
        return [backend.gram(first, leaf.data, leaf.sums) for leaf in leaves]


def gram_of(context: TaskContext, run: Run, parameters: AtTheta) -> tuple[Gram, Cost]:
    """Return the merged Gram of a run of blocks, under the problem's loss where linear_params are given."""
    theta, linear = parameters.of_run(run)
    return _gram_of(context, run, [theta], GramColumns.DERIVATIVES, linear)


def candidates_of(context: TaskContext, run: Run, thetas: Thetas) -> tuple[Gram, Cost]:
    number = len(thetas)
    if context.source.device:  # so that its program is compiled once
        thetas = np.pad(thetas, ((0, MAX_CANDIDATES - number), (0, 0)), mode="edge")
    gram, cost = _gram_of(context, run, thetas, GramColumns.POINTS)
    return gram._replace(moments=gram.moments[:, :number]), cost


def wide_gram_of(context: TaskContext, run: Run, thetas: Thetas) -> tuple[Gram, Cost]:
    return _gram_of(context, run, thetas, GramColumns.CHANGES)


def _gram_of(
    context: TaskContext,
    run: Run,
    thetas: Sequence[Float[np.ndarray, " p"]] | Thetas,
    columns: GramColumns,
    linear: LinearParams | None = None,
) -> tuple[Gram, Cost]:
    if cells_of(context.source) is not None:
        means, cost = means_over_cells(*context, run, thetas)
        return cell_gram(means, columns, context.problem, linear), cost
    grams = BlockGrams(context, _points(context, thetas), columns, linear)
    return merged(context, run, grams, grams.points, grams.width)


def cell_means_of(context: TaskContext, run: Run, parameters: AtTheta) -> tuple[CellMeans, Cost]:
    [means], cost = means_over_cells(*context, run, [parameters.theta])
    return means, cost


def _points(
    context: TaskContext, thetas: Sequence[Float[np.ndarray, " p"]] | Thetas
) -> Sequence[ModelPoint]:
    """Return the model at each theta: that of the run before, where it is the same pass of this process."""
    key = tuple(np.asarray(theta).tobytes() for theta in thetas)
    last_context, last_key, points = _LAST[0]
    if last_context is not context or last_key != key:
        scan = open_selection(context.source.selection)
        where = scan.time, context.source.factor, scan.frames
        point = backend_of(context.problem.model).point
        points = [point(context.problem, theta, *where) for theta in thetas]
        _LAST[0] = context, key, points
    return points


_LAST: list[tuple[TaskContext | None, tuple[bytes, ...], Sequence[ModelPoint]]] = [(None, (), ())]
"""Context, parameters and points of the last run: a pass over thousands of q has one for each."""


def _expected(
    context: TaskContext, place: Place, points: Sequence[ModelPoint], every: bool
) -> tuple[Cost, DataSums | None]:
    """Return what a block costs, at the points where it is most, and the sums of its data if known."""
    source, problem = context.source, context.problem
    q = open_selection(source.selection).q_or_one[list(place.members)].min()
    i, j = (side * source.side for side in place.tile)
    cuts = [point.sub_blocks(q, i, j, source.side) for point in points]
    active = max((cut.n_active for cut in cuts), default=0)
    sub_blocks = cuts[0].n_total if cuts else 0
    sums = None if every else stored_sums(source, place, problem.min_lag)
    if sums is None and not every:
        sums = SUMS.get((source, place, problem.min_lag))
    return Cost(active, sub_blocks, int(active > 0 or sums is None), 1), sums


def merged[G: AnyGram](
    context: TaskContext,
    run: Run,
    compute: Compute[G],
    points: Sequence[ModelPoint] = (),
    columns: int | None = None,
) -> tuple[G, Cost]:
    """Return the merged Gram of a run of blocks, and its cost. columns: of a Gram; then blocks in which f has
    decayed to zero at all points are not read where their sums are known."""
    source, costs = context.source, list[Cost]()
    places = [Place(run.members, tile) for tile in run.tiles]
    expected = [_expected(context, place, points, columns is None) for place in places]
    at_once = source.tiles_at_once if source.device and context.budget else 1

    def grams(turns: Iterator[Place]) -> Iterator[G]:
        for leaves in batched(_read(context, turns, expected), at_once):
            yield from _grams_of(leaves, compute, columns)
            costs.extend(leaf.cost for leaf in leaves)

    with prefetched(source, places, [bool(cost.read) for cost, _ in expected]) as turns:
        total = merge_tree(grams(turns))
    return total, reduce(Cost.plus, costs)


def _read(
    context: TaskContext, turns: Iterator[Place], expected: Sequence[tuple[Cost, DataSums | None]]
) -> Iterator[Leaf]:
    for place, (cost, sums) in zip(turns, expected, strict=True):
        began, data = time.perf_counter(), None
        if cost.read:
            with metered("read"):
                data = block(context.source, place, context.budget)
            cost = cost._replace(reading=time.perf_counter() - began)
        yield Leaf(place, cost, sums, data)


def _grams_of(leaves: Sequence[Leaf], compute: Compute[Any], columns: int | None) -> Iterator[Any]:
    """Yield the Gram of each block: of those in which f has decayed to zero from the sums of their data."""
    with_data = [leaf for leaf in leaves if leaf.data is not None]
    with metered("gram"):
        computed = iter(compute(with_data) if with_data else [])
    for leaf in leaves:
        gram, sums = (None, leaf.sums) if leaf.data is None else next(computed)
        if columns is not None and not leaf.cost.computed:
            assert sums is not None
            gram = gram_of_data(sums[: len(leaf.place.members)], columns)
        yield gram


def warm_up(context: TaskContext) -> Report:
    return Task(_compiled, "warm").function(context, None, None)[1]


def _compiled(context: TaskContext, *_: None) -> tuple[None, Cost]:
    source, problem = context.source, context.problem
    side, padded_bins = source.side, source.padded_bins
    dtype, weights = dtype_of(open_selection(source.selection)), np.zeros((padded_bins, side))
    data, linear = np.zeros((padded_bins, side, side), dtype), np.zeros((padded_bins, 2))
    bins = np.ones(padded_bins), np.zeros(padded_bins)
    empty = Block(data, weights, weights, *bins, 0, 0, source.several_q)
    theta, backend, cells = np.ones(problem.model.size), backend_of(problem.model), cells_of(source)
    point = backend.point(problem, theta, np.arange(2.0))
    if source.device:
        of_loss = None if problem.loss == "linear" else linear
        leaf = Leaf(Place((), (0, 0)), NO_COST, None, placed(empty, source.device))
        BlockGrams(context, _points(context, [theta]), GramColumns.DERIVATIVES, of_loss)([leaf])
    elif cells is not None:
        nowhere = np.zeros((side, side), np.int32)
        backend.cell_sums(point, empty, nowhere, np.zeros((1, cells.number + 1, len(theta) + 1)))
    elif problem.loss == "linear":
        backend.gram(point, empty, None)
    else:
        backend.robust_gram(point, empty, linear)
    return None, NO_COST


def metered(activity: str) -> AbstractContextManager[object]:
    """Return a context whose time Dask shows as a part of a task; without Dask it does nothing."""
    metrics = sys.modules.get("distributed.metrics")  # a worker has loaded it
    return nullcontext() if metrics is None else metrics.context_meter.meter(activity)


GRAM = Task(gram_of, "gram")
CELL_MEANS = Task(cell_means_of, "cells", "for the model check")
CANDIDATES = Task(candidates_of, "candidates", "of initial values")
WIDE_GRAM = Task(wide_gram_of, "wide_gram", "at many parameters")
