"""A forecast of what a pass reads, and of its time and memory, from a sample of its tasks."""

from dataclasses import dataclass, replace
from functools import reduce
from heapq import heapreplace
from itertools import batched, groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.cluster.workers import Workers
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.options import takes_options
from homodyne_dask.fitting.request import Request, prepare, require_gap, require_pairs
from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.models import Model
from homodyne_dask.solver.reduce import reduce as reduce_gram
from homodyne_dask.store.chunk_reader import stored_size
from homodyne_dask.store.scan import Chunk, Scan, q_or_one
from homodyne_dask.sweep.blocks import Cost, Place, stored_sums
from homodyne_dask.sweep.layout import SCHEDULER_SECONDS, Run
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.sweep import Sweep, at_point, sweep_of
from homodyne_dask.sweep.tasks import GRAM, AtTheta, AtThetaAndLinear, Report
from homodyne_dask.text import html_table, lines_of, size

if TYPE_CHECKING:
    from distributed import Client

SAMPLE_PAIRS = 20e6
"""Pairs of the sample for each thread; it is computed up to three times, for some tenths of a second."""
TASK_OVERHEAD_SECONDS = 0.008
"""Processor time of Dask for a task, in driver and worker together [s]; docs/performance.md."""


@dataclass(frozen=True)
class Forecast:
    """What a pass at the initial values will read and take. `print(forecast)` shows it."""

    plan: Plan
    theta: dict[str, float]
    """Initial values, from the averages that ingest wrote."""
    needed: int
    """Tiles that are read; in the others f has decayed."""
    computed: float
    """Share of the sub-blocks that is computed."""
    bytes_read: int
    """Bytes of files that a pass reads where data do not stay in memory."""
    first: float
    """Seconds of the first pass, workers warm."""
    later: float
    """Seconds of every other pass."""
    peak: int
    """Most memory that a worker process takes [bytes]: it keeps the blocks of all its tasks in a fit."""
    limit: str
    """What a pass takes its time for: 'computing', 'reading', or 'the scheduler' of more tasks than it can
    serve."""

    def __str__(self) -> str:
        return lines_of(self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(f"forecast of a fit of {self.plan.model}", self._rows(), header=False)

    def _rows(self) -> list[tuple[str, str]]:
        at = ", ".join(f"{name} {value:.4g}" for name, value in self.theta.items())
        skipped = self.plan.layout.blocks - self.needed
        return [
            ("initial values", at),
            ("tiles read", f"{self.needed}, {skipped} skipped because f has decayed there"),
            ("sub-blocks", f"{100 * self.computed:.0f} % computed"),
            ("files read", self._files_read),
            (
                "time per pass",
                f"{self.first:.3g} s for the first, {self.later:.3g} s for each later one",
            ),
            ("limited by", self.limit),
            ("peak memory", f"{size(self.peak)} per worker process"),
        ]

    @property
    def _files_read(self) -> str:
        often = "once" if self.plan.resident else "a pass"
        rate = size(self.bytes_read / max(self.first, 1e-9))
        return f"{size(self.bytes_read)} {often}, {rate}/s with all threads together"


@takes_options(of_plan=True, also=["initial"])
def forecast(
    data: Scan | str | Path,
    model: Model | str,
    *,
    client: "Client | None" = None,
    workers: int | str | None = None,
    **options: Any,
) -> Forecast:
    """Predict the time, memory and reads of `fit` with these options, from a sample of its tasks.

    data, model, client: as in `fit`, which also determines whether workers are started on this machine.
    workers: workers of a hypothetical cluster, as in `plan`; the sample is computed on this machine.
    initial: if every free parameter has a value, the sample is computed there, otherwise at the best point
    of the search.
    {options}

    Raises the same errors as `fit`, and PlanError if the workers' memory is too small.

    >>> hd.forecast("A0123_c2.zarr", "static", initial={"D0": 1e4}).needed
    1
    """
    request = prepare(data, model, **options)
    require_gap(request)
    require_pairs(request.options.weighting, "a forecast")
    plan = plan_for(request, client, workers)
    on_cpu = replace(request, options=replace(request.options, device="cpu"))
    here = plan if workers is None else plan_for(on_cpu, None)
    with workers_for_plan(request.scan, here, client) as (connected, _):
        sweep = sweep_of(here, request.scan.selection, request.problem, connected)
        theta = request.search.start
        if not np.isfinite(theta).all():
            theta = find_initial_values(request)[0].theta
        linear_params = None
        if request.problem.loss != "linear":
            linear_params = reduce_gram(averages_of(request)(theta), request.scaling).linear_params
        return _forecast(request, plan, here.workers, sweep, at_point(theta, linear_params))


@dataclass(frozen=True)
class _Tile:
    """One block of a pass and its cost."""

    run: Run
    n_computed: int
    """Sub-blocks computed, of one bin; under a loss all."""
    n_total: int
    read: bool


def _forecast(
    request: Request, plan: Plan, here: Workers, sweep: Sweep, at: AtTheta | AtThetaAndLinear
) -> Forecast:
    """Return the forecast from a sample that the sweep computes on these workers."""
    theta, threads = at.theta, here.threads
    tiles = _tiles(request, sweep, theta)
    needed = [tile for tile in tiles if tile.read]
    wanted = max(threads, int(SAMPLE_PAIRS * threads / (plan.layout.pairs / plan.layout.blocks)))
    sample = needed[:: max(1, len(needed) // wanted)]
    base = max(report.peak for report in _measured(sweep, sample[-threads:], threads, at))
    reports = _measured(sweep, sample, threads, at)
    cost = reduce(Cost.plus, (report.cost for report in reports))
    reading = cost.reading / max(cost.read, 1)
    streaming = sweep.context.budget == 0
    if streaming:
        base = max(base, *(report.peak for report in reports))
    else:  # blocks of the sample stay, which are counted below; with them it is computed as in later passes
        reports = _measured(sweep, sample, threads, at)
        cost = reduce(Cost.plus, (report.cost for report in reports))
    computed = max(sum(tile.n_computed for tile in sample), 1)
    computing = (sum(report.seconds for report in reports) - cost.reading) / computed

    def seconds(read: float, compute: float = computing, serve: float = SCHEDULER_SECONDS) -> float:
        of_tile = {
            (tile.run.group, tile.run.tiles[0]): compute * tile.n_computed + read * tile.read
            for tile in tiles
        }
        task = 0.0 if plan.workers.local else TASK_OVERHEAD_SECONDS
        return makespan(
            [task + sum(of_tile[run.group, tile] for tile in run.tiles) for run in plan.tasks],
            plan.workers.threads,
            0.0 if plan.workers.local else serve,
        )

    repeated = 0.0 if plan.resident else reading
    without = {
        "computing": seconds(repeated, compute=0.0),
        "reading": seconds(0.0),
        "the scheduler": seconds(repeated, serve=0.0),
    }
    # tasks move, and blocks stay where they were
    kept = plan.budget if plan.device.gpus is None else 0
    stored = [_stored_bytes(request.scan, tile.run) for tile in sample]
    return Forecast(
        plan=plan,
        theta=dict(zip(request.search.names, theta.tolist(), strict=True)),
        needed=len(needed),
        computed=sum(tile.n_computed for tile in tiles)
        / max(sum(tile.n_total for tile in tiles), 1),
        bytes_read=int(np.mean(stored or [0]) * len(needed)),
        first=seconds(reading),
        later=seconds(repeated),
        peak=base + kept + _beyond_sample(plan, here, streaming),
        limit=min(without, key=lambda what: without[what]),
    )


def _beyond_sample(plan: Plan, here: Workers, streaming: bool) -> int:
    """Return the memory of a process for more threads than the sample had, and what they fetch ahead.

    The sample that tells the memory has one block for each thread where data stay: it fetched none ahead.
    """
    sampled = plan.layout if streaming else replace(plan.layout, by_url=False)
    needed = plan.layout.working_bytes(plan.parameters, plan.workers.threads_each)
    return needed - sampled.working_bytes(plan.parameters, here.threads_each)


def _tiles(request: Request, sweep: Sweep, theta: Float[np.ndarray, " p"]) -> list[_Tile]:
    """Return every tile of a pass, with the sub-blocks that are computed at theta."""
    scan, layout, source = request.scan, sweep.layout, sweep.context.source
    q, robust = q_or_one(scan), request.problem.loss != "linear"
    backend = backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time, 1, scan.frames)
    all_tiles = []
    for (group, members), tile in product(enumerate(layout.groups), layout.tiles):
        i, j = (place * layout.side for place in tile)
        cut = at.sub_blocks(q[members[0]], i, j, layout.side)
        known = stored_sums(source, Place(members, tile), request.problem.min_lag) is not None
        run = Run(group, members, (tile,), 1)
        n_computed = cut.n_total if robust else cut.n_active
        all_tiles.append(_Tile(run, n_computed, cut.n_total, bool(n_computed or not known)))
    return all_tiles


def _measured(
    sweep: Sweep, tiles: list[_Tile], threads: int, at: AtTheta | AtThetaAndLinear
) -> list[Report]:
    """Return the reports of some tiles, computed in a task for each thread, or for each group of one q.

    A task finds once what holds for all its tiles, and fetches them ahead, as in a pass.
    """
    most, tasks = -(-len(tiles) // threads), []
    for _, of_group in groupby(tiles, lambda tile: tile.run.group):
        for part in batched(of_group, most):
            places = tuple(tile.run.tiles[0] for tile in part)
            tasks.append(part[0].run._replace(tiles=places, length=len(part)))
    sampled = replace(sweep, tasks=tasks, owners={})
    return [report for *_, report in sweep.compute(sampled, GRAM, at)]


def _stored_bytes(scan: Scan, run: Run) -> int:
    chunks = [Chunk(1, scan.bins[member], *run.tiles[0]) for member in run.members]
    return sum(stored_size(scan.place_of(chunk)) for chunk in chunks)


def makespan(seconds: list[float], threads: int, serve: float) -> float:
    """Return the time [s] in which some threads that take tasks in turn complete all.

    serve: seconds in which the scheduler serves a task, one after the other.
    """
    free = [0.0] * threads
    for n, task in enumerate(seconds):
        heapreplace(free, max(free[0], n * serve) + task)
    return max(free)
