"""What a fit asks of the data after its last step: errors with too few bins, and profiles."""

import numpy as np

from homodyne_dask.fitting.errors.assemble import (
    ErrorEstimates,
    free_inside_bounds,
    standard_errors,
)
from homodyne_dask.fitting.errors.dyadic import dyadic, frame_scores
from homodyne_dask.fitting.errors.profile import profile
from homodyne_dask.fitting.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import MIN_CLUSTERS, clusters_in
from homodyne_dask.store.rings import friedel_clusters
from homodyne_dask.sweep.sweep import Sweep


def estimate_errors(request: Request, sweep: Sweep, state: lm.State) -> ErrorEstimates:
    """Return the lower bound of the errors where bins are too few, and the profiles asked for."""
    ended = state.outcome in (lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES)
    if not ended:
        return ErrorEstimates()
    reduced, scan = state.reduced, request.scan
    moved, clusters = free_inside_bounds(request, state), friedel_clusters(scan.q, scan.phi)
    lower = None
    if moved.any() and clusters_in(reduced, clusters) < MIN_CLUSTERS:
        moments = frame_scores(sweep, request, state)
        lower = dyadic(reduced, moments, moved, clusters)
    error = standard_errors(request, state, lower)
    profiles = {}
    for name in request.options.profile:
        at = request.search.names.index(name)
        if moved[at] and np.isfinite(error[at]):
            profiles[name] = profile(request, sweep, state, name, float(error[at]))
    return ErrorEstimates(lower, profiles)
