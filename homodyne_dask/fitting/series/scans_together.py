"""A global fit of the scans of a store of repeats: some parameters differ by scan, the others are shared.

The scans are evaluated in one pass, each at its own parameters. Their Grams get a column for each global
parameter, and what follows is that of any fit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.assess import DETERMINED, assess_scan
from homodyne_dask.assessment.cell_residuals import AveragedCells, averaged_cells
from homodyne_dask.assessment.result_findings import findings_of_doubts
from homodyne_dask.assessment.result_of import result_of, table_of_parameters
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, speckle_errors
from homodyne_dask.assessment.speckle_noise import NoiseOfModel
from homodyne_dask.assessment.which_covariance import Known, NoiseErrors, counted, deviations
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.events import Callback, FitEnded
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.fit_observer import FitDescription, FitObserver
from homodyne_dask.fitting.minimize import FitRecord, StartingPoint, minimize_from, of_solver
from homodyne_dask.fitting.start.binned_fits import BinnedFits
from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
from homodyne_dask.fitting.start.transport_minima import PASSES_TO_MINIMUM
from homodyne_dask.kernels.gram import Gram, stacked
from homodyne_dask.models.parameters import Search
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import FitResult, FitRun
from homodyne_dask.results.data.global_fit import GlobalFit
from homodyne_dask.results.data.result_tables import covariance_table
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.cluster_robust import with_known
from homodyne_dask.solver.covariance import (
    Uncertainty,
    clusters_in,
    expanded,
    uncertainty,
)
from homodyne_dask.solver.global_parameters import GlobalParameters
from homodyne_dask.solver.limits import MIN_CLUSTERS
from homodyne_dask.solver.normal_equations import joint_equations, parameters_with_errors
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.sweep import Sweep, sweep_of
from homodyne_dask.sweep.tasks import GRAM, AtThetaOfBins

if TYPE_CHECKING:
    from distributed import Client

FACTORS = np.array([0.1, 0.3, 1.0, 3.0, 10.0])
"""Of parameters of logarithmic scale that differ by scan: those of all scans times these are tried first."""


@dataclass(frozen=True)
class GlobalRequest:
    """A global fit that has been checked; raises OptionError for options that it cannot have."""

    whole: Request
    """Of all scans."""
    data: tuple[Scan, ...]
    """Of each."""
    members: tuple[tuple[int, ...], ...]
    """The bins of each among all."""
    per_scan: tuple[str, ...]
    parameters: GlobalParameters

    def __post_init__(self) -> None:
        options, search = self.whole.options, self.whole.search
        refused = {
            "weighting": options.weighting != PAIRS,
            "loss": options.loss != "linear",
            "rates": search.smoothness is not None,
            "profile": bool(options.profile),
            "on_bad_tile": options.on_bad_tile != "raise",
        }
        for name, given in refused.items():
            if given:
                raise OptionError(f"{name} is not available with per_scan: leave out one of them")
        fixed = {name for name, free in zip(search.names, search.free, strict=True) if not free}
        for name in self.per_scan:
            if name in fixed:
                raise OptionError(
                    f"per_scan: {name} is fixed and cannot differ between scans: remove it from per_scan "
                    "or fixed"
                )

    @property
    def search(self) -> Search:
        """The global parameters."""
        return self.parameters.search(self.whole.search)

    @cached_property
    def scans(self) -> tuple[Request, ...]:
        """The request of each scan; contrast and offset that scans share are those of all."""
        fixed = self.scaling.fixed_params
        own = [
            self.scaling if fixed is None else replace(self.scaling, fixed_params=fixed[list(bins)])
            for bins in self.members
        ]
        return tuple(
            replace(self.whole, scan=scan, scaling=scaling)
            for scan, scaling in zip(self.data, own, strict=True)
        )

    @property
    def scaling(self) -> Scaling:
        """How contrast and offset of the bins depend on each other."""
        return self.whole.scaling

    @property
    def scan_of_bin(self) -> Int[np.ndarray, " bin"]:
        """The position of the scan of each bin."""
        found = np.empty(len(self.whole.scan.bins), int)
        for scan, bins in enumerate(self.members):
            found[list(bins)] = scan
        return found


def fit_together(
    request: GlobalRequest, client: "Client | None", callbacks: Sequence[Callback]
) -> tuple[GlobalFit, list[FitResult]]:
    """Return the global fit, and the result of each scan at it."""
    started = time.perf_counter()
    planned = plan_for(request.whole, client, by_scan=True)
    with workers_for_plan(request.whole.scan, planned, client) as (connected, refused):
        observer = FitObserver(_description(request), planned, connected, callbacks, refused)
        with observer.failures_emitted():
            whole = request.whole
            of_data = sweep_of(planned, whole.scan.selection, whole.problem, connected)
            sweep, scan_of_bin = observer.observed(of_data), request.scan_of_bin
            place = request.parameters.place[scan_of_bin]

            def of_bins(theta: Float[np.ndarray, " g"]) -> Gram:
                """Return the Gram of each bin in the parameters of its scan: one pass over the data."""
                gram = sweep.over(GRAM, AtThetaOfBins(theta[place]))
                assert isinstance(gram, Gram)  # there is no loss
                return gram

            def gram_at(theta: Float[np.ndarray, " g"], _: None) -> Gram:
                return request.parameters.gram(of_bins(theta), scan_of_bin)

            of_data.warm_up()
            record, state = FitRecord(started), None
            solver = of_solver(whole)._replace(search=request.search)
            find = _start_finder(request, sweep)
            for state in minimize_from(find, solver, sweep, None, record, gram_at):
                observer.state(state)
            assert state is not None  # there is at least one pass
            observer.start_phase("estimating the errors")
            states = _states_of_scans(request, state, of_bins(state.theta))
            scans = list(zip(request.scans, states, strict=True))
            few = min(clusters_in(at.reduced, one.clusters) for one, at in scans) < MIN_CLUSTERS
            known, noises = _known(request, state, few=few), []
            averaged = cache(partial(averaged_cells, sweep, request.whole))
            noise = partial(_noise, request, state, averaged, list[NoiseOfModel]())
            if few or known.by_bins.of_few(request.search.names):
                noises = [noise(scan, at) for scan, at in enumerate(states)]
                known = known._replace(by_noise=_of_noises(request, state, states, noises))
            (_, errors), assessments = counted(known), []
            for scan, (one, at) in enumerate(scans):
                # the noise of many bins is large: of one scan at a time
                here = noises[scan] if noises else noise(scan, at)
                assessments.append(assess_scan(one, at, here, _of_scan(request, errors, scan)))
            record.timings["errors"] = time.perf_counter() - started - sum(record.timings.values())
            record.timings["total"] = time.perf_counter() - started
            compiled, history = of_data.compilations(), tuple(record.history)
            run = FitRun(state.passes, history, compiled, record.timings)
            results = [
                result_of(one, at, assessment, run, record.minima)
                for (one, at), assessment in zip(scans, assessments, strict=True)
            ]
            found = _global_fit(request, state, errors)
            table, unknown = found.parameters, (np.nan,) * len(found.parameters["param"])
            ended = FitEnded(
                fit=observer.fit, outcome=found.outcome.name, sentence=found.outcome.value,
                findings=found.findings, theta=tuple(table["value"].values.tolist()),
                stderr=tuple(table["stderr"].values.tolist()), low=unknown, high=unknown,
            )  # fmt: skip
            observer.emit(ended)
    return found, results


def _description(request: GlobalRequest) -> FitDescription:
    whole, parameters = request.whole, request.parameters
    units = np.array([one.unit for one in whole.parameters])[parameters.of_model]

    def errors(state: lm.State) -> Float[np.ndarray, " g"]:
        _, known = counted(_known(request, state))
        return deviations(known.robust, len(state.theta))

    return FitDescription(
        f"{whole.problem.model.name} fitted to {len(request.scans)} scans together",
        parameters.names,
        tuple(units.tolist()),
        errors,
        whole.scan.path,
    )


def _start_finder(request: GlobalRequest, data: Sweep) -> Callable[[FitRecord], StartingPoint]:
    """Return what finds the first point: of one fit of all averages, then of each scan's own parameters."""

    def find(record: FitRecord) -> StartingPoint:
        whole, parameters = request.whole, request.parameters
        [common, *_] = find_initial_values(whole, data)
        mode = whole.scaling.mode_for_initial_values
        averages = [averages_of(one) for one in request.scans]
        own = np.isin(whole.search.names, request.per_scan)
        thetas = []
        for of_scan in averages:
            search = replace(whole.search, free=whole.search.free & own, laws=())
            fits = BinnedFits(of_scan, search, mode)
            points = [
                search.inside(np.where(own & search.log, factor * common.theta, common.theta))
                for factor in FACTORS
            ]
            ends = fits.merged(fits.advanced(fits.started(points), PASSES_TO_MINIMUM))
            thetas.append(ends[0].lowest.theta)

        def of_all(theta: Float[np.ndarray, " g"]) -> Gram:
            grams = [of(at) for of, at in zip(averages, theta[parameters.place], strict=True)]
            order = np.argsort(np.concatenate([list(bins) for bins in request.members]))
            return parameters.gram(stacked(grams, order), request.scan_of_bin)

        fits = BinnedFits(of_all, request.search, mode)
        start = parameters.start(np.array(thetas))
        [end] = fits.advanced(fits.started([start]), PASSES_TO_MINIMUM)
        record.timings["start"] = time.perf_counter() - record.started
        return StartingPoint(end.lowest.theta, None, [])

    return find


def _states_of_scans(request: GlobalRequest, state: lm.State, gram: Gram) -> list[lm.State]:
    """Return the state of each scan at the end of the global fit, with its own sums."""
    found = []
    for scan, (one, bins) in enumerate(zip(request.scans, request.members, strict=True)):
        scaling, here = one.scaling, list(bins)
        if scaling.columns is not None:  # bins of other scans share them, too
            scaling = Scaling("fixed", fixed_params=state.reduced.linear_params[here])
        own = Gram(gram.moments[here], gram.pairs[here])
        reduced = reduce(own, scaling, request.whole.sum_rounding)
        theta = state.theta[request.parameters.place[scan]]
        found.append(
            replace(state, theta=theta, reduced=reduced, best=None, second_order_term=None)
        )
    return found


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
    moved = parameters_with_errors(request.search, whole.theta, whole.reduced)
    moved, one = moved[request.parameters.place[scan]], request.scans[scan]
    if state.outcome not in DETERMINED or not moved.any() or one.scan.cells is not None:
        return None
    own = averaged().of_bins(request.members[scan])
    return speckle_errors(one, state, moved, own, known=known)


def _known(request: GlobalRequest, state: lm.State, *, few: bool = False) -> Known:
    """Return the covariances of the global parameters, without the noise of bins.

    few: whether a scan has fewer than 8 clusters of bins, which alone determine its own parameters.
    """
    search = request.search
    moved = parameters_with_errors(search, state.theta, state.reduced)
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    by_bins = uncertainty(search.names, state.reduced, moved, request.whole.clusters, at_bound)
    return Known(by_bins, others_enough=lambda: not few)


def _of_noises(
    request: GlobalRequest,
    state: lm.State,
    states: Sequence[lm.State],
    noises: Sequence[SpeckleErrors | None],
) -> NoiseErrors | None:
    """Return the covariance that the noise of the scans gives the global parameters.

    It is from the sum of the covariances of the scores of all scans and of priors, with the degrees of
    freedom of a sum of variances (Satterthwaite), those of a scan the fewest of its parameters. None where
    the noise of a scan is not known.
    """
    known = [one for one in noises if one and np.isfinite(one.dof).any() and not one.objection]
    if len(known) < len(states):
        return None
    moved = parameters_with_errors(request.search, state.theta, state.reduced)
    joint = joint_equations(state.reduced, moved)
    if not joint.determined.all():
        return None
    inverse, prior = (expanded(joint.of_theta(of), moved) for of in (joint.inverse, joint.known))
    total, spread = np.zeros_like(inverse), np.zeros(len(request.search.names))
    scaling = np.full((len(request.scan_of_bin), 2), np.nan)
    for scan, (at, one) in enumerate(zip(states, known, strict=True)):
        own, place = np.isfinite(np.diag(one.covariance)), request.parameters.place[scan]
        to = inverse[:, place[own]] @ at.reduced.hessian[np.ix_(own, own)]
        part = to @ one.covariance[np.ix_(own, own)] @ to.T
        total, spread = total + part, spread + np.diag(part) ** 2 / np.nanmin(one.dof)
        if one.scaling is not None:
            scaling[list(request.members[scan])] = one.scaling
    with np.errstate(divide="ignore", invalid="ignore"):
        dof = np.diag(total) ** 2 / spread
    freedom = with_known(dof, np.diag(total), np.diag(prior))
    return NoiseErrors(total + prior, freedom, scaling)


def _of_scan(request: GlobalRequest, errors: Uncertainty, scan: int) -> Uncertainty:
    """Return the covariances of the parameters of one scan."""
    place, bins = request.parameters.place[scan], list(request.members[scan])
    here = np.ix_(place, place)
    return replace(
        errors,
        naive=None if errors.naive is None else errors.naive[here],
        robust=None if errors.robust is None else errors.robust[here],
        dof=errors.dof[place],
        withheld=errors.withheld[place],
        few=None if errors.few is None else errors.few[place],
        scaling_naive=errors.scaling_naive[bins],
        scaling_robust=errors.scaling_robust[bins],
        directions=errors.directions[:, place],
    )


def _global_fit(request: GlobalRequest, state: lm.State, errors: Uncertainty) -> GlobalFit:
    search, reduced, names = request.search, state.reduced, list(request.search.names)
    units = [one.unit for one in request.whole.parameters]
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    return GlobalFit(
        per_scan=request.per_scan,
        outcome=state.outcome,
        parameters=table_of_parameters(
            search, state.theta, errors, at_bound, [units[n] for n in request.parameters.of_model]
        ),
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        chisqr=reduced.fit_chisqr,
        redchi=reduced.fit_chisqr / reduced.freedom(int(search.free.sum())),
        ndata=reduced.ndata,
        findings=Findings(findings_of_doubts(errors.doubts)),
    )
