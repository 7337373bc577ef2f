"""`check_rates`: whether rates of a fit follow their power laws, by one more pass over the data or two."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, require_function, require_type
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.posterior.sample_posterior import request_of
from homodyne_dask.fitting.rate_deviations import Evaluate, deviations_in
from homodyne_dask.fitting.request import Request
from homodyne_dask.models.gaussian_priors import PriorTerms
from homodyne_dask.models.rate_alternatives import Deviating, with_deviations
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import fitted_scan
from homodyne_dask.results.data.power_law_test import RatesCheck
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.rings import friedel_clusters
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.sweep import sweep_of

if TYPE_CHECKING:
    from distributed import Client


def check_rates(
    result: FitResult,
    scan: Scan | None = None,
    *,
    client: "Client | None" = None,
    progress: Callable[[str], None] | None = None,
) -> RatesCheck:
    """Return whether J and the shear rate of a fit follow their power laws, and where they do not.

    result: a fit of a transport model that converged. scan: what was fitted; by default it is opened where
    the store was. client: a Dask client; None starts workers where a fit would. progress: called with words
    for each step.

    One pass over all data at the optimum gives the scores of relative deviations of each rate over all
    stretches of time up to half the record, with the fit's parameters free. The largest one, over its error,
    is compared with the same of scores whose signs are flipped, bin by bin, so that p allows for correlated
    speckle and for looking everywhere (`solver/sign_flip_test.py`). A second pass tells the sizes
    of those found.
    Raises OptionError for fits that did not converge or have no power laws, for fewer than 6 independent
    bins, and for other data than the fit's.

    >>> hd.check_rates(hd.fit("A0123_c2.zarr", "power_law")).p < 0.05  # the data fall off to a constant rate
    True
    """
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan = fitted_scan(result) if scan is None else scan
    if not result.converged:
        raise OptionError(
            f"rates are checked of a fit that converged, and this one ended so: {result.outcome.value}"
        )
    if result.smoothing is not None:
        raise OptionError(
            f"{result.config['model']} has rates without a power law: result.rates has their bands; to "
            f"test the power laws fit static or laminar_flow, and check that"
        )
    request = request_of(result, scan)
    model, time = request.problem.model, request.scan.time[request.scan.use]
    alternative = with_deviations(model, time) if model.has_transport_rates else None
    if alternative is None:
        raise OptionError(
            f"{model.name} has rates without a power law, or none: check static, laminar_flow, or another "
            f"model whose rates are power laws"
        )
    if progress is not None:
        progress("one pass at the optimum")
    theta = result.parameters["value"].values.astype(float)
    moved = request.search.free_inside_bounds(theta)
    clusters = friedel_clusters(request.scan.q, request.scan.phi)
    with _passes(request, result, alternative, client) as evaluate:
        found = deviations_in(alternative, evaluate, theta, moved, clusters)
    return RatesCheck(
        model=result.config["model"],
        store=result.inputs["store"],
        rates=alternative.rates,
        **found._asdict(),
    )


@contextmanager
def _passes(
    request: Request, result: FitResult, of: Deviating, client: "Client | None"
) -> Iterator[Evaluate]:
    """Yield the function that makes a pass with all parameters of the fit and the deviations."""
    there = replace(request, problem=replace(request.problem, model=of.model))
    linear_params = None
    if request.problem.loss != "linear":
        columns = result.scaling["offset"].values - 1, result.scaling["contrast"].values
        linear_params = np.nan_to_num(np.stack(columns, axis=1))
    plan = plan_for(there, client)
    with workers_for_plan(plan, client) as connected:
        sweep = sweep_of(plan, request.scan.selection, there.problem, connected)

        def evaluate(whole: Float[np.ndarray, " m"]) -> ReducedProblem:
            prior = request.search.prior_terms(whole[~of.deviates])
            if prior is not None:
                gradient, weight = of.whole(prior.gradient), of.whole(prior.weight)
                prior = PriorTerms(prior.chisqr, gradient, weight, prior.rounding)
            gram = sweep(whole, linear_params)
            return reduce(gram, request.scaling, request.sum_rounding, prior, linear_params)

        yield evaluate
