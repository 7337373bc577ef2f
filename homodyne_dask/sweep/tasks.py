"""What a worker does in a pass: a run of blocks becomes a Gram, and what it cost is told.

A task is a pure function of (store, blocks, model, theta): whoever does it, and how often, its Gram
has the same bits.
"""

import os
import time
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

import numpy as np
from distributed.metrics import context_meter
from jaxtyping import Float

from homodyne_dask.kernels.backend import ModelPoint, backend_of, compilations
from homodyne_dask.kernels.gram import Gram, gram_of_data, merge_tree
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport import Block
from homodyne_dask.store.memory import set_allocator_thresholds
from homodyne_dask.store.scan import known_q, opened
from homodyne_dask.sweep.blocks import SUMS, Place, Source, announce, block, stored_sums
from homodyne_dask.sweep.plan import Run


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


def gram_of(work: Work, run: Run, at: Float[np.ndarray, " n"]) -> tuple[Gram, Report]:
    """Return the merged Gram of a run of blocks; this is the task.

    at: theta; and with a loss (offset - 1, contrast) of every selected bin, one after the other.
    """
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    scan = opened(work.source.selection)
    theta, beta = np.split(at, [work.problem.model.size])
    here = backend_of(work.problem.model).point(
        work.problem, theta, scan.time, work.source.factor, scan.frames
    )
    places = [Place(run.members, tile) for tile in run.tiles]
    leaves, cost = [], Cost()
    for n, place in enumerate(places):
        if n + 1 < len(places):
            announce(work.source, places[n + 1])
        if beta.size:
            gram, part = _robust_leaf(work, here, place, beta.reshape(-1, 2))
        else:
            gram, part = _leaf(work, here, place)
        leaves.append(gram)
        cost = cost.plus(part)
    with context_meter.meter("merge"):
        return merge_tree(leaves), reported(began, before, cost)


def candidates_of(
    work: Work, run: Run, thetas: Float[np.ndarray, "point p"]
) -> tuple[Gram, Report]:
    """Return the merged moments of [1, y - 1, f] of a run of blocks at every theta; a task, too."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    scan, factor = opened(work.source.selection), work.source.factor
    backend = backend_of(work.problem.model)
    points = [
        backend.point(work.problem, theta, scan.time, factor, scan.frames) for theta in thetas
    ]
    leaves = []
    for tile in run.tiles:
        data = block(work.source, Place(run.members, tile), work.budget)
        leaves.append(backend.candidate_grams(points, data))
    return merge_tree(leaves), reported(began, before, NOTHING)


def _leaf(work: Work, at: ModelPoint, place: Place) -> tuple[Gram, Cost]:
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
        with context_meter.meter("read"):
            data = block(source, place, work.budget)
        reading = time.perf_counter() - began
        with context_meter.meter("gram"):
            gram, sums = backend_of(work.problem.model).gram(at, data, sums)
        SUMS.put(key, sums)
    if gram is None or not cut.live:
        assert sums is not None
        gram = gram_of_data(sums[: len(place.members)], work.problem.model.size)
    return gram, Cost(cut.live, cut.number, int(needed), 1, reading)


def _robust_leaf(
    work: Work, at: ModelPoint, place: Place, beta: Float[np.ndarray, "bin 2"]
) -> tuple[Gram, Cost]:
    """Return the Gram of one block under the loss of the problem: every residual counts."""
    began = time.perf_counter()
    data = block(work.source, place, work.budget)
    reading = time.perf_counter() - began
    cut = at.sub_blocks(data.q[0], data.i0, data.j0, work.source.side)
    gram = backend_of(work.problem.model).robust_gram(at, data, beta[list(place.members)])
    return gram, Cost(cut.live, cut.number, 1, 1, reading)


def warm_up(work: Work) -> Report:
    """Compile the kernel in this process before any data come."""
    began, before = time.perf_counter(), compilations()
    side, slots = work.source.side, work.source.slots
    data, weights = np.zeros((slots, side, side), np.float32), np.zeros((slots, side))
    nothing = Block(data, weights, weights, np.ones(1), np.zeros(1), 0, 0)
    theta = np.ones(work.problem.model.size)
    backend = backend_of(work.problem.model)
    at = backend.point(work.problem, theta, np.arange(2.0))
    if work.problem.loss == "linear":
        backend.gram(at, nothing, None)
    else:
        backend.robust_gram(at, nothing, np.zeros((1, 2)))
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
