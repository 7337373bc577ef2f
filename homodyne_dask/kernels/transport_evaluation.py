"""The transport models at one theta, without JAX: integrals of their rates, and f at any pairs of times."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend_interface import Evaluation, RateCurve
from homodyne_dask.kernels.decayed_subblocks import SubBlocks, sub_blocks
from homodyne_dask.kernels.problem import Problem, coarse_frames, coarse_min_lag
from homodyne_dask.models.rate_forms import RateForm
from homodyne_dask.models.shear_factor import Array, decay, sheared, strain, unsheared, wave
from homodyne_dask.models.spline_basis import SplineForm
from homodyne_dask.models.transport import (
    RATE_FLOOR,
    BinScales,
    Convention,
    bin_scales,
    frame_spacing,
    tables,
    time_steps,
)

Bins = Float[np.ndarray, " bin"]
DRAWS_AT_ONCE = 64
"""Thetas whose strain is summed over all frames at the same time."""
AT_ONCE = 16384
"""Values of f that are computed together: their fields fit the second-level cache."""


@dataclass(frozen=True)
class TransportPoint:
    """The integrals at one theta, at all frames of a level: made once, used by every block."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    rows: Float[np.ndarray, "rows n"]
    spacing: float
    """Δt of the full resolution [s]."""
    min_lag: int
    """In frames of the level."""
    frames: tuple[int, int]
    """The first of the level that is selected, and the one after the last."""

    def scales(self, q: Bins, phi: Bins) -> BinScales:
        """Return the factors k and s of each bin."""
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, self.theta, q, phi, problem.gap, self.spacing
        )

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, active ones first."""
        k = self.scales(np.array([q]), np.zeros(1)).k[0]
        return sub_blocks(i0, j0, T, self.min_lag, k * self.rows[-1:], self.frames)


def transport_point(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Float[np.ndarray, " n"],
    factor: int = 1,
    frames: tuple[int, int] | None = None,
) -> TransportPoint:
    """Return the integrals at theta; `time` holds all frame times of the full resolution [s].

    frames: the first selected and the one after the last, of the full resolution; by default
    all. With factor frames averaged into one, as the data of a level are, so are the integrals.
    """
    rows = tables(problem.model, problem.convention, theta, time)
    m = rows.shape[1] // factor
    rows = rows[:, : m * factor].reshape(len(rows), m, factor).mean(axis=2)
    spacing = frame_spacing(time, problem.convention)
    span = coarse_frames(frames or (0, len(time)), factor)
    lag = coarse_min_lag(problem.min_lag, factor)
    return TransportPoint(problem, theta, rows, spacing, lag, span)


def point_of_rates(
    problem: Problem,
    rates: Mapping[str, Float[np.ndarray, " n"]],
    phi0: float,
    time: Float[np.ndarray, " n"],
) -> TransportPoint:
    """Return the point of the full resolution at which J [Å²/s] and gamma_dot [1/s] have these values.

    Only f can be evaluated: no theta of the model has such rates.
    """
    theta = problem.model.with_parts(np.ones(problem.model.size), phi0=phi0)
    at = transport_point(problem, theta, time)
    steps = time_steps(problem.convention, time)
    of = np.stack([rates.get("gamma_dot", np.zeros_like(time)), rates["J"]])
    integrals = np.cumsum(0.5 * (of[:, 1:] + of[:, :-1]) * steps, axis=1)
    return replace(at, rows=np.pad(integrals, ((0, 0), (1, 0))))


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


def transport_f(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    rows = _between(at.rows[-2:], time, t1, t2)
    problem, scales = at.problem, at.scales(q, phi)
    k, s = scales.k[:, None], scales.s[:, None]
    dG, dC = rows.reshape(len(rows), -1)
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
    return f.reshape(len(q), *rows.shape[1:])


def transport_derivatives(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> tuple[Float[np.ndarray, "bin ..."], Float[np.ndarray, "bin p ..."]]:
    """Return f and its derivatives by theta, of bins at times that broadcast together."""
    problem, model = at.problem, at.problem.model
    scales = at.scales(q, phi)
    k, s, ds = (of[:, None] for of in (scales.k, scales.s, scales.ds))
    rows = _between(at.rows[1:], time, t1, t2)
    shape = rows.shape[1:]
    *by_rates, dC = rows.reshape(len(rows), -1)
    E = decay(problem.convention, k, np.abs(dC))
    found = np.empty((len(q), model.size, dC.size))
    if model.shear:
        dG, slope = strain(problem.convention, by_rates.pop())
        with np.errstate(divide="ignore", invalid="ignore"):  # as in `transport_f`
            f, by_x = sheared(problem.convention, E, wave(s * dG))
        found[:, model.direction] = (by_x * ds * dG)[:, None]
        stronger = by_x * s * slope
        for n in range(model.size)[model.shear_rate]:
            found[:, n] = stronger * by_rates[n]
    else:
        f = unsheared(problem.convention, E)
    faster = -k * np.sign(dC) * f
    for n in range(model.size)[model.diffusion]:
        found[:, n] = faster * by_rates[n]
    return f.reshape(len(q), *shape), found.reshape(len(q), model.size, *shape)


def transport_sign(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return the sign of the field correlation g, f = g²: that of sin x/x between plates that move."""
    dG = _between(at.rows[-2:-1], time, t1, t2)[0]
    if not at.problem.model.shear or at.problem.convention is Convention.HOMODYNE:
        return np.ones((len(q), *dG.shape))
    x = np.multiply.outer(at.scales(q, phi).s, dG)
    return np.where(np.sin(x) * x < 0, -1.0, 1.0)


def _between(
    rows: Float[np.ndarray, "row n"], time: Float[np.ndarray, " n"], t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "row ..."]:
    """Return the increases of the integrals from t1 to t2, which broadcast together."""
    return _interpolated(rows, time, t2) - _interpolated(rows, time, t1)


def _interpolated(
    rows: Float[np.ndarray, "row n"], time: Float[np.ndarray, " n"], t: np.ndarray
) -> Float[np.ndarray, "row ..."]:
    """Return all rows at times t, as numpy.interp does."""
    t = np.clip(t, time[0], time[-1])
    before = np.searchsorted(time[1:-1], t, "right")
    low = rows[:, before]
    return low + (t - time[before]) / (time[before + 1] - time[before]) * (
        rows[:, before + 1] - low
    )


def f_at(dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention) -> Array:
    """Return f from ΔC, ΔG and the scales k and s, which broadcast: arrays of JAX or of NumPy."""
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


TRANSPORT_EVALUATION = Evaluation(
    point=transport_point,
    f_at=transport_f,
    f_and_derivatives_at=transport_derivatives,
    rates=transport_rates,
    rates_of_draws=transport_rates_of_draws,
    sign_at=transport_sign,
)
