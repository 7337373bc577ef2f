"""The passes of a fit of a scan, and its result: what loads JAX and tables."""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homodyne_dask.assessment.assess import assess
from homodyne_dask.assessment.result_of import result_of
from homodyne_dask.fitting.minimize import CheckpointFile, FitRecord, identity, minimize
from homodyne_dask.fitting.observer import FitObserver
from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting, minimize_weighted
from homodyne_dask.fitting.start.initial_values import find_start, require_finite
from homodyne_dask.request.options import SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_result import FitRun
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.blocks import without_unreadable
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of

if TYPE_CHECKING:
    from distributed import Client


def passes_of_scan(
    request: Request,
    planned: Plan,
    path: Path | None,
    resume: bool,
    client: "Client | None",
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, FitResult]:
    if request.options.on_bad_tile == "skip":
        layouts = (planned.layout, *planned.levels)
        request = replace(request, scan=without_unreadable(request.scan, layouts, client))
    sweeps = [
        observer.observed(sweep_of(planned, request.scan.selection, request.problem, client, level))
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
    scans = [(request, slice(None))]
    state = yield from last_state(states, scans, observer, record, resumed=resume)
    assessed = request
    if request.raw is not None:
        assessed, state, data = _with_noise_of_raw(request, state, planned, client)
    assessment = assess(assessed, state, data, weighted, observer.start_phase)
    ran = fit_run(record, state.passes, data.compilations())
    result = result_of(request, state, assessment, ran, record.minima)
    table, ends = result.parameters, result.ci()
    observer.ended(
        result.outcome,
        result.findings,
        *(table[name].values for name in ("value", "stderr")),
        sentence=result.verdict,
        **{name: tuple(ends[name].values.tolist()) for name in ("low", "high")},
        result=result,
        noise=assessment.noise_of_store(assessed.scan.bins),
    )
    return result


def _with_noise_of_raw(
    request: Request, state: lm.State, planned: Plan, client: "Client | None"
) -> tuple[Request, lm.State, Sweep]:
    """Return what stands for a fit of the measured data at the parameters found from denoised ones."""
    assert request.raw is not None
    raw = replace(request, scan=request.raw, raw=None)
    alike = replace(planned, layout=layout(raw.scan, raw.problem.min_lag))
    passes = sweep_of(alike, raw.scan.selection, raw.problem, client)
    prior = request.search.prior_terms(state.theta)
    reduced = reduce(passes.gram(state.theta), raw.scaling, raw.sum_rounding, prior)
    return raw, replace(state, reduced=reduced), passes


def last_state(
    states: Iterator[lm.State],
    scans: Iterable[tuple[Request, Any]],
    observer: FitObserver,
    record: FitRecord,
    *,
    resumed: bool = False,
) -> Generator[lm.State, None, lm.State]:
    """Yield the state after each pass of any fit, shown by the observer; return the last one.

    scans: each with the places of its parameters in theta. Raises an error that names the parameters and
    the pair at which the model is not a number.
    """
    state = None
    for state in states:
        observer.state(state, resumed=resumed)
        resumed = False
        yield state
    assert state is not None  # there is at least one pass
    observer.start_phase("estimating the errors")
    record.last_pass = time.perf_counter()
    if state.outcome is lm.Outcome.NONFINITE:
        for request, place in scans:
            require_finite(request, state.theta[place], everywhere=True)
    return state


def fit_run(record: FitRecord, passes: int, compilations: dict[str, int]) -> FitRun:
    now = time.perf_counter()
    record.timings |= {"errors": now - record.last_pass, "total": now - record.started}
    return FitRun(passes, tuple(record.history), compilations, record.timings)
