"""The posterior of a finished fit.

Chains walk first where the likelihood is as if χ² were quadratic, which costs nothing, then where it is that
of a sample of pairs, and with draws of that a basis is chosen, from which one wide pass makes the likelihood
of all pairs. Some of the draws are compared with passes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.apps.posterior import chains as walks
from homodyne_dask.apps.posterior import interpolated_likelihood as interpolated
from homodyne_dask.apps.posterior.arviz_tree import Draws
from homodyne_dask.apps.posterior.chains import LogDensity, Mixture, Places, Steps, Values
from homodyne_dask.apps.posterior.log_density import Target, adjustment_of, coordinates
from homodyne_dask.apps.posterior.modes import modes_of
from homodyne_dask.apps.posterior.posterior import Posterior, posterior_of
from homodyne_dask.apps.posterior.priors import free_laws, posterior_priors
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
from homodyne_dask.request.options import SPECKLE_WEIGHTS, FitOptions
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_view import FitView, as_fitted, fitted_scan
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.normal_matrix import inverse_of
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import PASSES_OF_A_POSTERIOR, require_memory_for_thetas
from homodyne_dask.sweep.sweep import Passes, sweep_of

if TYPE_CHECKING:
    from distributed import Client

_MIN_DRAWS = 100
_CHAINS, _PER_PARAMETER = 25, 8
"""Chains for so many free parameters; more in proportion."""
TOLERANCE = 0.02
"""Estimated error of log p for which the basis is chosen."""
MAX_ERROR = 0.05
"""Error of log p of draws compared with all pairs above which the basis is chosen anew, from the draws."""
CHECKED, _MAX_PASSES = 16, 3
_BASIS_DRAWS, _HELD_OUT = 240, 80
_ROUGH_CYCLES = 25
_REACH = 12.0
"""Log density below the largest up to which another optimum counts."""
_DOF_SHARE, _MOST_DOF = 0.7, 5.0
"""Degrees of freedom of proposals: this share of the density's, and so many. Their tails are wider."""


def require_posterior(result: FitResult, request: Request, draws: int, adjust: str) -> None:
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
    require_known(adjust, ("robust", "none"), f"adjust = {adjust!r} is unknown")
    require_count("draws", draws, _MIN_DRAWS)
    if not request.search.free.any():
        raise OptionError("all parameters of the fit are fixed: there is nothing to draw")
    if result.parameters["at_bound"].values[request.search.free].all():
        raise OptionError("all free parameters ended at a bound: widen the bounds of the fit")


@dataclass
class Sampler:
    """The steps from a fit to draws."""

    request: Request
    sweep: Passes
    target: Target
    reduced: ReducedProblem
    """At the optimum."""
    rng: np.random.Generator

    def __post_init__(self) -> None:
        """Take two samples of pairs: one to interpolate from, one to test that."""
        scan, problem, reduced = self.request.scan, self.request.problem, self.reduced
        samples = [interpolated.sample_pairs(scan, problem.min_lag, self.rng) for _ in range(2)]
        contrast = np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast))
        self.pairs = interpolated.pair_set(problem, scan, *samples)
        self.first = interpolated.pair_set(problem, scan, samples[0])
        self.scale = np.concatenate(
            [interpolated.chisqr_scale(scan, contrast, one) for one in samples], axis=1
        )

    def density(self, chisqr: Callable[[Places], Values]) -> LogDensity:
        """Return the log density of z; chisqr: χ² of free parameters, less that at the optimum."""

        def log_density(z: Places) -> Values:
            x = self.target.moves.back(z)
            inside = self.target.moves.inside(x)
            x = np.where(inside[:, None], x, self.target.at.x)  # whatever, but finite
            with np.errstate(all="ignore"):
                density = self.target.log_density(x, chisqr(x))
            return np.where(inside & ~np.isnan(density), density, -np.inf)

        return log_density

    def rough(self, x: Places) -> Values:
        """Return χ² on the sample of pairs."""
        at = self.target.at
        f = interpolated.sampled_f(
            self.request.problem, self.pairs, at.whole(np.concatenate([at.x[None], x]))
        )
        free_scaling = self.request.scaling.fixed_params is None
        return interpolated.rough_chisqr(f, self.scale / np.sqrt(2), free_scaling)[1:]

    def explored(self) -> tuple[Places, Mixture, Places]:
        """Return where chains may start, a mixture, and draws, of roughly the posterior."""
        target, rng = self.target, self.rng
        H, d0 = target.adjustment.hessian, target.adjustment.centre

        def quadratic(x: Places) -> Values:
            d = target.at.of(x) - d0
            return ((d @ H) * d).sum(1) - target.adjustment.below

        to_z = target.moves.slope() @ np.linalg.inv(target.at.slope())
        root = walks.root_of(to_z @ inverse_of(target.adjustment.precision) @ to_z.T)
        middle = target.moves.of(target.at.x)
        dof = min(_MOST_DOF, _DOF_SHARE * target.adjustment.dof)
        by = Mixture(np.ones(1), middle[None], root[None], dof)
        of_sample, chains = self.density(self.rough), _CHAINS * -(-len(middle) // _PER_PARAMETER)
        quick, by = walks.chains_of(self.density(quadratic), self._start(by, chains), by, 100, rng)
        z = quick.z[-1]
        modes = modes_of(target, of_sample, of_sample(z).max() - _REACH, middle, root)
        turned = z + modes[np.arange(chains) % len(modes)] - middle
        z = np.where(np.isfinite(of_sample(turned))[:, None], turned, z)
        kept = z[None]
        for _ in range(2):
            kept = walks.walk(of_sample, z, by, _ROUGH_CYCLES, rng)
            z, by = kept[-1], by.fitted(kept.reshape(-1, len(middle)), rng)
        return z, by, self._some(kept)

    def _some(self, z: Steps) -> Places:
        some = self.rng.choice(z.reshape(-1, z.shape[2]), _BASIS_DRAWS + _HELD_OUT)
        return self.target.moves.back(some)

    def _start(self, by: Mixture, n: int) -> Places:
        """Return places about the optimum inside of bounds and priors, as far from it as the widths are.

        Where there are too few, a parameter outside of its prior is a draw of that.
        """
        moves, rng = self.target.moves, self.rng
        width = np.repeat(0.5 ** np.arange(12), 20 * n)[:, None]
        away = rng.standard_normal((len(width), len(by.root[0]))) @ by.root[0].T
        x = moves.back(by.mean[0] + width * away)
        outside = []
        for prior, of in zip(self.target.priors, x.T, strict=True):
            outside.append(np.isinf(prior.log_density(of)))
            of[:] = np.where(outside[-1] & np.isfinite(of), prior.sample(rng, len(x)), of)
        x = x[np.any(outside, axis=0).argsort(kind="stable")]
        x = x[moves.inside(x)]
        with np.errstate(all="ignore"):
            z = moves.of(x[np.isfinite(self.target.log_prior(x))])
        z = z[moves.inside(moves.back(z))]  # beyond rounding
        if len(z) < n:
            raise OptionError("no draw is inside the bounds: widen the bounds of the fit")
        return z[:n]

    def likelihood(self, near: Places) -> interpolated.LikelihoodArrays:
        """Return the likelihood from one wide pass at thetas chosen from draws."""
        at, problem = self.target.at, self.request.problem
        thetas = at.whole(np.concatenate([at.x[None], near]))
        f, factor = (
            interpolated.sampled_f(problem, self.pairs, thetas),
            self.target.adjustment.factor,
        )
        basis = interpolated.choose_basis(thetas, f, self.scale, _HELD_OUT, factor, TOLERANCE)
        wide = self.sweep.wide(basis.thetas)
        return interpolated.likelihood_arrays(
            wide, basis, self.first, self.reduced, self.request.scaling
        )

    def error(self, of: interpolated.LikelihoodArrays, x: Places) -> float:
        """Return the largest error of log p, by passes over all pairs."""
        at, request = self.target.at, self.request
        grams = self.sweep.candidates(at.whole(x))
        there = [reduce(gram, request.scaling, request.sum_rounding).chisqr for gram in grams]
        both = np.array(there) - self.reduced.chisqr, self.chisqr(of, x)
        known, used = (self.target.adjustment.log_likelihood(at.of(x), chisqr) for chisqr in both)
        return float(np.abs(known - used).max())

    def chisqr(self, of: interpolated.LikelihoodArrays, x: Places) -> Values:
        likelihood = interpolated.likelihood_of(self.request.problem, of, self.target.at.whole(x))
        return np.asarray(likelihood.chisqr).sum(1)

    def run(
        self, draws: int, doing: Callable[[str], None]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return draws by their names in `Draws`, and how exact they are.

        The basis is chosen anew from the draws while the error of their likelihood is too large.
        """
        doing("locating the posterior")
        z, by, near = self.explored()
        passes = 0
        while True:
            passes += 1
            doing("wide pass over the data")
            of = self.likelihood(near)
            doing(f"{draws:,} draws, some of them compared with all pairs")
            log_density = self.density(lambda x, of=of: self.chisqr(of, x))
            chains, by = walks.chains_of(log_density, z, by, draws, self.rng)
            near = self._some(chains.z)
            error = self.error(of, near[:CHECKED])
            if error < MAX_ERROR or passes == _MAX_PASSES:
                break
            z = chains.z[-1]
        kept = np.linspace(0, len(chains.z) - 1, -(-draws // len(z))).round().astype(int)
        numbers = {
            "r_hat": chains.r_hat,
            "effective_draws": min(chains.effective, float(len(kept) * len(z))),
            "columns": len(of.basis.thetas) - 1,
            "checked": CHECKED,
            "largest_error": error,
        }
        return self._named(self.target.moves.back(chains.z[kept].swapaxes(0, 1)), of), numbers

    def _named(self, x: Steps, of: interpolated.LikelihoodArrays) -> dict[str, Any]:
        target, reduced, shape = self.target, self.reduced, x.shape[:2]
        x = x.reshape(-1, x.shape[2])
        there = interpolated.likelihood_of(self.request.problem, of, target.at.whole(x))
        groups, members, _ = of.columns.shape
        normal = self.rng.standard_normal((len(x), groups, 1, there.spread.shape[-1]))
        own = (there.spread * np.repeat(normal, members, axis=1)).sum(-1)
        linear = there.linear_params + np.sqrt(target.adjustment.factor) * own
        of_bins = -(reduced.chisqr_per_bin + there.chisqr) / (2 * target.adjustment.factor)
        used = reduced.count > 0
        values = {
            "theta": target.at.whole(x),
            "linear_params": np.where(used[:, None], linear, np.nan),
            "log_likelihood": np.where(used, of_bins, np.nan),
            "log_prior": target.log_prior(x),
        }
        chains = {name: value.reshape(*shape, *value.shape[1:]) for name, value in values.items()}
        return chains | {"prior": target.prior_draws(len(x), self.rng)}


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
        of a rate have a prior of their own if all are free and none has a prior (docs: posterior).
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
    load_ahead("hd.posterior", "arviz_stats", "posterior")
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan, doing = fitted_scan(result) if scan is None else scan, progress or (lambda _: None)
    began = time.perf_counter()
    request = request_of(result, scan)
    require_posterior(result, request, draws, adjust)
    require_count("seed", seed, 0)
    theta, search = result.parameters["optimum"].values.astype(float), request.search
    given = dict(request.options.prior or {}) | dict(priors or {})
    prior, laws = posterior_priors(request.parameters, search, given)
    at, moves = (coordinates(search, theta, of) for of in (free_laws(search), laws))
    plan = plan_for(request, client, passes=PASSES_OF_A_POSTERIOR)
    require_memory_for_thetas(plan, max(interpolated.SIZES) + 1)
    with workers_for_plan(request.scan, plan, client) as (connected, _):
        data = sweep_of(plan, request.scan.selection, request.problem, connected)
        doing("one pass at the optimum")
        weighted = request.options.weighting == SPECKLE_WEIGHTS
        sweep: Passes = weighted_at(request, data, theta) if weighted else data
        reduced = reduce(sweep.gram(theta), request.scaling, request.sum_rounding)
        adjustment = adjustment_of(request, reduced, at, result, adjust)
        target = Target(at, moves, adjustment, tuple(prior.values()))
        sampler = Sampler(request, sweep, target, reduced, np.random.default_rng(seed))
        drawn, numbers = sampler.run(draws, doing)
    numbers |= {
        "adjust": adjustment.kind,
        "adjust_note": adjustment.note,
        "design_effect": adjustment.factor,
        "dof": adjustment.dof,
        "seed": int(seed),
        "seconds": {"total": time.perf_counter() - began},
    }
    drawn["priors"] = {name: of.text for name, of in prior.items()}
    return posterior_of(result, Draws(**drawn, about=numbers), scan)


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
