"""The density that is sampled: adjusted likelihood times prior, in the coordinates u."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.posterior.adjustment import Adjustment, inverse_of
from homodyne_dask.fitting.posterior.coordinates import Coordinates
from homodyne_dask.fitting.posterior.sampling import Proposal, student_t
from homodyne_dask.fitting.request import Request
from homodyne_dask.models.parameter_priors import Prior, default_prior, priors_of

_MOST_DOF = 5.0
"""Degrees of freedom of proposals: their tails are wider than those of the density."""


@dataclass(frozen=True)
class Target:
    """Prior and adjustment of a posterior; χ² is given to it."""

    at: Coordinates
    adjustment: Adjustment
    priors: Mapping[str, Prior]
    """Of every free parameter, in their order."""

    def log_prior(self, x: Any) -> Any:
        """Return the log density of the prior at free parameters x, -inf outside of their bounds."""
        xp, inside = x.__array_namespace__(), self.at.inside(x)
        x = self.at.wrapped(xp.where(inside[..., None], x, self.at.x))
        total = sum(prior.log_density(x[..., n]) for n, prior in enumerate(self.priors.values()))
        return xp.where(inside, total, -np.inf)

    def log_density(self, x: Any, chisqr: Any) -> Any:
        """Return the log density of free parameters x; chisqr: at x, less that at the optimum."""
        return self.adjustment.log_likelihood(self.at.of(x), chisqr) + self.log_prior(x)

    def proposal(self) -> Proposal:
        """Return a first proposal: around the optimum, in the coordinates u and in the parameters."""
        at, covariance = self.at, 1.5 * self.covariance()
        dof = min(self.adjustment.dof, _MOST_DOF)
        parts = [student_t(at, at.of(at.x), covariance, dof)]
        if at.laws:
            plain = at.without_laws()
            slope = plain.slope_at(at.x) @ np.linalg.inv(at.slope_at(at.x))
            parts.append(student_t(plain, plain.of(at.x), slope @ covariance @ slope.T, dof))
        return Proposal(tuple(parts))

    def covariance(self) -> Float[np.ndarray, "u u"]:
        """Return roughly the covariance: of the likelihood, and priors as normal ones of their width."""
        slope = np.linalg.inv(self.at.slope_at(self.at.x))
        width = np.array([prior_width(prior) for prior in self.priors.values()])
        return inverse_of(self.adjustment.precision + slope.T @ np.diag(width**-2.0) @ slope)


def prior_width(prior: Prior) -> float:
    """Return the standard deviation of a prior, or of a flat one with its ends; inf for one without."""
    low, high = prior.support
    flat = (high - low) / np.sqrt(12)
    return min(flat, prior.numbers[1]) if prior.name in ("normal", "truncnormal") else flat


def target_priors(request: Request, given: Mapping[str, Any] | None) -> dict[str, Prior]:
    """Return the prior of every free parameter: as given, else that of the fit, else flat within bounds."""
    search = request.search
    of_fit = request.options.prior or {}
    chosen = priors_of(dict(of_fit) | dict(given or {}), search)
    return {
        p.name: chosen.get(p.name, default_prior(p, (float(low), float(high))))
        for p, low, high, free in zip(
            request.parameters, search.lower, search.upper, search.free, strict=True
        )
        if free
    }
