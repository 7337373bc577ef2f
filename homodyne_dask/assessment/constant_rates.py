"""Rates a t^b + c that are constant within their errors: the data then do not tell a, b and c apart."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.assessment.spline_rate_errors import curves_at_some_ages
from homodyne_dask.kernels.backend_interface import RateCurve
from homodyne_dask.models.rate_forms import RATES, rate_stderr
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.normal_equations import parameters_with_errors

CONSTANT = 98.6
"""Per cent: constant is a rate that deviates nowhere by more than such an interval. A line through two
estimated contrasts, of any age, does so in 5 % of cases (Scheffé)."""
MOST_UNSURE = 0.5
"""Error over the rate, above which it is not known."""


class ConstantRate(NamedTuple):
    """A rate that is constant within its error."""

    name: str
    """J or gamma_dot."""
    value: float
    """At the mean age."""
    stderr: float
    age: float
    """s."""
    unit: str
    parameters: tuple[str, ...]
    """Amplitude, exponent and offset."""


def constant_rates(
    request: Request,
    state: lm.State,
    errors: Sequence[tuple[Float[np.ndarray, "p p"], Float[np.ndarray, " p"]]],
) -> Iterator[ConstantRate]:
    """Yield the rates of three free parameters each that are constant within their errors.

    errors: covariances of theta, NaN where they are unknown, with the degrees of freedom; the first counts in
    which all parameters of a rate are known that are not held by a bound.
    """
    names, search, reduced = list(request.search.names), request.search, state.reduced
    moved = parameters_with_errors(search, state.theta, reduced)
    age = float(np.mean(request.scan.time[request.scan.use][[0, -1]]))
    for name, curve in curves_at_some_ages(request, state).items():
        if RATES.get(name) != curve.parameters:
            continue
        at = [names.index(one) for one in curve.parameters]
        if not search.free[at].all():
            continue
        for covariance, dof in chain(errors, _with_offsets_held(request, state, moved)):
            own = np.where(np.outer(moved[at], moved[at]), covariance[np.ix_(at, at)], 0.0)
            if not np.isfinite(own).all():
                continue
            limit = float(half_width(CONSTANT, np.nanmin(dof[at], initial=np.inf)))
            value, stderr = _at_age(curve, own, age, limit)
            if 0 < stderr < MOST_UNSURE * abs(value):
                unit = request.parameters[at[0]].unit
                yield ConstantRate(name, value, stderr, age, unit, curve.parameters)
            break


def _with_offsets_held(
    request: Request, state: lm.State, moved: Bool[np.ndarray, " p"]
) -> Iterator[tuple[Float[np.ndarray, "p p"], Float[np.ndarray, " p"]]]:
    """Yield the errors between bins with fixed offsets, for which amplitudes of constants compensate."""
    names = request.search.names
    moved = moved & ~np.isin(names, [offset for _, _, offset in RATES.values()])
    errors = uncertainty(names, state.reduced, moved, request.clusters).without_few()
    if errors.robust is not None:
        yield np.where(np.outer(moved, moved), errors.robust, 0.0), errors.dof


def _at_age(
    curve: RateCurve, covariance: Float[np.ndarray, "3 3"], age: float, limit: float
) -> tuple[float, float]:
    """Return a rate and its error at an age; NaN for one that is not constant or whose errors are unknown.

    limit: standard errors of its deviation from that value, above which it is not.
    """
    gradient = np.array([[np.interp(age, curve.time, of)] for of in curve.gradient])
    value = float(np.interp(age, curve.time, curve.value))
    away = rate_stderr(curve.gradient - gradient, covariance)
    known = np.isfinite(away) & (away > 0)
    if not known.any() or (np.abs(curve.value - value) > limit * away)[known].any():
        return np.nan, np.nan
    return value, float(rate_stderr(gradient, covariance)[0])
