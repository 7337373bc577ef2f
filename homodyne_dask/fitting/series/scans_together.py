"""A global fit of scans, rings, angles or labels: some parameters differ between them, others are shared.

The scans of each store are evaluated in one pass, each at its own parameters and times. The columns of their
Grams have a place among all global parameters, and what follows is that of any fit.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.result_of import result_of
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import description_of, plan_for, run, run_to_completion
from homodyne_dask.fitting.fit_scan import fit_run, last_state
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.observer import FitObserver
from homodyne_dask.fitting.series.global_end import GlobalEnd
from homodyne_dask.fitting.series.global_request import GlobalRequest, global_request, is_subset_of
from homodyne_dask.fitting.series.subsets import Subset
from homodyne_dask.fitting.start.averages import BinnedFits, Theta, binned_averages
from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
from homodyne_dask.fitting.start.transport_search import PASSES_TO_MINIMUM
from homodyne_dask.kernels.gram import Gram, stacked
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.blocks import without_unreadable
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from homodyne_dask.sweep.tasks import GRAM, AtTheta

if TYPE_CHECKING:
    from distributed import Client

FACTORS = np.geomspace(0.1, 10, 9)
"""Of parameters of logarithmic scale that differ by scan: those of all scans times these are tried first."""
STORES_TRIED, STARTS = 4, 3
"""Number of stores from whose own fits the start is taken, and of starts that are followed."""


@one_blas_thread()
def fit_together(
    stores: Sequence[Request],
    subsets: Sequence[Subset],
    per_scan: tuple[str, ...],
    client: "Client | None",
    callbacks: Sequence[Callback],
    noun: str = "scans",
) -> tuple[GlobalFit, list[FitResult]]:
    record = FitRecord(time.perf_counter())
    if stores[0].options.on_bad_tile == "skip":
        stores, subsets = _without_unreadable(stores, subsets, client)
    request = global_request(stores, subsets, per_scan)
    scan_of_bin = request.split_by_store(request.scan_of_bin)
    plans = [
        plan_for(store, client, apart=scans)
        for store, scans in zip(stores, scan_of_bin, strict=True)
    ]
    # workers are planned once, for the store that needs most
    largest = max(range(len(plans)), key=lambda n: plans[n].layout.pairs)
    description = description_of(request.together, f"{len(subsets)} {noun} together")
    passes = partial(_passes, request, plans, plans[largest])
    scan = stores[largest].scan
    fit = run(passes, description, plans[largest], client, callbacks, record, scan)
    return run_to_completion(fit)


def _without_unreadable(
    stores: Sequence[Request], subsets: Sequence[Subset], client: "Client | None"
) -> "tuple[list[Request], list[Subset]]":
    readable_stores, readable_parts = [], []
    for store in stores:
        scan = without_unreadable(store.scan, [layout(store.scan, store.problem.min_lag)], client)
        readable_stores.append(replace(store, scan=scan))
        for subset in subsets:
            if is_subset_of(subset, store):
                excluded = replace(subset.scan, excluded=scan.excluded)
                readable_parts.append(subset._replace(scan=excluded))
    return readable_stores, readable_parts


def _passes(
    request: GlobalRequest,
    plans: Sequence[Plan],
    largest: Plan,
    client: "Client | None",
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, tuple[GlobalFit, list[FitResult]]]:
    together, place, stores = request.together, request.place, request.stores
    # one budget for the blocks of all
    most = int(1.5 * largest.capacity / largest.workers.processes)
    budget, compiled = max(min(sum(plan.budget for plan in plans), most), plans[0].budget), {}
    sweeps = []
    for store, plan in zip(stores, plans, strict=True):
        sweep = sweep_of(plan, store.scan.selection, store.problem, client)
        context = sweep.context._replace(budget=budget)
        sweeps.append(observer.observed(replace(sweep, context=context, compiled=compiled)))
    first, *others = sweeps
    linear = together.problem.loss == "linear"

    def gram_at(theta: Theta, linear_params: Float[np.ndarray, "bin 2"] | None) -> Gram:
        thetas, lines = request.split_by_store(theta[place]), [None] * len(sweeps)
        if linear_params is not None and not linear:
            lines = request.split_by_store(linear_params)
        grams = [
            sweep.over(GRAM, AtTheta(theta_of_bins, line))
            for sweep, theta_of_bins, line in zip(sweeps, thetas, lines, strict=True)
        ]
        for other in others:  # the record of a pass is that of all
            first.cost, first.peak = first.cost.plus(other.cost), max(first.peak, other.peak)
        return stacked(grams)._replace(place=place)

    for sweep in sweeps:
        sweep.warm_up()
    find = partial(_find_start, request, sweeps)
    states = minimize(together, first, find, record, gram_at=gram_at)
    scans = [(scan.request, scan.place) for scan in request.scans]
    state = yield from last_state(states, scans, observer, record)
    end = GlobalEnd(request, state, sweeps, gram_at)
    fit, assessments = end.assessments()
    ran = fit_run(record, state.passes, first.compilations())
    results = [
        result_of(of_scan.request, of_scan.state, assessment, ran, record.minima)
        for of_scan, assessment in zip(end.scans, assessments, strict=True)
    ]
    values = (fit.parameters[name].values for name in ("value", "stderr"))
    observer.ended(fit.outcome, fit.findings, *values)
    return fit, results


def _find_start(request: GlobalRequest, sweeps: Sequence[Sweep], record: FitRecord) -> lm.Trial:
    """Return the start of lowest χ² on means over cells, from fits of some stores alone."""
    first, *others = request.stores
    stores_tried = np.linspace(0, len(others), min(len(request.stores), STORES_TRIED)).astype(int)
    minima = [find_initial_values(request.stores[n], sweeps[n]) for n in stores_tried]
    common, mode = [minimum.theta for of_store in minima for minimum in of_store], "individual"
    if not others:
        common, mode = common[:1], first.scaling.mode_for_initial_values
    gram_of_means = _gram_of_means(request, sweeps)
    fits = BinnedFits(gram_of_means, request.together.search, mode)
    starts = _starts(request, gram_of_means, common)
    lowest = np.argsort(fits.chisqr_at(starts), stable=True)[:STARTS]
    ends = fits.advanced(fits.started([starts[n] for n in lowest]), PASSES_TO_MINIMUM)
    record.timings["start"] = time.perf_counter() - record.started
    theta = min(ends, key=lambda end: end.chisqr).lowest.theta
    if first.problem.loss == "linear":
        return lm.Trial(theta)
    scaling = request.together.scaling
    return lm.Trial(theta, reduce(gram_of_means(theta), scaling).linear_params)


def _gram_of_means(request: GlobalRequest, sweeps: Sequence[Sweep]) -> Callable[[Theta], Gram]:
    summaries = [
        binned_averages(store.scan, store.problem, sweep)
        for store, sweep in zip(request.stores, sweeps, strict=True)
    ]
    averages = [
        averages_of(scan.request, summary=summaries[scan.store].of_bins(scan.bins_of_store))
        for scan in request.scans
    ]
    place, order = request.place, np.argsort(np.concatenate([scan.bins for scan in request.scans]))

    def gram_of_means(theta: Theta) -> Gram:
        scans = zip(averages, request.scans, strict=True)
        grams = [gram_at(theta[scan.place]) for gram_at, scan in scans]
        return stacked(grams, order)._replace(place=place)

    return gram_of_means


def _starts(
    request: GlobalRequest, gram_of_means: Callable[[Theta], Gram], common: Sequence[Theta]
) -> list[Theta]:
    """Return a start for each theta that all scans may have in common.

    In it, each scan has its own parameters from the theta, of these and their multiples, of its lowest χ².
    """
    parameters, search = request.parameters, request.stores[0].search
    differs = np.isin(search.names, request.per_scan)
    thetas = [
        search.inside(np.where(differs & search.log, factor, 1.0) * theta)
        for theta in common
        for factor in (FACTORS if differs.any() else [1.0])
    ]
    chisqr = [
        reduce(gram_of_means(parameters.start(theta)), "individual").chisqr_per_bin
        for theta in thetas
    ]
    finite = np.where(np.isfinite(chisqr), chisqr, np.inf)
    chisqr_per_scan = [np.bincount(request.scan_of_bin, per_bin) for per_bin in finite]
    best = np.array(thetas)[np.argmin(chisqr_per_scan, axis=0)]
    return [parameters.start(np.where(differs, best, search.inside(theta))) for theta in common]
