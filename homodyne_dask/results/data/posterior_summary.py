"""The posterior in numbers: quantiles of each parameter, and whether the errors of the fit are enough."""

from typing import Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fitted_parameters import confidence_intervals
from homodyne_dask.results.data.posterior_draws import PosteriorDraws
from homodyne_dask.results.files.arviz_tree import free_names
from homodyne_dask.results.views.posterior_section import ENOUGH

QUANTILES = (0.025, 0.16, 0.5, 0.84, 0.975)
KNOWN = 0.1
"""Largest error of a shift from the number of draws with which those of the fit may be called enough."""
ENDS = [0, -1]


def summary_table(result: FitResult, draws: PosteriorDraws) -> xarray.Dataset:
    """Return over the free parameters `param`: mean, sd and quantile (param, quantile) of the posterior.

    And beside them value and stderr of the fit, unit, prior; shift: the larger distance of an end of the
    95 % interval from that of the fit, in units of its stderr, NaN where there is none; shift_error: the
    error of shift from the number of draws; enough: whether shift is below 0.05, within two of its errors,
    which are then at most 0.1 each.
    """
    free = free_names(result)
    at, names = list(free.values()), list(free)
    theta = draws.flat[:, at]
    quantile = np.quantile(theta, QUANTILES, axis=0).T
    table = result.parameters.isel(param=at)
    interval = confidence_intervals(result).isel(param=at)
    of_fit = np.stack([interval["low"].values, interval["high"].values], axis=1)
    naive = draws.adjust == "none"  # its width is another by intention
    stderr = np.where(naive, np.nan, table["stderr"].values)
    shift = np.abs(quantile[:, ENDS] - of_fit).max(axis=1) / stderr
    independent = min(draws.effective_draws, len(theta))
    shift_error = _errors_of_ends(theta, independent).max(axis=1) / stderr
    columns = {
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0, ddof=1),
        "value": table["value"].values,
        "stderr": table["stderr"].values,
        "shift": shift,
        "shift_error": shift_error,
        "enough": (shift <= ENOUGH + 2 * shift_error) & (shift_error <= KNOWN),
        "unit": table["unit"].values,
        "prior": np.array([draws.priors.get(name, "") for name in names], str),
    }
    return xarray.Dataset(
        {name: ("param", value) for name, value in columns.items()}
        | {"quantile": (("param", "quantiles"), quantile)},
        {"param": names, "quantiles": list(QUANTILES)},
    )


def _errors_of_ends(
    theta: Float[np.ndarray, "draw p"], effective: float
) -> Float[np.ndarray, "p 2"]:
    """Return the standard errors of the quantiles at both ends from the number of draws.

    Half the distance of the quantiles one binomial standard deviation to each side.
    """
    p = np.array(QUANTILES)[ENDS]
    half = np.sqrt(p * (1 - p) / max(effective, 1.0))
    low, high = (np.quantile(theta, np.clip(p + s * half, 0, 1), axis=0) for s in (-1, 1))
    return 0.5 * (high - low).T


def plain_summary(result: FitResult, draws: PosteriorDraws) -> dict[str, Any]:
    """Return the numbers of a posterior as plain values: the entry `posterior` of summary.json."""
    table = summary_table(result, draws)
    percent = [f"{100 * q:g}" for q in QUANTILES]
    columns = ("unit", "prior", "mean", "sd", "shift", "shift_error", "enough")
    names = (
        "sampler", "adjust", "adjust_note", "dof", "pareto_k", "effective_draws", "r_hat", "seed", "columns",
        "checked", "largest_error",
    )  # fmt: skip
    chains, each = draws.theta.shape[:2]
    return {
        "chains": chains,
        "draws": chains * each,
        "design_effect": draws.factor,
        **{name: getattr(draws, name) for name in names},
        "seconds": dict(draws.seconds),
        "parameters": {
            str(name): {key: table[key].values[n] for key in columns}
            | {"quantiles": dict(zip(percent, table["quantile"].values[n], strict=True))}
            for n, name in enumerate(table["param"].values)
        },
    }
