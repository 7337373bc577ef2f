"""A fit of a scan: it connects solver, sweep and cluster, and returns the result.

The run of any fit: workers, observer, passes until the fit has ended, and the result.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.aliased_fringes import limit_of_fringes
from homodyne_dask.cluster.workers import local_workers, this_process, workers_asked
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.minimize import (
    CheckpointFile,
    FitRecord,
    checkpoint_path,
    find_start,
    identity,
    minimize,
)
from homodyne_dask.fitting.observer import FitDescription, FitObserver, require_callbacks
from homodyne_dask.fitting.prepare import computed_on, prepare, require_gap
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.models import Model
from homodyne_dask.request.options import SPECKLE_WEIGHTS, takes_options
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.blocks import forget_large, without_unreadable
from homodyne_dask.sweep.layout import coarse_levels, layout
from homodyne_dask.sweep.plan import (
    PASSES_OF_A_FIT,
    PASSES_OF_A_PROFILE,
    Plan,
    chosen_device,
    make_plan,
    workers_here,
)

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.results.result_classes import FitResult


type Steps[Result] = Generator[lm.State, None, Result]
"""Yields the state of the solver after each pass, and returns the result."""


def run[Result](
    fit: Callable[["Client | None", FitObserver, FitRecord], Steps[Result]],
    description: FitDescription,
    planned: Plan,
    client: "Client | None",
    callbacks: Sequence[Callback],
    record: FitRecord,
    scan: Scan | None = None,
) -> Steps[Result]:
    """Run a fit on the workers of its plan, and tell its callbacks of its steps and its end.

    fit: makes the passes with a client, or None in this process. scan: for which workers are checked.
    """
    with workers_for_plan(scan, planned, client) as (connected, refused):
        observer = FitObserver(description, planned, connected, callbacks, refused)
        record.on_level, record.on_phase = observer.state, observer.start_phase
        with observer.failures_emitted():
            result = yield from fit(connected, observer, record)
    return result


def followed(
    states: Iterator[lm.State], observer: FitObserver, record: FitRecord, *, resumed: bool = False
) -> Steps[lm.State]:
    """Yield the states of a fit, of which callbacks are told; return the last one.

    resumed: whether the first one is that of a checkpoint.
    """
    state = None
    for state in states:
        observer.state(state, resumed=resumed)
        resumed = False
        yield state
    assert state is not None  # there is at least one pass
    observer.start_phase("estimating the errors")
    record.last_pass = time.perf_counter()
    return state


def run_to_completion[Result](passes: Steps[Result]) -> Result:
    """Return the result of a fit that is iterated."""
    while True:
        try:
            next(passes)
        except StopIteration as end:
            return end.value


@contextmanager
def workers_for_plan(
    scan: Scan | None, planned: Plan, client: "Client | None"
) -> "Iterator[tuple[Client | None, Sequence[str]]]":
    """Yield the client to compute with, of workers that are started where the plan says so.

    Its workers are checked as `checked_workers` does, whose messages come with it; of workers that are
    started here, now or in place of one that died, and for data other than a scan, the code alone.

    Dask loads for half a second; a fit in this process does without it, and leaves no data in its memory.
    """
    if client is None and not planned.workers.to_start:
        try:
            yield None, ()
        finally:
            forget_large()
        return
    from homodyne_dask.cluster.local import local_cluster
    from homodyne_dask.sweep.distributed_tasks import keep_preferences_soft
    from homodyne_dask.sweep.preflight import checked_workers

    if planned.workers.to_start:
        with local_cluster(gpus=planned.gpus) as started, checked_workers(started) as refused:
            keep_preferences_soft(started)
            yield started, refused
    elif client is not None:
        with checked_workers(client, scan, planned) as refused:
            keep_preferences_soft(client)
            yield client, refused


NO_GPUS_ASKED = "workers of a hypothetical cluster are assumed to have no GPUs"


@takes_options()
def fit(
    data: Scan | str | Path,
    model: Model | str,
    *,
    client: "Client | None" = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> "FitResult":
    """Fit a model to all selected pairs t1 < t2 of a scan, each counted once.

    data: a scan, or the path of a store; a list of them is fitted as one, each with its own frames and bins:
        the result is then a `FitSeries`, and `per_scan` names parameters that differ between scans.
    client: a Dask client; without one, threads of this process compute, or workers that the fit starts on
        this machine where four million pairs or more do not fit in memory.
    checkpoint: a file written after each pass over the pairs (none with weighting speckle); resume=True
        continues from it with identical results.
    callbacks: functions, each called with every event of the fit (`hd.events`), from the plan to single
        tiles and the result; an exception in one ends the fit.
    {options}

    Raises a HomodyneDaskError for invalid input; `result.outcome` tells how the fit ended, and
    `result.diagnosis.minima` lists the minima reached from several starting points.

    >>> hd.fit("A0123_c2.zarr", "laminar_flow", gap="200 um", max_passes=2).passes
    2
    """
    given = {"client": client, "checkpoint": checkpoint, "resume": resume, "callbacks": callbacks}
    return run_to_completion(iterate(data, model, **given, **options))


@takes_options()
def iterate(
    data: Scan | str | Path,
    model: Model | str,
    *,
    client: "Client | None" = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Generator[lm.State, None, "FitResult"]:
    """Fit like `fit`, with the same options, and yield the state after each pass over all data.

        for state in hd.iterate(scan, hd.LAMINAR_FLOW, gap="200 um"):
            print(state.passes, state.reduced.chisqr, state.theta)

    client, checkpoint, resume, callbacks, model and options: those of `fit`. The last state has the outcome;
    the return value of the generator is the result. Leaving the loop ends the fit. Raises a
    HomodyneDaskError for invalid input, as `fit` does.

    >>> [state.passes for state in hd.iterate("A0123_c2.zarr", "static", max_passes=2)][:2]
    [1, 2]
    """
    record = FitRecord(time.perf_counter())
    request = prepare(data, model, **options)
    require_gap(request)
    path = checkpoint_path(checkpoint, resume)
    if request.options.weighting == SPECKLE_WEIGHTS:
        if resume:
            raise OptionError(
                "a fit with weighting speckle takes seconds and writes no checkpoint: leave out resume"
            )
        path = None
    require_callbacks(callbacks)
    planned = plan_for(request, client)
    request = computed_on(request, planned.device)
    passes = partial(_passes, request, planned, path, resume)
    note = limit_of_fringes(request)
    description = description_of(request, Path(request.scan.path).name, note)
    return (yield from run(passes, description, planned, client, callbacks, record, request.scan))


def _passes(
    request: Request,
    planned: Plan,
    path: Path | None,
    resume: bool,
    client: "Client | None",
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, "FitResult"]:
    # JAX and tables load while workers start, and after the first line of progress
    from homodyne_dask.assessment.assess import assess
    from homodyne_dask.assessment.result_of import result_of
    from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting, minimize_weighted
    from homodyne_dask.fitting.start.initial_values import require_finite
    from homodyne_dask.sweep.sweep import sweep_of

    if request.options.on_bad_tile == "skip":
        layouts = (planned.layout, *planned.levels)
        request = replace(request, scan=without_unreadable(request.scan, layouts, client))
    selection, problem = request.scan.selection, request.problem
    sweeps = [
        observer.observed(sweep_of(planned, selection, problem, client, level))
        for level in (*planned.levels, planned.layout)
    ]
    *_, data = sweeps
    data.warm_up()
    weighted = None
    if request.options.weighting == SPECKLE_WEIGHTS:
        weighted = SpeckleWeighting.of(request, data)
        weighted.begun, weighted.ended = observer.start_pass, observer.end_pass
        request, states = weighted.request, minimize_weighted(weighted, record)
    else:
        file = None if path is None else CheckpointFile(path, identity(request))
        states = minimize(request, data, partial(find_start, request, sweeps), record, file, resume)
    state = yield from followed(states, observer, record, resumed=resume)
    if state.outcome is lm.Outcome.NONFINITE:
        require_finite(request, state.theta, everywhere=True)
    assessment = assess(request, state, data, weighted, observer.start_phase)
    ran = record.run(state.passes, data.compilations())
    result = result_of(request, state, assessment, ran, record.minima)
    table, ends = result.parameters, result.ci()
    observer.ended(
        result.outcome,
        result.findings,
        *(table[name].values for name in ("value", "stderr")),
        sentence=result.verdict,
        low=tuple(ends["low"].values.tolist()),
        high=tuple(ends["high"].values.tolist()),
        result=result,
    )
    return result


@takes_options(of_plan=True)
def plan(
    data: Scan | str | Path,
    model: Model | str,
    *,
    client: "Client | None" = None,
    workers: int | str | None = None,
    **options: Any,
) -> Plan:
    """Plan a fit: tiles, tasks, bytes to read and memory; `print(plan)` shows them.

    data, model, client: as in `fit`.
    workers: of a hypothetical cluster: their number, or '1000:8:32GB' with threads and memory of each;
        by default 8 threads and 2 GB per thread.
    {options}

    Raises the same errors as `fit`, except for a missing gap, and PlanError if the workers' memory is too
    small.

    >>> hd.plan("A0123_c2.zarr", "static").model
    'static'
    """
    return plan_for(prepare(data, model, **options), client, workers)


def plan_for(
    request: Request,
    client: "Client | None",
    asked: int | str | None = None,
    apart: Int[np.ndarray, " bin"] | None = None,
    passes: int = PASSES_OF_A_FIT,
) -> Plan:
    """Return the plan for the client's workers or, without a client, for this process or new workers.

    asked: workers of a hypothetical cluster, for which it is then. apart: see `layout`. passes: that are
    expected, besides those of profiles.
    """
    cut = layout(request.scan, request.problem.min_lag, apart=apart)
    memory = request.options.memory
    workers, find_gpus = None, gpus_of_machine
    if asked is not None:
        workers, find_gpus = workers_asked(asked, client), lambda: NO_GPUS_ASKED
    elif client is not None:
        from homodyne_dask.cluster.local import workers_of
        from homodyne_dask.sweep.preflight import gpus_of_workers

        workers = workers_of(client)  # waits for the first, which is then asked for its GPU
        find_gpus = partial(gpus_of_workers, client)
    threads = cores() if workers is None else workers.threads
    passes += PASSES_OF_A_PROFILE * len(request.options.profile)
    device = chosen_device(request.options.device, cut, memory, find_gpus, threads, passes)
    if workers is None:
        if request.options.weighting == SPECKLE_WEIGHTS:
            workers = this_process(cut.blocks)
        elif device.gpus is None:
            workers = workers_here(cut, memory)
        else:
            workers = local_workers(device.gpus.number)
    name, parameters = request.problem.model.name, request.problem.model.size
    levels = coarse_levels(request.scan, cut, request.problem.min_lag)
    bins = len(request.scan.bins)
    return make_plan(cut, workers, name, parameters, bins, memory, levels, device)


def description_of(request: Request, title: str, note: str = "") -> FitDescription:
    """Return title, parameters and errors for the progress of a fit."""

    def errors(state: lm.State) -> Float[np.ndarray, " p"]:
        from homodyne_dask.assessment.assess import errors_of_pass

        return errors_of_pass(request, state)

    units = tuple(parameter.unit for parameter in request.parameters)
    title = f"{request.problem.model.name} fitted to {title}"
    free = int(request.search.free.sum())
    return FitDescription(title, request.search.names, units, errors, free, request.scan.path, note)
