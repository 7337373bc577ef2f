"""A global fit of scans, rings, angles or labels: some parameters differ between them, others are shared.

All are called scans here, of one store or of several. Those of each store are evaluated in one pass, each at
its own parameters and times. The columns of their Grams have a place among all global parameters, and what
follows is that of any fit.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import accumulate
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
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.result_of import result_of, table_of_parameters
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, errors_of_scans, speckle_errors
from homodyne_dask.assessment.speckle_noise import NoiseCache
from homodyne_dask.assessment.which_covariance import Candidates, NoiseErrors, counted, used_of
from homodyne_dask.errors import OptionError, require_known
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import description_of, plan_for, run, run_to_completion
from homodyne_dask.fitting.fit_scan import fit_run, raise_nonfinite
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.observer import FitObserver, followed
from homodyne_dask.fitting.series.parts import Part, check_measured_once
from homodyne_dask.fitting.start.averages import BinnedFits, Theta, binned_averages
from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
from homodyne_dask.fitting.start.transport_search import PASSES_TO_MINIMUM
from homodyne_dask.kernels.gram import Gram, stacked
from homodyne_dask.models.parameters import GaussianPriors, Search
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
from homodyne_dask.solver.normal_matrix import solved
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling
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
OUTWEIGHED = 0.05
"""Share by which the error of one scan alone is smaller than that of all, from which it is said."""


@dataclass(frozen=True)
class GlobalParameters:
    """Which global parameter each parameter of the model is in each scan."""

    names: tuple[str, ...]
    """'D0 of scan 3' where it differs, 'alpha' where it is shared."""
    place: Int[np.ndarray, "scan p"]
    """Among the global parameters, of each parameter of the model."""
    of_model: Int[np.ndarray, " g"]

    @classmethod
    def of(
        cls, names: Sequence[str], per_scan: Sequence[str], labels: Sequence[str]
    ) -> "GlobalParameters":
        for name in per_scan:
            require_known(name, names, f"per: unknown parameter {name!r}")
        sizes = [len(labels) if name in per_scan else 1 for name in names]
        first = np.cumsum([0, *sizes[:-1]])
        place = first + np.arange(len(labels))[:, None] * (np.array(sizes) > 1)
        global_names: list[str] = []
        for name in names:
            global_names += (
                [f"{name} of {label}" for label in labels] if name in per_scan else [name]
            )
        return cls(tuple(global_names), place, np.repeat(np.arange(len(names)), sizes))

    def search(self, search: Search) -> Search:
        """Return the search of the global parameters from that of the model's.

        Steps are curved along rates that share no parameter with another one.
        """
        take, priors = self.of_model, search.priors
        if priors is not None:
            priors = GaussianPriors(priors.mean[take], priors.sd[take], priors.period[take])
        laws = {
            tuple(places): law._replace(at=tuple(places))
            for law in search.laws
            for places in self.place[:, list(law.at)].tolist()
        }
        uses = Counter(place for places in laws for place in places)
        per_parameter = ("start", "lower", "upper", "free", "period", "log")
        return replace(
            search,
            names=self.names,
            **{name: getattr(search, name)[take] for name in per_parameter},
            laws=tuple(law for places, law in laws.items() if all(uses[n] == 1 for n in places)),
            priors=priors,
        )

    def start(self, thetas: Float[np.ndarray, "*scan p"]) -> Theta:
        theta = np.empty(len(self.names))
        theta[self.place] = thetas
        return theta


class FittedScan(NamedTuple):
    request: Request
    """Contrast and offset that scans share are those of all."""
    number: int
    """Of the scan in results, from 1."""
    store: int
    """Position of its store among the stores."""
    alone: bool
    """Whether its store has no other scan."""
    bins_of_store: list[int]
    """Positions of its bins among those of its store."""
    bins: Int[np.ndarray, " scan_bin"]
    """Positions of its bins among those of all stores, one store after the other."""
    place: Int[np.ndarray, " p"]
    """Of its parameters among the global ones."""


class GlobalRequest(NamedTuple):
    stores: tuple[Request, ...]
    together: Request
    """Of all scans, with the global parameters; its scan is that of the first store."""
    scans: tuple[FittedScan, ...]
    scan_of_bin: Int[np.ndarray, " bin"]
    """The position among them of the scan of each bin."""
    per_scan: tuple[str, ...]
    parameters: GlobalParameters

    @property
    def place(self) -> Int[np.ndarray, "bin p"]:
        return self.parameters.place[self.scan_of_bin]

    def split_by_store(self, values: np.ndarray) -> list[np.ndarray]:
        return np.split(values, np.cumsum([len(store.scan.bins) for store in self.stores[:-1]]))


def global_request(
    stores: Sequence[Request], parts: Sequence[Part], per_scan: tuple[str, ...]
) -> GlobalRequest:
    first, *others = stores
    search = first.search
    _check_options(first, per_scan)
    _check_alike(stores)
    labels = [part.name.partition(": ")[0] for part in parts]
    parameters = GlobalParameters.of(search.names, per_scan, labels)
    first_bins = [*accumulate((len(store.scan.bins) for store in stores), initial=0)]
    store_of_part = [
        next(n for n, store in enumerate(stores) if _is_part_of(part, store)) for part in parts
    ]
    scans, scan_of_bin = [], np.empty(first_bins[-1], int)
    for n, (part, store) in enumerate(zip(parts, store_of_part, strict=True)):
        whole, bins_of_store = stores[store], list(part.members(stores[store].scan))
        scaling, fixed = whole.scaling, whole.scaling.fixed_params
        if fixed is not None:
            scaling = replace(scaling, fixed_params=fixed[bins_of_store])
        scan = FittedScan(
            request=replace(whole, scan=part.scan, scaling=scaling),
            number=int(part.at.get("scan", n + 1)),
            store=store,
            alone=store_of_part.count(store) == 1,
            bins_of_store=bins_of_store,
            bins=first_bins[store] + np.array(bins_of_store),
            place=parameters.place[n],
        )
        scans.append(scan)
        scan_of_bin[scan.bins] = n
    times = np.concatenate([store.scan.time[store.scan.use] for store in stores])
    laws = first.problem.model.laws_over(times)
    together = replace(
        first,
        others=tuple(store.scan for store in others),
        search=parameters.search(replace(search, laws=laws)),
        parameters=tuple(first.parameters[n] for n in parameters.of_model),
        scaling=_scaling_of(stores),
    )
    return GlobalRequest(tuple(stores), together, tuple(scans), scan_of_bin, per_scan, parameters)


def _check_options(first: Request, per_scan: tuple[str, ...]) -> None:
    search, how = first.search, "per" if per_scan else "together"
    if first.options.weighting != PAIRS:
        raise OptionError(
            f"weighting speckle is not available with {how}, as weights follow from the noise of one model: "
            f"leave out one of them"
        )
    if search.smoothness is not None:
        raise OptionError(
            f"rates is not available with {how}, as the strength of smoothing is that of one curve: leave "
            f"out one of them"
        )
    for name in per_scan:
        if name in search.names and not search.free[search.names.index(name)]:
            raise OptionError(
                f"per: {name} is fixed and cannot differ between groups: remove it from per or fixed"
            )


def _is_part_of(part: Part, whole: Request) -> bool:
    alike = part.scan.selection._replace(bins=()) == whole.scan.selection._replace(bins=())
    return alike and set(part.scan.bins) <= set(whole.scan.bins)


def _check_alike(stores: Sequence[Request]) -> None:
    model = stores[0].problem.model
    if len(stores) > 1 and model.of_one_record:
        raise OptionError(
            f"the splines of {model.name} are spread over the record of one scan, but {len(stores)} stores "
            f"are given: choose a model whose parameters all scans share"
        )
    if len({tuple(parameter.unit for parameter in store.parameters) for store in stores}) > 1:
        raise OptionError(
            "q is known for some of the stores only, and rates of the others are in 1/s: ingest these "
            "with --q"
        )
    check_measured_once([store.scan for store in stores])


def _scaling_of(stores: Sequence[Request]) -> Scaling:
    """Return the scaling of the bins of all stores: those of one store may share it, stores do not."""
    scalings = [store.scaling for store in stores]
    first = scalings[0]
    if len(scalings) > 1 and first.mode == "shared" and first.prior is not None:
        raise OptionError(
            f"bounds and priors of contrast and offset that bins share are for one store, but "
            f"{len(scalings)} are given: use scaling 'individual'"
        )
    fixed = [scaling.fixed_params for scaling in scalings if scaling.fixed_params is not None]
    columns = [scaling.columns for scaling in scalings if scaling.columns is not None]
    return replace(
        first,
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
    record = FitRecord(time.perf_counter())
    if stores[0].options.on_bad_tile == "skip":
        stores, parts = _without_unreadable(stores, parts, client)
    request = global_request(stores, parts, per_scan)
    scan_of_bin = request.split_by_store(request.scan_of_bin)
    plans = [
        plan_for(store, client, apart=scans)
        for store, scans in zip(stores, scan_of_bin, strict=True)
    ]
    largest = max(range(len(plans)), key=lambda n: plans[n].layout.pairs)
    description = description_of(request.together, f"{len(parts)} {what} together")
    passes = partial(_passes, request, plans, plans[largest])
    scan = stores[largest].scan
    fit = run(passes, description, plans[largest], client, callbacks, record, scan)
    return run_to_completion(fit)


def _without_unreadable(
    stores: Sequence[Request], parts: Sequence[Part], client: "Client | None"
) -> "tuple[list[Request], list[Part]]":
    readable_stores, readable_parts = [], []
    for store in stores:
        scan = without_unreadable(store.scan, [layout(store.scan, store.problem.min_lag)], client)
        readable_stores.append(replace(store, scan=scan))
        for part in parts:
            if _is_part_of(part, store):
                excluded = replace(part.scan, excluded=scan.excluded)
                readable_parts.append(part._replace(scan=excluded))
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
    data, *others = sweeps
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
            data.cost, data.peak = data.cost.plus(other.cost), max(data.peak, other.peak)
        return stacked(grams)._replace(place=place)

    for sweep in sweeps:
        sweep.warm_up()
    find = partial(_find_start, request, sweeps)
    states = minimize(together, data, find, record, gram_at=gram_at)
    state = yield from followed(states, observer, record)
    raise_nonfinite(state, [(scan.request, scan.place) for scan in request.scans])
    whole = FitEnd(together, state)
    end = _End(request, whole, sweeps, _ends_of_scans(request, state, gram_at))
    candidates, noise_of = _candidates(end)
    signal = _signal(end, noise_of)
    candidates = candidates._replace(decay=signal is None or signal.seen)
    (_, errors), assessments, each = counted(candidates), [], []
    profiles = _profiles(end, errors, gram_at)
    for n, (scan, alone) in enumerate(end.scans):
        noise = noise_of(n) if candidates.decay else None
        each.append(_of_scan_alone(alone, noise))
        of_all = _of_scan(errors, scan), profiles[n], signal
        assessments.append(assess_scan(alone, noise, *of_all))
    ran = fit_run(record, state.passes, data.compilations())
    results = [
        result_of(scan.request, alone.state, assessment, ran, record.minima)
        for (scan, alone), assessment in zip(end.scans, assessments, strict=True)
    ]
    assessment = assess_parameters(whole, candidates, signal)
    fit = _global_fit(request, state, assessment, np.array(each))
    values = (fit.parameters[name].values for name in ("value", "stderr"))
    observer.ended(fit.outcome, fit.findings, *values)
    return fit, results


class _End(NamedTuple):
    request: GlobalRequest
    whole: FitEnd
    sweeps: Sequence[Sweep]
    scans: list[tuple[FittedScan, FitEnd]]


def _candidates(end: _End) -> tuple[Candidates, Callable[[int], SpeckleErrors | None]]:
    request = end.request
    # clusters of bins of one scan alone determine its own parameters
    fewest = min(clusters_in(alone.reduced, scan.request.clusters) for scan, alone in end.scans)
    few = bool(request.per_scan) and fewest < MIN_CLUSTERS
    candidates = Candidates(errors_by_bins(end.whole), others_enough=lambda: not few)
    # the noise of many bins is large: of one scan at a time
    noise, noises = _noise_of_scans(end), []
    by_bins = candidates.by_bins
    if few or by_bins.robust is None or by_bins.of_few(request.together.search.names):
        noises = [noise(n) for n in range(len(end.scans))]
        candidates = candidates._replace(by_noise=_of_noises(end, noises))
    return candidates, lru_cache(1)(lambda n: noises[n] if noises else noise(n))


def _find_start(request: GlobalRequest, sweeps: Sequence[Sweep], record: FitRecord) -> lm.Trial:
    """Return the start of lowest χ² on means over cells, from fits of some stores alone."""
    first, *others = request.stores
    tried = np.linspace(0, len(others), min(len(request.stores), STORES_TRIED)).astype(int)
    minima = [find_initial_values(request.stores[n], sweeps[n]) for n in tried]
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
    tried = [
        search.inside(np.where(differs & search.log, factor, 1.0) * theta)
        for theta in common
        for factor in (FACTORS if differs.any() else [1.0])
    ]
    chisqr = [
        reduce(gram_of_means(parameters.start(theta)), "individual").chisqr_per_bin
        for theta in tried
    ]
    finite = np.where(np.isfinite(chisqr), chisqr, np.inf)
    chisqr_per_scan = [np.bincount(request.scan_of_bin, per_bin) for per_bin in finite]
    best = np.array(tried)[np.argmin(chisqr_per_scan, axis=0)]
    return [parameters.start(np.where(differs, best, search.inside(theta))) for theta in common]


def _ends_of_scans(
    request: GlobalRequest, state: lm.State, gram_at: Callable[..., Gram]
) -> list[tuple[FittedScan, FitEnd]]:
    gram, ends = gram_at(state.theta, state.reduced.linear_params), []
    for scan in request.scans:
        bins, scaling = scan.bins, scan.request.scaling
        linear_params = state.reduced.linear_params[bins]
        if scaling.columns is not None and not scan.alone:  # bins of other scans share them, too
            scaling = Scaling("fixed", fixed_params=linear_params)
        loss = None if gram.loss is None else gram.loss[bins]
        reduced = reduce(
            Gram(gram.moments[bins], gram.pairs[bins], loss),
            scaling,
            scan.request.sum_rounding,
            linear_params=linear_params,
        )
        values = {"theta": state.theta[scan.place], "reduced": reduced}
        of_scan = replace(state, best=None, second_order_term=None, **values)
        ends.append((scan, FitEnd(scan.request, of_scan)))
    return ends


def _noise_of_scans(end: _End) -> Callable[[int], SpeckleErrors | None]:
    request, moved = end.request, end.whole.moved

    @cache
    def of_store(store: int) -> tuple[AveragedCells, NoiseCache]:
        return averaged_cells(end.sweeps[store], request.stores[store]), NoiseCache()

    def noise(n: int) -> SpeckleErrors | None:
        scan, alone = end.scans[n]
        own = moved[scan.place]
        if (
            alone.state.outcome not in DETERMINED
            or not own.any()
            or scan.request.scan.cells is not None
        ):
            return None
        averaged, cache_of_store = of_store(scan.store)
        given = {"cache": cache_of_store, "bins_together": len(request.scan_of_bin)}
        joint = alone.equations_of(own)
        return speckle_errors(alone, joint, averaged.of_bins(scan.bins_of_store), **given)

    return noise


def _signal(end: _End, noise_of: Callable[[int], SpeckleErrors | None]) -> Signal | None:
    """None where the noise of a scan shows its decay, or one has no test.

    Nor have scans of one store with parameters of their own, of which each would need a pass over all.
    """
    request, reduced = end.request, end.whole.reduced
    signals, free = [], int(request.stores[0].search.free.sum())

    @cache
    def moments(store: int) -> Float[np.ndarray, "bin block block 3 3"]:
        theta = next(alone.theta for scan, alone in end.scans if scan.store == store)
        robust = reduced.linear_step is not None
        params = request.split_by_store(reduced.linear_params)[store] if robust else None
        return frame_moments(end.sweeps[store], request.stores[store], theta, params)

    for n, (scan, alone) in enumerate(end.scans):
        noise = noise_of(n)
        if noise is not None and noise.sees_decay(alone.reduced.contrast):
            return None
        table = scan.request.scan.is_table
        blocks = None if table else lambda scan=scan: moments(scan.store)[scan.bins_of_store]
        scaling, clusters = scan.request.scaling, scan.request.clusters
        signal = signal_of(alone.state, scaling, free, clusters, blocks)
        if signal is None or (request.per_scan and not scan.alone):
            return None
        signals.append(signal)
    return mean_signal(signals, free, len(request.scan_of_bin))


def _of_noises(end: _End, noises: Sequence[SpeckleErrors | None]) -> NoiseErrors | None:
    known = [noise for noise in noises if noise and not noise.objection]
    if len(known) < len(noises):
        return None
    joint = end.whole.equations
    if not joint.determined.all():
        return None
    bins, own, place_of = {}, {}, np.cumsum(joint.which) - 1
    for (scan, _), noise in zip(end.scans, known, strict=True):
        place = place_of[scan.place[noise.joint.which]]
        size = noise.joint.size[: len(place)]
        for b, of_bin in noise.bins.items():
            bins[scan.bins[b]], own[scan.bins[b]] = of_bin, (place, size)
    return errors_of_scans(joint, bins, own, end.request.together.clusters)


def _profiles(
    end: _End, errors: Uncertainty, gram_at: Callable[..., Gram]
) -> list[dict[str, list[ProfilePoint]]]:
    together, used = end.request.together, used_of(errors)
    search, first = together.search, end.request.stores[0]
    inside = end.whole.inside & np.isfinite(used)

    @cache
    def of_global(n: int) -> list[ProfilePoint]:
        return profile(together, gram_at, end.whole.state, search.names[n], float(used[n]))

    return [
        {
            name: [point._replace(theta=point.theta[place]) for point in of_global(n)]
            for name in first.options.profile
            if inside[n := int(place[first.search.names.index(name)])]
        }
        for place in end.request.parameters.place
    ]


def _of_scan(errors: Uncertainty, scan: FittedScan) -> Uncertainty:
    place, bins = scan.place, scan.bins
    both = np.ix_(place, place)
    taken = {"naive": both, "robust": both, "dof": place, "withheld": place, "few": place}
    taken |= {"scaling_naive": bins, "scaling_robust": bins, "directions": np.s_[:, place]}
    known = {name: getattr(errors, name) for name in taken}
    return replace(errors, **{name: v[taken[name]] for name, v in known.items() if v is not None})


def _of_scan_alone(end: FitEnd, noise: SpeckleErrors | None) -> Float[np.ndarray, "3 p"]:
    """Return value, error and freedom of each parameter from one scan alone, to first order; else NaN."""
    alone, reduced = np.full((3, len(end.theta)), np.nan), end.reduced
    _, errors = counted(Candidates(errors_by_bins(end), noise and noise.of_theta))
    moved = end.moved
    fixed = end.request.scaling.mode == "fixed"
    if errors.robust is None or (reduced.columns.shape[1] == 0) != fixed:
        return alone
    step = solved(reduced.hessian[np.ix_(moved, moved)], reduced.gradient[moved])
    stderr = np.sqrt(np.diag(errors.robust))
    alone[:, moved] = end.theta[moved] + step, stderr[moved], errors.dof[moved]
    return alone


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
    scan = without[0] if len(without) == 1 else None
    yield finding(
        "scans-disagree", differ, f"--per-scan {','.join(differ)}", p=differ[worst], scan=scan
    )


def _global_fit(
    request: GlobalRequest, state: lm.State, known: Assessment, each: Float[np.ndarray, "scan 3 p"]
) -> GlobalFit:
    search, reduced, errors = request.together.search, state.reduced, known.errors
    names, of_model = list(search.names), list(request.stores[0].search.names)
    units = [parameter.unit for parameter in request.together.parameters]
    columns = zip(("value", "stderr", "dof"), np.moveaxis(each, 1, 0), strict=True)
    numbers = [scan.number for scan in request.scans]
    fit = GlobalFit(
        per_scan=request.per_scan,
        outcome=state.outcome if known.decay else lm.Outcome.NO_DECAY,
        parameters=table_of_parameters(
            search, state.theta, errors, known.at_bound, units, known.findings
        ),
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        chisqr=reduced.fit_chisqr,
        redchi=reduced.redchi(int(search.free.sum())),
        ndata=reduced.ndata,
        findings=known.findings,
        each=table_of({"scan param": dict(columns)}, scan=numbers, param=of_model),
    )
    shared = [name for name in names if name in of_model]
    return replace(fit, findings=Findings([*fit.findings, *_disagreement(shared, fit)]))
