"""A fit of a scan, and the run of any fit: workers, observer, passes until it has ended, and the result."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.aliased_fringes import limit_of_fringes
from homodyne_dask.cluster.workers import local_workers, this_process, workers_asked
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.minimize import FitRecord, checkpoint_path
from homodyne_dask.fitting.observer import FitDescription, FitObserver, require_callbacks
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.models import Model
from homodyne_dask.request.options import SPECKLE_WEIGHTS, takes_options
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.blocks import forget_large
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


def run[Result](
    fit: Callable[["Client | None", FitObserver, FitRecord], Steps[Result]],
    description: FitDescription,
    planned: Plan,
    client: "Client | None",
    callbacks: Sequence[Callback],
    record: FitRecord,
    scan: Scan | None = None,
) -> Steps[Result]:
    with workers_for_plan(scan, planned, client) as (connected, refused):
        observer = FitObserver(description, planned, connected, callbacks, refused)
        record.on_level, record.on_phase = observer.state, observer.start_phase
        with observer.failures_emitted():
            result = yield from fit(connected, observer, record)
    return result


def run_to_completion[Result](passes: Steps[Result]) -> Result:
    while True:
        try:
            next(passes)
        except StopIteration as end:
            return end.value


@contextmanager
def workers_for_plan(
    scan: Scan | None, planned: Plan, client: "Client | None"
) -> "Iterator[tuple[Client | None, Sequence[str]]]":
    """Yield the client, and messages about refused workers; those started here have the right versions."""
    if client is None and not planned.workers.to_start:
        try:
            yield None, ()
        finally:
            forget_large()
        return
    local, distributed_tasks, preflight = modules_with_dask()
    if client is None or planned.workers.to_start:
        workers, checked_for = local.local_cluster(gpus=planned.gpus), (None, None)
    else:
        workers, checked_for = nullcontext(client), (scan, planned)
    with workers as connected, preflight.checked_workers(connected, *checked_for) as refused:
        distributed_tasks.keep_preferences_soft(connected)
        yield connected, refused


def modules_with_dask():
    """Return the modules for clusters, for passes and for checks of workers."""
    from homodyne_dask.cluster import local  # lazy: Dask loads for half a second,
    from homodyne_dask.sweep import distributed_tasks, preflight  # lazy: and a fit here needs none

    return local, distributed_tasks, preflight


def require_client(client: object) -> None:
    """Raise OptionError for what is neither None nor a client that can be waited for here."""
    if client is not None:
        local, *_ = modules_with_dask()
        local.require_client(client)


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
    options |= {"client": client, "checkpoint": checkpoint, "resume": resume}
    return run_to_completion(iterate(data, model, callbacks=callbacks, **options))


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
    request.require_given()
    path = checkpoint_path(checkpoint, resume)
    if request.options.weighting == SPECKLE_WEIGHTS:
        if resume:
            raise OptionError(
                "a fit with weighting speckle takes seconds and writes no checkpoint: leave out resume"
            )
        path = None
    require_callbacks(callbacks)
    planned = plan_for(request, client)
    request = request.computed_on(planned.device)

    def passes(*workers_and_observer: Any) -> Steps["FitResult"]:
        # lazy: JAX and tables load while workers start, and after the first line of progress
        from homodyne_dask.fitting.fit_scan import passes_of_scan

        return passes_of_scan(request, planned, path, resume, *workers_and_observer)

    note = limit_of_fringes(request)
    description = description_of(request, Path(request.scan.path).name, note)
    return (yield from run(passes, description, planned, client, callbacks, record, request.scan))


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
    hypothetical: int | str | None = None,
    apart: Int[np.ndarray, " bin"] | None = None,
    passes: int = PASSES_OF_A_FIT,
) -> Plan:
    """hypothetical: workers of such a cluster. apart: see `layout`. passes: besides those of profiles."""
    cut = layout(request.scan, request.problem.min_lag, apart=apart)
    memory = request.options.memory
    workers, find_gpus = None, gpus_of_machine
    if hypothetical is not None:
        workers, find_gpus = workers_asked(hypothetical, client), lambda: NO_GPUS_ASKED
    elif client is not None:
        local, _, preflight = modules_with_dask()
        workers = local.workers_of(client)  # waits for the first, which is then asked for its GPU
        find_gpus = partial(preflight.gpus_of_workers, client)
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

    def errors(state: lm.State) -> Float[np.ndarray, " p"]:
        # lazy: it loads tables, and a fit that nobody watches does without it
        from homodyne_dask.assessment.assess import errors_of_pass

        return errors_of_pass(request, state)

    search, units = request.search, tuple(parameter.unit for parameter in request.parameters)
    title = f"{request.problem.model.name} fitted to {title}"
    free = int(search.free.sum())
    return FitDescription(
        title=title, names=search.names, units=units, store=request.scan.path, note=note,
        errors=errors, free=free,
    )  # fmt: skip
