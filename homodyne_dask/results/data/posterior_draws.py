"""The draws of a posterior as the sampler returns them: arrays, and how they were made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from homodyne_dask.results.data.fit_result import FitResult

FORMAT, VERSION = "homodyne_dask posterior", 1
NUMBERS = (
    *("adjust", "adjust_note", "design_effect", "dof", "pareto_k", "effective_draws", "seed"),
    *("columns", "checked", "largest_error"),
)
"""Fields of `PosteriorDraws` that files and summary.json hold as they are."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Draws of the posterior of one fit, all of the same weight: one chain of independent ones.

    Parameters are in the order and the units of the model, bins in those of the fit.
    """

    theta: Float[np.ndarray, "chain draw p"]
    """All parameters of the model; fixed ones are constant."""
    linear_params: Float[np.ndarray, "chain draw bin 2"]
    """(offset - 1, contrast), drawn from their conditional; NaN for a bin without pairs."""
    log_likelihood: Float[np.ndarray, "chain draw bin"]
    """Of each bin, adjusted as the posterior is; NaN for a bin without pairs."""
    log_prior: Float[np.ndarray, "chain draw"]
    prior: Float[np.ndarray, "prior_draw p"]
    """Draws of the prior, as many as one likes; fixed parameters are constant."""
    priors: Mapping[str, str]
    """The prior of each free parameter in words, by name: 'normal, 2500 ± 300 Å²/s'."""
    sample_stats: Mapping[str, Float[np.ndarray, "chain draw"]]
    """log_weight: the importance weights by which the draws were chosen."""
    pareto_k: float
    """Of the importance weights."""
    effective_draws: float
    """(Σw)²/Σw² of the weights."""
    adjust: Literal["robust", "magnitude", "none"]
    """Whether the likelihood has the curvature of the covariance of stderr; magnitude: its size only, with
    too few independent bins for its directions; none: the naive posterior of uncorrelated noise."""
    adjust_note: str
    """One sentence for the report on what was done."""
    design_effect: float
    """The mean factor by which the log-likelihood was divided."""
    dof: float
    """Degrees of freedom of the t kernel; inf for a Gaussian one."""
    columns: int
    """Columns g of the wide Gram, from which the likelihood is interpolated."""
    checked: int
    """Draws that were compared with the likelihood of all pairs."""
    largest_error: float
    """The largest difference of their log densities."""
    seed: int
    seconds: Mapping[str, float]
    """Time of each part: columns, pass, sampling, check, total."""


def free_names(result: FitResult) -> dict[str, int]:
    """Return the place of each free parameter, by name."""
    table = result.parameters
    names = table["param"].values.tolist()
    return {str(name): n for n, name in enumerate(names) if not table["fixed"].values[n]}
