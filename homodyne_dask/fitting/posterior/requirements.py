"""What a fit needs to have a posterior; one sentence for each that it lacks."""

import numpy as np

from homodyne_dask.errors import OptionError, nearest
from homodyne_dask.fitting.errors.wide_profile import Profiler
from homodyne_dask.fitting.posterior.adjustment import ADJUSTMENTS
from homodyne_dask.fitting.posterior.target import Target
from homodyne_dask.fitting.request import Request
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.directions import inverse_of
from homodyne_dask.solver.variable_projection import ReducedProblem
from homodyne_dask.sweep.sweep import Sweep

_MIN_DRAWS = 100
_FAR = 100.0
"""Standard errors from the optimum at which a density that can be normalized is gone."""
_GONE = 8.0
"""By so much its logarithm is lower there."""


def require_posterior(result: FitResult, request: Request, draws: int, adjust: str) -> None:
    """Raise OptionError for fits that have no posterior of this kind, and for options that are none."""
    options = request.options
    if not result.converged:
        raise OptionError(
            f"the posterior is that of a fit that converged, and this one ended so: {result.outcome.value}"
        )
    if options.loss != "linear":
        raise OptionError(
            f"a fit with loss {options.loss!r} has no likelihood: fit with loss 'linear', or exclude outliers"
        )
    for name in ("contrast_bounds", "offset_bounds"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"the fit was made with {name}, and a posterior has none of these: fit with "
                f"{name.split('_')[0]}_prior instead"
            )
    if adjust not in ADJUSTMENTS:
        raise OptionError(f"adjust = {adjust!r} is unknown; {nearest(str(adjust), ADJUSTMENTS)}")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < _MIN_DRAWS:
        raise OptionError(f"draws = {draws!r}: give a whole number from {_MIN_DRAWS} up")
    if not request.search.free.any():
        raise OptionError("all parameters of the fit are fixed: there is nothing to draw")
    if result.parameters["at_bound"].values[request.search.free].all():
        raise OptionError("all free parameters ended at a bound: give the fit wider bounds")


def require_proper(request: Request, sweep: Sweep, reduced: ReducedProblem, target: Target) -> None:
    """Raise OptionError where a prior has no ends and the likelihood stays high towards one of them.

    χ² far away, all other parameters fitted anew, is that of a sample of pairs.
    """
    at, factor = target.at, target.adjustment.factor
    some = np.ix_(at.free, at.free)
    error = np.sqrt(factor * np.diag(inverse_of(reduced.hessian[some])))
    steps = {
        name: _FAR * float(error[n])
        for n, (name, prior) in enumerate(target.priors.items())
        if not prior.proper
    }
    if not steps:
        return
    state = lm.initial_state(request.search, at.theta, reduced, lm.Options())
    profiler = Profiler(request, sweep, state, steps)
    profiles = profiler.along(profiler.sampled(), profiler.search_around_optimum())
    for name, points in profiles.items():
        place = request.search.names.index(name)
        for point in points:
            away = point.theta[place] - at.theta[place]
            end = target.priors[name].support[int(away > 0)]
            rise = point.chisqr - reduced.chisqr
            if away and np.isinf(end) and rise < 2 * _GONE * factor:
                raise OptionError(
                    f"the posterior of {name} has no end: at {point.theta[place]:.3g} the data fit nearly as "
                    f"well as at the optimum, and its prior is {target.priors[name].text()}: give it bounds "
                    f"in the fit, or a prior"
                )
