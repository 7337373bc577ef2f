"""Draws from a density: independent ones with Pareto-smoothed weights, or chains of NUTS.

The samplers and their diagnostics are those of ArviZ and BlackJAX.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import require_package
from homodyne_dask.fitting.surrogate.coordinates import Coordinates
from homodyne_dask.fitting.surrogate.proposal import LogDensity, Proposal
from homodyne_dask.kernels.devices import float64_on_cpu

CHAINS = 4
WARM_UP = 300
"""Steps of each chain of NUTS before its draws."""
_MAX_DOUBLINGS = 6
"""Of the steps of one draw of NUTS."""
_LEAST_WEIGHTED = 100
"""Fewer draws inside the bounds have no weights that could be judged."""
_OVERSAMPLED = 2
"""Independent draws for each that is kept."""


class Draws(NamedTuple):
    """Draws of equal weight, and how they were made."""

    x: Float[np.ndarray, "chain draw x"]
    """Free parameters."""
    sampler: Literal["importance", "nuts"]
    pareto_k: float
    effective: float
    r_hat: float | None
    stats: dict[str, Float[np.ndarray, "chain draw"]]


def importance_draws(
    log_density: LogDensity, of: Proposal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return draws by their smoothed importance weights (Vehtari et al. 2024)."""
    from arviz_stats.base.array import array_stats

    x, _, _, log_weight = of.weighted(log_density, _OVERSAMPLED * draws, rng)
    if len(x) < _LEAST_WEIGHTED:
        return Draws(x[None, :0], "importance", np.inf, 0.0, None, {})
    smooth, k = array_stats.psislw(-log_weight)  # it takes the log-likelihoods of loo
    weight = np.exp(smooth - smooth.max())
    weight /= weight.sum()
    chosen = _systematic(weight, draws, rng)
    stats = {"log_weight": log_weight[chosen][None]}
    effective = min(float(1 / (weight**2).sum()), float(draws))
    return Draws(x[chosen][None], "importance", float(k), effective, None, stats)


def reliable(k: float, draws: int) -> bool:
    """Return whether weights of this Pareto k give means of so many draws (Vehtari et al. 2024)."""
    return k <= min(1 - 1 / np.log10(draws), 0.7)


def _systematic(
    weight: Float[np.ndarray, " n"], draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the indices of so many draws by weight, in random order."""
    places = (np.arange(draws) + rng.random()) / draws
    return rng.permutation(np.searchsorted(np.cumsum(weight), places).clip(0, len(weight) - 1))


def nuts_draws(
    log_density: Callable[[Any], Any],
    near: Float[np.ndarray, "n x"],
    at: Coordinates,
    draws: int,
    seed: int,
    pareto_k: float,
) -> Draws:
    """Return draws of CHAINS chains of NUTS (Hoffman and Gelman 2014).

    log_density: of free parameters, traced by JAX. near: draws of roughly this density, by whose covariance
    it is preconditioned and at some of which chains start. Parameters with bounds are sampled by their logit,
    those of logarithmic scale by that of their log.
    """
    require_package("NUTS", "blackjax", "posterior")
    import blackjax
    import jax
    import jax.numpy as jnp
    from arviz_stats.base.array import array_stats

    plain = at.without_laws()
    ends = np.stack([at.lower, at.upper])
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.where(plain.log, np.log(np.where(plain.log, ends, 1.0)), ends)
    bounded = np.isfinite(low) & np.isfinite(high) & ~np.isfinite(at.period)
    low, high = np.where(bounded, low, 0.0), np.where(bounded, high, 1.0)

    def x_of(y: Any) -> Any:
        return plain.free_of(jnp.where(bounded, low + (high - low) * jax.nn.sigmoid(y), y))

    def density(y: Any) -> Any:
        x = x_of(y)
        slope = jnp.where(bounded, jax.nn.log_sigmoid(y) + jax.nn.log_sigmoid(-y), 0.0)
        return log_density(x) + plain.log_slope(x) + slope.sum()

    share = ((plain.of(near) - low) / (high - low)).clip(1e-4, 1 - 1e-4)
    y = np.where(bounded, np.log(share / (1 - share)), plain.of(near))
    centre, root = y.mean(0), np.linalg.cholesky(np.cov(y.T) + 1e-12 * np.diag(y.var(0)))
    some = y[np.random.default_rng(seed).choice(len(y), CHAINS, replace=False)]
    first = np.linalg.solve(root, (some - centre).T).T
    library: Any = blackjax
    nuts, each = library.nuts, -(-draws // CHAINS)

    def white(z: Any) -> Any:
        return density(centre + root @ z)

    def chain(key: Any, position: Any) -> Any:
        warm = library.window_adaptation(
            nuts,
            white,
            is_mass_matrix_diagonal=True,
            target_acceptance_rate=0.8,
            max_num_doublings=_MAX_DOUBLINGS,
        )
        (state, parameters), _ = warm.run(key, position, num_steps=WARM_UP)
        kernel = nuts(white, **parameters)

        def step(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            of_step = info.is_divergent, info.acceptance_rate, info.num_integration_steps
            return state, (state.position, state.logdensity, *of_step)

        return jax.lax.scan(step, state, jax.random.split(key, each))[1]

    run, parts = jax.jit(chain), []
    with float64_on_cpu():
        keys = jax.random.split(jax.random.key(seed), CHAINS)
        for key, z in zip(keys, first, strict=True):
            parts.append(jax.tree.map(np.asarray, run(key, jnp.asarray(z))))
    z, lp, diverging, acceptance, steps = (np.stack(part) for part in zip(*parts, strict=True))
    with float64_on_cpu():
        x = np.asarray(x_of(centre + z @ root.T))
    diagnostics: Any = array_stats
    r_hat = max(float(diagnostics.rhat(x[..., n])) for n in range(x.shape[-1]))
    effective = min([CHAINS * each, *(diagnostics.ess(x[..., n]) for n in range(x.shape[-1]))])
    stats = {"lp": lp, "diverging": diverging.astype(float), "acceptance_rate": acceptance,
             "n_steps": steps.astype(float)}  # fmt: skip
    return Draws(x, "nuts", pareto_k, float(effective), r_hat, stats)
