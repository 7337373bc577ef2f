"""The posterior of a finished fit."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps.posterior.arviz_tree import PosteriorDraws
from homodyne_dask.apps.posterior.interpolated_likelihood import (
    SIZES,
    LikelihoodArrays,
    chisqr_scale,
    choose_basis,
    likelihood_arrays,
    likelihood_of,
    pair_set,
    rough_chisqr,
    sample_pairs,
    sampled_f,
)
from homodyne_dask.apps.posterior.log_density import (
    ADJUSTMENTS,
    Target,
    adjustment_of,
    prior_draws,
    target_priors,
)
from homodyne_dask.apps.posterior.posterior import Posterior, posterior_of
from homodyne_dask.apps.posterior.proposal import LogDensity, Proposal, coordinates, truncated
from homodyne_dask.errors import (
    OptionError,
    load_ahead,
    require_count,
    require_function,
    require_known,
    require_type,
)
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.speckle_weighting import weighted_at
from homodyne_dask.models.parameter_priors import AnyPrior
from homodyne_dask.request.options import SPECKLE_WEIGHTS, FitOptions
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_view import FitView, as_fitted, fitted_scan
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import PASSES_OF_A_POSTERIOR, require_memory_for_thetas
from homodyne_dask.sweep.sweep import Passes, sweep_of

if TYPE_CHECKING:
    from distributed import Client

_MIN_DRAWS = 100
_LEAST_WEIGHTED = 100
"""Fewer draws inside the bounds have no weights that could be judged."""
_OVERSAMPLED = 2
"""Independent draws for each that is kept."""


def require_posterior(result: FitResult, request: Request, draws: int, adjust: str) -> None:
    """Raise OptionError for fits that have no posterior of this kind, and for options that are none."""
    options = request.options
    if not result.converged:
        raise OptionError(
            f"a posterior needs a fit that converged; this fit ended with: {result.outcome.value}"
        )
    if options.loss != "linear":
        raise OptionError(
            f"a fit with loss {options.loss!r} has no likelihood: exclude outliers and use loss 'linear'"
        )
    for name, given in (("contrast", options.contrast), ("offset", options.offset)):
        if isinstance(given, dict) and "bounds" in given:
            raise OptionError(
                f"the fit was made with bounds of the {name}, which a posterior does not support: fit "
                f"with a prior of it instead"
            )
    require_known(adjust, ADJUSTMENTS, f"adjust = {adjust!r} is unknown")
    require_count("draws", draws, _MIN_DRAWS)
    if not request.search.free.any():
        raise OptionError("all parameters of the fit are fixed: there is nothing to draw")
    if result.parameters["at_bound"].values[request.search.free].all():
        raise OptionError("all free parameters ended at a bound: widen the bounds of the fit")


def require_proper(priors: Mapping[str, AnyPrior]) -> None:
    """Raise OptionError for a parameter whose prior has no ends: the data need not bound it, either."""
    for name, prior in priors.items():
        if not prior.proper:
            raise OptionError(
                f"the prior of {name} is {prior.text()}, so its posterior may be unbounded: give it bounds "
                f"in the fit, or a prior"
            )


TOLERANCE = 0.02
"""Estimated error of log p for which the basis is chosen."""
MAX_ERROR = 0.05
"""Error of log p of draws compared with all pairs above which the basis is chosen anew, from the draws."""
CHECKED, _MAX_PASSES = 64, 3
_BASIS_DRAWS, _HELD_OUT = 240, 80
_ROUNDS, _DRAWS = 3, 1000
"""Of the search for where the posterior is, on a sample of pairs and again on all."""


class Draws(NamedTuple):
    """Draws of equal weight, and how they were made."""

    x: Float[np.ndarray, "draw x"]
    """Free parameters."""
    log_weight: Float[np.ndarray, " draw"]
    """By which each was chosen, before smoothing."""
    pareto_k: float
    effective: float


def importance_draws(
    log_density: LogDensity, of: Proposal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return independent draws, chosen by their Pareto-smoothed weights (Vehtari et al. 2024).

    Raises OptionError where too few of those proposed are inside the bounds.
    """
    from arviz_stats.base.array import array_stats

    n = _OVERSAMPLED * draws
    x, _, _, log_weight = of.weighted(log_density, n, rng)
    if len(x) < _LEAST_WEIGHTED:
        raise OptionError(
            f"only {len(x)} of {n} draws are inside the bounds: give more draws or narrower priors, widen "
            f"the bounds of the fit, or fix parameters that the data do not determine"
        )
    smooth, k = array_stats.psislw(-log_weight)  # it takes the log-likelihoods of loo
    weight = np.exp(smooth - smooth.max())
    weight /= weight.sum()
    places = (np.arange(draws) + rng.random()) / draws
    chosen = np.searchsorted(np.cumsum(weight), places).clip(0, len(weight) - 1)
    chosen = rng.permutation(chosen)
    effective = min(float(1 / (weight**2).sum()), float(draws))
    return Draws(x[chosen], log_weight[chosen], float(k), effective)


class Sampler:
    """The steps from a fit to draws."""

    def __init__(
        self, request: Request, sweep: Passes, target: Target, reduced: ReducedProblem, seed: int
    ) -> None:
        """Take the fit, the passes over its data, the density, and the problem at the optimum."""
        self.request, self.sweep, self.target, self.reduced = request, sweep, target, reduced
        self.seed, self.rng = int(seed), np.random.default_rng(seed)
        scan, problem, lag = request.scan, request.problem, request.problem.min_lag
        samples = [sample_pairs(scan, lag, self.rng) for _ in range(2)]
        contrast = np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast))
        self.pairs = pair_set(problem, scan, *samples)
        self.first = pair_set(problem, scan, samples[0])
        scales = [chisqr_scale(scan, contrast, sample) for sample in samples]
        self.scale = np.concatenate(scales, axis=1)

    def explored(self) -> tuple[Proposal, Float[np.ndarray, "draw x"]]:
        """Return a proposal for the posterior and draws of roughly that."""
        at, problem = self.target.at, self.request.problem
        free_scaling = self.request.scaling.fixed_params is None

        def rough(x: Float[np.ndarray, "n x"]) -> Float[np.ndarray, " n"]:
            f = sampled_f(problem, self.pairs, at.whole(np.concatenate([at.x[None], x])))
            chisqr = rough_chisqr(f, self.scale / np.sqrt(2), free_scaling)[1:]
            return self.target.log_density(x, chisqr)

        first = self.target.proposal()
        by, found = self.target.adapted(first, rough, _ROUNDS, _DRAWS, self.rng)
        if not len(found.x):
            raise OptionError("no draw is inside the bounds: widen the bounds of the fit")
        weight = truncated(found.log_weight)
        return by, found.x[self.rng.choice(len(weight), _BASIS_DRAWS + _HELD_OUT, p=weight)]

    def likelihood(self, near: Float[np.ndarray, "draw x"]) -> LikelihoodArrays:
        """Return the likelihood from one wide pass at thetas chosen from draws."""
        at, problem = self.target.at, self.request.problem
        thetas = at.whole(np.concatenate([at.x[None], near]))
        f, factor = sampled_f(problem, self.pairs, thetas), self.target.adjustment.factor
        basis = choose_basis(thetas, f, self.scale, _HELD_OUT, factor, TOLERANCE)
        wide = self.sweep.wide(basis.thetas)
        return likelihood_arrays(wide, basis, self.first, self.reduced, self.request.scaling)

    def weighted_draws(
        self, of: LikelihoodArrays, by: Proposal, draws: int
    ) -> tuple[Proposal, Draws]:
        """Return draws by importance weights, and the proposal, adapted, from which they came."""

        def log_density(x: Float[np.ndarray, "n x"]) -> Float[np.ndarray, " n"]:
            return self.target.log_density(x, self.chisqr(of, x).sum(1))

        by, _ = self.target.adapted(by, log_density, _ROUNDS, _DRAWS, self.rng)
        found = importance_draws(log_density, by, draws, self.rng)
        return by, found

    def chisqr(
        self, of: LikelihoodArrays, x: Float[np.ndarray, "n x"]
    ) -> Float[np.ndarray, "n bin"]:
        """Return χ² of every bin at free parameters, less that at the optimum."""
        return np.asarray(likelihood_of(self.request.problem, of, self.target.at.whole(x)).chisqr)

    def checked(self, of: LikelihoodArrays, found: Draws) -> float:
        """Return the largest error of log p of some draws: passes over all pairs."""
        at = self.target.at
        x = found.x[self.rng.choice(len(found.x), CHECKED)]
        exact = []
        for gram in self.sweep.candidates(at.whole(x)):
            there = reduce(gram, self.request.scaling, self.request.sum_rounding)
            exact.append(there.chisqr - self.reduced.chisqr)
        both = np.array(exact), self.chisqr(of, x).sum(1)
        known, used = (self.target.adjustment.log_likelihood(at.of(x), of_all) for of_all in both)
        return float(np.abs(known - used).max())

    def run(self, draws: int, doing: Callable[[str], None]) -> dict[str, Any]:
        """Return draws by their names in `PosteriorDraws`, and how exact they are.

        The basis is chosen anew from the draws while the error of their likelihood is too large.
        """
        doing("locating the posterior")
        by, near = self.explored()
        passes = 0
        while True:
            doing("wide pass over the data")
            of = self.likelihood(near)
            passes += 1
            doing(f"{draws:,} draws, some of them compared with all pairs")
            by, found = self.weighted_draws(of, by, draws)
            error = self.checked(of, found)
            if error < MAX_ERROR or passes == _MAX_PASSES:
                break
            near = found.x[self.rng.choice(len(found.x), _BASIS_DRAWS + _HELD_OUT)]
        return self._named(found, of) | {
            "sample_stats": {"log_weight": found.log_weight[None]},
            "pareto_k": found.pareto_k,
            "effective_draws": found.effective,
            "columns": len(of.basis.thetas) - 1,
            "checked": CHECKED,
            "largest_error": error,
            "seed": self.seed,
        }

    def _named(self, found: Draws, of: LikelihoodArrays) -> dict[str, np.ndarray]:
        """Return theta, contrast and offset, likelihood and prior of draws as one chain."""
        target, reduced, x = self.target, self.reduced, found.x
        there = likelihood_of(self.request.problem, of, target.at.whole(x))
        groups, members, _ = of.columns.shape
        normal = self.rng.standard_normal((len(x), groups, 1, there.spread.shape[-1]))
        own = (np.asarray(there.spread) * np.repeat(normal, members, axis=1)).sum(-1)
        linear = np.asarray(there.linear_params) + np.sqrt(target.adjustment.factor) * own
        chisqr = reduced.chisqr_per_bin + np.asarray(there.chisqr)
        used = reduced.count > 0
        of_bins = np.where(used, -chisqr / (2 * target.adjustment.factor), np.nan)
        return {
            "theta": target.at.whole(target.at.wrapped(x))[None],
            "linear_params": np.where(used[:, None], linear, np.nan)[None],
            "log_likelihood": of_bins[None],
            "log_prior": target.log_prior(x)[None],
            "prior": prior_draws(target, len(x), self.rng),
        }


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
    """Draw from the posterior of a converged fit, given all its data.

    result: the fit. scan: the fitted scan; by default it is opened from its store.
    priors: by parameter, each as text or tuple: (2500, 300) is normal; ("lognormal", 2500, 0.3),
        ("halfnormal", sd), ("truncnormal", mean, sd, low, high), ("uniform", low, high) and
        ("loguniform", low, high). By default those of the fit, otherwise uniform within the bounds, or
        log-uniform for parameters that are searched on a logarithmic scale; amplitude, exponent and offset
        of a rate have the prior of `models.rate_priors` if all are free and none has a prior.
    draws: number of draws. seed: of the random numbers; the same seed gives the same draws.
    adjust: "robust" makes the likelihood as wide as the standard errors of the fit, by the scatter between
        bins or speckle noise; "none" treats the noise of pairs as uncorrelated. The likelihood of a
        fit with weighting speckle includes its noise, so both are the same.
    client: a Dask client; None starts workers where a fit would.
    progress: called with a description of each step.

    χ² of all pairs at any parameters is computed from a wide Gram (`kernels.gram.Gram`), which takes
    one pass: draws need no passes. Some draws are compared with passes over all pairs. Contrast and offset
    have the prior for which integrating over them is equivalent to using their best values. Raises
    OptionError for fits that did not converge, robust losses, bounds of contrast or offset, unknown priors,
    and data other than those of the fit.

    >>> result = hd.fit("A0123_c2.zarr", "brownian")
    >>> hd.posterior(result, draws=500).reliable
    True
    """
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan = fitted_scan(result) if scan is None else scan
    options = {"priors": priors, "draws": draws, "seed": seed, "adjust": adjust, "client": client}
    doing = progress or (lambda _: None)
    return posterior_of(result, posterior_draws(result, scan, **options, doing=doing), scan)


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
    require_count("seed", seed, 0)
    theta = result.parameters["optimum"].values.astype(float)
    at = coordinates(request.search, theta)
    priors_used = target_priors(request, priors)
    require_proper(priors_used)
    plan = plan_for(request, client, passes=PASSES_OF_A_POSTERIOR)
    require_memory_for_thetas(plan, max(SIZES) + 1)
    with workers_for_plan(request.scan, plan, client) as (connected, _):
        data = sweep_of(plan, request.scan.selection, request.problem, connected)
        doing("one pass at the optimum")
        weighted = request.options.weighting == SPECKLE_WEIGHTS
        sweep: Passes = weighted_at(request, data, theta) if weighted else data
        reduced = reduce(sweep.gram(theta), request.scaling, request.sum_rounding)
        adjustment = adjustment_of(request, reduced, at, result, adjust)
        sampler = Sampler(request, sweep, Target(at, adjustment, priors_used), reduced, seed)
        found = sampler.run(draws, doing)
    units = {p.name: p.unit for p in request.parameters}
    return PosteriorDraws(
        **found,
        priors={name: prior.text(units[name]) for name, prior in priors_used.items()},
        adjust=adjustment.kind,
        adjust_note=adjustment.note,
        design_effect=adjustment.factor,
        dof=adjustment.dof,
        seconds={"total": time.perf_counter() - began},
    )


def request_of(result: FitResult, scan: Scan) -> Request:
    """Return the request of a finished fit, with the data it was made of."""
    if result.diagnosis.smoothing is not None:
        raise OptionError(
            f"{result.config['model']} has rates without a formula, smoothed by a penalty that a "
            f"posterior does not include: see their bands in result.rates"
        )
    scan = as_fitted(FitView(result, scan).scan, result)
    if scan.digest != result.provenance.inputs["store_sha256"]:
        raise OptionError(
            f"{scan.path} is not the store that was fitted, or has changed since: fit again"
        )
    inputs = result.provenance.inputs
    for what, given in (("frames", [scan.frames]), ("frames_excluded", scan.excluded_frames)):
        found = [list(one) for one in given]
        fitted = [inputs["frames"]] if what == "frames" else inputs.get(what) or []
        if found != fitted:
            raise OptionError(
                f"the fit used {what.replace('_', ' ')} {fitted}, but the scan has {found}: "
                f"give the selection that was fitted"
            )
    model = result.provenance.definition or result.config["model"]
    options = {name: result.config[name] for name in FitOptions.model_fields}
    if options["loss"] == "linear":
        options["loss_scale"] = None
    # the wide Gram is of float64, and what it is compared with must be so too
    return prepare(scan, model, **options | {"profile": (), "precision": "float64"})
