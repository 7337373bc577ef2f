"""Initial values of any model: those of the user, the others from fits to averages of the data.

Coarse to fine: the optimum of 4×4 means is about one standard error of the full fit away from its optimum,
that of 16×16 means a little more. Minima that the averages do not tell apart are compared by fits to the
first level or, where there is none, to the data.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.minimize import FitRecord
from homodyne_dask.fitting.start.averages import (
    Q_STEP,
    BinnedAverages,
    BinnedFit,
    BinnedFits,
    Minimum,
    Theta,
    averaged_over_bins,
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
from homodyne_dask.fitting.start.transport_search import (
    N_STARTS,
    PASSES_TO_MINIMUM,
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
from homodyne_dask.models import MODELS, Model
from homodyne_dask.models.parameters import Search, gaussian_priors, search
from homodyne_dask.models.parametrized import Beat
from homodyne_dask.models.rate_forms import SplineForm
from homodyne_dask.models.stretched_exponentials import lognormals
from homodyne_dask.models.transport import Convention, positive_times
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import ScalingPrior
from homodyne_dask.sweep.sweep import Passes

MAX_SPLINE_STARTS = 4
MAX_SPLINE_START_CHISQR_RATIO = 10.0
FROZEN_FRACTIONS = 0.1, 0.4, 0.7, 0.9
MIN_SHARE = 1e-3
"""Of the mean of a rate, that splines start with: where a rate is 0, c2 does not show that it should rise."""
LARGE_RATIO = 1e3
"""Of positive bounds, from which a search is on a scale of logarithms, whatever that of the parameter."""
POINTS_PER_PARAMETER = 100
"""Points of the scan for each parameter without an initial value; at most MAX_POINTS together."""
MAX_POINTS = 1000


@one_blas_thread()
def find_initial_values(request: Request, data: Passes | None = None) -> list[Minimum]:
    """Return minima of χ² of the averages, the best first; data: passes, for what these do not show.

    Initial values that a user gives are a start beside those of a search; those of all parameters of a model
    given as f without fringes are returned as they are: averages need not show what it has.
    """
    start = request.problem.model.start
    if start == "rate splines" and request.search.smoothness is None:
        start = "function"  # no rate is free: what is left is searched for as in any f
    return STARTS[start](request, data).minima()


def of_problem(request: Request, problem: Problem, needs_q: bool = False) -> Request:
    """Return the request for another model: what is given of parameters of both models holds for it."""
    scan, model, of_request = request.scan, problem.model, request.search
    parameters = model.parameters_for(scan.q, needs_q)
    of_model = search(parameters, laws=model.laws_over(scan.time[scan.use]))
    alike = np.array(of_model.names)[:, None] == np.array(of_request.names)
    place, place_in_request = np.nonzero(alike)
    for name in ("start", "lower", "upper", "free", "period"):
        values = getattr(of_model, name).copy()
        values[place] = getattr(of_request, name)[place_in_request]
        of_model = replace(of_model, **{name: values})
    prior = request.options.prior or {}
    common = {name: prior[name] for name in of_model.names if name in prior}
    of_model = replace(of_model, priors=gaussian_priors(common, of_model))
    return replace(request, problem=problem, parameters=parameters, search=of_model)


def averages_of(
    request: Request, data: Passes | None = None, summary: BinnedAverages | None = None
) -> Callable[[Theta], Gram]:
    """Return a function of theta: the Gram of the averages, or of `data` for what stored ones do not show."""
    model = request.problem.model
    if model.untied is not model:
        base = of_problem(request, untied(request.problem))
        return averages_of_ties(model, averages_of(base, data, summary))
    if summary is None:
        return binned_averages(request.scan, request.problem, data)
    return replace(summary, problem=request.problem)


def require_finite(request: Request, theta: Theta, everywhere: bool = False) -> None:
    """Raise OptionError where f of a user is not a number at theta, as `check_finite` does."""
    scan, model, problem = request.scan, request.problem.model, untied(request.problem)
    if problem.model is not model:
        theta = model.ties.expand(theta)
    if not problem.model.derivatives_by_hand:
        frames, bins = np.flatnonzero(scan.use), (scan.q_or_one, scan.phi)
        check_finite(problem, theta, scan.time, frames, *bins, everywhere)


class _Start:
    """The search for initial values of a family of models: fits to averages, from points that suit it."""

    def __init__(self, request: Request, data: Passes | None) -> None:
        self.request, self.data = request, data
        self.scan, self.search, self.model = request.scan, request.search, request.problem.model
        self.mode, self.starts = request.scaling.mode_for_initial_values, request.options.starts

    def minima(self) -> list[Minimum]:
        stored, free = self.stored(), int(self.search.free.sum())
        return self.given or [end.minimum(free) for end in self.ends(stored)]

    def ends(self, stored: BinnedAverages) -> list[BinnedFit]:
        summary = averaged_over_bins(stored, self.scan)
        fits = BinnedFits(summary, self.search, self.mode)
        return fits.completed(fits.started(self.points(summary)))

    def points(self, summary: BinnedAverages) -> list[Theta]:
        raise NotImplementedError

    @property
    def given(self) -> list[Minimum]:
        """The initial values of the user, if these are of all parameters."""
        start = self.search.start
        return [Minimum(start, np.nan, 1)] if np.isfinite(start).all() else []

    def stored(self) -> BinnedAverages:
        return binned_averages(self.scan, self.request.problem, self.data)

    def minima_of(self, model: Model, needs_q: bool = False) -> list[Minimum]:
        """Return the minima of a simpler model, near which those of this one are."""
        problem = replace(self.request.problem, model=model.current())
        return find_initial_values(of_problem(self.request, problem, needs_q), self.data)


class _OfTransport(_Start):
    def minima(self) -> list[Minimum]:
        summary = averaged_over_bins(self.stored(), self.scan, Q_STEP)
        return transport_minima(summary, self.search, self.mode, self.starts)


class _OfTies(_Start):
    def minima(self) -> list[Minimum]:
        if self.given:
            return self.given
        base = of_problem(self.request, untied(self.request.problem))
        free = [base.search.names.index(name) for name in self.search.names]
        minima = find_initial_values(base, self.data)
        points = [self.search.inside(minimum.theta[free]) for minimum in minima]
        fits = BinnedFits(averages_of(self.request, self.data), self.search, self.mode)
        return [end.minimum() for end in fits.completed(fits.started(points))]


class _OfTransportSplines(_Start):
    """Fits from those of power laws; where data show it, with a shear rate of either sign."""

    def ends(self, stored: BinnedAverages) -> list[BinnedFit]:
        points = self.points(stored)[: self.starts or MAX_SPLINE_STARTS]
        rate = self.model.places.get("gamma_dot")
        if self.data is not None and rate is not None and self.may_turn(rate):
            fine = fine_averages(self.scan, self.data, stored)
            sizes = self.points(only_short_lags(fine))[:MAX_SPLINE_STARTS]
            return with_sign_changes(fine, self.search, self.mode, rate, sizes, points)
        fits = BinnedFits(stored, self.search, self.mode)
        return fits.completed(fits.started(points))

    def may_turn(self, rate: slice) -> bool:
        """Return whether a shear rate without initial values may be negative, and pairs of frames show it."""
        search = self.search
        low, high, start = (ends[rate] for ends in (search.lower, search.upper, search.start))
        pairs = self.request.problem.convention is Convention.PHYSICAL and self.scan.cells is None
        return pairs and bool(((low < 0) & (high > 0) & np.isnan(start)).all())

    def points(self, summary: BinnedAverages) -> list[Theta]:
        law = replace(self.request.problem, model=self.model.law)
        of_law = of_problem(self.request, law, law.model.needs_gap)
        averages = replace(summary, problem=law)
        minima = transport_minima(averages, of_law.search, self.mode, self.starts)
        t = positive_times(self.scan.time[self.scan.use], averages.spacing)
        highest = MAX_SPLINE_START_CHISQR_RATIO * minima[0].chisqr
        return [self.splines_near(low.theta, t) for low in minima if low.chisqr <= highest]

    def splines_near(self, theta: Theta, t: Float[np.ndarray, " n"]) -> Theta:
        nearest, shear = self.model.from_law(theta, t), self.model.places.get("gamma_dot", slice(0))
        nearest[shear] = np.abs(nearest[shear])
        floor = np.zeros(self.model.size)
        for place in self.model.places.values():
            floor[place] = MIN_SHARE * np.abs(nearest[place]).mean()
        return self.search.with_given(np.where(nearest < floor, floor, nearest))


class _OfRateSplines(_Start):
    """Fits from those of the model in which the rate is a power law."""

    def points(self, summary: BinnedAverages) -> list[Theta]:
        t, points = positive_times(self.scan.time[self.scan.use], summary.spacing), []
        for minimum in self.minima_of(MODELS[self.model.simpler])[:MAX_SPLINE_STARTS]:
            rate, power, stretching = minimum.theta
            course = rate * t**power
            rates = np.maximum(self.model.form.projected(t, course), MIN_SHARE * course.mean())
            points.append(self.search.with_given(np.append(rates, stretching)))
        return points


class _OfDistribution(_Start):
    def points(self, summary: BinnedAverages) -> list[Theta]:
        """Of lognormals one: of fits from several the lowest χ² would be that of the roughest."""
        points = np.array([self.search.with_given(p) for p in lognormals(self.model.form)])
        return best_points(summary, self.search, self.mode, self.starts or 1, points)


class _OfFunction(_Start):
    def minima(self) -> list[Minimum]:
        stored = self.stored()
        if np.isfinite(self.search.start).all():
            require_finite(self.request, self.search.start)
        return self.given or [end.minimum() for end in self.ends(stored)]

    def ends(self, stored: BinnedAverages) -> list[BinnedFit]:
        return self.followed(averaged_over_bins(stored, self.scan))

    def followed(
        self, summary: BinnedAverages, limits: ScalingPrior | None = None
    ) -> list[BinnedFit]:
        fits, points = BinnedFits(summary, self.search, self.mode, limits), self.points(summary)
        ends = followed(fits, fits.started(points), self.starts)
        if not ends:
            raise_not_finite(summary, points[0])
        return ends

    def points(self, summary: BinnedAverages) -> list[Theta]:
        points, best = latin_hypercube(self.search), self.starts or N_STARTS
        return best_points(summary, self.search, self.mode, best, points)


class _OfFrozenPart(_OfFunction):
    """Several frozen fractions, and fits of what moves alone, whose rates are half."""

    def ends(self, stored: BinnedAverages) -> list[BinnedFit]:
        summary = averaged_over_bins(stored, self.scan)
        return self.followed(summary, self.request.scaling.prior)

    def points(self, summary: BinnedAverages) -> list[Theta]:
        moving = self.minima_of(self.model.operands[1])[:MAX_SPLINE_STARTS]
        pairs = product((minimum.theta for minimum in moving), FROZEN_FRACTIONS)
        return [self.search.with_given(np.append(theta, fraction)) for theta, fraction in pairs]


class _OfFringes(_OfFunction):
    @property
    def given(self) -> list[Minimum]:
        """None where there is something to search: what a user gives may be another number of turns."""
        return [] if self.search.free.any() else super().given

    def ends(self, stored: BinnedAverages) -> list[BinnedFit]:
        summary, search = single_lags(self.scan, self.data, stored), self.search
        ends = self.followed(summary)
        if not np.isfinite(search.start).all():
            return ends
        # beside the fit from that point those that are lower: labels stay where they tie
        fits = BinnedFits(summary, search, self.mode)
        [start] = fits.advanced(fits.started([search.inside(search.start)]), PASSES_TO_MINIMUM)
        close = start.lowest.reduced.variance(int(search.free.sum()))
        return fits.merged([start, *(end for end in ends if end.chisqr < start.chisqr - close)])

    def points(self, summary: BinnedAverages) -> list[Theta]:
        search, beat = self.search, self.model.beat
        has_value, searches = np.isfinite(search.start), [search.without_initial_values()]
        if has_value[search.free].any() and not has_value.all():
            searches.append(search)
        of_search = self.points_of_speeds if beat.law else beat_points
        of_searches = [of_search(summary, beat, searched, self.mode) for searched in searches]
        return [theta for points in of_searches for theta in points]

    def points_of_speeds(
        self, summary: BinnedAverages, beat: Beat, search: Search, mode: str
    ) -> list[Theta]:
        """Return speeds of splines nearest to minima of power laws, of positive mean: no sign is seen."""
        scan, law, points = self.scan, MODELS[beat.law], []
        assert law.beat is not None
        speeds = np.array([name.startswith(f"{beat.speed}_") for name in search.names])
        form = SplineForm(int(speeds.sum()), float(scan.time[0]), float(scan.time[-1]))
        t = scan.time[scan.use & (scan.time > 0)]
        of_law = _OfFringes(replace(self.request, search=search), self.data)
        for minimum in of_law.minima_of(law, needs_q=True):
            values = dict(zip(law.names, minimum.theta.tolist(), strict=True))
            theta = np.array([values.get(name, 0.0) for name in search.names])
            speed = values[law.beat.speed] * t ** values[law.beat.exponent]
            # a power may be far off at t = 0
            for course in (speed, np.full_like(speed, np.median(speed))):
                theta[speeds] = form.projected(t, course)
                points.append(search.with_given(theta))
        first = speeds | np.isin(search.names, [beat.fraction, *beat.decays])
        ends = [*points_of_all_lags(summary, search, mode, points, first), *points]
        speed_is_given = np.isfinite(search.start[speeds]).any()
        signs = [1.0 if speed_is_given or theta[speeds].sum() >= 0 else -1.0 for theta in ends]
        return [np.where(speeds, sign * end, end) for sign, end in zip(signs, ends, strict=True)]


STARTS: dict[str, type[_Start]] = {
    "transport": _OfTransport,
    "transport splines": _OfTransportSplines,
    "rate splines": _OfRateSplines,
    "distribution": _OfDistribution,
    "function": _OfFunction,
    "frozen": _OfFrozenPart,
    "fringes": _OfFringes,
    "tied": _OfTies,
}
"""By what `model.start` says."""


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
    # nearly all points between 0.001 and 1e9 on a linear scale would be above 1e6
    search = replace(search, log=search.log | ((lower > 0) & (upper > LARGE_RATIO * lower)))
    number = min(MAX_POINTS, POINTS_PER_PARAMETER * int(searched.sum()))
    rng = np.random.default_rng(0)
    strata = np.array([rng.permutation(number) for _ in searched]).T
    share = (strata + rng.random(strata.shape)) / number
    return np.where(searched, search.between(share, lower, upper), search.start)


def find_start(request: Request, sweeps: Sequence[Passes], record: FitRecord) -> lm.Trial:
    *levels, data = sweeps
    minima = find_initial_values(request, data)
    trim_memory()
    record.minima = [
        {
            "theta": dict(zip(request.search.names, minimum.theta.tolist(), strict=True)),
            # unknown where the user gave the point
            "chisqr": minimum.chisqr if np.isfinite(minimum.chisqr) else None,
            "starts": minimum.starts,
        }
        for minimum in minima
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


MEANS_OPTIONS = lm.SolverOptions(max_passes=30, decrement=0.03)
"""An approximate optimum of the means is enough: it is not that of the data."""


def coarse_to_fine(
    request: Request,
    minima: list[Minimum],
    sweeps: Sequence[Passes],
    on_state: Callable[[lm.State, int], None] = lambda *_: None,
) -> tuple[Theta, list[dict[str, Any]]]:
    """Return theta at the end of the fits to the levels, and the record of these.

    On the first adequate level the start with the lowest χ² is continued. If the averages do not distinguish
    it from others, each is fitted, and the one whose fit ends lowest is continued. minima: of the averages.
    sweeps: over the levels; a sweep over all data only distinguishes such starts.
    """
    starts, undecided = competing_minima(minima), undecided_minima(minima)
    theta, record = starts[0], []
    for sweep in sweeps:
        factor = sweep.factor
        if not (len(undecided) > 1 if factor == 1 else adequate(request, theta, factor)):
            continue
        began, several = time.perf_counter(), not record and len(starts) > 1
        followed = _likeliest(request, sweep, starts, undecided) if several else [theta]
        watch = on_state if factor > 1 else lambda *_: None
        ends = [_fit_level(request, sweep, start, watch) for start in followed]
        chisqr = np.array([end.lowest.reduced.chisqr for end in ends])
        best = int(np.argmin(np.where(np.isfinite(chisqr), chisqr, np.inf)))
        # where the fit has not converged, its start is the better one
        theta = ends[best].theta if ends[best].outcome is lm.Outcome.CONVERGED else followed[best]
        seconds, passes = time.perf_counter() - began, sum(end.passes for end in ends)
        candidates = len(starts) if several else 0
        record.append(
            {"level": factor, "passes": passes, "candidates": candidates, "seconds": seconds}
        )
    return theta, record


def _likeliest(
    request: Request, sweep: Passes, starts: list[Theta], undecided: list[Theta]
) -> list[Theta]:
    """Return the start of lowest χ² in a sweep, or all undecided ones, which come first, if it is one."""
    grams = sweep.candidates(np.array(starts))
    chisqr = np.array([reduce(gram, request.scaling).chisqr for gram in grams])
    chisqr += request.search.prior_chisqr(np.array(starts))
    # χ² of a start at which f is no number is NaN
    lowest = int(np.nanargmin(chisqr))
    return undecided if lowest < len(undecided) else [starts[lowest]]


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
    point = backend.point(request.problem, theta, scan.time)
    return backend.adequate(point, scan.q_or_one, scan.phi, scan.frames, factor)
