"""Profile likelihood: χ² along one parameter, with all others fitted again at each point."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import Theta
from homodyne_dask.solver.normal_matrix import movable, pseudoinverse
from homodyne_dask.solver.reduce import ReducedProblem, reduce

STEPS = (1.0, 2.0)
"""Standard errors away from the optimum, on both sides."""
OPTIONS = lm.SolverOptions(max_passes=20, decrement=0.03)
"""Closer to the optimum χ² changes by less than a thousandth."""


class ProfilePoint(NamedTuple):
    theta: Theta
    chisqr: float
    evaluations: int
    """Of χ²: passes over all pairs; 0 at the optimum."""
    converged: bool


def profile(
    request: Request,
    evaluate: Callable[..., Gram],
    state: lm.State,
    name: str,
    error: float,
    doing: Callable[[str], None] = lambda _: None,
) -> list[ProfilePoint]:
    """Return the points of a profile in order of the parameter, each fitted from the last one."""
    search, place = request.search, request.search.names.index(name)
    fixed = replace(search, free=search.free & (np.arange(len(search.names)) != place))

    def measured(trial: lm.Trial) -> ReducedProblem:
        gram = evaluate(trial.theta, trial.linear_params)
        prior = search.prior_terms(trial.theta)
        return reduce(gram, request.scaling, request.sum_rounding, prior, trial.linear_params)

    points, number = deque([_point(state, 0)]), count(1)
    for side, add in ((-error, points.appendleft), (error, points.append)):
        last = state
        for step in STEPS:
            value = state.theta[place] + step * side
            if not np.isfinite(search.period[place]):
                value = float(np.clip(value, search.lower[place], search.upper[place]))
            if value == last.theta[place]:
                break  # the bound is reached
            doing(f"profile of {name}, point {next(number)} of {2 * len(STEPS)}: {value:.5g}")
            there = last.theta.copy()
            there[place], free = value, movable(fixed, last.theta, last.reduced.gradient)
            H = last.reduced.hessian  # which predicts where the free ones are
            follow = pseudoinverse(H[np.ix_(free, free)]) @ H[free, place]
            there[free] -= follow * (value - last.theta[place])
            linear_params = last.reduced.linear_params_after(there - last.theta, 0.0)
            first = lm.Trial(fixed.inside(there), linear_params)
            *_, last = lm.iterate(fixed, measured, first, OPTIONS)
            add(_point(last, last.passes))
            if not last.reduced.finite:
                break
    return [*points]


def _point(state: lm.State, evaluations: int) -> ProfilePoint:
    converged = state.outcome is lm.Outcome.CONVERGED
    return ProfilePoint(state.theta, state.reduced.chisqr, evaluations, converged)
