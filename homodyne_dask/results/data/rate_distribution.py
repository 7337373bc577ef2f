"""The distribution of rates of a fit with bands, and its resolution."""

import numpy as np
import xarray

from homodyne_dask.models.spline_basis import LogDensityForm
from homodyne_dask.models.spline_models import LOG_DENSITY, slopes_of, weights_of
from homodyne_dask.results.data.derived_quantities import (
    covariance_of,
    fitted_quantities,
    mean_is_determined,
    moments_of_distribution,
)
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.solver.state import Outcome

CLEAR = 2.0
"""Standard errors of the relative variance from which on a width is told from 0."""


def has_distribution(result: FitValues) -> bool:
    """Return whether a fit has a distribution of rates: its model has, and a decay was seen."""
    return LOG_DENSITY in result.config["splines"] and result.outcome is not Outcome.NO_DECAY


def distribution_in(result: FitValues) -> xarray.Dataset:
    """Return the density G of ln Γ over `rate`, Γ [1/s], with bands at each rate; NaN without an error.

    They are wider by the bias of smoothing, on the side from which it pulls, as those of rates are.
    """
    form = LogDensityForm(**result.config["splines"][LOG_DENSITY])
    names = [f"{LOG_DENSITY}_{n + 1}" for n in range(form.size)]
    weight = weights_of(form, result.parameters["optimum"].values)
    slopes = slopes_of(form, weight)
    density, known = weight / np.diff(form.nodes).mean(), result.covariance
    error = np.full(len(weight), np.nan)
    if known is not None:
        covariance, _ = covariance_of(result, names, known)
        error = np.sqrt(np.einsum("in,ij,jn->n", slopes, covariance, slopes))
    dof = min(one.dof for name, one in fitted_quantities(result).items() if name in names)
    columns, smoothing = {"density": density}, result.diagnosis.smoothing
    bias = np.zeros(len(weight)) if smoothing is None else smoothing["bias"].values @ slopes
    for level in (68, 95):
        half = float(half_width(float(level), dof))
        for end, sign in (("low", -1), ("high", 1)):
            reach = np.minimum(half * np.hypot(error, np.maximum(-sign * bias, 0.0)), 500.0)
            columns[f"{end}_{level}"] = density * np.exp(sign * reach)
    return xarray.Dataset(
        {name: ("rate", values, {"units": "1"}) for name, values in columns.items()},
        {"rate": ("rate", np.exp(form.nodes), {"units": "1/s"})},
    )


def resolution_sentences(result: FitValues) -> list[str]:
    """Return how narrow a distribution the errors tell from a single rate; none of other models."""
    if LOG_DENSITY not in result.config["splines"]:
        return []
    mean, variance = moments_of_distribution(result)
    if not mean_is_determined(mean):
        return [
            "distribution of rates: the data do not determine its mean, in which fast rates count that they "
            "hardly show, as in a stretched decay"
        ]
    if not np.isfinite(variance.stderr):
        return []
    decades = np.sqrt(np.log1p(CLEAR * variance.stderr)) / np.log(10)
    return [
        f"distribution of rates: one of a width below {decades:.2g} decades (one standard deviation) cannot "
        f"be told from a single rate; its mean is better determined than its width and shape, and peaks are "
        f"wider than the true ones"
    ]
