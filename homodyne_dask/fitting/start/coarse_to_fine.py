"""From coarse to fine: block means bring a fit close before the first pass over all data.

The optimum of 4×4 means lies about one standard error of the full fit from its optimum, that of
16×16 means some more; the answer is that of the full data, only the path is cheaper.
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
from homodyne_dask.store.scan import known_q
from homodyne_dask.sweep.sweep import Sweep

OPTIONS = lm.Options(max_passes=30, decrement=0.03)
"""Closer the optimum of means is not worth the way: it is not that of the data."""


def coarse_to_fine(
    request: Request,
    starts: Sequence[Float[np.ndarray, " p"]],
    sweeps: Sequence[Sweep],
    told: Callable[[lm.State, int], None] = lambda *_: None,
) -> tuple[Float[np.ndarray, " p"], list[dict[str, Any]]]:
    """Return where the finest level ends that the decay lets see, and a record of each level.

    The best of the starts on the coarsest level is the one that goes on. told: called with every
    state and its level.
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
        state = _descended(request, sweep, theta, told)
        if state.outcome is lm.Outcome.CONVERGED:  # else the level leads nowhere
            theta = state.theta
        seconds = time.perf_counter() - began
        record.append(
            {"level": factor, "passes": state.passes, "candidates": tried, "seconds": seconds}
        )
    return theta, record


def _descended(
    request: Request,
    sweep: Sweep,
    theta: Float[np.ndarray, " p"],
    told: Callable[[lm.State, int], None],
) -> lm.State:
    """Return the state in which a fit of one level ends."""

    def evaluate(trial: lm.Trial) -> ReducedProblem:
        return reduce(sweep(trial.theta), request.scaling)

    states = lm.iterate(request.search, evaluate, lm.Trial(theta), OPTIONS)
    state = next(states)
    told(state, sweep.layout.factor)
    for state in states:
        told(state, sweep.layout.factor)
    return state


def adequate(request: Request, theta: Float[np.ndarray, " p"], factor: int) -> bool:
    """Return whether f changes little enough over `factor` frames for block means to show it."""
    scan, backend = request.scan, backend_of(request.problem.model)
    at = backend.point(request.problem, theta, scan.time)
    return backend.adequate(at, known_q(scan), scan.phi, scan.frames, factor)
