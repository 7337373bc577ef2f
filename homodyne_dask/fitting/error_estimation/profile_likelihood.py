"""Profile likelihood: χ² along one parameter, with all others fitted again at each point.

`profile` fits at each point with passes over the data. `wide_profiles` takes one wide pass for any number of
parameters: where the profiles are is first found on a sample of pairs; the thetas of the wide Gram are chosen
around those points, all profiles follow from it without a pass, and χ² of their points is taken over all
pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.request import Request
from homodyne_dask.fitting.surrogate.coordinates import coordinates
from homodyne_dask.fitting.surrogate.interpolated_gram import InterpolatedGrams, SampledGrams
from homodyne_dask.fitting.surrogate.interpolation_nodes import choose_basis
from homodyne_dask.fitting.surrogate.pair_sample import (
    chisqr_scale,
    pair_set,
    sample_pairs,
    sampled_f,
)
from homodyne_dask.fitting.surrogate.proposal import proposal
from homodyne_dask.kernels.gram import Gram, RobustGram
from homodyne_dask.models.parameter_priors import Prior
from homodyne_dask.models.parameters import Search
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.eigendirections import movable
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import WIDE_GRAM, ManyThetas

STEPS = (1.0, 2.0)
"""Standard errors away from the optimum, on both sides."""
OPTIONS = lm.Options(max_passes=20, decrement=0.03)
"""Closer to the optimum χ² changes by less than a thousandth."""
_TOLERANCE = 0.02
"""Estimated error of ½χ² for which the basis is chosen."""
_MAX_ERROR = 0.02
"""Error of χ² of a point, over √(1 + its rise), above which the basis is chosen anew, around the best points.

An error δ misplaces a point, which is then by some δ²/4 above the least χ².
"""
_MAX_PASSES = 3
_WIDE_OPTIONS = lm.Options(decrement=1e-3)
_DRAWS = 320
"""Thetas that the basis is chosen from and tested with."""
_NOISE, _SHARE = 0.5, 0.05
"""Draws lie around a point by so many naive errors, and this share of its own distance from the optimum."""
_DOF = 20.0


class ProfilePoint(NamedTuple):
    """The best fit with one parameter fixed."""

    theta: Float[np.ndarray, " p"]
    chisqr: float
    evaluations: int
    """Of χ²: passes over all pairs, or steps on a wide Gram; 0 at the optimum."""
    converged: bool


class Profiles(NamedTuple):
    """The profiles of some parameters."""

    points: Mapping[str, list[ProfilePoint]] = MappingProxyType({})
    found: bool = True
    """Whether χ² is the least one at every point, as far as is known."""


def profile(
    request: Request,
    evaluate: Callable[..., Gram | RobustGram],
    state: lm.State,
    name: str,
    error: float,
    options: lm.Options = OPTIONS,
    doing: Callable[[str], None] = lambda _: None,
) -> list[ProfilePoint]:
    """Return the points of a profile in order of the parameter, the optimum among them.

    error: the length of a step. Each point starts from the last one, with the other parameters moved as
    the Hessian predicts; points beyond a bound are at the bound. doing: called with words for each point.
    """
    at = request.search.names.index(name)
    converged = state.outcome is lm.Outcome.CONVERGED
    middle = ProfilePoint(state.theta, state.reduced.chisqr, 0, converged)
    begun = count(1)

    def begin(value: float) -> None:
        doing(f"profile of {name}, point {next(begun)} of {2 * len(STEPS)}: {value:.5g}")

    below = _outwards(request, evaluate, state, at, -error, begin, options)
    above = _outwards(request, evaluate, state, at, error, begin, options)
    return [*reversed(below), middle, *above]


def _outwards(
    request: Request,
    evaluate: Callable[..., Gram | RobustGram],
    state: lm.State,
    at: int,
    error: float,
    begin: Callable[[float], None],
    options: lm.Options,
) -> list[ProfilePoint]:
    search = request.search
    fixed = replace(search, free=search.free & (np.arange(len(search.names)) != at))
    origin, points = state.theta[at], []

    def measured(trial: lm.Trial) -> ReducedProblem:
        gram = evaluate(trial.theta, trial.linear_params)
        prior = search.prior_terms(trial.theta)
        return reduce(gram, request.scaling, request.sum_rounding, prior, trial.linear_params)

    for step in STEPS:
        value = origin + step * error
        if not np.isfinite(search.period[at]):
            value = float(np.clip(value, search.lower[at], search.upper[at]))
        if value == state.theta[at]:
            break  # the bound is reached
        begin(value)
        there = _predicted(fixed, state, at, value)
        linear_params = state.reduced.linear_params_after(there - state.theta, 0.0)
        first = lm.Trial(fixed.inside(there), linear_params)
        *_, state = lm.iterate(fixed, measured, first, options)
        converged = state.outcome is lm.Outcome.CONVERGED
        points.append(ProfilePoint(state.theta, state.reduced.chisqr, state.passes, converged))
        if not state.reduced.finite:
            break
    return points


def _predicted(search: Search, state: lm.State, at: int, value: float) -> Float[np.ndarray, " p"]:
    """Return theta with one parameter at a value and the free ones where the Hessian predicts them."""
    theta = state.theta.copy()
    theta[at] = value
    free = movable(search, state.theta, state.reduced.gradient)
    H = state.reduced.hessian
    size = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))[free]
    some = H[np.ix_(free, free)] / np.outer(size, size)
    gradient = H[free, at] / size * (value - state.theta[at])
    theta[free] -= np.linalg.lstsq(some, gradient, rcond=1e-10)[0] / size
    return theta


type Points = dict[str, list[ProfilePoint]]
type GramAt = Callable[[Float[np.ndarray, " p"]], Gram]


def wide_profiles(
    request: Request,
    sweep: Sweep,
    state: lm.State,
    errors: Mapping[str, float],
    doing: Callable[[str], None] = lambda _: None,
) -> Profiles:
    """Return the profiles of parameters by name, each with its length of a step.

    doing: called with words for each step.
    """
    words = f"profiles of {', '.join(errors)}"
    doing(f"{words}: locating them")
    profiler = Profiler(request, sweep, state, errors)
    grams: GramAt = profiler.sampled()
    profiles = profiler.along(grams, profiler.search_around_optimum())
    best, error = profiles, np.inf
    for n in range(_MAX_PASSES):
        doing(f"{words}: wide pass over the data")
        grams = profiler.interpolated(profiler.around(grams, _all_points(best)))
        profiles = profiler.along(grams, request.search)
        doing(f"{words}: χ² of all pairs")
        profiles, error = profiler.over_all_pairs(profiles)
        best = _lower(request.search.names, best, profiles) if n else profiles
        if error < _MAX_ERROR:
            break
    return Profiles(best, error < _MAX_ERROR)


def _lower(names: Sequence[str], *found: Points) -> Points:
    """Return at every value of the parameter the point of lowest χ²: none is below the profile."""
    best: Points = {}
    for name in found[0]:
        at, lowest = names.index(name), {}
        for point in sorted(
            (point for points in found for point in points[name]),
            key=lambda point: (np.isnan(point.chisqr), point.chisqr),
        ):
            lowest.setdefault(float(point.theta[at]), point)
        best[name] = [lowest[value] for value in sorted(lowest)]
    return best


def _all_points(profiles: Points) -> list[ProfilePoint]:
    return [point for points in profiles.values() for point in points]


class Profiler:
    """The steps from a fit to its profiles."""

    def __init__(
        self, request: Request, sweep: Sweep, state: lm.State, errors: Mapping[str, float]
    ) -> None:
        """Take the fit, the passes over its data, where it ended, and the parameters with their steps."""
        problem = replace(request.problem, precision="float64")
        self.request, self.state, self.errors = replace(request, problem=problem), state, errors
        self.sweep = replace(sweep, context=sweep.context._replace(problem=problem))
        self.rng = np.random.default_rng(1)
        scan, undetermined = request.scan, state.reduced.undetermined
        self.samples = [sample_pairs(scan, problem.min_lag, self.rng) for _ in range(2)]
        self.pairs = pair_set(problem, scan, *self.samples)
        self.contrast = np.where(undetermined, 0.0, np.nan_to_num(state.reduced.contrast))

    def sampled(self) -> SampledGrams:
        """Return the Grams of a sample of pairs, the data replaced by the model at the optimum."""
        theta, reduced = self.state.theta, self.state.reduced
        f = sampled_f(self.request.problem, self.pairs, theta[None])[0]
        offset, contrast = np.nan_to_num(reduced.linear_params).T[:, :, None]
        weight = self._scale(np.ones(len(f))) ** 2 / len(self.samples)
        signal = offset + contrast * f
        return SampledGrams(self.request.problem, self.pairs, signal, weight, reduced.count)

    def search_around_optimum(self) -> Search:
        """Return the search in which the optimum is that of the priors, too."""
        search = self.request.search
        if search.priors is None:
            return search
        mean = np.where(np.isfinite(search.priors.mean), self.state.theta, np.nan)
        return replace(search, priors=replace(search.priors, mean=mean))

    def along(self, grams: GramAt, search: Search) -> Points:
        """Return the profiles by Grams at any theta, χ² relative to that at the end of the fit."""
        request, at = replace(self.request, search=search), self.state
        first = self._reduced(grams, at.theta, search)
        start = lm.initial_state(search, at.theta, first, _WIDE_OPTIONS)
        start = replace(start, outcome=at.outcome)  # the centre of a profile is the fit's own end
        rise = at.reduced.chisqr - first.chisqr

        def evaluate(theta: Float[np.ndarray, " p"], _: object) -> Gram:
            return grams(theta)

        return {
            name: [
                point._replace(chisqr=point.chisqr + rise)
                for point in profile(request, evaluate, start, name, error, _WIDE_OPTIONS)
            ]
            for name, error in self.errors.items()
        }

    def around(self, grams: GramAt, points: Sequence[ProfilePoint]) -> Float[np.ndarray, "draw p"]:
        """Return the thetas of points and draws around them, in random order.

        Parameters at a bound stay there in half of the draws.
        """
        search, found = self.request.search, []
        count = -(-_DRAWS // len(points))
        for point in points:
            there = self._reduced(grams, point.theta, search)
            if not there.finite:
                continue
            distance = np.sqrt(max(point.chisqr - self.state.reduced.chisqr, 0.0))
            spread = _NOISE + _SHARE * distance
            found.append(point.theta[None])
            for free in np.unique([search.free, search.free_inside_bounds(point.theta)], axis=0):
                at = coordinates(replace(search, free=free), point.theta).without_laws()
                slope = np.linalg.inv(at.slope_at(at.x))
                precision = slope.T @ there.hessian[np.ix_(free, free)] @ slope
                ends = zip(at.lower, at.upper, strict=True)
                flat = tuple(Prior("uniform", (low, high), low, high) for low, high in ends)
                near = proposal(at, flat, at.of(at.x), precision / spread**2, _DOF)
                found.append(at.whole(near.draws(count, self.rng).x))
        return self.rng.permutation(np.concatenate(found))

    def interpolated(self, near: Float[np.ndarray, "draw p"]) -> InterpolatedGrams:
        """Return the Grams of all pairs around some thetas: one wide pass."""
        problem, theta = self.request.problem, self.state.theta
        thetas, scale = np.concatenate([theta[None], near]), self._scale(self.contrast)
        f = sampled_f(problem, self.pairs, thetas)
        basis = choose_basis(thetas, f, scale, len(near) // 4, 1.0, _TOLERANCE)
        wide = self.sweep.over(WIDE_GRAM, ManyThetas(basis.thetas))
        pairs = pair_set(problem, self.request.scan, self.samples[0])
        return InterpolatedGrams(problem, pairs, basis, wide, self.contrast)

    def over_all_pairs(self, profiles: Points) -> tuple[Points, float]:
        """Return the profiles with χ² of all pairs, and the largest error it had, over √(1 + rise)."""
        request, best = self.request, self.state
        points = [best.theta] + [point.theta for point in _all_points(profiles)]
        thetas, back = np.unique(points, axis=0, return_inverse=True)
        grams = self.sweep.candidates(thetas)
        data = [reduce(gram, request.scaling, request.sum_rounding).chisqr for gram in grams]
        chisqr = (np.array(data) + request.search.prior_chisqr(thetas))[back]
        rise = iter(chisqr[1:] - chisqr[0])
        exact = {
            name: [point._replace(chisqr=best.reduced.chisqr + next(rise)) for point in of]
            for name, of in profiles.items()
        }
        pairs = zip(_all_points(profiles), _all_points(exact), strict=True)
        errors = [
            abs(found.chisqr - known.chisqr)
            / np.sqrt(1 + max(known.chisqr - best.reduced.chisqr, 0.0))
            for found, known in pairs
        ]
        return exact, float(max(errors))

    def _reduced(
        self, grams: GramAt, theta: Float[np.ndarray, " p"], search: Search
    ) -> ReducedProblem:
        terms = search.prior_terms(theta)
        return reduce(grams(theta), self.request.scaling, self.request.sum_rounding, terms)

    def _scale(self, contrast: Float[np.ndarray, " bin"]) -> Float[np.ndarray, "bin pair"]:
        each = [chisqr_scale(self.request.scan, contrast, sample) for sample in self.samples]
        return np.concatenate(each, axis=1)
