"""Bounds and Gaussian priors of contrast and offset.

A prior adds one row to the normal equations, as a measurement does. With bounds the elimination is a
least-squares problem in a rectangle, solved exactly along its edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError

Limits = Mapping[str, tuple[float, float]]
"""Of contrast or offset: bounds, a prior, or both, by these names."""


@dataclass(frozen=True)
class ScalingPrior:
    """Bounds and priors of (offset - 1, contrast) of every bin, or of the shared pair."""

    lower: Float[np.ndarray, "2"]
    upper: Float[np.ndarray, "2"]
    mean: Float[np.ndarray, "2"]
    weight: Float[np.ndarray, "2"]
    """1/sd², 0 where there is no prior."""

    def moments(self, each: Float[np.ndarray, " bin"], k: int) -> Float[np.ndarray, "bin k k"]:
        """Return the moments of the priors over 1, y - 1, f, ...; each: the share of them in each bin."""
        total = np.zeros((k, k))
        for column, mean, weight in zip((0, 2), self.mean, self.weight, strict=True):
            row = np.zeros(k)
            row[1], row[column] = mean, 1.0
            total += weight * np.outer(row, row)
        return each[:, None, None] * total

    def inside(self, linear_params: Float[np.ndarray, "bin 2"]) -> Float[np.ndarray, "bin 2"]:
        """Return (offset - 1, contrast) with each value clipped into its bounds."""
        return np.clip(linear_params, self.lower, self.upper)

    def active(
        self, linear_params: Float[np.ndarray, "group 2"], gradient: Float[np.ndarray, "group 2"]
    ) -> Bool[np.ndarray, "group 2"]:
        """Return which values are at a bound with the gradient pointing outwards."""
        below, above = linear_params <= self.lower, linear_params >= self.upper
        return below & (gradient < 0) | above & (gradient > 0)

    def solved(
        self,
        A: Float[np.ndarray, "group 2 2"],
        b: Float[np.ndarray, "group 2"],
        linear_params: Float[np.ndarray, "group 2"],
    ) -> tuple[Float[np.ndarray, "group 2"], Bool[np.ndarray, "group 2"]]:
        """Return the minimum of xᵀAx - 2bᵀx inside the bounds, and which values are at a bound.

        linear_params: the minimum without bounds.
        """
        linear_params, at_bound = linear_params.copy(), np.zeros(linear_params.shape, bool)
        outside = (self.inside(linear_params) != linear_params).any(1)
        outside &= np.isfinite(linear_params).all(1)
        for group in np.flatnonzero(outside):
            linear_params[group] = min(
                self._edges(A[group], b[group]), key=lambda x: x @ A[group] @ x - 2 * b[group] @ x
            )
            x = linear_params[group]
            at_bound[group] = (x == self.lower) | (x == self.upper)
        return linear_params, at_bound

    def _edges(self, A: Float[np.ndarray, "2 2"], b: Float[np.ndarray, "2"]) -> list[np.ndarray]:
        """Return the minimum on every edge of the rectangle."""
        minima = []
        for one, bound in product((0, 1), (self.lower, self.upper)):
            if np.isfinite(bound[one]):
                x, other = bound.copy(), 1 - one
                right, curvature = b[other] - A[other, one] * x[one], A[other, other]
                x[other] = right / curvature if curvature else 0
                minima.append(self.inside(x))
        return minima


def scaling_prior(contrast: Limits, offset: Limits) -> ScalingPrior | None:
    """Return what is given of each, bounds (low, high) and prior (mean, standard deviation), as one value.

    None without any. Raises OptionError for empty bounds and deviations that are not positive.
    """
    if not (contrast or offset):
        return None
    limits, priors = [], []
    for name, given, shift in (("offset", offset, 1.0), ("contrast", contrast, 0.0)):
        low, high = given.get("bounds", (-np.inf, np.inf))
        if not low < high:
            raise OptionError(
                f"bounds of {name}: {low:g} is not below {high:g}; to fix the value, use scaling 'fixed'"
            )
        mean, deviation = given.get("prior", (shift, np.inf))
        if "prior" in given and not (np.isfinite(mean) and 0 < deviation < np.inf):
            raise OptionError(
                f"prior of {name} = ({mean:g}, {deviation:g}) is not a prior: give a mean and a positive "
                f"standard deviation"
            )
        limits.append((low - shift, high - shift))
        priors.append((mean - shift, deviation**-2.0))
    return ScalingPrior(*np.array(limits).T, *np.array(priors).T)
