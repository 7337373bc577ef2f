"""Degrees of freedom of the robust errors of the rates J(t) and γ̇(t), and of their integrals."""

from collections.abc import Sequence

import numpy as np
import xarray
from jaxtyping import Bool, Float, Int
from xarray import Dataset

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import RateCurve
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.result_tables import smoothing_table
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.cluster_robust import by_cluster, cr3
from homodyne_dask.solver.covariance import SPECKLE, Uncertainty
from homodyne_dask.solver.normal_equations import joint_equations, parameters_with_errors
from homodyne_dask.solver.reduced_problem import ReducedProblem

AGES = 50
"""Most ages at which they are computed; they change slowly between."""


def rate_freedom(
    request: Request,
    state: lm.State,
    clusters: Int[np.ndarray, " bin"] | None,
    errors: Uncertainty,
) -> xarray.Dataset | None:
    """Return over `age` [s] the degrees of freedom of each rate; None of a model without rates.

    At an optimum with standard errors; where these are of speckle or of several scans together, the fewest of
    the rate's parameters. clusters: None of one of these scans, whose sums tell of its own optimum only.
    """
    backend, scan, names = backend_of(request.problem.model), request.scan, request.search.names
    if backend.rates is None:
        return None
    point = backend.point(request.problem, state.theta, scan.time)
    curves = backend.rates(point, scan.time, scan.frames)
    at = some_ages(len(curves["J"].time), AGES)

    def of_theta(curve: RateCurve) -> Float[np.ndarray, "age p"]:
        gradient = np.zeros((len(at), len(names)))
        gradient[:, [names.index(name) for name in curve.parameters]] = curve.gradient[:, at].T
        return gradient

    if clusters is None or errors.method == SPECKLE:
        fewest = [
            np.nanmin(errors.dof[[names.index(name) for name in curve.parameters]], initial=np.inf)
            for curve in curves.values()
        ]
        freedom = np.repeat(np.where(np.isfinite(fewest), fewest, np.nan)[:, None], len(at), axis=1)
    else:
        rows = np.concatenate([of_theta(curve) for curve in curves.values()])
        known = parameters_with_errors(request.search, state.theta, state.reduced)
        freedom = combination_freedom(state.reduced, known, clusters, rows).reshape(len(curves), -1)
    columns = {name: ("age", of) for name, of in zip(curves, freedom, strict=True)}
    return xarray.Dataset(columns, coords={"age": curves["J"].time[at]})


def combination_freedom(
    reduced: ReducedProblem,
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
    combinations: Float[np.ndarray, "c p"],
) -> Float[np.ndarray, " c"]:
    """Return the Bell-McCaffrey degrees of freedom of combinations of theta, where errors are robust.

    combinations: the derivatives of each by theta; those by parameters that did not move do not count. NaN
    for one that one cluster alone determines.
    """
    joint = joint_equations(reduced, moved)
    scaled = np.zeros((len(combinations), len(joint.size)))
    scaled[:, : joint.moved] = combinations[:, moved] / joint.size[: joint.moved]
    scores, blocks = by_cluster(joint, clusters, reduced.count > 0)
    known = None if joint.prior is None else joint.prior.scores
    return cr3(joint.inverse, scores, blocks, scaled, known)[1]


def rate_of_each(request: Request) -> dict[int, str]:
    """Return the rate of free form of each coefficient, by its place in theta."""
    smoothness = request.search.smoothness
    places = {} if smoothness is None else smoothness.places
    return {n: rate for rate, at in places.items() for n in range(at.start, at.stop)}


def names_of_rates(request: Request, which: Sequence[int]) -> list[str]:
    """Return the names of parameters; a rate of free form stands for its coefficients."""
    rate_of = rate_of_each(request)
    return list(dict.fromkeys(rate_of.get(n, request.search.names[n]) for n in which))


def smoothing_of(request: Request, state: lm.State) -> Dataset | None:
    """Return how the rates of free form are smoothed; None where there are none."""
    penalty, smoothness = state.reduced.penalty, request.search.smoothness
    if penalty is None or smoothness is None:
        return None
    splines = [at.stop - at.start for at in smoothness.places.values()]
    free = parameters_with_errors(request.search, state.theta, state.reduced)
    bias, joint = np.zeros(len(free)), joint_equations(state.reduced, free)
    bias[free] = joint.of_theta(joint.inverse) @ penalty.pull[free]
    return smoothing_table(penalty, splines, bias, list(request.search.names))
