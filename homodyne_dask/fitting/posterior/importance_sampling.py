"""Independent draws from a density, by Pareto-smoothed importance weights (Vehtari et al. 2024)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.surrogate.proposal import LogDensity, Proposal

_LEAST_WEIGHTED = 100
"""Fewer draws inside the bounds have no weights that could be judged."""
_OVERSAMPLED = 2
"""Independent draws for each that is kept."""


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
    """Return draws chosen by their smoothed weights, in random order.

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
