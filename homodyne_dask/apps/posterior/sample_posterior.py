"""The posterior of a finished fit.

Chains walk first where the likelihood is as if χ² were quadratic, which costs nothing, then where it is that
of a sample of pairs, and with draws of that a basis is chosen, from which one wide pass makes the likelihood
of all pairs. Some of the draws are compared with passes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask import errors
from homodyne_dask.apps.posterior import chains as walks
from homodyne_dask.apps.posterior import interpolated_likelihood as interpolated
from homodyne_dask.apps.posterior import log_density as densities
from homodyne_dask.apps.posterior.arviz_tree import Draws
from homodyne_dask.apps.posterior.chains import LogDensity, Mixture, Places, Roots, Steps, Values
from homodyne_dask.apps.posterior.posterior import MAX_ERROR, Posterior, posterior_of
from homodyne_dask.apps.posterior.priors import free_laws, posterior_priors
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.speckle_weighting import weighted_at
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet
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
"""Estimated error of log p for which the basis is chosen; it is chosen anew, from the draws, while that of
draws compared with all pairs is above MAX_ERROR."""
CHECKED, _MAX_PASSES = 16, 3
_BASIS_DRAWS, _HELD_OUT = 240, 80
_ROUGH_CYCLES = 25
_REACH = 12.0
"""Log density below the largest up to which another optimum counts."""
_APART, _MOST_MODES = 4.0, 4
"""Distance of an optimum from others, in widths; optima."""
_POINTS, _LEVELS = 64, 8
"""Points along a period; searches between them for a maximum."""
_DOF_SHARE, _MOST_DOF = 0.7, 5.0
"""Degrees of freedom of proposals: this share of the density's, and so many. Their tails are wider."""


def require_posterior(result: FitResult, request: Request, draws: int, adjust: str) -> None:
    options = request.options
    if not result.converged:
        raise errors.OptionError(
            f"a posterior needs a fit that converged; this fit ended with: {result.outcome.value}"
        )
    if options.loss != "linear":
        raise errors.OptionError(
            f"a fit with loss {options.loss!r} has no likelihood: exclude outliers and use loss 'linear'"
        )
    for name, value in (("contrast", options.contrast), ("offset", options.offset)):
        if isinstance(value, dict) and "bounds" in value:
            raise errors.OptionError(
                f"the fit was made with bounds of the {name}, which a posterior does not support: fit "
                f"with a prior of it instead"
            )
    errors.require_known(adjust, ("robust", "none"), f"adjust = {adjust!r} is unknown")
    errors.require_count("draws", draws, _MIN_DRAWS)
    if not request.search.free.any():
        raise errors.OptionError("all parameters of the fit are fixed: there is nothing to draw")
    if result.parameters["at_bound"].values[request.search.free].all():
        raise errors.OptionError(
            "all free parameters ended at a bound: widen the bounds of the fit"
        )


@dataclass
class Sampler:
    """The steps from a fit to draws."""

    request: Request
    sweep: Passes
    target: densities.Target
    reduced: ReducedProblem
    """At the optimum."""
    rng: np.random.Generator

    def __post_init__(self) -> None:
        """Take two samples of pairs: one to interpolate from, one to test that."""
        scan, problem, reduced = self.request.scan, self.request.problem, self.reduced
        samples = [interpolated.sample_pairs(scan, problem.min_lag, self.rng) for _ in range(2)]
        i, j, number = (np.concatenate(columns) for columns in zip(*samples, strict=True))
        times = backend_of(problem.model).pair_times(problem, scan.time)
        self.pairs = PairSet(times, i, j, scan.q_or_one, scan.phi, problem.gap or 0.0)
        self.first = self.pairs._replace(i=samples[0].i, j=samples[0].j)
        sigma = scan.sigma_row[:, i] * scan.sigma_row[:, j]
        contrast = np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast))
        # changes of f times this are in units of √χ²
        self.scale = np.abs(contrast)[:, None] * np.sqrt(number) / sigma

    def density(self, chisqr: Callable[[Places], Values]) -> LogDensity:
        """Return the log density of z; chisqr: χ² of free parameters, less that at the optimum."""

        def log_density(z: Places) -> Values:
            x = self.target.z.to_x(z)
            inside = self.target.z.inside(x)
            x = np.where(inside[:, None], x, self.target.u.x)  # whatever, but finite
            with np.errstate(all="ignore"):
                density = self.target.log_density(x, chisqr(x))
            return np.where(inside & ~np.isnan(density), density, -np.inf)

        return log_density

    def f_of(self, x: Places) -> interpolated.Decays:
        """Return f on both samples of pairs, at the optimum and then at x."""
        thetas = self.target.u.to_theta(np.concatenate([self.target.u.x[None], x]))
        f_of_theta = backend_of(self.request.problem.model).f_of_theta
        return interpolated.in_batches(f_of_theta, self.request.problem, thetas, self.pairs)

    def rough_chisqr(self, x: Places) -> Values:
        """Return χ² on the sample of pairs."""
        free_scaling = self.request.scaling.fixed_params is None
        return interpolated.rough_chisqr(self.f_of(x), self.scale / np.sqrt(2), free_scaling)[1:]

    def explored(self) -> tuple[Places, Mixture, Places]:
        """Return where chains may start, a mixture, and draws, of roughly the posterior."""
        target, adjustment, rng = self.target, self.target.adjustment, self.rng

        def quadratic(x: Places) -> Values:
            d = target.u.from_x(x) - adjustment.centre
            return ((d @ adjustment.hessian) * d).sum(1) - adjustment.below

        to_z = target.z.slope() @ np.linalg.inv(target.u.slope())
        root = walks.root_of(to_z @ inverse_of(adjustment.precision) @ to_z.T)
        middle = target.z.from_x(target.u.x)
        dof = min(_MOST_DOF, _DOF_SHARE * adjustment.dof)
        mixture = Mixture(np.ones(1), middle[None], root[None], dof)
        of_sample, chains = (
            self.density(self.rough_chisqr),
            _CHAINS * -(-len(middle) // _PER_PARAMETER),
        )
        start = self._start(mixture, chains)
        quick, mixture = walks.chains_of(self.density(quadratic), start, mixture, 100, rng)
        z = quick.z[-1]
        modes = modes_of(target, of_sample, of_sample(z).max() - _REACH, middle, root)
        turned = z + modes[np.arange(chains) % len(modes)] - middle
        z = np.where(np.isfinite(of_sample(turned))[:, None], turned, z)
        steps = z[None]
        for _ in range(2):
            steps = walks.walk(of_sample, z, mixture, _ROUGH_CYCLES, rng)
            z, mixture = steps[-1], mixture.fitted_to(steps.reshape(-1, len(middle)), rng)
        return z, mixture, self._chosen(steps)

    def _chosen(self, z: Steps) -> Places:
        places = self.rng.choice(z.reshape(-1, z.shape[2]), _BASIS_DRAWS + _HELD_OUT)
        return self.target.z.to_x(places)

    def _start(self, mixture: Mixture, n: int) -> Places:
        """Return places about the optimum inside of bounds and priors, as far from it as the widths are.

        Where there are too few, a parameter outside of its prior is a draw of that.
        """
        coordinates_z, rng = self.target.z, self.rng
        width = np.repeat(0.5 ** np.arange(12), 20 * n)[:, None]
        deviation = rng.standard_normal((len(width), len(mixture.root[0]))) @ mixture.root[0].T
        x = coordinates_z.to_x(mixture.mean[0] + width * deviation)
        outside = []
        for prior, values in zip(self.target.priors, x.T, strict=True):
            outside.append(np.isinf(prior.log_density(values)))
            draws_of_prior = prior.sample(rng, len(x))
            values[:] = np.where(outside[-1] & np.isfinite(values), draws_of_prior, values)
        x = x[np.any(outside, axis=0).argsort(kind="stable")]
        x = x[coordinates_z.inside(x)]
        with np.errstate(all="ignore"):
            z = coordinates_z.from_x(x[np.isfinite(self.target.log_prior(x))])
        z = z[coordinates_z.inside(coordinates_z.to_x(z))]  # beyond rounding
        if len(z) < n:
            raise errors.OptionError("no draw is inside the bounds: widen the bounds of the fit")
        return z[:n]

    def likelihood(self, near: Places) -> interpolated.LikelihoodArrays:
        """Return the likelihood from one wide pass at thetas chosen from draws."""
        u, factor = self.target.u, self.target.adjustment.factor
        thetas, f = u.to_theta(np.concatenate([u.x[None], near])), self.f_of(near)
        basis = interpolated.choose_basis(thetas, f, self.scale, _HELD_OUT, factor, TOLERANCE)
        wide = self.sweep.wide(basis.thetas)
        return interpolated.likelihood_arrays(
            wide, basis, self.first, self.reduced, self.request.scaling
        )

    def error(self, arrays: interpolated.LikelihoodArrays, x: Places) -> float:
        """Return the largest error of log p, by passes over all pairs."""
        u, request, adjustment = self.target.u, self.request, self.target.adjustment
        grams = self.sweep.candidates(u.to_theta(x))
        exact = [reduce(gram, request.scaling, request.sum_rounding).chisqr for gram in grams]
        chisqr_of_both = np.array(exact) - self.reduced.chisqr, self.chisqr(arrays, x)
        log_p = [adjustment.log_likelihood(u.from_x(x), chisqr) for chisqr in chisqr_of_both]
        return float(np.abs(log_p[0] - log_p[1]).max())

    def chisqr(self, arrays: interpolated.LikelihoodArrays, x: Places) -> Values:
        thetas = self.target.u.to_theta(x)
        likelihood = interpolated.likelihood_of(self.request.problem, arrays, thetas)
        return np.asarray(likelihood.chisqr).sum(1)

    def run(self, draws: int, doing: Callable[[str], None]) -> Draws:
        """Return draws; while the error of their likelihood is too large, the basis is chosen anew."""
        doing("locating the posterior")
        z, mixture, near = self.explored()
        passes = 0
        while True:
            passes += 1
            doing("wide pass over the data")
            arrays = self.likelihood(near)
            doing(f"{draws:,} draws, some of them compared with all pairs")
            log_density = self.density(partial(self.chisqr, arrays))
            chains, mixture = walks.chains_of(log_density, z, mixture, draws, self.rng)
            z, near = chains.z[-1], self._chosen(chains.z)
            error = self.error(arrays, near[:CHECKED])
            if error < MAX_ERROR or passes == _MAX_PASSES:
                break
        steps_kept = np.linspace(0, len(chains.z) - 1, -(-draws // len(z))).round().astype(int)
        adjustment = self.target.adjustment
        about = {
            "adjust": adjustment.kind,
            "adjust_note": adjustment.note,
            "design_effect": adjustment.factor,
            "dof": adjustment.dof,
            "r_hat": chains.r_hat,
            "effective_draws": min(chains.effective, float(len(steps_kept) * len(z))),
            "columns": len(arrays.basis.thetas) - 1,
            "checked": CHECKED,
            "largest_error": error,
        }
        return self._draws(self.target.z.to_x(chains.z[steps_kept].swapaxes(0, 1)), arrays, about)

    def _draws(
        self, x: Steps, arrays: interpolated.LikelihoodArrays, about: dict[str, Any]
    ) -> Draws:
        """Return draws x (chain, draw, parameter) with contrast and offset, drawn from their conditional."""
        target, reduced, shape = self.target, self.reduced, x.shape[:2]
        x = x.reshape(-1, x.shape[2])
        likelihood = interpolated.likelihood_of(self.request.problem, arrays, target.u.to_theta(x))
        groups, members, _ = arrays.columns.shape
        normal = self.rng.standard_normal((len(x), groups, 1, likelihood.spread.shape[-1]))
        deviation = (likelihood.spread * np.repeat(normal, members, axis=1)).sum(-1)
        linear = likelihood.linear_params + np.sqrt(target.adjustment.factor) * deviation
        of_bins = -(reduced.chisqr_per_bin + likelihood.chisqr) / (2 * target.adjustment.factor)
        with_pairs = reduced.count > 0
        by_draw = {
            "theta": target.u.to_theta(x),
            "linear_params": np.where(with_pairs[:, None], linear, np.nan),
            "log_likelihood": np.where(with_pairs, of_bins, np.nan),
            "log_prior": target.log_prior(x),
        }
        by_chain = {name: rows.reshape(*shape, *rows.shape[1:]) for name, rows in by_draw.items()}
        names = np.array(self.request.search.names)[target.u.free].tolist()
        priors = {name: prior.text for name, prior in zip(names, target.priors, strict=True)}
        prior_draws = target.prior_draws(len(x), self.rng)
        return Draws(**by_chain, prior=prior_draws, priors=priors, about=about)


def modes_of(
    target: densities.Target, log_density: LogDensity, least: float, middle: Values, root: Roots
) -> Places:
    """Return the optimum, `middle`, and others as dense, in z; root: of the covariance there.

    No data tell the sign of a shear rate, and few angles its direction: other optima are sought with one
    parameter after the other of another sign, or elsewhere in its period; of a rate the value at the middle
    time. least: log density from which one counts.
    """
    modes = middle[None]
    laws = {n: law for law in target.u.laws for n in law.places}
    for n, prior in enumerate(target.priors):
        turned = target.z.to_x(modes)
        if np.isfinite(prior.period):
            turned = np.concatenate([_along_period(target, log_density, x, n) for x in turned])
        elif n not in laws:
            turned[:, n] *= -1
        elif n == laws[n].places[2]:
            turned[:, n] -= 2 * densities.rate_values(laws[n], turned[:, laws[n].places])[:, 1]
        turned = target.z.from_x(turned[target.z.inside(turned)])
        for z in turned[log_density(turned) > least] if len(turned) else ():
            distance = np.linalg.norm(np.linalg.solve(root, (modes - z).T), axis=0).min()
            if distance > _APART and len(modes) < _MOST_MODES:
                modes = np.concatenate([modes, z[None]])
    return modes


def _along_period(target: densities.Target, log_density: LogDensity, x: Values, n: int) -> Places:
    """Return x with a periodic parameter at each maximum along its period, refined."""

    def moved_to(values: Values) -> Places:
        places = np.tile(x, (len(values), 1))
        places[:, n] = values
        return places

    step = target.priors[n].period / _POINTS
    grid = target.z.lower[n] + step * (np.arange(_POINTS) + 0.5)
    density = log_density(target.z.from_x(moved_to(grid)))
    tops = grid[(density >= np.roll(density, 1)) & (density > np.roll(density, -1))]
    for _ in range(_LEVELS):
        near = tops[:, None] + step * np.linspace(-1, 1, 9)
        densities = log_density(target.z.from_x(moved_to(near.ravel()))).reshape(near.shape)
        tops, step = near[np.arange(len(tops)), densities.argmax(1)], step / 4
    return moved_to(tops)


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
    errors.load_ahead("hd.posterior", "arviz_stats", "posterior")
    errors.require_function("progress", progress)
    errors.require_type("result", result, FitResult, "the result of a fit")
    scan, doing = fitted_scan(result) if scan is None else scan, progress or (lambda _: None)
    began = time.perf_counter()
    request = request_of(result, scan)
    require_posterior(result, request, draws, adjust)
    errors.require_count("seed", seed, 0)
    theta, search = result.parameters["optimum"].values.astype(float), request.search
    adjustment_options = dict(request.options.prior or {}) | dict(priors or {})
    prior, laws = posterior_priors(request.parameters, search, adjustment_options)
    u, z = (densities.coordinates(search, theta, rates) for rates in (free_laws(search), laws))
    plan = plan_for(request, client, passes=PASSES_OF_A_POSTERIOR)
    require_memory_for_thetas(plan, max(interpolated.SIZES) + 1)
    with workers_for_plan(request.scan, plan, client) as (connected, _):
        data = sweep_of(plan, request.scan.selection, request.problem, connected)
        doing("one pass at the optimum")
        weighted = request.options.weighting == SPECKLE_WEIGHTS
        sweep: Passes = weighted_at(request, data, theta) if weighted else data
        reduced = reduce(sweep.gram(theta), request.scaling, request.sum_rounding)
        adjustment = densities.adjustment_of(request, reduced, u, result, adjust)
        target = densities.Target(u, z, adjustment, tuple(prior.values()))
        sampler = Sampler(request, sweep, target, reduced, np.random.default_rng(seed))
        drawn = sampler.run(draws, doing)
    about = {"seed": int(seed), "seconds": {"total": time.perf_counter() - began}}
    return posterior_of(result, drawn._replace(about={**drawn.about, **about}), scan)


def request_of(result: FitResult, scan: Scan) -> Request:
    """Return the request of a finished fit, with the data it was made of."""
    if result.diagnosis.smoothing is not None:
        raise errors.OptionError(
            f"{result.config['model']} has rates without a formula, smoothed by a penalty that a "
            f"posterior does not include: see their bands in result.rates"
        )
    scan, inputs = as_fitted(FitView(result, scan).scan, result), result.provenance.inputs
    if scan.digest != inputs["store_sha256"]:
        raise errors.OptionError(
            f"{scan.path} is not the store that was fitted, or has changed since: fit again"
        )
    selected = {"frames": [scan.frames], "frames_excluded": scan.excluded_frames}
    fitted = {"frames": [inputs["frames"]], "frames_excluded": inputs.get("frames_excluded") or []}
    for name, ranges in selected.items():
        ranges = [list(ends) for ends in ranges]
        if ranges != fitted[name]:
            raise errors.OptionError(
                f"the fit used {name.replace('_', ' ')} {fitted[name]}, but the scan has {ranges}: "
                f"give the selection that was fitted"
            )
    model = result.provenance.definition or result.config["model"]
    options = {name: result.config[name] for name in FitOptions.model_fields}
    if options["loss"] == "linear":
        options["loss_scale"] = None
    # the wide Gram is of float64, and what it is compared with must be so too
    return prepare(scan, model, **options | {"profile": (), "precision": "float64"})
