"""The noise of bins: in this process, on the workers of the passes, or on processes started for it.

A task is a pure function of store, selection, a group of bins, theta and the last sums of these bins, and
groups keep their order: the noise has the same bits for any number of workers, even if some are lost.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.assessment.cell_residuals import AveragedCells, stored_cells
from homodyne_dask.assessment.speckle_blocks import BinFrames, CellGrid, FittedPoint
from homodyne_dask.assessment.speckle_noise import (
    BinData,
    BinNoise,
    OfGroup,
    bin_frames,
    noise_of_bin,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.machine.allocator_and_threads import worker_address
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.store.scan import Selection, open_selection
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import Task

LOG = logging.getLogger(__name__)
TIMED = 2
"""Groups that are computed in this process, by which the time of the others is estimated."""
MIN_SECONDS = 1.0
"""Estimated time of the others above which they go to workers that run."""
START_SECONDS = 4.0
"""Time that workers must save to be started: threads would wait for each other, as NumPy seldom leaves
the interpreter to others in these small arrays. They start in 2 s on 2 cores, in 4 s on 16."""
TASK_SECONDS = 0.25
"""Estimated time of a task: Dask takes 8 ms of the driver for each."""
MOST_BYTES = 64e6
"""Memory that the noise of a bin may take on a worker, which a plan has no more for."""
PROGRESS_INTERVAL = 0.4
"""Least time between two messages of progress [s]."""


NONE, NO_EDGES = np.empty((0, 0)), np.empty(0, int)
NO_CELLS = AveragedCells([], NONE, NONE.astype(int), [], NO_EDGES, NO_EDGES)
NO_FRAMES = BinFrames((0, 0), np.empty(0, bool), np.empty(0), 1)


class BinContext(NamedTuple):
    """The arguments common to all tasks of a fit."""

    selection: Selection
    problem: Problem
    theta: Float[np.ndarray, " p"]
    which: Bool[np.ndarray, " p"]
    units: Float[np.ndarray, " m"]
    effective: Float[np.ndarray, "m k"] | None
    grid: CellGrid


def noise_of_groups(
    context: BinContext, groups: list[list[BinData]], _: None
) -> tuple[list[list[BinNoise] | None], Cost]:
    """Return the noise of groups of bins, each of one noise of the model; None as `noise_of_bins`.

    groups: what is known of them, without averages, frames and sigma, which the store has.
    """
    scan, problem = open_selection(context.selection), context.problem
    point = evaluation_of(problem.model).point(problem, context.theta, scan.time)
    at = FittedPoint(point, scan.time, context.which, context.units, context.effective)
    averaged, sigma_row = _stored(context.selection, problem.min_lag)

    def whole(one: BinData) -> BinData:
        return one._replace(
            averaged=averaged.of_bins([one.bin]),
            frames=bin_frames(scan, sigma_row[one.bin], problem.min_lag),
            sigma=sigma_row[one.bin, scan.use],
        )

    with one_blas_thread():
        noises = [noise_of_bin(at, list(map(whole, group)), context.grid) for group in groups]
    return noises, NO_COST


BIN_NOISE = Task(noise_of_groups, "noise", "for the noise of bins")


@lru_cache(maxsize=2)
def _stored(selection: Selection, min_lag: int) -> tuple[AveragedCells, Float[np.ndarray, "bin t"]]:
    scan = open_selection(selection)
    return stored_cells(scan, min_lag), scan.sigma_row


@dataclass
class BinExecutor:
    """Computes groups of bins, and says from time to time how many are done."""

    passes: Sweep
    doing: Callable[[str], None]
    bins: int = 0
    done: int = 0
    said: float = 0.0

    def noises(
        self,
        selection: Selection,
        at: FittedPoint,
        grid: CellGrid,
        stored: bool,
        of_group: OfGroup,
        groups: list[list[BinData]],
    ) -> Iterator[list[BinNoise] | None]:
        """Yield the noise of groups of bins in their order, from `of_group` or from workers.

        stored: whether only averages stored with the data are needed, which workers have, too. Else, and
        for little work, this process computes.
        """
        self.bins, self.done, self.said = sum(map(len, groups)), 0, time.monotonic()
        # some ten arrays over pairs of blocks for each of the fields 1, f and its derivatives
        needed = 10 * 8 * (2 + int(at.which.sum())) * grid.most**2
        on_workers, seconds = stored and needed <= MOST_BYTES, np.inf
        for n, group in enumerate(groups):
            if on_workers and n == TIMED and self._workers_save(seconds * (len(groups) - n)):
                problem = at.point.problem
                context = BinContext(
                    selection, problem, at.point.theta, at.which, at.units, at.effective, grid
                )
                number = max(round(TASK_SECONDS / seconds), 1)
                tasks = [groups[k : k + number] for k in range(n, len(groups), number)]
                try:
                    yield from self._on_workers(context, tasks)
                    return
                # the passes are done: workers that are lost, or do not start, must not cost their result
                except Exception as e:
                    LOG.warning("the noise of bins is computed in this process: %s", e)
                    on_workers = False
            began = time.perf_counter()
            yield of_group(group)
            seconds = min(seconds, time.perf_counter() - began)
            self._add(len(group))

    @property
    def _have_cores(self) -> bool:
        """Whether the workers of the passes have more cores: one that has a GPU here is a single process."""
        client: Any = self.passes.client
        if client is None or not self.passes.context.source.device:
            return client is not None
        from homodyne_dask.cluster.connect import on_this_machine  # it loads Dask

        return not on_this_machine(client.scheduler.address)

    def _workers_save(self, seconds: float) -> bool:
        """Return whether workers take less time for work of so many seconds than this process alone."""
        if self._have_cores:
            return seconds > MIN_SECONDS
        return not worker_address() and seconds * (1 - 1 / cores()) > START_SECONDS

    def _on_workers(
        self, context: BinContext, tasks: list[list[list[BinData]]]
    ) -> list[list[BinNoise] | None]:
        from homodyne_dask.cluster.local import local_cluster, workers_of  # they load Dask
        from homodyne_dask.sweep.distributed_tasks import computed_on_cluster

        noises: dict[int, list[list[BinNoise] | None]] = {}
        small = {"averaged": NO_CELLS, "frames": NO_FRAMES, "sigma": np.empty(0)}
        sent = [[[one._replace(**small) for one in group] for group in task] for task in tasks]
        running = self.passes.client if self._have_cores else None
        with local_cluster() if running is None else nullcontext(running) as client:
            workers_of(client)  # waits for the first, but not for ever
            arrived = computed_on_cluster(client, context, sent, {}, BIN_NOISE, None)
            for n, of_groups, _ in arrived:
                noises[n] = of_groups
                self._add(sum(map(len, tasks[n])))
        return [of_group for n in range(len(tasks)) for of_group in noises[n]]

    def _add(self, bins: int) -> None:
        self.done += bins
        if time.monotonic() - self.said > PROGRESS_INTERVAL:
            self.said = time.monotonic()
            self.doing(f"speckle noise: {self.done} of {self.bins} bins")
