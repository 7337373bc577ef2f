"""Coarse to fine: fits to block means come close to the optimum before the first pass over all data.

The optimum of 4×4 means is about one standard error of the full fit away from its optimum, that of
16×16 means a little more. The result is that of the full data, found with fewer passes over them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.variable_projection import ReducedProblem, reduce
from homodyne_dask.store.scan import q_or_one
from homodyne_dask.sweep.sweep import Sweep

OPTIONS = lm.Options(max_passes=30, decrement=0.03)
"""An approximate optimum of the means is enough: it is not that of the data."""


def coarse_to_fine(
    request: Request,
    starts: Sequence[Float[np.ndarray, " p"]],
    sweeps: Sequence[Sweep],
    on_state: Callable[[lm.State, int], None] = lambda *_: None,
) -> tuple[Float[np.ndarray, " p"], list[dict[str, Any]]]:
    """Return theta at the end of the finest adequate level, and a record of each level.

    The start with the lowest χ² on the coarsest level is the one that is continued. on_state: called
    with every state and its level.
    """
    theta, record = starts[0], []
    for sweep in sweeps:
        factor = sweep.layout.factor
        if not adequate(request, theta, factor):
            continue
        began, tried = time.perf_counter(), 0
        if not record and len(starts) > 1:
            tried = len(starts)
            grams = sweep.candidates(np.array(starts))
            chisqr = [reduce(gram, request.scaling).chisqr for gram in grams]
            theta = starts[int(np.nanargmin(chisqr))]
        state = _fit_level(request, sweep, theta, on_state)
        if state.outcome is lm.Outcome.CONVERGED:  # else theta is kept
            theta = state.theta
        seconds = time.perf_counter() - began
        record.append(
            {"level": factor, "passes": state.passes, "candidates": tried, "seconds": seconds}
        )
    return theta, record


def _fit_level(
    request: Request,
    sweep: Sweep,
    theta: Float[np.ndarray, " p"],
    on_state: Callable[[lm.State, int], None],
) -> lm.State:
    """Return the last state of a fit to the means of one level."""

    def evaluate(trial: lm.Trial) -> ReducedProblem:
        return reduce(sweep(trial.theta), request.scaling)

    states = lm.iterate(request.search, evaluate, lm.Trial(theta), OPTIONS)
    state = next(states)
    on_state(state, sweep.layout.factor)
    for state in states:
        on_state(state, sweep.layout.factor)
    return state


def adequate(request: Request, theta: Float[np.ndarray, " p"], factor: int) -> bool:
    """Return whether f varies so slowly over `factor` frames that block means resolve it."""
    scan, backend = request.scan, backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time)
    return backend.adequate(at, q_or_one(scan), scan.phi, scan.frames, factor)
