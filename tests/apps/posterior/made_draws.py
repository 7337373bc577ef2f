"""Draws of posteriors of known truth, made without sampling."""

import numpy as np

from homodyne_dask.apps.posterior.arviz_tree import NUMBERS, Draws
from homodyne_dask.apps.posterior.posterior import Posterior, posterior_of
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.scan import Scan

NOTE = "the curvature of the likelihood is that of the robust covariance of 12 independent bins"
ABOUT = {
    "r_hat": 1.002, "adjust": "robust", "adjust_note": NOTE, "design_effect": 2.3, "dof": 5.2, "columns": 24,
    "checked": 16, "largest_error": 0.003, "seed": 1, "seconds": {"total": 2.0},
}  # fmt: skip


def posterior_from(result: FitResult, theta: np.ndarray, scan: Scan, **changes) -> Posterior:
    """The posterior of draws (chain, draw, p) of all parameters, with the rest that belongs to them.

    changes: of fields of `Draws`, or of numbers about them.
    """
    rng = np.random.default_rng(3)
    chains, each, p = theta.shape
    table = result.scaling
    linear = np.stack([table["offset"].values - 1, table["contrast"].values], axis=-1)
    noise = rng.normal(size=(chains, each, *linear.shape))
    likelihood = -0.5 * rng.chisquare(1.0, (chains, each, len(linear)))
    empty = table["ndata"].values == 0
    linear[empty], likelihood[..., empty] = np.nan, np.nan
    value = result.parameters["value"].values
    free = ~result.parameters["fixed"].values
    names = result.parameters["param"].values[free]
    fields = {
        "theta": theta,
        "linear_params": linear + 1e-3 * noise,
        "log_likelihood": likelihood,
        "log_prior": np.zeros((chains, each)),
        "prior": np.where(free, value * rng.uniform(0.5, 1.5, (100, p)), value),
        "priors": {str(name): "uniform, -1 to 1" for name in names},
    }
    about = ABOUT | {"effective_draws": 0.8 * chains * each}
    about |= {name: changes.pop(name) for name in {*NUMBERS} & changes.keys()}
    return posterior_of(result, Draws(**fields | changes, about=about), scan)


def gaussian(result: FitResult, n: int = 4000, chains: int = 1, seed: int = 7) -> np.ndarray:
    """Draws (chain, draw, p) of the normal distribution that the fit reports; fixed parameters stay."""
    table = result.parameters
    stderr = np.nan_to_num(table["stderr"].values)
    sd = np.where(table["fixed"].values, 0.0, stderr)
    z = np.random.default_rng(seed).normal(size=(chains, n, len(sd)))
    return table["value"].values + sd * z


def banana(result: FitResult, n: int = 4000, seed: int = 7) -> np.ndarray:
    """The same with the second parameter bent along the first one."""
    theta = gaussian(result, n, seed=seed)
    sd = result.parameters["stderr"].values
    z = (theta[..., 0] - result.parameters["value"].values[0]) / sd[0]
    theta[..., 1] += 0.7 * sd[1] * (z**2 - 1)
    return theta
