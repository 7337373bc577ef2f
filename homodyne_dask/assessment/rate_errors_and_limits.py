"""Errors of rates: their degrees of freedom, the upper limit of a shear rate, and rates that are constant."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import RateCurve
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.rate_forms import RATES, rate, rate_stderr, some_ages
from homodyne_dask.models.transport import frame_spacing, positive_times
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import Theta, ThetaMatrix, Which
from homodyne_dask.solver.cluster_robust import MIN_FREEDOM, by_cluster, cr3
from homodyne_dask.solver.covariance import Uncertainty
from homodyne_dask.solver.reduce import reduce

AGES = 50
"""Most ages at which they are computed; they change slowly between."""
SHEAR = "gamma_dot"
NEAR_ZERO = 8.0
"""Standard errors of a shear rate: where c2 shows its square alone, they are four of the square."""
OF_SQUARE = 0.5
"""Information at a shear rate of 0 over that at the optimum, as a ratio of errors, below which c2 shows the
square alone. Where c2 shows the rate, too, they are equal."""


class RateFreedom(NamedTuple):
    age: Float[np.ndarray, " age"]
    """s."""
    of_rate: dict[str, Float[np.ndarray, " age"]]

    @property
    def few(self) -> bool:
        return any((freedom < MIN_FREEDOM).any() for freedom in self.of_rate.values())


def _curves(request: Request, state: lm.State) -> dict[str, RateCurve]:
    backend, scan = backend_of(request.problem.model), request.scan
    if backend.rates is None:
        return {}
    point = backend.point(request.problem, state.theta, scan.time)
    curves = backend.rates(point, scan.time, scan.frames)
    n = some_ages(len(next(iter(curves.values())).time), AGES)
    return {
        name: curve._replace(
            time=curve.time[n], value=curve.value[n], gradient=curve.gradient[:, n]
        )
        for name, curve in curves.items()
    }


def rate_freedom(end: FitEnd, dof: Theta | None = None) -> RateFreedom | None:
    """Return the freedom of each rate: the least of its parameters (dof), or cluster-robust; None without."""
    curves, names, of_rate = _curves(end.request, end.state), end.request.search.names, {}
    if not curves:
        return None
    places = {
        name: [names.index(parameter) for parameter in curve.parameters]
        for name, curve in curves.items()
    }
    if dof is not None:
        for name, curve in curves.items():
            fewest = np.nanmin(dof[places[name]], initial=np.inf)
            of_rate[name] = np.full(len(curve.time), fewest if np.isfinite(fewest) else np.nan)
    else:
        gradients = np.zeros((len(curves), len(next(iter(curves.values())).time), len(names)))
        for gradient, (name, curve) in zip(gradients, curves.items(), strict=True):
            gradient[:, places[name]] = curve.gradient.T
        joint = end.equations
        scaled = np.zeros((*gradients.shape[:2], len(joint.size)))
        scaled[..., : joint.moved] = gradients[..., joint.which] / joint.size[: joint.moved]
        scaled = scaled.reshape(-1, len(joint.size))
        scores, blocks, _ = by_cluster(joint, end.request.clusters)
        freedom = cr3(joint.inverse, scores, blocks, scaled, joint.prior.scores)[1]
        of_rate = dict(zip(curves, freedom.reshape(len(curves), -1), strict=True))
    return RateFreedom(next(iter(curves.values())).time, of_rate)


def rate_of_each(request: Request) -> dict[int, str]:
    smoothness = request.search.smoothness
    places = {} if smoothness is None else smoothness.places
    return {n: rate for rate, place in places.items() for n in range(place.start, place.stop)}


def names_of_rates(request: Request, which: Sequence[int]) -> list[str]:
    rate_of = rate_of_each(request)
    return list(dict.fromkeys(rate_of.get(n, request.search.names[n]) for n in which))


def smoothing_bias(end: FitEnd) -> Theta | None:
    """Return what smoothing rates of free form adds to each parameter; None where there are none."""
    penalty = end.reduced.penalty
    if penalty is None or end.request.search.smoothness is None:
        return None
    bias, joint = np.zeros(len(end.theta)), end.equations
    bias[joint.which] = joint.of_theta(joint.inverse) @ penalty.pull[joint.which]
    return bias


def limited_coefficients(
    request: Request, state: lm.State, errors: Uncertainty, gram: Callable[..., Gram]
) -> Which:
    """Return of which coefficients of the shear rate only an upper limit is known.

    Where flow has come to rest, c2 depends on the square of the rate: the root of an estimate that noise
    makes positive is many of its errors by linear theory away from 0. gram: of a pass, which is made where
    the rate is near 0.
    """
    limited, smoothness = np.zeros(len(state.theta), bool), request.search.smoothness
    covariance = errors.naive if errors.robust is None else errors.robust
    penalty = state.reduced.penalty
    if (
        smoothness is None
        or penalty is None
        or covariance is None
        or SHEAR not in smoothness.places
    ):
        return limited
    place, form = smoothness.places[SHEAR], smoothness.forms[SHEAR]
    basis, held = form.basis(form.centres), np.nan_to_num(covariance[place, place])
    near_zero = np.abs(state.theta[place] @ basis) < NEAR_ZERO * rate_stderr(basis, held)
    if not near_zero.any():
        return limited
    theta = state.theta.copy()
    theta[place][near_zero] = 0.0
    theta = request.search.inside(theta)
    linear_params = state.reduced.linear_params_after(theta - state.theta, 0.0)
    prior = request.search.prior_terms(theta)
    at_zero = reduce(
        gram(theta, linear_params), request.scaling, request.sum_rounding, prior, linear_params
    )
    # the smoothness of the rate is no information of the data
    information = np.diag(state.reduced.hessian - penalty.weight)[place]
    limited[place] = near_zero & (np.diag(at_zero.hessian)[place] < OF_SQUARE**2 * information)
    return limited


CONSTANT = 98.6
"""Per cent: constant is a rate that deviates nowhere by more than such an interval. One with two estimated
contrasts does so at some age in 5 % of cases (Scheffé)."""
MOST_UNSURE = 0.5
"""Error over the rate, above which it is not known."""


def constant_rates(
    end: FitEnd, age: float, errors: Sequence[tuple[ThetaMatrix, Theta]]
) -> dict[str, tuple[float, float, str]]:
    """Return value, error, unit of rates that are constant within the first errors that know all of it."""
    request, moved, constant = end.request, end.moved, dict[str, tuple[float, float, str]]()
    search, scan = request.search, request.scan
    t = positive_times(np.append(age, scan.time[scan.use]), frame_spacing(scan.time))
    for name, law in RATES.items():
        place = [search.names.index(parameter) for parameter in law if parameter in search.names]
        if len(place) < len(law) or not search.free[place].all():
            continue
        value, gradient = rate(t, end.theta[place], request.problem.convention.floor_of(name))
        for covariance, dof in errors:
            block = np.ix_(place, place)
            of_law = np.where(np.outer(moved, moved)[block], covariance[block], 0.0)
            if np.isfinite(of_law).all():
                error = rate_stderr(gradient[:, :1], of_law)[0]
                away = rate_stderr(gradient - gradient[:, :1], of_law)
                others = away > 0  # not the age itself
                limit = half_width(CONSTANT, np.nanmin(dof[place], initial=np.inf)) * away[others]
                near = others.any() and (np.abs(value - value[0])[others] <= limit).all()
                if near and 0 < error < MOST_UNSURE * abs(value[0]):
                    unit = request.parameters[place[0]].unit
                    constant[name] = float(value[0]), float(error), unit
                break
    return constant
