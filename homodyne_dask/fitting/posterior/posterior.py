"""The posterior of a finished fit."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.errors import OptionError, load_ahead, require_function, require_type
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.options import fit_options
from homodyne_dask.fitting.posterior.adjustment import adjustment_of
from homodyne_dask.fitting.posterior.likelihood import likelihood_of
from homodyne_dask.fitting.posterior.requirements import require_posterior, require_proper
from homodyne_dask.fitting.posterior.sampler import CHECKED, Sampled, Sampler
from homodyne_dask.fitting.posterior.target import Target, prior_draws, target_priors
from homodyne_dask.fitting.request import Request, prepare
from homodyne_dask.fitting.surrogate.basis import SIZES
from homodyne_dask.fitting.surrogate.coordinates import coordinates
from homodyne_dask.results.figures.block_means import as_fitted
from homodyne_dask.results.figures.fit_view import FitView, fitted_scan
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.posterior.draws import PosteriorDraws
from homodyne_dask.results.posterior.posterior import Posterior, posterior_of
from homodyne_dask.solver.variable_projection import reduce
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.sweep import sweep_of
from homodyne_dask.sweep.working_memory import require_memory_for_thetas

if TYPE_CHECKING:
    from distributed import Client


def posterior(
    result: FitResult,
    scan: Scan | None = None,
    *,
    priors: Mapping[str, Any] | None = None,
    draws: int = 4000,
    seed: int = 1,
    adjust: str = "robust",
    client: "Client | None" = None,
    progress: Callable[[str], None] | None = None,
) -> Posterior:
    """Return draws of the posterior of all data of a fit that converged.

    result: of the fit. scan: what was fitted; by default it is opened where the store was.
    priors: by parameter, each as text or tuple: (2500, 300) is normal; ("lognormal", 2500, 0.3),
        ("halfnormal", sd), ("truncnormal", mean, sd, low, high), ("uniform", low, high) and
        ("loguniform", low, high). By default those of the fit, else uniform within the bounds, or
        log-uniform where a parameter is searched on a logarithmic scale; amplitude, exponent and offset of
        a rate, where all are free and none has a prior, have the one of `models.rate_priors`.
    draws: number of them. seed: of their random numbers; the same seed gives the same draws.
    adjust: "robust" makes the likelihood as wide as the scatter between bins says, "none" leaves it as if
        the noise of pairs were uncorrelated.
    client: a Dask client; None starts workers where a fit would.
    progress: called with words for each step.

    χ² of all pairs at any parameters follows from one pass that makes a wide Gram (`kernels.gram.WideGram`):
    draws cost no passes. Some are compared with passes over all pairs. Contrast and offset have the prior
    under which integrating over them equals taking their best values. Raises OptionError for fits that did
    not converge, robust losses, bounds of contrast or offset, unknown priors, and other data than the fit's.

    >>> result = hd.fit("A0123_c2.zarr", "brownian")
    >>> hd.posterior(result, draws=500).reliable
    True
    """
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan = fitted_scan(result) if scan is None else scan
    found = posterior_draws(
        result, scan, priors=priors, draws=draws, seed=seed, adjust=adjust, client=client,
        doing=progress or (lambda _: None),
    )  # fmt: skip
    return posterior_of(result, found, scan)


def posterior_draws(
    result: FitResult,
    scan: Scan,
    *,
    priors: Mapping[str, Any] | None = None,
    draws: int = 4000,
    seed: int = 1,
    adjust: str = "robust",
    client: "Client | None" = None,
    doing: Callable[[str], None] = lambda _: None,
) -> PosteriorDraws:
    """Return draws of the posterior of a fit; arguments and errors are those of `posterior`."""
    load_ahead("hd.posterior", "arviz_stats", "posterior")
    began = time.perf_counter()
    request = request_of(result, scan)
    require_posterior(result, request, draws, adjust)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed = {seed!r}: give a whole number from 0 up")
    theta = result.parameters["value"].values.astype(float)
    at = coordinates(request.search, theta)
    priors_used = target_priors(request, priors)
    plan = plan_for(request, client)
    require_memory_for_thetas(plan, max(SIZES) + 1)
    with workers_for_plan(plan, client) as connected:
        sweep = sweep_of(plan, request.scan.selection, request.problem, connected)
        doing("one pass at the optimum")
        reduced = reduce(sweep(theta), request.scaling, request.sum_rounding)
        moved = request.search.free_inside_bounds(theta)
        bound = result.covariance_lower
        lower = None if bound is None else bound.values
        adjustment = adjustment_of(request, reduced, at, moved, lower, adjust)
        target = Target(at, adjustment, priors_used)
        require_proper(request, sweep, reduced, target)
        sampler = Sampler(request, sweep, target, reduced, seed)
        sampled = sampler.run(draws, doing)
    total = {"total": time.perf_counter() - began}
    return _as_draws(sampler, sampled, adjust=adjustment.kind, seconds=sampler.seconds | total)


def _as_draws(
    sampler: Sampler, sampled: Sampled, adjust: Any, seconds: dict[str, float]
) -> PosteriorDraws:
    target, request, reduced = sampler.target, sampler.request, sampler.reduced
    found, adjustment, rng = sampled.draws, target.adjustment, sampler.rng
    chains, each, _ = found.x.shape
    x = found.x.reshape(-1, target.at.size)
    theta = target.at.whole(x)
    there = likelihood_of(request.problem, sampled.likelihood, theta)
    used = reduced.count > 0
    spread = np.asarray(there.spread)
    groups = sampled.likelihood.columns.shape[0]
    normal = rng.standard_normal((len(x), groups, 1, spread.shape[-1]))
    normal = np.repeat(normal, spread.shape[1] // groups, axis=1)
    own = np.sqrt(adjustment.factor) * (spread * normal).sum(-1)
    linear = np.where(used[:, None], np.asarray(there.linear_params) + own, np.nan)
    chisqr = reduced.chisqr_per_bin + np.asarray(there.chisqr)
    of_bins = np.where(used, -chisqr / (2 * adjustment.factor), np.nan)
    shape = (chains, each)
    units = {p.name: p.unit for p in request.parameters}
    return PosteriorDraws(
        theta=target.at.whole(target.at.wrapped(x)).reshape(*shape, -1),
        linear_params=linear.reshape(*shape, *linear.shape[1:]),
        log_likelihood=of_bins.reshape(*shape, -1),
        log_prior=np.asarray(target.log_prior(x)).reshape(shape),
        prior=prior_draws(target, len(x), rng),
        priors={name: prior.text(units[name]) for name, prior in target.priors.items()},
        sampler=found.sampler,
        sample_stats=found.stats,
        pareto_k=found.pareto_k,
        effective_draws=found.effective,
        r_hat=found.r_hat,
        adjust=adjust,
        adjust_note=adjustment.note,
        factor=adjustment.factor,
        dof=adjustment.dof,
        columns=len(sampled.basis.thetas) - 1,
        checked=CHECKED,
        largest_error=sampled.error,
        seed=sampler.seed,
        seconds=seconds,
    )


def request_of(result: FitResult, scan: Scan) -> Request:
    """Return the request of a finished fit, with the data it was made of."""
    if result.smoothing is not None:
        raise OptionError(
            f"{result.config['model']} has rates without a formula, smoothed by a penalty that a posterior "
            f"does not have: result.rates has their bands"
        )
    scan = as_fitted(FitView(result, scan).scan, result)
    if scan.digest != result.inputs["store_sha256"]:
        raise OptionError(
            f"{scan.path} is not the store that was fitted, or has changed since: fit again"
        )
    if list(scan.frames) != list(result.inputs["frames"]):
        raise OptionError(
            f"the fit was of frames {result.inputs['frames']}, and the scan has {list(scan.frames)}: "
            f"give the selection that was fitted"
        )
    model = result.definition if result.definition is not None else result.config["model"]
    options = {o.name: result.config.get(o.name, o.default) for o in fit_options()}
    if options["scaling"] != "fixed":
        options |= {"contrast": None, "offset": None}
    if options["loss"] == "linear":
        options["loss_scale"] = None
    # the wide Gram is of float64, and what it is compared with must be so too
    return prepare(scan, model, **options | {"profile": (), "precision": "float64"})
