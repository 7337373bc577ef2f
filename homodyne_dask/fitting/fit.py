"""A fit: scan and model in, result out. It introduces the solver to the cluster."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Client

from homodyne_dask.cluster.local import local_cluster, local_workers, this_process, workers_of
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.minimize import FitRecord, minimize, run_to_completion
from homodyne_dask.fitting.options import Request, prepare, require_gap
from homodyne_dask.live.progress import Progress
from homodyne_dask.models import Model
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.admission import checked_workers
from homodyne_dask.sweep.plan import IN_PROCESS_PAIRS, Plan, coarse_levels, layout, make_plan
from homodyne_dask.sweep.unreadable import without_unreadable

if TYPE_CHECKING:
    from homodyne_dask.live.watch import FitDescription
    from homodyne_dask.results.fit_result import FitResult


def fit(
    data: Scan | str | Path,
    model: Model,
    *,
    gap: str | float | None = None,
    convention: str = "physical",
    scaling: str = "individual",
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    contrast_bounds: tuple[float, float] | None = None,
    offset_bounds: tuple[float, float] | None = None,
    contrast_prior: tuple[float, float] | None = None,
    offset_prior: tuple[float, float] | None = None,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    min_lag: int = 1,
    loss: str = "linear",
    loss_scale: float | None = None,
    precision: str = "float64",
    memory: str = "auto",
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    starts: int | None = None,
    profile: tuple[str, ...] = (),
    max_passes: int = 100,
    on_bad_tile: str = "raise",
    progress: Callable[[lm.State], None] | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> "FitResult":
    """Fit a model to all selected pairs t1 < t2 of a scan, each counted once.

    data: a scan, or the path of a store. gap: the distance of the plates, '200 um' or in Å;
    by default the store's own. convention: 'physical' or 'homodyne' (see `Convention`).
    scaling: contrast and offset per bin ('individual'), one of each ('shared'), each a Fourier series
    in φ ('fourier1' to 'fourier3'), or given values ('fixed', with contrast and offset: one number,
    or one per bin). In the first two contrast and offset may have bounds (low, high), and priors (mean,
    standard deviation) that count as one more measurement of each bin's, or of the shared one.
    initial, fixed, bounds: by parameter name; what is not given is searched in the data.
    min_lag: pairs closer than this many frames are left out. loss: what a residual costs, its square
    ('linear') or less where it is large ('huber', 'soft_l1', 'cauchy'; scipy.optimize.least_squares
    defines them), from loss_scale standard deviations on, by default 1. precision: 'float64', or 'mixed'
    (float32 on the plane, float64 sums). memory: keep decoded data with the workers ('resident'),
    read them in every pass ('stream'), or what fits ('auto'). client: a Dask client; None starts
    workers on this machine, or none for fewer than four million pairs. checkpoint: a file written
    after each pass, from which resume=True goes on to the same bits. starts: how many points of
    the scan for first values are followed to their end; `result.minima` says where those ended.
    profile: parameters along which χ² is followed at one and two standard errors on both sides, the
    others fitted anew. on_bad_tile: a chunk of the store that is needed and cannot be read ends the
    fit ('raise'), or all that cannot be read are found before the first pass, left out and reported
    ('skip'). progress: called with the state after each pass over all data, as `iterate` yields them;
    watch: called about twice a second with where the fit stands, down to tiles and rates.

    Raises a HomodyneDaskError for every mistake in these; how the fit ended is `result.outcome`.
    """
    passes = iterate(
        data, model, client=client, checkpoint=checkpoint, resume=resume, watch=watch,
        gap=gap, convention=convention, scaling=scaling, contrast=contrast, offset=offset,
        contrast_bounds=contrast_bounds, offset_bounds=offset_bounds,
        contrast_prior=contrast_prior, offset_prior=offset_prior, initial=initial, fixed=fixed,
        bounds=bounds, min_lag=min_lag, loss=loss, loss_scale=loss_scale, precision=precision,
        memory=memory, starts=starts, profile=profile, max_passes=max_passes,
        on_bad_tile=on_bad_tile,
    )  # fmt: skip
    return run_to_completion(passes, progress)


def iterate(
    data: Scan | str | Path,
    model: Model,
    *,
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Generator[lm.State, None, "FitResult"]:
    """Fit as `fit` does, with its options, and yield the state after each pass over all data.

        for state in hd.iterate(scan, hd.LAMINAR_FLOW, gap="200 um"):
            print(state.passes, state.reduced.chisqr, state.theta)

    The last state says how the fit ended; the value of the generator is the result. Leaving the loop
    ends the fit.
    """
    began = time.perf_counter()
    request = prepare(data, model, **options)
    require_gap(request)
    path = None if checkpoint is None else Path(checkpoint)
    if resume and path is None:
        raise OptionError("resume needs the checkpoint to resume from: give checkpoint=PATH")
    if path is not None and not resume:
        checkpoints.check_checkpoint_target(path)
    work = plan_for(request, client)
    with (
        local_cluster() if work.workers.to_start else nullcontext(client) as connected,
        checked_workers(client, request.scan, work) as refused,
    ):
        if options.get("on_bad_tile") == "skip":
            layouts = (work.layout, *work.levels)
            request = replace(request, scan=without_unreadable(request.scan, layouts, connected))
        # JAX and tables load while workers start
        from homodyne_dask.fitting.errors.assemble import assemble_result
        from homodyne_dask.fitting.errors.extra_passes import estimate_errors
        from homodyne_dask.live.watch import Watch
        from homodyne_dask.sweep.sweep import level_sweeps, sweep_of

        observer = Watch(_watched(request), work, connected, watch, refused)
        with observer.failures_published():
            selection, problem = request.scan.selection, request.problem
            sweep = observer.watched(sweep_of(work, selection, problem, connected))
            levels = [
                observer.watched(s) for s in level_sweeps(work, selection, problem, connected)
            ]
            sweep.warm_up()
            record = FitRecord(began, observer.state)
            state = None
            for state in minimize(request, sweep, path, resume, record, levels):
                observer.state(state)
                yield state
            assert state is not None  # there is at least one pass
            observer.doing("finding the errors")
            ended = time.perf_counter()
            more = estimate_errors(request, sweep, state)
            record.timings["errors"] = time.perf_counter() - ended
            compilations = sweep.compilations()  # asks the workers, so before they are let go
            record.timings["total"] = time.perf_counter() - began
            found = record.history, record.timings, compilations, more, record.minima
            result = assemble_result(request, state, *found)
            observer.ended(result)
    record.timings["total"] = time.perf_counter() - began
    return result


def plan(
    data: Scan | str | Path,
    model: Model,
    *,
    gap: str | float | None = None,
    convention: str = "physical",
    min_lag: int = 1,
    memory: str = "auto",
    loss: str = "linear",
    loss_scale: float | None = None,
    client: Client | None = None,
) -> Plan:
    """Return what `fit` would read and hold with these options; `print` it.

    Raises the same mistakes as `fit`, but for a missing gap, and PlanError where the workers' memory
    is too small.
    """
    request = prepare(
        data, model, gap=gap, convention=convention, min_lag=min_lag, memory=memory,
        loss=loss, loss_scale=loss_scale,
    )  # fmt: skip
    return plan_for(request, client)


def plan_for(request: Request, client: Client | None) -> Plan:
    """Return the plan for the client's workers, or for this process or the workers to be started."""
    work = layout(request.scan, request.problem.min_lag)
    if client is not None:
        workers = workers_of(client)
    else:
        workers = this_process() if work.pairs < IN_PROCESS_PAIRS else local_workers()
    name = request.problem.model.name
    levels = coarse_levels(request.scan, work, request.problem.min_lag)
    return make_plan(work, workers, name, len(request.scan.bins), request.memory, levels)


def _watched(request: Request) -> "FitDescription":
    """Return what is told of a fit of a scan."""
    from homodyne_dask.fitting.errors.assemble import standard_errors
    from homodyne_dask.live.watch import FitDescription

    return FitDescription(
        f"{request.problem.model.name} fitted to {Path(request.scan.path).name}",
        request.search.names,
        tuple(parameter.unit for parameter in request.parameters),
        lambda state: standard_errors(request, state, None),
    )
