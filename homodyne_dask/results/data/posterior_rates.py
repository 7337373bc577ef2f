"""J(t), the shear rate and the strain of all draws at a few ages, beside those of the fit."""

from dataclasses import dataclass

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.store.scan import Scan

AGES = 50
"""Most ages at which rates are kept."""


@dataclass(frozen=True)
class RateDraws:
    """The rates of draws at some ages, by name: J, and with shear gamma_dot and strain."""

    age: Float[np.ndarray, " age"]
    """s."""
    values: dict[str, Float[np.ndarray, "draw age"]]
    fit: xarray.Dataset
    """`FitResult.rates` at the same ages."""
    unknown_q: bool
    """J is then q²J, in 1/s."""

    @property
    def units(self) -> dict[str, str]:
        """The unit of each rate."""
        return {"J": "1/s" if self.unknown_q else "Å²/s", "gamma_dot": "1/s", "strain": ""}


def rates_of(
    result: FitResult, scan: Scan, thetas: Float[np.ndarray, "draw p"]
) -> RateDraws | None:
    """Return the rates of draws; None of models that have none."""
    view = FitView(result, scan)
    problem = view.model.at.problem
    of = evaluation_of(problem.model).rates_of_draws
    if of is None:
        return None
    fit = rates_in(view)
    at = some_ages(fit.sizes["t"], AGES)
    values = of(problem, thetas, scan.time, scan.frames, at)
    chosen = fit.isel(t=at)
    return RateDraws(chosen["t"].values, values, chosen, bool(np.isnan(scan.q).any()))
