"""f of the transport models at any pairs of times, and what else is computed of them without JAX."""

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.interface import Evaluation, RateCurve
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport_point import Bins, TransportPoint, transport_point
from homodyne_dask.models.rate_forms import RateForm, SplineForm
from homodyne_dask.models.shear_factor import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.sincos import Array
from homodyne_dask.models.transport import RATE_FLOOR, Convention, frame_spacing

DRAWS_AT_ONCE = 64
"""Thetas whose strain is summed over all frames at the same time."""


def transport_rates(
    at: TransportPoint, time: Float[np.ndarray, " n"], frames: tuple[int, int]
) -> dict[str, RateCurve]:
    """Return J(t) [Å²/s] and its integral since the first frame, J_integral [Å²].

    With shear also gamma_dot(t) [1/s] and its integral, the strain.
    """
    model, window = at.problem.model, slice(*frames)
    t = _times(at.problem, time)[window]
    names, of = model.names[model.diffusion], model.diffusion
    J = model.J.at(t, at.theta[of], RATE_FLOOR)
    curves = {"J": RateCurve(t, J[0], J[1:], names)}

    def integral(of: slice, value: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "p n"]]:
        """Return a row of the integrals and those of its derivatives, from the first frame on, in seconds."""
        rows = [at.rows[value, None], at.rows[1 + of.start : 1 + of.stop]]
        rows = np.concatenate(rows)[:, window]
        since = (rows - rows[:, :1]) * _seconds(at.problem, time)
        return since[0], since[1:]

    curves["J_integral"] = RateCurve(t, *integral(of, -1), names)
    if not model.shear:
        return curves
    names, of, floor = model.names[model.shear_rate], model.shear_rate, _shear_floor(at.problem)
    gamma_dot = model.gamma_dot.at(t, at.theta[of], floor)
    curves["gamma_dot"] = RateCurve(t, gamma_dot[0], gamma_dot[1:], names)
    curves["strain"] = RateCurve(t, *integral(of, -2), names)
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


AT_ONCE = 16384
"""Values of f that are computed together: their fields fit the second-level cache."""


def transport_f(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    problem, scales = at.problem, at.scales(q, phi)
    k, s = scales.k[:, None], scales.s[:, None]
    both = _between(at.rows[-1], time, t1, t2)
    dC = both.ravel()
    dG = _between(at.rows[-2], time, t1, t2).ravel() if problem.model.shear else dC
    f, some = np.empty((len(q), dC.size)), max(AT_ONCE // len(q), 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # 1/x at x = 0, where series are taken
        for n in range(0, dC.size, some):
            one = slice(n, n + some)
            f[:, one] = f_at(
                np.abs(dC[one]),
                dG[one],
                k,
                s,
                shear=problem.model.shear,
                convention=problem.convention,
            )
    return f.reshape(len(q), *both.shape)


def _between(
    values: np.ndarray, time: np.ndarray, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "..."]:
    return np.interp(t2, time, values) - np.interp(t1, time, values)


def f_at(dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention) -> Array:
    """Return f from ΔC, ΔG and the scales k and s, which broadcast: arrays of JAX or of NumPy."""
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


TRANSPORT_EVALUATION = Evaluation(
    transport_point, transport_f, transport_rates, transport_rates_of_draws
)
