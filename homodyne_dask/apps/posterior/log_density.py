"""The density that is sampled: adjusted likelihood times prior, in the coordinates u.

Pairs share frames and speckle, so the sum of squares is a composite log-likelihood: as if they were not
correlated, its curvature is several times too large. The vertical adjustment of Chandler and Bate (2007)
keeps its shape and makes its curvature at the optimum that of the covariance V of the standard errors: with
d the distance from the optimum,

    log L_A = (dᵀV⁻¹d / dᵀHd) · (log L - log L at the optimum).

V is cluster-robust or, with few independent bins, that of the speckle and counting noise. With too few
bins for all directions of a cluster-robust V only the size is adjusted, by tr(HV)/p (Pauli, Racugno and
Ventura 2011); with some more V is drawn toward that size, as if p bins more had shown it. The noise of
speckle has all directions from one bin on. V itself is estimated: a Gaussian likelihood becomes one of
Student's t, in Q = -2 log L_A proportional to (1 + Q/dof)^(-(dof + p)/2). Its degrees of freedom are those of
what is estimated: for V the smallest of all parameters, else those of the trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps.posterior.proposal import (
    Coordinates,
    LogDensity,
    Proposal,
    Weighted,
    free_laws,
    proposal,
)
from homodyne_dask.errors import OptionError
from homodyne_dask.models.parameter_priors import (
    AmplitudePrior,
    AnyPrior,
    ExponentPrior,
    Prior,
    default_prior,
    log_size_prior,
    priors_of,
    rate_draws,
)
from homodyne_dask.request.options import SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.covariance import SPECKLE, clusters_in, freedom_of_size, uncertainty
from homodyne_dask.solver.normal_matrix import inverse_of
from homodyne_dask.solver.reduced_problem import ReducedProblem

_FOR_SOME, _FOR_ALL = 2, 3
"""Independent bins for each direction from which directions are adjusted: in part, and as V says."""
_MIN_ESTIMATED = 0.1
"""Share of a variance that the data cause and not a prior, below which its degrees of freedom are many."""
ADJUSTMENTS = ("robust", "none")
_DOF_SHARE, _MOST_DOF = 0.7, 2.0
"""Degrees of freedom of proposals: this share of the density's, and so many. Their tails are wider."""
_EFFECTIVE = 0.7
"""Share of draws that are effective above which a proposal is not adapted further."""


@dataclass(frozen=True)
class Adjustment:
    """How χ² becomes a log-likelihood."""

    kind: Literal["robust", "magnitude", "none"]
    note: str
    """One sentence for the report."""
    factor: float
    """χ² is divided by this, on average over directions."""
    dof: float
    """Of the t kernel; inf for a Gaussian likelihood."""
    centre: Float[np.ndarray, " u"]
    """Where the likelihood would be largest, were χ² quadratic and without bounds."""
    below: float
    """By how much χ² would be lower there than at the optimum."""
    hessian: Float[np.ndarray, "u u"]
    """H of ½χ² at the optimum."""
    precision: Float[np.ndarray, "u u"]
    """V⁻¹ where directions are adjusted, else H/factor."""

    def log_likelihood(
        self, u: Float[np.ndarray, "*at u"], chisqr: Float[np.ndarray, "*at"]
    ) -> Float[np.ndarray, "*at"]:
        """Return the adjusted log-likelihood; chisqr: less that at the optimum."""
        q = (chisqr + self.below) / self.factor
        if self.kind == "robust":
            d = u - self.centre
            adjusted, raw = ((d @ form * d).sum(-1) for form in (self.precision, self.hessian))
            some = raw > np.finfo(float).tiny
            q = np.where(some, q * self.factor * adjusted / np.where(some, raw, 1.0), q)
        if np.isinf(self.dof):
            return -q / 2
        p = len(self.hessian)
        return -(self.dof + p) / 2 * np.log1p(np.maximum(q / self.dof, -0.5))

    def q_of(self, log_likelihood: Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return Q where the adjusted log-likelihood has some values."""
        if np.isinf(self.dof):
            return -2 * log_likelihood
        return self.dof * np.expm1(-2 * log_likelihood / (self.dof + len(self.hessian)))


class _Width(NamedTuple):
    """What an adjustment makes the likelihood as wide as."""

    kind: Literal["robust", "magnitude", "none"]
    note: str
    factor: float = 1.0
    dof: float = np.inf
    covariance: Float[np.ndarray, "p p"] | None = None
    """Of theta, where all directions are adjusted."""
    bins: int = 0
    """Independent bins, few, whose covariance is drawn toward that of the size alone; 0: it is not."""


def adjustment_of(
    request: Request, reduced: ReducedProblem, at: Coordinates, result: FitResult, adjust: str
) -> Adjustment:
    """Return the adjustment at the optimum of a fit.

    Raises OptionError where no error but the naive one is known.
    """
    to_u = at.slope_at(at.x)
    slope = np.linalg.inv(to_u)
    H = slope.T @ reduced.hessian[np.ix_(at.free, at.free)] @ slope
    gradient = slope.T @ reduced.gradient[at.free]
    step = inverse_of(H) @ gradient
    kind, note, factor, dof, covariance, bins = _width(request, reduced, at, result, adjust)
    precision = H / factor
    if covariance is not None:
        V = to_u @ covariance[np.ix_(at.free, at.free)] @ to_u.T
        if bins:
            V = (bins * V + len(H) * factor * inverse_of(H)) / (bins + len(H))
        precision = inverse_of(V)
    centre, below = at.of(at.x) + step, float(step @ gradient)
    return Adjustment(kind, note, factor, dof, centre, below, H, precision)


def _width(
    request: Request, reduced: ReducedProblem, at: Coordinates, result: FitResult, adjust: str
) -> _Width:
    """Return the width that the options and the noise of a fit give."""
    alone = len(np.unique(request.clusters)) == len(request.clusters)  # no two see one speckle
    if request.options.weighting == SPECKLE_WEIGHTS and (alone or adjust == "none"):
        note = "the likelihood uses averages and the covariance of their speckle and counting noise"
        return _Width("robust", note)
    if adjust == "none":
        note = (
            "the noise of pairs is treated as uncorrelated: widths correspond to the naive errors"
        )
        return _Width("none", note)
    if result.parameters.attrs["method"] == SPECKLE:
        return _of_speckle(request, reduced, at, result)
    return _of_scatter(request, reduced, at)


def _of_speckle(
    request: Request, reduced: ReducedProblem, at: Coordinates, result: FitResult
) -> _Width:
    """Return the adjustment to the speckle and counting noise.

    Of the size alone where a parameter ended at a bound, or follows one that did.
    """
    assert result.covariance is not None
    moved = request.search.free_inside_bounds(at.theta)
    prior = request.search.prior_terms(at.theta)
    known = moved & np.isfinite(np.diag(result.covariance.values))
    naive = np.zeros((len(moved), len(moved)))
    naive[np.ix_(moved, moved)] = inverse_of(reduced.hessian[np.ix_(moved, moved)])
    some = np.ix_(known, known)
    naive, of_fit = naive[some], result.covariance.values[some]
    covariance, dof = of_fit, result.parameters["dof"].values[known]
    if prior is not None:
        covariance, dof = _without_prior(naive, of_fit, dof, prior.weight[known])
    factor = float(np.trace(inverse_of(naive) @ covariance)) / len(covariance)
    fewest = float(np.min(dof))
    if not (known == at.free).all():
        note = "widths correspond on average to the speckle and counting noise"
        return _Width("magnitude", note, factor, fewest)
    note = "widths and correlations correspond to the speckle and counting noise"
    whole = np.zeros((len(moved), len(moved)))
    whole[some] = covariance
    return _Width("robust", note, factor, fewest, whole)


def _without_prior(
    naive: Float[np.ndarray, "m m"],
    of_fit: Float[np.ndarray, "m m"],
    dof: Float[np.ndarray, " m"],
    weight: Float[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, "m m"], Float[np.ndarray, " m"]]:
    """Return what the covariance of a fit and its degrees of freedom would be without the priors.

    naive: H⁻¹ of the data. weight: 1/sd² of the priors, Λ. The fit's is (H + Λ)⁻¹ (S + Λ) (H + Λ)⁻¹, S the
    covariance of the scores of the data; what is asked for is H⁻¹ S H⁻¹, in no direction below H⁻¹: where a
    prior is much narrower than the data, S is rounding.
    """
    both = inverse_of(naive) + np.diag(weight)
    root = np.linalg.cholesky(naive)
    ratios, vectors = np.linalg.eigh(root.T @ (both @ of_fit @ both - np.diag(weight)) @ root)
    of_data = (root @ vectors) * np.maximum(ratios, 1.0) @ (root @ vectors).T
    inverse = inverse_of(both)
    estimated = 1 - np.diag(inverse @ np.diag(weight) @ inverse) / np.diag(of_fit)
    some = estimated > _MIN_ESTIMATED
    return of_data, np.where(some, dof * np.where(some, estimated, 1.0) ** 2, np.inf)


def _of_scatter(request: Request, reduced: ReducedProblem, at: Coordinates) -> _Width:
    """Return the adjustment to the scatter between bins, of which there are enough."""
    clusters, moved = request.clusters, request.search.free_inside_bounds(at.theta)
    errors = uncertainty(request.search.names, reduced, moved, clusters)
    some, number = np.ix_(moved, moved), clusters_in(reduced, clusters)
    covariance = errors.robust
    if covariance is None or not np.isfinite(covariance[some]).all():
        raise OptionError(
            "neither the scatter between bins nor speckle noise determines the width of the "
            "posterior (findings of the fit say why): sample a fit of 8 or more independent bins, or give "
            "adjust='none' for the naive posterior"
        )
    factor = float(np.trace(reduced.hessian[some] @ covariance[some])) / moved.sum()
    of_size = freedom_of_size(reduced, moved, clusters)
    if number < _FOR_SOME * at.size or not (moved == at.free).all():
        note = f"widths correspond on average to the scatter between {number} independent bins"
        return _Width("magnitude", note, factor, of_size)
    note = f"widths and correlations correspond to the scatter between {number} independent bins"
    if number >= _FOR_ALL * at.size:
        return _Width("robust", note, factor, float(np.nanmin(errors.dof)), covariance)
    note += ", shrunk toward their mean size because there are few bins"
    return _Width("robust", note, factor, of_size, covariance, number)


@dataclass(frozen=True)
class Target:
    """Prior and adjustment of a posterior; χ² is given to it."""

    at: Coordinates
    adjustment: Adjustment
    priors: Mapping[str, AnyPrior]
    """Of every free parameter, in their order."""

    def log_prior(self, x: Float[np.ndarray, "*at u"]) -> Float[np.ndarray, "*at"]:
        """Return the log density of the prior at free parameters x, up to a constant; -inf outside."""
        inside = self.at.inside(x)
        x = self.at.wrapped(np.where(inside[..., None], x, self.at.x))
        priors = list(self.priors.values())
        total = sum(prior.log_density(x[..., n]) for n, prior in enumerate(priors))
        for law in self.at.laws:
            if isinstance(priors[law.at[0]], AmplitudePrior):
                total = total + log_size_prior(law, x)
        return np.where(inside, total, -np.inf)

    def log_density(
        self, x: Float[np.ndarray, "*at u"], chisqr: Float[np.ndarray, "*at"]
    ) -> Float[np.ndarray, "*at"]:
        """Return the log density of free parameters x; chisqr: at x, less that at the optimum."""
        return self.adjustment.log_likelihood(self.at.of(x), chisqr) + self.log_prior(x)

    def adapted(
        self, by: Proposal, log_density: LogDensity, rounds: int, n: int, rng: np.random.Generator
    ) -> tuple[Proposal, Weighted]:
        """Return the most effective of a proposal and of those adapted to it in turn, and its draws.

        log_density: of free parameters, one of this target. n: draws in a round.
        """
        tried: list[tuple[Proposal, Weighted]] = []
        for _ in range(rounds + 1):
            found = by.weighted(log_density, n, rng)
            tried.append((by, found))
            if found.effective > _EFFECTIVE * n:
                break
            log_likelihood = found.log_density - self.log_prior(found.x)
            by = by.adapted(found, self.adjustment.q_of(log_likelihood))
        return max(tried, key=lambda one: one[1].effective)

    def proposal(self) -> Proposal:
        """Return a first proposal: from the curvature at the optimum."""
        adjustment = self.adjustment
        dof = min(_DOF_SHARE * adjustment.dof, _MOST_DOF)
        priors = tuple(self.priors.values())
        return proposal(self.at, priors, adjustment.centre, adjustment.precision, dof)


def target_priors(request: Request, given: Mapping[str, Any] | None) -> dict[str, AnyPrior]:
    """Return the prior of every free parameter: as given, else that of the fit, else flat within bounds.

    A rate of three free parameters, none with a prior, has that of `rate_priors`.
    """
    search = request.search
    of_fit = request.options.prior or {}
    chosen: dict[str, AnyPrior] = dict(priors_of(dict(of_fit) | dict(given or {}), search))
    bounds = dict(zip(search.names, zip(search.lower, search.upper, strict=True), strict=True))
    for law in free_laws(search):
        a, b, c = (search.names[n] for n in law.at)
        if not {a, b, c} & chosen.keys():
            chosen |= {
                a: AmplitudePrior(*bounds[a], law=law),
                b: ExponentPrior(*bounds[b], law=law),
            }
    return {
        p.name: chosen.get(p.name) or default_prior(p, bounds[p.name])
        for p, free in zip(request.parameters, search.free, strict=True)
        if free
    }


def prior_draws(target: Target, n: int, rng: np.random.Generator) -> Float[np.ndarray, "n p"]:
    """Return draws of the prior, fixed parameters included; NaN where it cannot be normalized."""
    priors = list(target.priors.values())
    columns = (
        prior.sample(rng, n) if isinstance(prior, Prior) and prior.proper else np.full(n, np.nan)
        for prior in priors
    )
    x = np.column_stack(list(columns))
    for law in target.at.laws:
        a, b, c = (priors[k] for k in law.at)
        if isinstance(a, AmplitudePrior) and isinstance(b, ExponentPrior) and isinstance(c, Prior):
            x[:, law.at] = rate_draws(a, b, c, n, rng)
    return target.at.whole(x)
