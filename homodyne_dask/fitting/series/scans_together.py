"""A global fit of scans, rings, angles or labels: some parameters differ between them, others are shared.

All are called scans here, of one store or of several. Those of each store are evaluated in one pass, each at
its own parameters and times. The columns of their Grams have a place among all global parameters, and what
follows is that of any fit.

The parameters of a global fit of several scans (or rings, angles): some differ, the others are shared.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import block_diag

from homodyne_dask.assessment.assess import (
    DETERMINED,
    Assessment,
    assess_parameters,
    assess_scan,
    errors_by_bins,
)
from homodyne_dask.assessment.cell_residuals import AveragedCells, averaged_cells
from homodyne_dask.assessment.decay_test import Signal, frame_moments, mean_signal, signal_of
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.result_of import result_of, table_of_parameters
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, errors_of_scans, speckle_errors
from homodyne_dask.assessment.speckle_noise import NoiseOfModel
from homodyne_dask.assessment.which_covariance import Known, NoiseErrors, counted, used_of
from homodyne_dask.errors import OptionError, require_known
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import description_of, followed, plan_for, run, run_to_completion
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.observer import FitObserver
from homodyne_dask.fitting.series.parts import Part, check_measured_once
from homodyne_dask.fitting.start.averages import binned_averages
from homodyne_dask.fitting.start.grid_scan import BinnedFits
from homodyne_dask.fitting.start.initial_values import (
    averages_of,
    find_initial_values,
    require_finite,
)
from homodyne_dask.fitting.start.transport_search import PASSES_TO_MINIMUM
from homodyne_dask.kernels.gram import Gram, stacked
from homodyne_dask.models.parameters import GaussianPriors, Search
from homodyne_dask.models.rate_forms import power_laws
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Finding, Findings, finding
from homodyne_dask.results.data.fit_result import covariance_table, table_of
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.cluster_robust import IMPROBABLE, MIN_CLUSTERS
from homodyne_dask.solver.covariance import Uncertainty, clusters_in
from homodyne_dask.solver.normal_equations import joint_equations, parameters_with_errors
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.sweep.blocks import without_unreadable
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from homodyne_dask.sweep.tasks import GRAM, AtThetaOfBins

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class GlobalParameters:
    """Which global parameter each parameter of the model is in each scan."""

    names: tuple[str, ...]
    """'D0 of scan 3' where it differs, 'alpha' where it is shared."""
    place: Int[np.ndarray, "scan p"]
    """Among the global parameters, of each parameter of the model."""
    of_model: Int[np.ndarray, " g"]
    """Position in the model of each global parameter."""

    @classmethod
    def of(
        cls, names: Sequence[str], own: Sequence[str], labels: Sequence[str]
    ) -> "GlobalParameters":
        """Return those of a model with these names, where scans have these labels: 'scan 3'.

        own: parameters that differ. Raises OptionError for a name that the model does not have.
        """
        for name in own:
            require_known(name, names, f"per: unknown parameter {name!r}")
        found: list[str] = []
        of_model: list[int] = []
        place = np.empty((len(labels), len(names)), int)
        for n, name in enumerate(names):
            several = [f"{name} of {label}" for label in labels] if name in own else [name]
            place[:, n] = len(found) + np.arange(len(several))
            found += several
            of_model += [n] * len(several)
        return cls(tuple(found), place, np.array(of_model))

    def search(self, of: Search) -> Search:
        """Return the search with bounds, fixed values and priors of the model's parameters.

        Steps are curved along rates that share no parameter with another one.
        """
        take, priors = self.of_model, of.priors
        if priors is not None:
            priors = GaussianPriors(priors.mean[take], priors.sd[take], priors.period[take])
        rows = [(law, self.place[:, list(law.at)].tolist()) for law in of.laws]  # one for each scan
        laws = {tuple(at): law._replace(at=tuple(at)) for law, each in rows for at in each}
        users = Counter(at for law in laws for at in law)
        per_parameter = ("start", "lower", "upper", "free", "period", "log")
        return replace(
            of,
            names=self.names,
            **{name: getattr(of, name)[take] for name in per_parameter},
            laws=tuple(law for at, law in laws.items() if all(users[n] == 1 for n in at)),
            priors=priors,
        )

    def start(self, thetas: Float[np.ndarray, "scan p"]) -> Float[np.ndarray, " g"]:
        """Return the global parameters of those in each scan, in which shared ones are equal."""
        found = np.empty(len(self.names))
        found[self.place] = thetas
        return found


FACTORS = np.geomspace(0.1, 10, 9)
"""Of parameters of logarithmic scale that differ by scan: those of all scans times these are tried first."""

STORES_TRIED, STARTS = 4, 3
"""Number of stores from whose own fits the start is taken, and of starts that are followed."""

OUTWEIGHED = 0.05
"""Share by which the error of one scan alone is smaller than that of all, from which it is said."""


class GlobalRequest(NamedTuple):
    """A global fit that has been checked."""

    stores: tuple[Request, ...]
    """Of all scans of each store."""
    together: Request
    """Of all scans, with the global parameters; its scan is that of the first store."""
    scans: tuple[Request, ...]
    """Of each scan; contrast and offset that scans share are those of all."""
    store_of_scan: list[int]
    members: list[Int[np.ndarray, " own"]]
    """The bins of each scan among all."""
    scan_of_bin: Int[np.ndarray, " bin"]
    """The position of the scan of each bin, those of each store after those of the one before."""
    numbers: list[int]
    """Of the scans, as they are named."""
    per_scan: tuple[str, ...]
    parameters: GlobalParameters

    @property
    def place(self) -> Int[np.ndarray, "bin p"]:
        """Of the parameters of each bin among the global ones."""
        return self.parameters.place[self.scan_of_bin]

    @property
    def first_bins(self) -> Int[np.ndarray, " store"]:
        """The position of the first bin of each store among all."""
        return np.cumsum([0, *(len(one.scan.bins) for one in self.stores[:-1])])

    def bins_of_store(self, scan: int) -> list[int]:
        """Return the bins of a scan among those of its store."""
        return (self.members[scan] - self.first_bins[self.store_of_scan[scan]]).tolist()

    def of_stores(self, values: np.ndarray) -> list[np.ndarray]:
        """Return values of all bins as those of each store."""
        return np.split(values, self.first_bins[1:])


def global_request(
    stores: Sequence[Request], parts: Sequence[Part], per_scan: tuple[str, ...]
) -> GlobalRequest:
    """Return the global fit of all parts of stores; raises OptionError for options that it cannot have."""
    first, *others = stores
    options, search, model = first.options, first.search, first.problem.model
    refused = {
        "weighting speckle": (
            options.weighting != PAIRS,
            "weights follow from the noise of one model",
        ),
        "rates": (search.smoothness is not None, "the strength of smoothing is that of one curve"),
    }
    for name, (given, why) in refused.items():
        if given:
            how = "per" if per_scan else "together"
            raise OptionError(
                f"{name} is not available with {how}, as {why}: leave out one of them"
            )
    for name in per_scan:
        if name in search.names and not search.free[search.names.index(name)]:
            raise OptionError(
                f"per: {name} is fixed and cannot differ between groups: remove it from per or fixed"
            )
    _check_alike(stores)
    scans, members, store_of_scan = [], [], list[int]()
    scan_of_bin = np.empty(sum(len(one.scan.bins) for one in stores), int)
    for n, part in enumerate(parts):
        store = next(s for s, one in enumerate(stores) if _is_part_of(part, one))
        whole, bins = stores[store], list(part.members(stores[store].scan))
        scaling, fixed = whole.scaling, whole.scaling.fixed_params
        if fixed is not None:
            scaling = replace(scaling, fixed_params=fixed[bins])
        scans.append(replace(whole, scan=part.scan, scaling=scaling))
        members.append(sum(len(one.scan.bins) for one in stores[:store]) + np.array(bins))
        store_of_scan.append(store)
        scan_of_bin[members[-1]] = n
    numbers = [int(part.at.get("scan", n)) for n, part in enumerate(parts, 1)]
    labels = [part.name.partition(": ")[0] for part in parts]
    parameters = GlobalParameters.of(search.names, per_scan, labels)
    times = np.concatenate([one.scan.time[one.scan.use] for one in stores])
    laws = power_laws(search.names, model.power_laws, times)
    together = replace(
        first,
        others=tuple(one.scan for one in others),
        search=parameters.search(replace(search, laws=laws)),
        parameters=tuple(first.parameters[n] for n in parameters.of_model),
        scaling=_scaling_of(stores),
    )
    of_scans = tuple(scans), store_of_scan, members, scan_of_bin
    return GlobalRequest(tuple(stores), together, *of_scans, numbers, per_scan, parameters)


def _is_part_of(part: Part, whole: Request) -> bool:
    same = part.scan.selection._replace(bins=()) == whole.scan.selection._replace(bins=())
    return same and set(part.scan.bins) <= set(whole.scan.bins)


def _check_alike(stores: Sequence[Request]) -> None:
    """Raise OptionError for stores that no parameters describe together, or that hold the same data."""
    model = stores[0].problem.model
    splines = model.splines or (model.beat is not None and model.beat.law)
    if len(stores) > 1 and splines:
        raise OptionError(
            f"the splines of {model.name} are spread over the record of one scan, but {len(stores)} stores "
            f"are given: choose a model whose parameters all scans share"
        )
    if len({tuple(one.unit for one in store.parameters) for store in stores}) > 1:
        raise OptionError(
            "q is known for some of the stores only, and rates of the others are in 1/s: ingest these "
            "with --q"
        )
    check_measured_once([one.scan for one in stores])


def _scaling_of(stores: Sequence[Request]) -> Scaling:
    """Return the scaling of the bins of all stores: those of one store may share it, stores do not."""
    each = [one.scaling for one in stores]
    if len(each) > 1 and each[0].mode == "shared" and each[0].prior is not None:
        raise OptionError(
            f"bounds and priors of contrast and offset that bins share are for one store, but {len(each)} "
            f"are given: use scaling 'individual'"
        )
    fixed = [of.fixed_params for of in each if of.fixed_params is not None]
    columns = [of.columns for of in each if of.columns is not None]
    return replace(
        each[0],
        fixed_params=np.concatenate(fixed) if fixed else None,
        columns=block_diag(*columns) if columns else None,
    )


@one_blas_thread()
def fit_together(
    stores: Sequence[Request],
    parts: Sequence[Part],
    per_scan: tuple[str, ...],
    client: "Client | None",
    callbacks: Sequence[Callback],
    what: str = "scans",
) -> tuple[GlobalFit, list[FitResult]]:
    """Return the global fit of the parts of all stores, and the result of each part at it.

    per_scan: parameters that differ between parts. what: the parts are called.
    """
    record = FitRecord(time.perf_counter())
    if stores[0].options.on_bad_tile == "skip":
        stores, parts = _without_unreadable(stores, parts, client)
    request = global_request(stores, parts, per_scan)
    apart = request.of_stores(request.scan_of_bin)
    plans = [plan_for(one, client, apart=of) for one, of in zip(stores, apart, strict=True)]
    largest = max(range(len(plans)), key=lambda n: plans[n].layout.pairs)
    title = f"{len(request.scans)} {what} together"
    description = description_of(request.together, title)
    passes = partial(_passes, request, plans, plans[largest])
    scan = stores[largest].scan
    fit = run(passes, description, plans[largest], client, callbacks, record, scan)
    return run_to_completion(fit)


def _without_unreadable(
    stores: Sequence[Request], parts: Sequence[Part], client: "Client | None"
) -> "tuple[list[Request], list[Part]]":
    kept, left = [], []
    for one in stores:
        scan = without_unreadable(one.scan, [layout(one.scan, one.problem.min_lag)], client)
        kept.append(replace(one, scan=scan))
        left += [
            part._replace(scan=replace(part.scan, excluded=scan.excluded))
            for part in parts
            if _is_part_of(part, one)
        ]
    return kept, left


def _sweeps(
    stores: Sequence[Request], plans: Sequence[Plan], most: int, client: "Client | None"
) -> list[Sweep]:
    """Return the sweep over each store, with one budget for the blocks of all, of at most so many bytes."""
    budget, compiled = max(min(sum(plan.budget for plan in plans), most), plans[0].budget), {}
    sweeps = [
        sweep_of(plan, one.scan.selection, one.problem, client)
        for one, plan in zip(stores, plans, strict=True)
    ]
    return [
        replace(one, context=one.context._replace(budget=budget), compiled=compiled)
        for one in sweeps
    ]


def _passes(
    request: GlobalRequest,
    plans: Sequence[Plan],
    largest: Plan,
    client: "Client | None",
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, tuple[GlobalFit, list[FitResult]]]:
    together, place = request.together, request.place
    most = int(1.5 * largest.capacity / largest.workers.processes)
    sweeps = [observer.observed(one) for one in _sweeps(request.stores, plans, most, client)]
    data, *others = sweeps
    linear = request.stores[0].problem.loss == "linear"

    def gram_at(theta: Float[np.ndarray, " g"], params: Float[np.ndarray, "bin 2"] | None) -> Gram:
        """Return the Gram of each bin in the parameters of its scan: a pass over each store."""
        thetas = request.of_stores(theta[place])
        lines = repeat(None) if linear or params is None else request.of_stores(params)
        each = zip(sweeps, thetas, lines, strict=False)
        grams = [sweep.over(GRAM, AtThetaOfBins(at, line)) for sweep, at, line in each]
        for other in others:  # the record of a pass is that of all
            data.cost, data.peak = data.cost.plus(other.cost), max(data.peak, other.peak)
        return stacked(grams)._replace(place=place)

    for sweep in sweeps:
        sweep.warm_up()
    find = partial(_find_start, request, sweeps)
    states = minimize(together, data, find, record, gram_at=gram_at)
    state = yield from followed(states, observer, record)
    if state.outcome is lm.Outcome.NONFINITE:
        for scan, theta in zip(request.scans, state.theta[request.parameters.place], strict=True):
            require_finite(scan, theta, everywhere=True)
    last = gram_at(state.theta, state.reduced.linear_params)
    scans = list(zip(request.scans, _states_of_scans(request, state, last), strict=True))
    known, noise_of = _known_of(request, state, scans, sweeps)
    signal = _signal(request, state, scans, sweeps, noise_of)
    known = known._replace(decay=signal is None or signal.seen)
    (_, errors), assessments, each = counted(known), [], []
    profiles = _profiles(request, state, errors, gram_at)
    for scan, (one, at) in enumerate(scans):
        own_noise = noise_of(scan) if known.decay else None
        each.append(_of_scan_alone(one, at, own_noise))
        at_scan = _of_scan(request, errors, scan), profiles[scan], signal
        assessments.append(assess_scan(one, at, own_noise, *at_scan))
    ran = record.run(state.passes, data.compilations())
    results = [
        result_of(one, at, assessment, ran, record.minima)
        for (one, at), assessment in zip(scans, assessments, strict=True)
    ]
    fit = _global_fit(
        request, state, assess_parameters(together, state, known, signal), np.array(each)
    )
    values = (fit.parameters[name].values for name in ("value", "stderr"))
    observer.ended(fit.outcome, fit.findings, *values)
    return fit, results


def _known_of(
    request: GlobalRequest,
    state: lm.State,
    scans: Sequence[tuple[Request, lm.State]],
    sweeps: Sequence[Sweep],
) -> tuple[Known, Callable[[int], SpeckleErrors | None]]:
    """Return what is known of the global parameters, and a function of a scan: the noise of its bins."""
    # clusters of bins of one scan alone determine its own parameters
    fewest = min(clusters_in(at.reduced, scan.clusters) for scan, at in scans)
    few = bool(request.per_scan) and fewest < MIN_CLUSTERS
    known = Known(errors_by_bins(request.together, state), others_enough=lambda: not few)
    # the noise of many bins is large: of one scan at a time
    noise, noises = _noise_of_scans(request, state, sweeps), []
    by_bins = known.by_bins
    if few or by_bins.robust is None or by_bins.of_few(request.together.search.names):
        noises = [noise(scan, at) for scan, (_, at) in enumerate(scans)]
        known = known._replace(by_noise=_of_noises(request, state, scans, noises))
    return known, lru_cache(1)(lambda n: noises[n] if noises else noise(n, scans[n][1]))


def _find_start(request: GlobalRequest, sweeps: Sequence[Sweep], record: FitRecord) -> lm.Trial:
    """Return the first point: of fits of the averages of some stores, then of each scan's own parameters."""
    first, *others = request.stores
    parameters, search = request.parameters, first.search
    tried = np.linspace(0, len(others), min(len(request.stores), STORES_TRIED)).astype(int)
    found = [find_initial_values(request.stores[n], sweeps[n]) for n in tried]
    common = [one.theta for minima in found for one in minima] if others else [found[0][0].theta]
    mode = "individual" if others else first.scaling.mode_for_initial_values
    each = zip(request.stores, sweeps, strict=True)
    summaries = [binned_averages(store.scan, store.problem, data) for store, data in each]
    averages = [
        averages_of(scan, summary=summaries[store].of_bins(request.bins_of_store(n)))
        for n, (scan, store) in enumerate(zip(request.scans, request.store_of_scan, strict=True))
    ]
    differs = np.isin(search.names, request.per_scan)
    place, order = request.place, np.argsort(np.concatenate(request.members))

    def of_all(theta: Float[np.ndarray, " g"]) -> Gram:
        grams = [of(at) for of, at in zip(averages, theta[parameters.place], strict=True)]
        return stacked(grams, order)._replace(place=place)

    several = [
        search.inside(np.where(differs & search.log, factor, 1.0) * theta)
        for theta in common
        for factor in (FACTORS if differs.any() else [1.0])
    ]
    wholes = [parameters.start(np.tile(one, (len(averages), 1))) for one in several]
    chisqr = np.array([reduce(of_all(one), "individual").chisqr_per_bin for one in wholes])
    chisqr = np.where(np.isfinite(chisqr), chisqr, np.inf)
    of_scans = np.array([np.bincount(request.scan_of_bin, of) for of in chisqr])
    best = np.array(several)[of_scans.argmin(0)]
    starts = [parameters.start(np.where(differs, best, search.inside(theta))) for theta in common]
    fits = BinnedFits(of_all, request.together.search, mode)
    lowest = np.argsort(fits.chisqr_at(starts), stable=True)[:STARTS]
    ends = fits.advanced(fits.started([starts[n] for n in lowest]), PASSES_TO_MINIMUM)
    record.timings["start"] = time.perf_counter() - record.started
    theta = min(ends, key=lambda end: end.chisqr).lowest.theta
    if first.problem.loss == "linear":
        return lm.Trial(theta)
    return lm.Trial(theta, reduce(of_all(theta), request.together.scaling).linear_params)


def _states_of_scans(request: GlobalRequest, state: lm.State, gram: Gram) -> list[lm.State]:
    states = []
    for scan, (one, members) in enumerate(zip(request.scans, request.members, strict=True)):
        scaling, of_store = one.scaling, request.store_of_scan[scan]
        if scaling.columns is not None and request.store_of_scan.count(of_store) > 1:
            # bins of other scans share them, too
            scaling = Scaling("fixed", fixed_params=state.reduced.linear_params[members])
        params = state.reduced.linear_params[members]
        loss = None if gram.loss is None else gram.loss[members]
        own = Gram(gram.moments[members], gram.pairs[members], loss)
        reduced = reduce(own, scaling, one.sum_rounding, linear_params=params)
        theta = state.theta[request.parameters.place[scan]]
        own_state = replace(state, theta=theta, reduced=reduced, best=None, second_order_term=None)
        states.append(own_state)
    return states


def _noise_of_scans(
    request: GlobalRequest, whole: lm.State, sweeps: Sequence[Sweep]
) -> Callable[[int, lm.State], SpeckleErrors | None]:
    """Return a function of a scan and its state: the noise of its bins.

    None where the fit has no errors, or too little is known. whole: the state of all scans. The noise of the
    models of the scans before is used where f is all but the same.
    """

    @cache
    def of_store(store: int) -> tuple[AveragedCells, list[NoiseOfModel]]:
        return averaged_cells(sweeps[store], request.stores[store]), []

    moved = parameters_with_errors(request.together.search, whole.theta, whole.reduced)

    def noise(scan: int, state: lm.State) -> SpeckleErrors | None:
        own, one = moved[request.parameters.place[scan]], request.scans[scan]
        if state.outcome not in DETERMINED or not own.any() or one.scan.cells is not None:
            return None
        averaged, known = of_store(request.store_of_scan[scan])
        cells = averaged.of_bins(request.bins_of_store(scan))
        together = len(request.scan_of_bin)
        return speckle_errors(one, state, own, cells, known=known, bins_together=together)

    return noise


def _signal(
    request: GlobalRequest,
    whole: lm.State,
    scans: Sequence[tuple[Request, lm.State]],
    sweeps: Sequence[Sweep],
    noise_of: Callable[[int], SpeckleErrors | None],
) -> Signal | None:
    """Return the test for a decay in all scans; None where the noise of one shows it, or one has none.

    Nor have scans of one store with parameters of their own, of which each would need a pass over all.
    """
    signals, free, stores = [], int(request.stores[0].search.free.sum()), request.store_of_scan
    robust = whole.reduced.linear_step is not None

    @cache
    def moments(store: int) -> Float[np.ndarray, "bin block block 3 3"]:
        theta = scans[stores.index(store)][1].theta
        params = request.of_stores(whole.reduced.linear_params)[store] if robust else None
        return frame_moments(sweeps[store], request.stores[store], theta, params)

    for scan, ((one, at), store) in enumerate(zip(scans, stores, strict=True)):
        noise, bins = noise_of(scan), request.bins_of_store(scan)
        if noise is not None and noise.sees_decay(at.reduced.contrast):
            return None
        blocks = None if one.scan.is_table else lambda s=store, b=bins: moments(s)[b]
        signal = signal_of(at, one.scaling, free, one.clusters, blocks)
        if signal is None or (request.per_scan and stores.count(store) > 1):
            return None
        signals.append(signal)
    return mean_signal(signals, free, len(request.scan_of_bin))


def _of_noises(
    request: GlobalRequest,
    state: lm.State,
    scans: Sequence[tuple[Request, lm.State]],
    noises: Sequence[SpeckleErrors | None],
) -> NoiseErrors | None:
    """Return the errors that the noise of all bins gives the global parameters.

    None where that of a scan is not known, or the data do not determine all parameters.
    """
    known = [one for one in noises if one and not one.objection]
    if len(known) < len(scans):
        return None
    moved = parameters_with_errors(request.together.search, state.theta, state.reduced)
    joint = joint_equations(state.reduced, moved)
    if not joint.determined.all():
        return None
    bins, own, place_of = {}, {}, np.cumsum(moved) - 1
    for scan, ((_, at), noise) in enumerate(zip(scans, known, strict=True)):
        place = place_of[request.parameters.place[scan][noise.which]]
        size = joint_equations(at.reduced, noise.which).size[: len(place)]
        for b, of_bin in noise.bins.items():
            bins[request.members[scan][b]] = of_bin
            own[request.members[scan][b]] = place, size
    return errors_of_scans(state.reduced, joint, bins, own, request.together.clusters)


def _profiles(
    request: GlobalRequest, state: lm.State, errors: Uncertainty, gram_at: Callable[..., Gram]
) -> list[dict[str, list[ProfilePoint]]]:
    together, used = request.together, used_of(errors)
    inside = together.search.free_inside_bounds(state.theta) & np.isfinite(used)

    @cache
    def of_global(n: int) -> list[ProfilePoint]:
        name = together.search.names[n]
        return profile(together, gram_at, state, name, float(used[n]))

    index = request.stores[0].search.names.index
    return [
        {
            name: [point._replace(theta=point.theta[place]) for point in of_global(n)]
            for name in request.stores[0].options.profile
            if inside[n := int(place[index(name)])]
        }
        for place in request.parameters.place
    ]


def _of_scan(request: GlobalRequest, errors: Uncertainty, scan: int) -> Uncertainty:
    place, bins = request.parameters.place[scan], request.members[scan]
    both = np.ix_(place, place)
    return replace(
        errors,
        naive=None if errors.naive is None else errors.naive[both],
        robust=None if errors.robust is None else errors.robust[both],
        dof=errors.dof[place],
        withheld=errors.withheld[place],
        few=None if errors.few is None else errors.few[place],
        scaling_naive=errors.scaling_naive[bins],
        scaling_robust=errors.scaling_robust[bins],
        directions=errors.directions[:, place],
    )


def _of_scan_alone(
    one: Request, at: lm.State, noise: SpeckleErrors | None
) -> Float[np.ndarray, "3 p"]:
    """Return value, error and degrees of freedom of each parameter from one scan alone, to first order.

    NaN where they are not known: of what its data do not determine, and where scans share contrasts.
    """
    found = np.full((3, len(at.theta)), np.nan)
    _, errors = counted(Known(errors_by_bins(one, at), noise and noise.of_theta))
    moved = parameters_with_errors(one.search, at.theta, at.reduced)
    if errors.robust is None or (at.reduced.columns.shape[1] == 0) != (one.scaling.mode == "fixed"):
        return found
    step = np.linalg.solve(at.reduced.hessian[np.ix_(moved, moved)], at.reduced.gradient[moved])
    stderr = np.sqrt(np.diag(errors.robust))
    found[:, moved] = at.theta[moved] + step, stderr[moved], errors.dof[moved]
    return found


def _disagreement(names: Sequence[str], fit: GlobalFit) -> Iterator[Finding]:
    """Yield in which parameters scans disagree that share them, and which error one alone makes smaller."""
    for name in names:
        known, stderr = fit.each.sel(param=name)["stderr"], fit.parameters["stderr"].sel(param=name)
        if (known < (1 - OUTWEIGHED) * stderr).any():
            best = known["scan"][known.argmin("scan")]
            error, least = float(stderr), float(known.min())
            yield finding("scan-outweighed", [name], stderr=error, least=least, scan=int(best))
            break
    tests = {name: fit.agreement_in(name) for name in names}
    differ = {n: t.p for n, t in tests.items() if t is not None and t.p < IMPROBABLE}
    if not differ:
        return
    worst = min(differ, key=lambda name: differ[name])
    rest = {n: fit.agreement_in(worst, but=n) for n in fit.each["scan"].values.tolist()}
    without = [n for n, test in rest.items() if test is not None and test.p >= IMPROBABLE]
    one = without[0] if len(without) == 1 else None
    advice = f"--per-scan {','.join(differ)}"
    yield finding("scans-disagree", differ, advice, p=differ[worst], scan=one)


def _global_fit(
    request: GlobalRequest,
    state: lm.State,
    known: Assessment,
    each: Float[np.ndarray, "scan 3 p"],
) -> GlobalFit:
    search, reduced, errors = request.together.search, state.reduced, known.errors
    names = list(search.names)
    units = [one.unit for one in request.together.parameters]
    columns = zip(("value", "stderr", "dof"), np.moveaxis(each, 1, 0), strict=True)
    table = table_of_parameters(search, state.theta, errors, known.at_bound, units, known.findings)
    fit = GlobalFit(
        per_scan=request.per_scan,
        outcome=state.outcome if known.decay else lm.Outcome.NO_DECAY,
        parameters=table,
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        chisqr=reduced.fit_chisqr,
        redchi=reduced.redchi(int(search.free.sum())),
        ndata=reduced.ndata,
        findings=known.findings,
        each=table_of(
            {"scan param": dict(columns)},
            scan=request.numbers,
            param=list(request.scans[0].search.names),
        ),
    )
    shared = [name for name in names if name in request.scans[0].search.names]
    return replace(fit, findings=Findings([*fit.findings, *_disagreement(shared, fit)]))
