"""Rates a t^b + c that are constant within their errors: the data then do not tell a, b and c apart."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.rate_forms import RATES, rate, rate_stderr
from homodyne_dask.models.transport import frame_spacing, positive_times
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.solver.normal_equations import parameters_with_errors
from homodyne_dask.solver.state import State

CONSTANT = 98.6
"""Per cent: constant is a rate that deviates nowhere by more than such an interval. One with two estimated
contrasts does so at some age in 5 % of cases (Scheffé)."""
MOST_UNSURE = 0.5
"""Error over the rate, above which it is not known."""


def constant_rates(
    request: Request,
    state: State,
    age: float,
    errors: Sequence[tuple[Float[np.ndarray, "p p"], Float[np.ndarray, " p"]]],
) -> dict[str, tuple[float, float, str]]:
    """Return the rates of three free parameters each that are constant within their errors.

    With value, error and unit at an age [s]. errors: covariances of theta, NaN where they are unknown, with
    degrees of freedom; the first counts that knows all parameters of a rate which no bound holds.
    """
    search, scan, found = request.search, request.scan, dict[str, tuple[float, float, str]]()
    moved = parameters_with_errors(search, state.theta, state.reduced)
    t = positive_times(np.append(age, scan.time[scan.use]), frame_spacing(scan.time))
    for name, law in RATES.items():
        at = [search.names.index(one) for one in law if one in search.names]
        if len(at) < len(law) or not search.free[at].all():
            continue
        value, gradient = rate(t, state.theta[at], request.problem.convention.floor_of(name))
        for covariance, dof in errors:
            own = np.where(np.outer(moved[at], moved[at]), covariance[np.ix_(at, at)], 0.0)
            if np.isfinite(own).all():
                error = rate_stderr(gradient[:, :1], own)[0]
                away = rate_stderr(gradient - gradient[:, :1], own)
                known = away > 0  # not the age itself
                limit = half_width(CONSTANT, np.nanmin(dof[at], initial=np.inf)) * away[known]
                near = known.any() and (np.abs(value - value[0])[known] <= limit).all()
                if near and 0 < error < MOST_UNSURE * abs(value[0]):
                    unit = request.parameters[at[0]].unit
                    found[name] = float(value[0]), float(error), unit
                break
    return found
