"""Initial values of rates of free form: those of fits of power laws to the averages."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.request import Request, parameters_for_q
from homodyne_dask.fitting.start.averages import BinnedAverages
from homodyne_dask.fitting.start.binned_fits import BinnedFits
from homodyne_dask.fitting.start.transport_minima import (
    PASSES_TO_MINIMUM,
    Minimum,
    transport_minima,
)
from homodyne_dask.models.parameters import Search, search
from homodyne_dask.models.power_law_step import power_laws
from homodyne_dask.models.spline_rates import of_power_law, power_law_model
from homodyne_dask.models.transport import positive_times

MAX_STARTS = 4
"""Minima of power laws from which fits of free forms to the averages start."""
MAX_CHISQR_RATIO = 10.0
"""Their largest χ² over the lowest."""


def free_rate_minima(request: Request, summary: BinnedAverages) -> list[Minimum]:
    """Return the minima of fits to the averages that start from those of power laws, best first.

    Values that a user gave are where they start.
    """
    problem, found = request.problem, request.search
    if np.isfinite(found.start).all():
        return [Minimum(found.start, np.nan, 1)]
    model, law = problem.model, power_law_model(problem.model)
    of_law = replace(summary, problem=replace(problem, model=law))
    mode, starts = request.scaling.mode_for_initial_values, request.options.starts
    minima = transport_minima(of_law, _search_of_power_law(request), mode, starts)
    scan = request.scan
    t = positive_times(problem.convention, scan.time[scan.use], of_law.spacing)

    def free(theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " m"]:
        made = of_power_law(model, theta, t)
        floor = np.zeros(model.size)
        for at in model.places.values():  # where a rate is 0, c2 does not show that it should rise
            floor[at] = 1e-3 * np.abs(made[at]).mean()
        made = np.where(made < floor, floor, made)
        return found.inside(np.where(np.isfinite(found.start), found.start, made))

    points = [free(at.theta) for at in minima if at.chisqr <= MAX_CHISQR_RATIO * minima[0].chisqr]
    fits = BinnedFits(summary, found, mode)
    ends = fits.merged(
        fits.advanced(fits.started(points[: starts or MAX_STARTS]), PASSES_TO_MINIMUM)
    )
    size = int(found.free.sum())
    return [
        Minimum(end.lowest.theta, end.chisqr, end.starts, end.lowest.reduced.variance(size))
        for end in ends
    ]


def _search_of_power_law(request: Request) -> Search:
    """Return the search over the power laws; what is given of parameters of both models holds for it."""
    model, found = request.problem.model, request.search
    law = power_law_model(model)
    laws = power_laws(law.names, law.power_laws, request.scan.time[request.scan.use])
    wide = search(parameters_for_q(law, request.scan, law.shear), laws=laws)
    lower, upper, start, free = (v.copy() for v in (wide.lower, wide.upper, wide.start, wide.free))
    for n, name in enumerate(law.names):
        if name in found.names:
            at = found.names.index(name)
            lower[n], upper[n] = found.lower[at], found.upper[at]
            start[n], free[n] = found.start[at], found.free[at]
    return replace(wide, lower=lower, upper=upper, start=start, free=free)
