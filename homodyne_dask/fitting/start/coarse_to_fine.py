"""Coarse to fine: fits to block means come close to the optimum before the first pass over all data.

The optimum of 4×4 means is about one standard error of the full fit away from its optimum, that of
16×16 means a little more. The result is that of the full data, found with fewer passes over them.
Minima that the averages do not tell apart are compared by fits to the first level or, where there is none,
to the data.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from homodyne_dask.fitting.start.averages import Theta
from homodyne_dask.fitting.start.transport_search import Minimum, competing_minima, undecided_minima
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.scan import q_or_one
from homodyne_dask.sweep.sweep import Passes

MEANS_OPTIONS = lm.Options(max_passes=30, decrement=0.03)
"""An approximate optimum of the means is enough: it is not that of the data."""


def coarse_to_fine(
    request: Request,
    minima: list[Minimum],
    sweeps: Sequence[Passes],
    on_state: Callable[[lm.State, int], None] = lambda *_: None,
) -> tuple[Theta, list[dict[str, Any]]]:
    """Return theta at the end of the finest adequate level, and a record of each level.

    minima: of the averages. On the first level that is adequate the start with the lowest χ² is the one
    that is continued or, if it is among those that the averages do not tell apart, the one whose fit ends
    lowest. sweeps: over the levels, or over all data, where only those are told apart. on_state: called
    with every state of a fit to means and their level.
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

    states = lm.iterate(request.search, evaluate, lm.Trial(theta), MEANS_OPTIONS)
    state = next(states)
    on_state(state, sweep.factor)
    for state in states:
        on_state(state, sweep.factor)
    return state


def adequate(request: Request, theta: Theta, factor: int) -> bool:
    """Return whether f varies so slowly over `factor` frames that block means resolve it."""
    scan, backend = request.scan, backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time)
    return backend.adequate(at, q_or_one(scan), scan.phi, scan.frames, factor)
