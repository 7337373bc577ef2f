"""Gaussian priors of the parameters of a fit: each is one more measurement of its parameter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class PriorTerms(NamedTuple):
    """What the priors add to the normal equations at a theta."""

    chisqr: float
    """Σ ((theta - mean)/sd)²."""
    gradient: Float[np.ndarray, " p"]
    """(mean - theta)/sd²: minus half the derivative of that."""
    weight: Float[np.ndarray, " p"]
    """1/sd², what they add to the diagonal of the Hessian; 0 where there is no prior."""
    rounding: float
    """Accuracy of their χ²."""

    @property
    def number(self) -> int:
        """The number of priors: of data that they count as."""
        return int(np.count_nonzero(self.weight))


@dataclass(frozen=True)
class GaussianPriors:
    """Mean and standard deviation of parameters that are known beforehand."""

    mean: Float[np.ndarray, " p"]
    """NaN where there is no prior, as in sd."""
    sd: Float[np.ndarray, " p"]
    period: Float[np.ndarray, " p"]
    """inf where a parameter is not periodic; else the distance is that to the nearest of its means."""

    def by_name(self, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Return mean and standard deviation of the parameters that have a prior."""
        pairs = zip(names, self.mean.tolist(), self.sd.tolist(), strict=True)
        return {name: (mean, sd) for name, mean, sd in pairs if math.isfinite(mean)}

    def deviation(self, theta: Float[np.ndarray, "*n p"]) -> Float[np.ndarray, "*n p"]:
        """Return (theta - mean)/sd; 0 where there is no prior."""
        away = theta - self.mean
        period = np.where(np.isfinite(self.period), self.period, 1.0)
        nearest = np.where(np.isfinite(self.period), away - period * np.round(away / period), away)
        return np.nan_to_num(nearest / self.sd, posinf=np.inf, neginf=-np.inf)

    def chisqr(self, theta: Float[np.ndarray, "*n p"]) -> Float[np.ndarray, "*n"]:
        """Return Σ ((theta - mean)/sd)²."""
        return (self.deviation(theta) ** 2).sum(-1)

    def at(self, theta: Float[np.ndarray, " p"]) -> PriorTerms:
        """Return what they add to the normal equations at theta."""
        known = np.isfinite(self.mean)
        inverse, away = np.where(known, 1 / self.sd, 0.0), self.deviation(theta)
        size = np.where(known, np.abs(theta) + np.abs(self.mean), 0.0) * inverse
        eps = float(np.finfo(float).eps)
        return PriorTerms(
            float((away**2).sum()),
            -away * inverse,
            inverse**2,
            eps * float(np.abs(away) @ (np.abs(away) + 2 * size)),
        )
