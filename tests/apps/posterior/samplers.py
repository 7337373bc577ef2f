"""A sampler of the posterior at the optimum of a fit."""

import numpy as np

import homodyne_dask as hd
from homodyne_dask.apps.posterior.log_density import Target, adjustment_of, coordinates
from homodyne_dask.apps.posterior.priors import free_laws, posterior_priors
from homodyne_dask.apps.posterior.sample_posterior import Sampler
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.sweep import sweep_of

TRUTH = np.array([20000.0, -0.4, 500.0])


def sampler_of(scan, model, seed=1, adjust="none", **options):
    """A sampler at the optimum of a fit."""
    result = hd.fit(scan, model, **options)
    request = prepare(scan, model, **options)
    sweep = sweep_of(plan_for(request, None), scan.selection, request.problem, None)
    theta = result.parameters["optimum"].values
    reduced = reduce(sweep.gram(theta), request.scaling, request.sum_rounding)
    priors, laws = posterior_priors(request.parameters, request.search, {})
    u, z = (
        coordinates(request.search, theta, rates) for rates in (free_laws(request.search), laws)
    )
    adjustment = adjustment_of(request, reduced, u, result, adjust)
    target = Target(u, z, adjustment, tuple(priors.values()))
    return Sampler(request, sweep, target, reduced, np.random.default_rng(seed))
