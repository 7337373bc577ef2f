"""The density that is sampled: adjusted likelihood times prior, in the coordinates u."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.posterior.likelihood_adjustment import Adjustment
from homodyne_dask.fitting.request import Request
from homodyne_dask.fitting.surrogate.coordinates import Coordinates, free_laws
from homodyne_dask.fitting.surrogate.proposal import (
    LogDensity,
    Proposal,
    Weighted,
    proposal,
)
from homodyne_dask.models.parameter_priors import Prior, default_prior, priors_of
from homodyne_dask.models.rate_priors import (
    AmplitudePrior,
    AnyPrior,
    ExponentPrior,
    log_size_prior,
    rate_draws,
)

_DOF_SHARE, _MOST_DOF = 0.7, 2.0
"""Degrees of freedom of proposals: this share of the density's, and so many. Their tails are wider."""
_EFFECTIVE = 0.7
"""Share of draws that are effective above which a proposal is not adapted further."""


@dataclass(frozen=True)
class Target:
    """Prior and adjustment of a posterior; χ² is given to it."""

    at: Coordinates
    adjustment: Adjustment
    priors: Mapping[str, AnyPrior]
    """Of every free parameter, in their order."""

    def log_prior(self, x: Any) -> Any:
        """Return the log density of the prior at free parameters x, up to a constant; -inf outside."""
        xp, inside = x.__array_namespace__(), self.at.inside(x)
        x = self.at.wrapped(xp.where(inside[..., None], x, self.at.x))
        priors = list(self.priors.values())
        total = sum(prior.log_density(x[..., n]) for n, prior in enumerate(priors))
        for law in self.at.laws:
            if isinstance(priors[law.at[0]], AmplitudePrior):
                total = total + log_size_prior(law, x)
        return xp.where(inside, total, -np.inf)

    def log_density(self, x: Any, chisqr: Any) -> Any:
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
    x = np.column_stack([
        p.sample(rng, n) if isinstance(p, Prior) and p.proper else np.full(n, np.nan) for p in priors
    ])  # fmt: skip
    for law in target.at.laws:
        a, b, c = (priors[k] for k in law.at)
        if isinstance(a, AmplitudePrior) and isinstance(b, ExponentPrior) and isinstance(c, Prior):
            x[:, law.at] = rate_draws(a, b, c, n, rng)
    return target.at.whole(x)
