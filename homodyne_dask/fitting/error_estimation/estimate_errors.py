"""Error estimation after the last step of a fit: a lower bound with too few bins, and profiles."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.error_estimation.decay_test import Signal, signal_of
from homodyne_dask.fitting.error_estimation.dyadic_errors import dyadic, frame_scores
from homodyne_dask.fitting.error_estimation.profile_likelihood import (
    Profiles,
    profile,
    wide_profiles,
)
from homodyne_dask.fitting.error_estimation.speckle_errors import SpeckleErrors, speckle_errors
from homodyne_dask.fitting.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import (
    MIN_CLUSTERS,
    SPECKLE,
    Uncertainty,
    clusters_in,
    error_used,
    uncertainty,
    without,
)
from homodyne_dask.solver.normal_equations import deviation
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta


class ErrorEstimates(NamedTuple):
    """Error estimates from passes over the data after the last step."""

    lower: Float[np.ndarray, "p p"] | None = None
    """Dyadic-robust covariance, a lower bound; None where stderr is known."""
    speckle: SpeckleErrors | None = None
    """Errors and noise of Gaussian speckle and counting; None where too little is known of it."""
    profiles: Profiles = Profiles()
    signal: Signal | None = None
    """The test for a decay; None where it is not made."""


def estimate_errors(
    request: Request, sweep: Sweep, state: lm.State, doing: Callable[[str], None] = lambda _: None
) -> ErrorEstimates:
    """Return the lower bound of the errors where bins are too few, and the profiles of the options.

    doing: called with words for each point of a profile.
    """
    reduced, scan = state.reduced, request.scan
    moved = request.search.free_inside_bounds(state.theta)
    clusters = scan.clusters
    determined = state.outcome in (
        lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES
    )  # fmt: skip
    lower = moments = None
    if determined and moved.any() and clusters_in(reduced, clusters) < MIN_CLUSTERS:
        moments = frame_scores(sweep, request, state)
        lower = dyadic(reduced, moments, moved, clusters)
    free = int(request.search.free.sum())
    signal = signal_of(state, request.scaling, free, clusters, moments)
    if not determined or (signal is not None and not signal.seen):
        return ErrorEstimates(signal=signal)
    doing("the noise of speckle")
    means = None if scan.cells is None else sweep.over(CELL_MEANS, AtTheta(state.theta))
    speckle = speckle_errors(request, state, moved, clusters, means)
    errors = uncertainty_at(request, state, speckle)
    lower = None if lower is None or errors.robust is not None else without(lower, errors.withheld)
    error = used_of(errors, lower)
    steps = {
        name: float(error[at])
        for name in request.options.profile
        if moved[at := request.search.names.index(name)] and np.isfinite(error[at])
    }
    profiles = _profiles(request, sweep, state, steps, doing) if steps else Profiles()
    return ErrorEstimates(lower, speckle, profiles, signal)


def _profiles(
    request: Request,
    sweep: Sweep,
    state: lm.State,
    steps: Mapping[str, float],
    doing: Callable[[str], None],
) -> Profiles:
    """Return the profiles of parameters by name, each with its step.

    Under a loss the weights depend on the residuals: there is no wide Gram, and every point takes passes.
    """
    if request.problem.loss == "linear":
        return wide_profiles(request, sweep, state, steps, doing)
    return Profiles(
        {
            name: profile(request, sweep, state, name, step, doing=doing)
            for name, step in steps.items()
        }
    )


def errors_from_scatter(request: Request, state: lm.State) -> Float[np.ndarray, " p"]:
    """Return the errors of the parameters at a state that need no more than its sums."""
    return used_of(uncertainty_at(request, state), None)


def uncertainty_at(
    request: Request, state: lm.State, speckle: SpeckleErrors | None = None
) -> Uncertainty:
    """Return the covariances at a state, and what is undetermined.

    speckle: with fewer than 8 clusters its errors are those of the result, unless something speaks against
    it.
    """
    scan, search = request.scan, request.search
    moved, clusters = search.free_inside_bounds(state.theta), scan.clusters
    found = uncertainty(search.names, state.reduced, moved, clusters, search.free & ~moved)
    if found.naive is None or found.robust is not None or speckle is None or speckle.objection:
        return found
    return replace(
        found,
        robust=without(speckle.covariance, found.withheld),
        dof=np.where(found.withheld, np.nan, speckle.dof),
        scaling_robust=speckle.scaling,
        method=SPECKLE,
    )


def used_of(errors: Uncertainty, lower: Float[np.ndarray, "p p"] | None) -> Float[np.ndarray, " p"]:
    """Return the errors of the parameters that are used (`error_used`); NaN where none is known."""
    return error_used(
        *(deviations(known, len(errors.dof)) for known in (errors.robust, lower, errors.naive))
    )


def deviations(covariance: Float[np.ndarray, "p p"] | None, p: int) -> Float[np.ndarray, " p"]:
    """Return the square roots of a covariance's diagonal; NaN where it is unknown."""
    return np.full(p, np.nan) if covariance is None else deviation(np.diag(covariance))
