"""J(t), the shear rate and the strain of all draws at a few ages, beside those of the fit."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.results.figures.rates import Curve, curves, fitted_model
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.store.scan import Scan

AGES = 50
"""Most ages at which rates are kept."""


@dataclass(frozen=True)
class RateDraws:
    """The rates of draws at some ages, by name: J, and with shear gamma_dot and strain."""

    age: Float[np.ndarray, " age"]
    """s."""
    values: dict[str, Float[np.ndarray, "draw age"]]
    fit: dict[str, Curve]
    """Of the fit, at the same ages."""
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
    model = fitted_model(result, scan)
    of = backend_of(model.at.problem.model).rates_of_draws
    if of is None:
        return None
    fit = curves(model, result, scan)
    at = spread(len(fit.transport.time), AGES)
    values = of(model.at.problem, thetas, scan.time, scan.frames, at)
    found = {"J": fit.transport, "gamma_dot": fit.shear_rate, "strain": fit.strain}
    chosen = {name: _at(curve, at) for name, curve in found.items() if curve is not None}
    return RateDraws(fit.transport.time[at], values, chosen, bool(np.isnan(scan.q).any()))


def _at(curve: Curve, at: Int[np.ndarray, " age"]) -> Curve:
    stderr = None if curve.stderr is None else curve.stderr[at]
    return Curve(curve.time[at], curve.value[at], stderr, curve.quantile, curve.floor)


def spread(n: int, most: int) -> Int[np.ndarray, " age"]:
    """Return at most so many of the numbers from 0 to n - 1, both included, denser at the beginning."""
    if n <= most:
        return np.arange(n)
    found = [1]
    for left in range(most - 1, 0, -1):
        last = found[-1]
        found.append(max(last + 1, round(last * (n / last) ** (1 / left))))
    return np.array(found) - 1
