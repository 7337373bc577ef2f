"""Error estimation after the last step of a fit: of speckle noise, and profiles."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.cell_residuals import averaged_cells
from homodyne_dask.assessment.decay_test import Signal, signal_of
from homodyne_dask.assessment.frame_blocks import frame_moments
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, speckle_errors
from homodyne_dask.assessment.spline_rate_errors import rate_freedom
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import (
    SPECKLE,
    Uncertainty,
    error_used,
    uncertainty,
    without,
)
from homodyne_dask.solver.hausman import HausmanTest
from homodyne_dask.solver.limits import MIN_FREEDOM
from homodyne_dask.solver.normal_equations import deviation, parameters_with_errors
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta

if TYPE_CHECKING:
    from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting


class ErrorEstimates(NamedTuple):
    """Error estimates from passes over the data after the last step."""

    speckle: SpeckleErrors | None = None
    """Errors and noise of Gaussian speckle and counting; None where too little is known of it."""
    profiles: Mapping[str, list[ProfilePoint]] = MappingProxyType({})
    signal: Signal | None = None
    """The test for a decay; None where it is not made."""
    hausman: HausmanTest | None = None
    """Whether a weighted fit differs from an unweighted one; None where it cannot be told."""
    of_global_fit: Uncertainty | None = None
    """Of a scan that was fitted together with others: the covariances that they give; None of a fit alone."""


def estimate_errors(
    request: Request,
    sweep: Sweep,
    state: lm.State,
    doing: Callable[[str], None] = lambda _: None,
    weighted: "SpeckleWeighting | None" = None,
) -> ErrorEstimates:
    """Return the errors of speckle noise, the test for a decay, and the profiles asked for.

    doing: called with words for each point of a profile. weighted: how a fit was weighted by speckle.
    """
    determined = state.outcome in (
        lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES
    )  # fmt: skip
    at_valley = state.outcome is lm.Outcome.SINGULAR
    speckle = None
    if determined or at_valley:
        doing("speckle noise")
        speckle = _speckle(request, sweep, state, weighted)
    signal = None
    if speckle is None or not speckle.sees_decay(state.reduced.contrast):
        free = int(request.search.free.sum())
        blocks = None if weighted else cache(partial(frame_moments, sweep, request, state))
        signal = signal_of(state, request.scaling, free, request.clusters, blocks)
    if not (determined or at_valley) or (signal is not None and not signal.seen):
        return ErrorEstimates(signal=signal)
    if at_valley:
        return ErrorEstimates(signal=signal, speckle=speckle)
    hausman = None
    if weighted is not None and state.outcome is lm.Outcome.CONVERGED:
        hausman = weighted.hausman(state, speckle)
    error = used_of(uncertainty_at(request, state, speckle))
    inside = request.search.free_inside_bounds(state.theta)
    steps = {
        name: float(error[at])
        for name in request.options.profile
        if inside[at := request.search.names.index(name)] and np.isfinite(error[at])
    }
    profiles = {
        name: profile(request, sweep, state, name, step, doing=doing)
        for name, step in steps.items()
    }
    return ErrorEstimates(speckle, profiles, signal, hausman)


def _speckle(
    request: Request, sweep: Sweep, state: lm.State, weighted: "SpeckleWeighting | None"
) -> SpeckleErrors | None:
    moved = parameters_with_errors(request.search, state.theta, state.reduced)
    if weighted is not None:
        return weighted.errors(state, moved)
    of_cells = request.scan.cells is not None
    means = sweep.over(CELL_MEANS, AtTheta(state.theta)) if of_cells else None
    averaged = averaged_cells(sweep, request)
    return speckle_errors(request, state, moved, request.clusters, averaged, means)


def uncertainty_at(
    request: Request, state: lm.State, speckle: SpeckleErrors | None = None
) -> Uncertainty:
    """Return the covariances at a state, and what is undetermined.

    speckle: its errors are those of the result where too few clusters, or degrees of freedom of a parameter
    or rate, show a scatter, unless something speaks against it.
    """
    search = request.search
    moved, clusters = parameters_with_errors(search, state.theta, state.reduced), request.clusters
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    found = uncertainty(search.names, state.reduced, moved, clusters, at_bound)
    if found.naive is None or speckle is None or speckle.objection:
        return found.without_few()
    if found.few is not None and not found.few.any():
        rates = rate_freedom(request, state, clusters, found)
        if rates is None or not (rates.to_array() < MIN_FREEDOM).any():
            return found
    return replace(
        found,
        robust=without(speckle.covariance, found.withheld),
        dof=np.where(found.withheld, np.nan, speckle.dof),
        scaling_robust=found.scaling_naive if speckle.scaling is None else speckle.scaling,
        method=SPECKLE,
        few=None,
    )


def used_of(errors: Uncertainty) -> Float[np.ndarray, " p"]:
    """Return the errors that changes of parameters are compared with (`error_used`); NaN where unknown."""
    return error_used(
        *(deviations(known, len(errors.dof)) for known in (errors.robust, errors.naive))
    )


def deviations(covariance: Float[np.ndarray, "p p"] | None, p: int) -> Float[np.ndarray, " p"]:
    """Return the square roots of a covariance's diagonal; NaN where it is unknown."""
    return np.full(p, np.nan) if covariance is None else deviation(np.diag(covariance))
