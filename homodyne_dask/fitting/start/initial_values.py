"""Initial values of any model: those of the user, the others from fits to averages of the data.

Coarse to fine: the optimum of 4×4 means is about one standard error of the full fit away from its optimum,
that of 16×16 means a little more. Minima that the averages do not tell apart are compared by fits to the
first level or, where there is none, to the data.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.minimize import FitRecord
from homodyne_dask.fitting.prepare import gaussian_priors, parameters_for_q
from homodyne_dask.fitting.start.averages import (
    BinnedAverages,
    Theta,
    averaged_over_scans,
    best_points,
    binned_averages,
    raise_not_finite,
)
from homodyne_dask.fitting.start.beats_and_sign_changes import (
    beat_points,
    fine_averages,
    only_short_lags,
    points_of_all_lags,
    single_lags,
    with_sign_changes,
)
from homodyne_dask.fitting.start.grid_scan import BinnedFit, BinnedFits
from homodyne_dask.fitting.start.transport_search import (
    N_STARTS,
    PASSES_TO_MINIMUM,
    Minimum,
    competing_minima,
    followed,
    transport_minima,
    undecided_minima,
)
from homodyne_dask.kernels.backend import averages_of_ties, backend_of, untied
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.user_function_checks import check_finite
from homodyne_dask.machine.allocator_and_threads import trim_memory
from homodyne_dask.models import MODELS
from homodyne_dask.models.derived_models import CompositeModel, TiedModel
from homodyne_dask.models.parameters import Beat, Search, search
from homodyne_dask.models.rate_forms import LogDensityForm, SplineForm, power_laws
from homodyne_dask.models.spline_rates import SplineModel, lognormals, of_power_law, power_law_model
from homodyne_dask.models.stretched_exponentials import STRETCHED_AGEING
from homodyne_dask.models.transport import Convention, TransportModel, positive_times
from homodyne_dask.models.user_defined import SeparableModel
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.store.scan import q_or_one
from homodyne_dask.sweep.sweep import Passes

MAX_SPLINE_STARTS = 4
MAX_SPLINE_START_CHISQR_RATIO = 10.0
FROZEN_FRACTIONS = 0.1, 0.4, 0.7, 0.9
MIN_SHARE = 1e-3
"""Of the mean of a rate, that splines start with: where a rate is 0, c2 does not show that it should rise."""
POINTS_PER_PARAMETER = 100
"""Points of the scan for each parameter without an initial value; at most MAX_POINTS together."""
MAX_POINTS = 1000


def _free_rate_ends(
    request: Request, summary: BinnedAverages, data: Passes | None
) -> list[BinnedFit]:
    """Return the fits from those of power laws; where `data` show it, with a shear rate of either sign."""
    found, model = request.search, request.problem.model
    mode, starts = request.scaling.mode_for_initial_values, request.options.starts
    points = _points_of_power_laws(request, summary)[: starts or MAX_SPLINE_STARTS]
    rate = model.places.get("gamma_dot")
    # a shear rate without initial values may be negative, and pairs of frames show it
    turns = request.problem.convention is Convention.PHYSICAL and request.scan.cells is None
    if rate is not None:
        low, high, start = (v[rate] for v in (found.lower, found.upper, found.start))
        turns = turns and bool(((low < 0) & (high > 0) & np.isnan(start)).all())
    if data is not None and rate is not None and turns:
        fine = fine_averages(request.scan, data, summary)
        sizes = _points_of_power_laws(request, only_short_lags(fine))[:MAX_SPLINE_STARTS]
        return with_sign_changes(fine, found, mode, rate, sizes, points)
    return BinnedFits(summary, found, mode).ends(points, PASSES_TO_MINIMUM)


def _points_of_power_laws(request: Request, summary: BinnedAverages) -> list[Theta]:
    model, found, scan = request.problem.model, request.search, request.scan
    law = power_law_model(model)
    of_law = _of_problem(request, replace(request.problem, model=law), bool(law.shear))
    averages = replace(summary, problem=of_law.problem)
    mode = request.scaling.mode_for_initial_values
    minima = transport_minima(averages, of_law.search, mode, request.options.starts)
    t = positive_times(scan.time[scan.use], averages.spacing)
    shear = model.places.get("gamma_dot", slice(0))

    def free(theta: Theta) -> Float[np.ndarray, " m"]:
        made = of_power_law(model, theta, t)
        made[shear] = np.abs(made[shear])
        floor = np.zeros(model.size)
        for at in model.places.values():
            floor[at] = MIN_SHARE * np.abs(made[at]).mean()
        made = np.where(made < floor, floor, made)
        return found.with_given(made)

    lowest = minima[0].chisqr
    return [free(at.theta) for at in minima if at.chisqr <= MAX_SPLINE_START_CHISQR_RATIO * lowest]


def _of_problem(request: Request, problem: Problem, needs_q: bool = False) -> Request:
    """Return the request for another model: what is given of parameters of both models holds for it."""
    scan, found, model = request.scan, request.search, problem.model
    parameters = parameters_for_q(model, scan, needs_q)
    laws = power_laws(model.names, model.power_laws, scan.time[scan.use])
    whole, given = search(parameters, laws=laws), {}
    there, here = np.nonzero(np.array(whole.names)[:, None] == np.array(found.names))
    for name in ("start", "lower", "upper", "free", "period"):
        given[name] = getattr(whole, name).copy()
        given[name][there] = getattr(found, name)[here]
    whole, prior = replace(whole, **given), request.options.prior or {}
    known = {name: prior[name] for name in whole.names if name in prior}
    whole = replace(whole, priors=gaussian_priors(known, whole))
    return replace(request, problem=problem, parameters=parameters, search=whole)


def averages_of(
    request: Request, data: Passes | None = None, summary: BinnedAverages | None = None
) -> Callable[[Theta], Gram]:
    """Return a function of theta: the Gram of the averages, or of `data` for what stored ones do not show."""
    model = request.problem.model
    if isinstance(model, TiedModel):
        base = _of_problem(request, untied(request.problem))
        return averages_of_ties(model, averages_of(base, data, summary))
    if summary is None:
        return binned_averages(request.scan, request.problem, data)
    return replace(summary, problem=request.problem)


def require_finite(request: Request, theta: Theta, everywhere: bool = False) -> None:
    """Raise OptionError where f of a user is not a number at theta, as `check_finite` does."""
    scan, problem = request.scan, request.problem
    if isinstance(problem.model, TiedModel):
        theta, problem = problem.model.ties.expand(theta), untied(problem)
    if isinstance(problem.model, SeparableModel):
        bins = q_or_one(scan), scan.phi
        check_finite(problem, theta, scan.time, np.flatnonzero(scan.use), *bins, everywhere)


@one_blas_thread()
def find_initial_values(request: Request, data: Passes | None = None) -> list[Minimum]:
    """data: passes over the data, for what the stored averages do not show. The best minimum is the first.

    Initial values that a user gives are a start beside those of a search; those of all parameters of a model
    given as f without fringes are returned as they are: averages need not show what it has.
    """
    search, model = request.search, request.problem.model
    mode, given = request.scaling.mode_for_initial_values, np.isfinite(search.start)
    as_given = [Minimum(search.start, np.nan, 1)]
    if isinstance(model, TiedModel):
        if given.all():
            return as_given
        base = _of_problem(request, untied(request.problem))
        kept = [base.search.names.index(name) for name in search.names]
        points = [search.inside(at.theta[kept]) for at in find_initial_values(base, data)]
        ends = BinnedFits(averages_of(request, data), search, mode).ends(points, PASSES_TO_MINIMUM)
        return [end.minimum() for end in ends]
    summary = binned_averages(request.scan, request.problem, data)
    if search.smoothness is not None:
        if given.all():
            return as_given
        if isinstance(model, SplineModel):
            summary = averaged_over_scans(summary, request.scan)
            points = _points_of_splines(request, model, summary, data)
            ends = BinnedFits(summary, search, mode).ends(points, PASSES_TO_MINIMUM)
        else:
            ends = _free_rate_ends(request, summary, data)
        return [end.minimum(int(search.free.sum())) for end in ends]
    if isinstance(model, TransportModel):
        averages = averaged_over_scans(summary, request.scan)
        return transport_minima(averages, search, mode, request.options.starts)
    if given.all():
        require_finite(request, search.start)
        if model.beat is None or not search.free.any():
            return as_given
    return _minima_of_function(request, data, summary)


def _minima_of_function(
    request: Request, data: Passes | None, summary: BinnedAverages
) -> list[Minimum]:
    search, starts, model = request.search, request.options.starts, request.problem.model
    mode, limits = request.scaling.mode_for_initial_values, None
    if model.beat is not None:
        summary = single_lags(request.scan, data, summary)
        best = _points_of_beats(request, model.beat, data, summary)
    else:
        summary = averaged_over_scans(summary, request.scan)
        best = best_points(summary, search, mode, starts or N_STARTS, latin_hypercube(search))
    if isinstance(model, CompositeModel) and model.frozen:
        best, limits = _points_of_moving_part(request, model, data), request.scaling.prior
    fits = BinnedFits(summary, search, mode, limits)
    ends = followed(fits, best, starts)
    if not ends:
        raise_not_finite(summary, best[0])
    if np.isfinite(search.start).all():
        # beside the fit from that point those that are lower: labels stay where they tie
        [own] = fits.advanced(fits.started([search.inside(search.start)]), PASSES_TO_MINIMUM)
        close = own.lowest.reduced.variance(int(search.free.sum()))
        ends = fits.merged([own, *(end for end in ends if end.chisqr < own.chisqr - close)])
    return [end.minimum() for end in ends]


def _points_of_moving_part(
    request: Request, model: CompositeModel, data: Passes | None
) -> list[Theta]:
    """Return points of what moves, with several frozen fractions: of fits without, their rates are half."""
    of_moving = _of_problem(request, replace(request.problem, model=model.parts[1]))
    return [
        request.search.with_given(np.append(minimum.theta, fraction))
        for minimum in find_initial_values(of_moving, data)[:MAX_SPLINE_STARTS]
        for fraction in FROZEN_FRACTIONS
    ]


def _points_of_beats(
    request: Request, beat: Beat, data: Passes | None, summary: BinnedAverages
) -> list[Theta]:
    search, mode = request.search, request.scaling.mode_for_initial_values
    given, searches = np.isfinite(search.start), [search.without_initial_values()]
    if given[search.free].any() and not given.all():
        searches.append(search)
    points = []
    for searched in searches:
        if beat.law:
            given_search = replace(request, search=searched)
            points += _points_of_speed(given_search, beat, data, summary, mode)
        else:
            points += beat_points(summary, beat, searched, mode)
    return points


def _points_of_speed(
    request: Request, beat: Beat, data: Passes | None, summary: BinnedAverages, mode: str
) -> list[Theta]:
    """Return speeds of splines nearest to minima of power laws, of positive mean: no sign is seen."""
    found, scan, law = request.search, request.scan, MODELS[beat.law].current()
    assert law.beat is not None
    of_law = _of_problem(request, replace(request.problem, model=law), needs_q=True)
    points = []
    speeds = np.array([name.startswith(f"{beat.speed}_") for name in found.names])
    form = SplineForm(int(speeds.sum()), float(scan.time[0]), float(scan.time[-1]))
    t = scan.time[scan.use & (scan.time > 0)]
    for minimum in find_initial_values(of_law, data):
        values = dict(zip(law.names, minimum.theta.tolist(), strict=True))
        theta = np.array([values.get(name, 0.0) for name in found.names])
        speed = values[law.beat.speed] * t ** values[law.beat.exponent]
        # a power may be far off at t = 0
        for course in (speed, np.full_like(speed, np.median(speed))):
            theta[speeds] = form.projected(t, course)
            points.append(found.with_given(theta))
    first = speeds | np.isin(found.names, [beat.fraction, *beat.decays])
    ends = [*points_of_all_lags(summary, found, mode, points, first), *points]
    known = np.isfinite(found.start[speeds]).any()
    signs = [1.0 if known or theta[speeds].sum() >= 0 else -1.0 for theta in ends]
    return [np.where(speeds, sign * theta, theta) for sign, theta in zip(signs, ends, strict=True)]


def _points_of_splines(
    request: Request, model: SplineModel, summary: BinnedAverages, data: Passes | None
) -> list[Theta]:
    """Of lognormal distributions one: of fits from several the lowest χ² would be that of the roughest."""
    found, mode = request.search, request.scaling.mode_for_initial_values
    if isinstance(model.form, LogDensityForm):
        points = np.array([found.with_given(of) for of in lognormals(model.form)])
        return best_points(summary, found, mode, request.options.starts or 1, points)
    t, points = positive_times(request.scan.time[request.scan.use], summary.spacing), []
    of_law = _of_problem(request, replace(request.problem, model=STRETCHED_AGEING.current()))
    for minimum in find_initial_values(of_law, data)[:MAX_SPLINE_STARTS]:
        rate, power, stretching = minimum.theta
        course = rate * t**power
        rates = np.maximum(model.form.projected(t, course), MIN_SHARE * course.mean())
        points.append(found.with_given(np.append(rates, stretching)))
    return points


def latin_hypercube(search: Search) -> Float[np.ndarray, "point p"]:
    """Values of a user stay; priors keep points within two standard deviations of their mean."""
    searched = np.isnan(search.start)
    lower, upper = search.lower, search.upper
    if search.priors is not None:
        # two standard deviations around means, where these meet the bounds
        mean, width = search.priors.mean, 2 * search.priors.sd
        low, high = np.fmax(lower, mean - width), np.fmin(upper, mean + width)
        lower, upper = np.where(low < high, low, lower), np.where(low < high, high, upper)
    for name, low, high in zip(
        np.array(search.names)[searched], lower[searched], upper[searched], strict=True
    ):
        if not np.isfinite([low, high]).all():
            raise OptionError(
                f"{name} has neither an initial value nor finite bounds ({low:g} to {high:g}): give one "
                f"or the other"
            )
    number = min(MAX_POINTS, POINTS_PER_PARAMETER * int(searched.sum()))
    log = search.log & (lower > 0)
    low, high = (np.where(log, np.log(np.where(log, v, 1)), v) for v in (lower, upper))
    rng = np.random.default_rng(0)
    strata = np.array([rng.permutation(number) for _ in searched]).T
    share = (strata + rng.random(strata.shape)) / number
    with np.errstate(invalid="ignore"):  # bounds of the others may be infinite
        inside = low + share * (high - low)
    points = np.where(log, np.exp(np.where(log, inside, 0)), inside)
    return np.where(searched, points, search.start)


def find_start(request: Request, sweeps: Sequence[Passes], record: FitRecord) -> lm.Trial:
    *levels, data = sweeps
    minima = find_initial_values(request, data)
    trim_memory()
    record.minima = [
        {
            "theta": dict(zip(request.search.names, at.theta.tolist(), strict=True)),
            # unknown where the user gave the point
            "chisqr": at.chisqr if np.isfinite(at.chisqr) else None,
            "starts": at.starts,
        }
        for at in minima
    ]
    record.timings["start"] = time.perf_counter() - record.started
    linear = request.problem.loss == "linear"
    # the averages leave outliers out, fits of squares to the data do not
    told_apart = levels or [data] * linear
    theta, coarse = coarse_to_fine(request, minima, told_apart, record.on_level)
    record.history.extend(coarse)
    if linear:
        return lm.Trial(theta)
    averages = averages_of(request, data)(theta)
    return lm.Trial(theta, reduce(averages, request.scaling).linear_params)


MEANS_OPTIONS = lm.Options(max_passes=30, decrement=0.03)
"""An approximate optimum of the means is enough: it is not that of the data."""


def coarse_to_fine(
    request: Request,
    minima: list[Minimum],
    sweeps: Sequence[Passes],
    on_state: Callable[[lm.State, int], None] = lambda *_: None,
) -> tuple[Theta, list[dict[str, Any]]]:
    """On the first adequate level the start with the lowest χ² is continued.

    If the averages do not tell it from others, it is the one whose fit ends lowest. minima: of the averages.
    sweeps: over the levels, or over all data, where only those are told apart.
    """
    starts, undecided = competing_minima(minima), undecided_minima(minima)
    theta, record = starts[0], []
    for sweep in sweeps:
        factor = sweep.factor
        if not (len(undecided) > 1 if factor == 1 else adequate(request, theta, factor)):
            continue
        began, tried, followed = time.perf_counter(), 0, [theta]
        if not record and len(starts) > 1:
            tried = len(starts)
            grams = sweep.candidates(np.array(starts))
            chisqr = np.array([reduce(gram, request.scaling).chisqr for gram in grams])
            chisqr += request.search.prior_chisqr(np.array(starts))
            lowest = int(np.nanargmin(chisqr))
            followed = undecided if lowest < len(undecided) else [starts[lowest]]
        watch = on_state if factor > 1 else lambda *_: None
        ends = [_fit_level(request, sweep, start, watch) for start in followed]
        chisqr = np.array([end.lowest.reduced.chisqr for end in ends])
        best = int(np.argmin(np.where(np.isfinite(chisqr), chisqr, np.inf)))
        # where the fit has not converged, its start is the better one
        theta = ends[best].theta if ends[best].outcome is lm.Outcome.CONVERGED else followed[best]
        seconds, passes = time.perf_counter() - began, sum(end.passes for end in ends)
        record.append({"level": factor, "passes": passes, "candidates": tried, "seconds": seconds})
    return theta, record


def _fit_level(
    request: Request, sweep: Passes, theta: Theta, on_state: Callable[[lm.State, int], None]
) -> lm.State:
    def evaluate(trial: lm.Trial) -> ReducedProblem:
        prior = request.search.prior_terms(trial.theta)
        return reduce(sweep.gram(trial.theta), request.scaling, request.sum_rounding, prior)

    state = None
    for state in lm.iterate(request.search, evaluate, lm.Trial(theta), MEANS_OPTIONS):
        on_state(state, sweep.factor)
    assert state is not None
    return state


def adequate(request: Request, theta: Theta, factor: int) -> bool:
    scan, backend = request.scan, backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time)
    return backend.adequate(at, q_or_one(scan), scan.phi, scan.frames, factor)
