"""The tasks of a pass: each returns the Gram of a run of blocks, and a report of its cost.

A task is a pure function of (store, blocks, model, theta): on any worker, and repeated any number of
times, it returns a Gram of the same bits.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.cell_grams import (
    cell_candidate_grams,
    cell_gram,
    robust_cell_gram,
    wide_cell_gram,
)
from homodyne_dask.kernels.decayed_subblocks import SubBlocks
from homodyne_dask.kernels.gram import (
    CandidateGrams,
    CellMeans,
    Gram,
    RobustGram,
    WideGram,
    gram_of_data,
    merge_tree,
    moments_of_data,
)
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.store.processes import set_allocator_thresholds
from homodyne_dask.store.scan import open_selection, q_or_one
from homodyne_dask.sweep.block_cache import SUMS, block, placed, prefetched
from homodyne_dask.sweep.blocks import NO_COST, BlockSource, Cost, Place, stored_sums
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.layout import Run


class TaskContext(NamedTuple):
    """The arguments common to all tasks of a fit: the source of blocks, and the problem."""

    source: BlockSource
    problem: Problem
    budget: int
    """Bytes of decoded blocks a worker process may keep."""


class AtTheta(NamedTuple):
    """Argument of a task: the parameters at which the Gram is evaluated."""

    theta: Float[np.ndarray, " p"]


class AtThetaOfBins(NamedTuple):
    """Argument of a task: the parameters of every selected bin, the same in all bins of a group."""

    thetas: Float[np.ndarray, "bin p"]


class AtThetaAndLinear(NamedTuple):
    """Argument of a task under a loss, whose weights depend on the residuals."""

    theta: Float[np.ndarray, " p"]
    linear_params: Float[np.ndarray, "bin 2"]
    """(offset - 1, contrast) of every selected bin."""


class Candidates(NamedTuple):
    """Argument of a task: several trial values of theta, evaluated in one pass."""

    thetas: Float[np.ndarray, "point p"]


class ManyThetas(NamedTuple):
    """Argument of a task: the thetas at which f is a column, less that at the first of them."""

    thetas: Float[np.ndarray, "point p"]


class Directions(NamedTuple):
    """Argument of a task: theta, and the directions along which derivatives are taken."""

    theta: Float[np.ndarray, " p"]
    vectors: Float[np.ndarray, "p p"]
    """One direction a row."""


@dataclass(frozen=True)
class Task[G]:
    """A task of an executor: its function, its Dask key, and the name of the pass in progress reports."""

    function: Callable[[Any, Any, Any], tuple[G, "Report"]]
    """Of (context, its share of the work, argument): of a pass, a `Run` of blocks."""
    key: str
    """First word of its Dask keys, as in gram-3fa2c1-00012."""
    label: str | None = None
    """Name of the pass in progress reports; None for passes of the iteration, which are numbered."""


class Report(NamedTuple):
    """The report that a task returns with its Gram."""

    worker: str
    process: int
    seconds: float
    compiled: tuple[dict[str, int], dict[str, int]]
    """Compilations of each kernel in this process before and after the task."""
    cost: Cost
    peak: int
    """Most memory the process has had [bytes]."""


def gram_of(
    context: TaskContext, run: Run, at: AtTheta | AtThetaOfBins | AtThetaAndLinear
) -> tuple[Gram | RobustGram, Report]:
    """Return the merged Gram of a run of blocks, under the problem's loss where linear_params are given."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    if isinstance(at, AtThetaOfBins):
        at = AtTheta(at.thetas[run.members[0]])
    if cells_of(context.source) is not None:
        [means], cost = means_over_cells(*context, run, [at.theta])
        if isinstance(at, AtTheta):
            return cell_gram(means), report_of(began, before, cost)
        gram = robust_cell_gram(means, context.problem, at.linear_params[list(run.members)])
        return gram, report_of(began, before, cost)
    [point] = _points(context, [at.theta])
    places = [Place(run.members, tile) for tile in run.tiles]
    leaves, cost = [], Cost()
    if isinstance(at, AtThetaAndLinear):
        with prefetched(context.source, places) as turns:
            for place in turns:
                gram, part = _robust_leaf(context, point, place, at.linear_params)
                leaves.append(gram)
                cost = cost.plus(part)
    else:
        source, known = context.source, []
        q = q_or_one(open_selection(source.selection))[run.members[0]]
        for place in places:
            i, j = (side * source.side for side in place.tile)
            sums = _sums_of(source, place, context.problem.min_lag)
            known.append(_Known(point.sub_blocks(q, i, j, source.side), sums))
        with prefetched(context.source, places, [one.needed for one in known]) as turns:
            for place, one in zip(turns, known, strict=True):
                gram, part = _leaf(context, point, place, one)
                leaves.append(gram)
                cost = cost.plus(part)
    with metered("merge"):
        return merge_tree(leaves), report_of(began, before, cost)


def candidates_of(context: TaskContext, run: Run, at: Candidates) -> tuple[CandidateGrams, Report]:
    """Return the merged moments of [1, y - 1, f] of a run of blocks at every theta."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    if cells_of(context.source) is not None:
        means, cost = means_over_cells(*context, run, list(at.thetas))
        return cell_candidate_grams(means), report_of(began, before, cost)
    backend, points, leaves = backend_of(context.problem.model), _points(context, at.thetas), []
    with prefetched(context.source, [Place(run.members, tile) for tile in run.tiles]) as turns:
        for place in turns:
            data = block(context.source, place, context.budget)
            leaves.append(backend.candidate_grams(points, data))
    return merge_tree(leaves), report_of(began, before, NO_COST)


def cell_means_of(context: TaskContext, run: Run, at: AtTheta) -> tuple[CellMeans, Report]:
    """Return the columns of the cells of a run's bins, of data that are means over cells."""
    began, before = time.perf_counter(), compilations()
    [means], cost = means_over_cells(*context, run, [at.theta])
    return means, report_of(began, before, cost)


def _points(context: TaskContext, thetas: Iterable[Float[np.ndarray, " p"]]) -> list[ModelPoint]:
    source, problem = context.source, context.problem
    scan, point = open_selection(source.selection), backend_of(problem.model).point
    return [point(problem, theta, scan.time, source.factor, scan.frames) for theta in thetas]


class _Known(NamedTuple):
    """What is known of a block before it is read."""

    cut: SubBlocks
    """Sub-blocks in which the model has not decayed."""
    sums: Float[np.ndarray, "padded 4"] | None
    """Sums of the data alone; None before they are summed for the first time."""

    @property
    def needed(self) -> bool:
        """Whether the block must be read."""
        return self.cut.n_active > 0 or self.sums is None


def _sums_of(
    source: BlockSource, place: Place, min_lag: int
) -> Float[np.ndarray, "padded 4"] | None:
    """Return the sums of the data of a block alone, None before they are summed for the first time.

    They are those of the store where they cover the same pairs, else those of an earlier pass: which ones
    depends on store and selection alone.
    """
    sums = stored_sums(source, place, min_lag)
    return SUMS.get((source, place, min_lag)) if sums is None else sums


def _leaf(context: TaskContext, at: ModelPoint, place: Place, known: _Known) -> tuple[Gram, Cost]:
    """Return the Gram of one block; a block in which f has decayed to zero is not read."""
    source, cut, sums = context.source, known.cut, known.sums
    gram, reading = None, 0.0
    if known.needed:
        began = time.perf_counter()
        with metered("read"):
            data = block(source, place, context.budget)
        reading = time.perf_counter() - began
        with metered("gram"):
            gram, sums = backend_of(context.problem.model).gram(at, data, sums)
        SUMS[source, place, context.problem.min_lag] = sums
    if gram is None or not cut.n_active:
        assert sums is not None
        gram = gram_of_data(sums[: len(place.members)], context.problem.model.size)
    return gram, Cost(cut.n_active, cut.n_total, int(known.needed), 1, reading)


def _robust_leaf(
    context: TaskContext, at: ModelPoint, place: Place, linear_params: Float[np.ndarray, "bin 2"]
) -> tuple[RobustGram, Cost]:
    """Return the Gram of one block under the loss of the problem: every residual counts."""
    began = time.perf_counter()
    data = block(context.source, place, context.budget)
    reading = time.perf_counter() - began
    cut = at.sub_blocks(data.q[0], data.i0, data.j0, context.source.side)
    linear_params = linear_params[list(place.members)]
    gram = backend_of(context.problem.model).robust_gram(at, data, linear_params)
    return gram, Cost(cut.n_active, cut.n_total, 1, 1, reading)


def warm_up(context: TaskContext) -> Report:
    """Compile the kernel in this process before the first pass."""
    began, before = time.perf_counter(), compilations()
    side, padded_bins = context.source.side, context.source.padded_bins
    data, weights = np.zeros((padded_bins, side, side), np.float32), np.zeros((padded_bins, side))
    empty = Block(data, weights, weights, np.ones(1), np.zeros(1), 0, 0)
    empty = placed(empty, context.source.device)
    theta = np.ones(context.problem.model.size)
    backend = backend_of(context.problem.model)
    at = backend.point(context.problem, theta, np.arange(2.0))
    cells = cells_of(context.source)
    if cells is not None:
        nowhere = np.zeros((side, side), np.int32)
        backend.cell_sums(at, empty, nowhere, np.zeros((1, cells.number + 1, len(theta) + 1)))
    elif context.problem.loss == "linear":
        backend.gram(at, empty, None)
    else:
        backend.robust_gram(at, empty, np.zeros((1, 2)))
    return report_of(began, before, NO_COST)


def report_of(began: float, before: dict[str, int], cost: Cost) -> Report:
    """Return the report of a task.

    began: time of perf_counter at its start; before: compilations of each kernel at its start.
    """
    seconds, peak = time.perf_counter() - began, getrusage(RUSAGE_SELF).ru_maxrss * 1024
    address = ""  # of the worker that this process is
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # it is none
            address = distributed.get_worker().address
    return Report(address, os.getpid(), seconds, (before, compilations()), cost, peak)


def metered(what: str) -> AbstractContextManager[object]:
    """Return a context whose time Dask shows as a part of a task; without Dask it does nothing."""
    metrics = sys.modules.get("distributed.metrics")  # a worker has loaded it
    return nullcontext() if metrics is None else metrics.context_meter.meter(what)


def wide_gram_of(context: TaskContext, run: Run, at: ManyThetas) -> tuple[WideGram, Report]:
    """Return the merged wide Gram of a run of blocks; a block in which f has decayed at all is not read."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    if cells_of(context.source) is not None:
        means, cost = means_over_cells(*context, run, list(at.thetas))
        return wide_cell_gram(means), report_of(began, before, cost)
    source, problem, points = context.source, context.problem, _points(context, at.thetas)
    backend, q = backend_of(problem.model), q_or_one(open_selection(source.selection))
    q = q[run.members[0]]
    places, known, needed = [Place(run.members, tile) for tile in run.tiles], [], []
    for place in places:
        i, j = (side * source.side for side in place.tile)
        known.append(_sums_of(source, place, problem.min_lag))
        active = any(at.sub_blocks(q, i, j, source.side).n_active for at in points)
        needed.append(active or known[-1] is None)
    leaves = []
    with prefetched(source, places, needed) as turns:
        for place, sums, read in zip(turns, known, needed, strict=True):
            if not read:
                some = sums[: len(run.members)]
                moments = moments_of_data(some, len(points) + 2)
                leaves.append(WideGram(moments, some[:, 3].astype(np.int64)))
                continue
            data = block(source, place, context.budget)
            with metered("gram"):
                leaves.append(backend.wide_gram(points, data, sums)[0])
    return merge_tree(leaves), report_of(began, before, NO_COST)


GRAM = Task(gram_of, "gram")
CELL_MEANS = Task(cell_means_of, "cells", "for the model check")
CANDIDATES = Task(candidates_of, "candidates", "of initial values")
WIDE_GRAM = Task(wide_gram_of, "wide_gram", "at many parameters")
