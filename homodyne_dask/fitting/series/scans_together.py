"""A global fit of scans, rings, angles or labels: some parameters differ between them, the others are shared.

All are called scans here. They are evaluated in one pass, each at its own parameters. The columns of their
Grams have a place among all global parameters, and what follows is that of any fit.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.assess import DETERMINED, assess_scan, errors_by_bins
from homodyne_dask.assessment.cell_residuals import AveragedCells, averaged_cells
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.result_findings import findings_of_doubts
from homodyne_dask.assessment.result_of import result_of, table_of_parameters
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, errors_of_scans, speckle_errors
from homodyne_dask.assessment.speckle_noise import NoiseOfModel
from homodyne_dask.assessment.which_covariance import Known, NoiseErrors, counted, used_of
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import description_of, plan_for
from homodyne_dask.fitting.fit_observer import FitObserver
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.run import followed, run, run_to_completion
from homodyne_dask.fitting.start.averages import binned_averages
from homodyne_dask.fitting.start.binned_fits import BinnedFits
from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
from homodyne_dask.fitting.start.transport_minima import PASSES_TO_MINIMUM
from homodyne_dask.kernels.gram import Gram, stacked
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.result_tables import covariance_table
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.covariance import Uncertainty, clusters_in
from homodyne_dask.solver.global_parameters import GlobalParameters
from homodyne_dask.solver.limits import MIN_CLUSTERS
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

    from homodyne_dask.fitting.series.rings_and_windows import Part

FACTORS = np.geomspace(0.1, 10, 9)
"""Of parameters of logarithmic scale that differ by scan: those of all scans times these are tried first."""


class GlobalRequest(NamedTuple):
    """A global fit that has been checked."""

    whole: Request
    """Of all scans."""
    together: Request
    """Of all scans, with the global parameters."""
    scans: tuple[Request, ...]
    """Of each scan; contrast and offset that scans share are those of all."""
    members: list[list[int]]
    """The bins of each scan among all."""
    scan_of_bin: Int[np.ndarray, " bin"]
    """The position of the scan of each bin."""
    per_scan: tuple[str, ...]
    parameters: GlobalParameters

    @property
    def place(self) -> Int[np.ndarray, "bin p"]:
        """Of the parameters of each bin among the global ones."""
        return self.parameters.place[self.scan_of_bin]


def global_request(
    whole: Request, parts: "Sequence[Part]", per_scan: tuple[str, ...]
) -> GlobalRequest:
    """Return the global fit of all parts; raises OptionError for options that it cannot have."""
    options, search, scaling = whole.options, whole.search, whole.scaling
    labels = [part.name.partition(": ")[0] for part in parts]
    parameters = GlobalParameters.of(search.names, per_scan, labels)
    refused = {
        "weighting speckle": (
            options.weighting != PAIRS,
            "weights follow from the noise of one model",
        ),
        "rates": (search.smoothness is not None, "the strength of smoothing is that of one curve"),
    }
    for name, (given, why) in refused.items():
        if given:
            raise OptionError(f"{name} is not available with per, as {why}: leave out one of them")
    for name in per_scan:
        if not search.free[search.names.index(name)]:
            raise OptionError(
                f"per: {name} is fixed and cannot differ between groups: remove it from per or fixed"
            )
    together = replace(
        whole,
        search=parameters.search(search),
        parameters=tuple(whole.parameters[n] for n in parameters.of_model),
    )
    members, scan_of_bin = [], np.empty(len(whole.scan.bins), int)
    scans = []
    for n, part in enumerate(parts):
        bins = list(part.members(whole.scan))
        own, fixed = scaling, scaling.fixed_params
        if fixed is not None:
            own = replace(scaling, fixed_params=fixed[bins])
        scans.append(replace(whole, scan=part.scan, scaling=own))
        members.append(bins)
        scan_of_bin[bins] = n
    return GlobalRequest(whole, together, tuple(scans), members, scan_of_bin, per_scan, parameters)


@one_blas_thread()
def fit_together(
    whole: Request,
    parts: "Sequence[Part]",
    per_scan: tuple[str, ...],
    client: "Client | None",
    callbacks: Sequence[Callback],
    what: str = "scans",
) -> tuple[GlobalFit, list[FitResult]]:
    """Return the global fit of the parts of a request, and the result of each part at it.

    per_scan: parameters that differ between parts. what: the parts are called.
    """
    record = FitRecord(time.perf_counter())
    if whole.options.on_bad_tile == "skip":
        every = layout(whole.scan, whole.problem.min_lag)
        whole = replace(whole, scan=without_unreadable(whole.scan, [every], client))
        excluded = whole.scan.excluded
        parts = [part._replace(scan=replace(part.scan, excluded=excluded)) for part in parts]
    request = global_request(whole, parts, per_scan)
    planned = plan_for(whole, client, apart=request.scan_of_bin)
    title = f"{len(request.scans)} {what} together"
    description = description_of(request.together, title)
    passes = partial(_passes, request, planned)
    fit = run(passes, description, planned, client, callbacks, record, whole.scan)
    return run_to_completion(fit)


def _passes(
    request: GlobalRequest,
    planned: Plan,
    client: "Client | None",
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, tuple[GlobalFit, list[FitResult]]]:
    whole, together = request.whole, request.together
    sweep = observer.observed(sweep_of(planned, whole.scan.selection, whole.problem, client))
    place, linear = request.place, whole.problem.loss == "linear"

    def gram_at(theta: Float[np.ndarray, " g"], params: Float[np.ndarray, "bin 2"] | None) -> Gram:
        """Return the Gram of each bin in the parameters of its scan: one pass over the data."""
        at = AtThetaOfBins(theta[place], None if linear else params)
        return sweep.over(GRAM, at)._replace(place=place)

    sweep.warm_up()
    find = partial(_find_start, request, sweep)
    states = minimize(together, sweep, find, record, gram_at=gram_at)
    state = yield from followed(states, observer, record)
    last = gram_at(state.theta, state.reduced.linear_params)
    scans = list(zip(request.scans, _states_of_scans(request, state, last), strict=True))
    # clusters of bins of one scan alone determine its own parameters
    few = min(clusters_in(at.reduced, one.clusters) for one, at in scans) < MIN_CLUSTERS
    known = Known(errors_by_bins(together, state), others_enough=lambda: not few)
    averaged, noises = cache(partial(averaged_cells, sweep, whole)), []
    noise = partial(_noise, request, state, averaged, list[NoiseOfModel]())
    if few or known.by_bins.of_few(together.search.names):
        noises = [noise(scan, at) for scan, (_, at) in enumerate(scans)]
        known = known._replace(by_noise=_of_noises(request, state, scans, noises))
    (_, errors), assessments = counted(known), []
    profiles = _profiles(request, state, errors, gram_at)
    for scan, (one, at) in enumerate(scans):
        # the noise of many bins is large: of one scan at a time
        own_noise = noises[scan] if noises else noise(scan, at)
        at_scan = _of_scan(request, errors, scan), profiles[scan]
        assessments.append(assess_scan(one, at, own_noise, *at_scan))
    ran = record.run(state.passes, sweep.compilations())
    results = [
        result_of(one, at, assessment, ran, record.minima)
        for (one, at), assessment in zip(scans, assessments, strict=True)
    ]
    fit = _global_fit(request, state, errors)
    observer.ended(
        fit.outcome,
        fit.findings,
        *(fit.parameters[name].values for name in ("value", "stderr")),
    )
    return fit, results


def _find_start(request: GlobalRequest, data: Sweep, record: FitRecord) -> lm.Trial:
    """Return the first point: of one fit of all averages, then of each scan's own parameters."""
    whole, parameters, search = request.whole, request.parameters, request.together.search
    [common, *_] = find_initial_values(whole, data)
    mode = whole.scaling.mode_for_initial_values
    summary = binned_averages(whole.scan, whole.problem)
    averages = [
        averages_of(one, summary=summary.of_bins(members))
        for one, members in zip(request.scans, request.members, strict=True)
    ]
    own = np.isin(whole.search.names, request.per_scan)
    place, order = request.place, np.argsort(np.concatenate(request.members))

    def of_all(theta: Float[np.ndarray, " g"]) -> Gram:
        grams = [of(at) for of, at in zip(averages, theta[parameters.place], strict=True)]
        return stacked(grams, order)._replace(place=place)

    several = [np.where(own & whole.search.log, of, 1.0) * common.theta for of in FACTORS]
    chisqr = [
        reduce(
            of_all(parameters.start(np.tile(theta, (len(averages), 1)))), "individual"
        ).chisqr_per_bin
        for theta in map(whole.search.inside, several)
    ]
    of_scans = np.array([np.bincount(request.scan_of_bin, of) for of in chisqr])
    best = np.where(np.isfinite(of_scans), of_scans, np.inf).argmin(0)
    start = parameters.start(whole.search.inside(np.array(several)[best]))
    fits = BinnedFits(of_all, search, mode)
    [end] = fits.advanced(fits.started([start]), PASSES_TO_MINIMUM)
    record.timings["start"] = time.perf_counter() - record.started
    theta = end.lowest.theta
    if whole.problem.loss == "linear":
        return lm.Trial(theta)
    return lm.Trial(theta, reduce(of_all(theta), whole.scaling).linear_params)


def _states_of_scans(request: GlobalRequest, state: lm.State, gram: Gram) -> list[lm.State]:
    """Return the state of each scan at the end of the global fit, with its own sums."""
    states = []
    for scan, (one, members) in enumerate(zip(request.scans, request.members, strict=True)):
        scaling = one.scaling
        if scaling.columns is not None:  # bins of other scans share them, too
            scaling = Scaling("fixed", fixed_params=state.reduced.linear_params[members])
        loss, params = gram.loss, state.reduced.linear_params[members]
        own = Gram(
            gram.moments[members], gram.pairs[members], None if loss is None else loss[members]
        )
        reduced = reduce(own, scaling, request.whole.sum_rounding, linear_params=params)
        theta = state.theta[request.parameters.place[scan]]
        own_state = replace(state, theta=theta, reduced=reduced, best=None, second_order_term=None)
        states.append(own_state)
    return states


def _noise(
    request: GlobalRequest,
    whole: lm.State,
    averaged: Callable[[], AveragedCells],
    known: list[NoiseOfModel],
    scan: int,
    state: lm.State,
) -> SpeckleErrors | None:
    """Return the noise of the bins of a scan; None where the fit has no errors, or too little is known.

    whole, averaged: of all scans. known: noise of the models of the scans before, which is used where f is
    all but the same.
    """
    moved = parameters_with_errors(request.together.search, whole.theta, whole.reduced)
    moved, one = moved[request.parameters.place[scan]], request.scans[scan]
    if state.outcome not in DETERMINED or not moved.any() or one.scan.cells is not None:
        return None
    own = averaged().of_bins(request.members[scan])
    together = len(request.scan_of_bin)
    return speckle_errors(one, state, moved, own, known=known, bins_together=together)


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
    return errors_of_scans(state.reduced, joint, bins, own, request.whole.clusters)


def _profiles(
    request: GlobalRequest, state: lm.State, errors: Uncertainty, gram_at: Callable[..., Gram]
) -> list[dict[str, list[ProfilePoint]]]:
    """Return the profiles that are wanted of the parameters of each scan."""
    together, used = request.together, used_of(errors)
    inside = together.search.free_inside_bounds(state.theta) & np.isfinite(used)

    @cache
    def of_global(n: int) -> list[ProfilePoint]:
        name = together.search.names[n]
        return profile(together, gram_at, state, name, float(used[n]))

    index = request.whole.search.names.index
    return [
        {
            name: [point._replace(theta=point.theta[place]) for point in of_global(n)]
            for name in request.whole.options.profile
            if inside[n := int(place[index(name)])]
        }
        for place in request.parameters.place
    ]


def _of_scan(request: GlobalRequest, errors: Uncertainty, scan: int) -> Uncertainty:
    """Return the covariances of the parameters of one scan."""
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


def _global_fit(request: GlobalRequest, state: lm.State, errors: Uncertainty) -> GlobalFit:
    search, reduced = request.together.search, state.reduced
    names = list(search.names)
    units = [one.unit for one in request.together.parameters]
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    return GlobalFit(
        per_scan=request.per_scan,
        outcome=state.outcome,
        parameters=table_of_parameters(search, state.theta, errors, at_bound, units),
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        chisqr=reduced.fit_chisqr,
        redchi=reduced.fit_chisqr / reduced.freedom(int(search.free.sum())),
        ndata=reduced.ndata,
        findings=Findings(findings_of_doubts(errors.doubts)),
    )
