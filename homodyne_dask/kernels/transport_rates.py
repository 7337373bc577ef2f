"""J(t), the shear rate and the strain of the transport models, at one theta with derivatives or at many."""

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.interface import RateCurve
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport_point import TransportPoint
from homodyne_dask.models.rate_forms import RateForm, SplineForm
from homodyne_dask.models.transport import RATE_FLOOR, Convention, frame_spacing

DRAWS_AT_ONCE = 64
"""Thetas whose strain is summed over all frames at the same time."""


def transport_rates(
    at: TransportPoint, time: Float[np.ndarray, " n"], frames: tuple[int, int]
) -> dict[str, RateCurve]:
    """Return J(t) [Å²/s], and with shear gamma_dot(t) [1/s] and the strain since the first frame."""
    model, window = at.problem.model, slice(*frames)
    t = _times(at.problem, time)[window]
    J = model.J.at(t, at.theta[model.diffusion], RATE_FLOOR)
    curves = {"J": RateCurve(t, J[0], J[1:], model.names[model.diffusion])}
    if not model.shear:
        return curves
    names, floor = model.names[model.shear_rate], _shear_floor(at.problem)
    gamma_dot = model.gamma_dot.at(t, at.theta[model.shear_rate], floor)
    curves["gamma_dot"] = RateCurve(t, gamma_dot[0], gamma_dot[1:], names)
    G = at.rows[1 + model.shear_rate.start : -1, window]
    G = (G - G[:, :1]) * _seconds(at.problem, time)
    curves["strain"] = RateCurve(t, G[-1], G[:-1], names)
    return curves


def transport_rates_of_draws(
    problem: Problem,
    thetas: Float[np.ndarray, "draw p"],
    time: Float[np.ndarray, " n"],
    frames: tuple[int, int],
    at: Int[np.ndarray, " at"],
) -> dict[str, Float[np.ndarray, "draw at"]]:
    """Return the values of `transport_rates` of many thetas, at the selected frames of numbers `at`."""
    model, t = problem.model, _times(problem, time)[slice(*frames)]
    found = {"J": _values(model.J, t[at], thetas[:, model.diffusion], RATE_FLOOR)}
    if not model.shear:
        return found
    of, floor = thetas[:, model.shear_rate], _shear_floor(problem)
    found["gamma_dot"] = _values(model.gamma_dot, t[at], of, floor)
    steps = np.diff(time[slice(*frames)])
    if problem.convention is Convention.HOMODYNE:
        steps = np.full(len(steps), _seconds(problem, time))
    strain = np.empty((len(thetas), len(at)))
    for n in range(0, len(thetas), DRAWS_AT_ONCE):
        shear_rate = _values(model.gamma_dot, t, of[n : n + DRAWS_AT_ONCE], floor)
        sums = np.cumsum(0.5 * (shear_rate[:, 1:] + shear_rate[:, :-1]) * steps, axis=1)
        strain[n : n + DRAWS_AT_ONCE] = np.pad(sums, ((0, 0), (1, 0)))[:, at]
    return found | {"strain": strain}


def _times(problem: Problem, time: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.maximum(time, frame_spacing(time, problem.convention) / 2)


def _shear_floor(problem: Problem) -> float | None:
    return RATE_FLOOR if problem.convention is Convention.HOMODYNE else None


def _seconds(problem: Problem, time: Float[np.ndarray, " n"]) -> float:
    """Return Δt where the sums carry none, as those of the homodyne convention."""
    homodyne = problem.convention is Convention.HOMODYNE
    return frame_spacing(time, problem.convention) if homodyne else 1.0


def _values(
    form: RateForm,
    t: Float[np.ndarray, " n"],
    thetas: Float[np.ndarray, "draw p"],
    floor: float | None,
) -> Float[np.ndarray, "draw n"]:
    if isinstance(form, SplineForm):
        value = thetas @ form.basis(t)
    else:
        amplitude, exponent, offset = thetas.T[:, :, None]
        value = amplitude * t**exponent + offset
    return value if floor is None else np.maximum(value, floor)
