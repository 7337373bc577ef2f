"""The transport models at one theta, without JAX: integrals of their rates, and f at any pairs of times."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend_interface import (
    Evaluation,
    ModelPoint,
    Problem,
    RateCurve,
    SubBlocks,
    of_level,
    sub_blocks,
)
from homodyne_dask.models.rate_forms import SplineForm, integrated
from homodyne_dask.models.shear_factor import Array, decay, sheared, strain, unsheared, wave
from homodyne_dask.models.transport import (
    BinScales,
    Convention,
    Shear,
    bin_scales,
    frame_spacing,
    positive_times,
    tables,
    time_steps,
)

Times = Float[np.ndarray, " n"]
OfPairs = Float[np.ndarray, "bin ..."]

Bins = Float[np.ndarray, " bin"]
INTEGRALS = {"J": ("J_integral", -1), "gamma_dot": ("strain", -2)}
DRAWS_AT_ONCE = 64
"""Thetas whose strain is summed over all frames at the same time."""
AT_ONCE = 16384
"""Values of f that are computed together: their fields fit the second-level cache."""


@dataclass(frozen=True)
class TransportPoint(ModelPoint):
    rows: Float[np.ndarray, "rows n"]
    spacing: float
    """Δt of the full resolution [s]."""

    def scales(self, q: Bins, phi: Bins) -> BinScales:
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, self.theta, q, phi, problem.gap, self.spacing
        )

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        k = self.scales(np.array([q]), np.zeros(1)).k[0]
        return sub_blocks(i0, j0, T, self.min_lag, k * self.rows[-1:], self.frames)


def point(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Times,
    factor: int = 1,
    frames: tuple[int, int] | None = None,
) -> TransportPoint:
    """Return the integrals at theta, averaged over factor frames as data of a level; time: of all [s]."""
    rows = tables(problem.model, problem.convention, theta, time)
    m = rows.shape[1] // factor
    rows = rows[:, : m * factor].reshape(len(rows), m, factor).mean(axis=2)
    level = of_level(problem, len(time), factor, frames)
    return TransportPoint(problem, theta, *level, rows, frame_spacing(time, problem.convention))


def point_of_rates(
    problem: Problem, rates: Mapping[str, Times], phi0: float, time: Times
) -> TransportPoint:
    """Return a point, for f alone, at which J [Å²/s] and gamma_dot [1/s] have these values."""
    theta = problem.model.with_parts(np.ones(problem.model.size), phi0=phi0)
    constant = point(problem, theta, time)
    steps = time_steps(problem.convention, time)
    rows = np.stack([rates.get("gamma_dot", np.zeros_like(time)), rates["J"]])
    return replace(constant, rows=integrated(rows, steps))


def rates(point: TransportPoint, time: Times, frames: tuple[int, int]) -> dict[str, RateCurve]:
    """Return J(t) [Å²/s], its integral J_integral [Å²], under shear gamma_dot(t) [1/s] and the strain."""
    window, curves = slice(*frames), {}
    model, convention = point.problem.model, point.problem.convention
    unit = point.spacing if convention is Convention.HOMODYNE else 1.0  # sums carry none
    t = positive_times(time, point.spacing)[window]
    for name, (form, place) in model.rates.items():
        (integral, row), names = INTEGRALS[name], model.names[place]
        values = form.at(t, point.theta[place], convention.floor_of(name))
        curves[name] = RateCurve(t, values[0], values[1:], names)
        derivatives = point.rows[1 + place.start : 1 + place.stop]
        rows = np.concatenate([point.rows[row, None], derivatives])[:, window]
        since = (rows - rows[:, :1]) * unit
        curves[integral] = RateCurve(t, since[0], since[1:], names)
    return curves


def rates_of_draws(
    problem: Problem,
    thetas: Float[np.ndarray, "draw p"],
    time: Times,
    frames: tuple[int, int],
    numbers: Int[np.ndarray, " at"],
) -> dict[str, Float[np.ndarray, "draw at"]]:
    """Return the values of `rates` of many thetas, at the selected frames of numbers `at`."""
    window, spacing = slice(*frames), frame_spacing(time, problem.convention)
    t = positive_times(time, spacing)[window]
    values = {name: rate_values(problem, name, t[numbers], thetas) for name in problem.model.rates}
    if not problem.model.shear:
        return values
    unit = spacing if problem.convention is Convention.HOMODYNE else 1.0
    steps = time_steps(problem.convention, time[window]) * unit
    strain = np.empty((len(thetas), len(numbers)))
    for n in range(0, len(thetas), DRAWS_AT_ONCE):
        shear_rate = rate_values(problem, "gamma_dot", t, thetas[n : n + DRAWS_AT_ONCE])
        strain[n : n + DRAWS_AT_ONCE] = integrated(shear_rate, steps)[:, numbers]
    return values | {"strain": strain}


def rate_values(
    problem: Problem, name: str, t: Times, thetas: Float[np.ndarray, "draw p"]
) -> Float[np.ndarray, "draw n"]:
    """Return J [Å²/s] or gamma_dot [1/s] at times, of many thetas."""
    (form, place), floor = problem.model.rates[name], problem.convention.floor_of(name)
    thetas = thetas[:, place]
    if isinstance(form, SplineForm):
        value = thetas @ form.basis(t)
    else:
        amplitude, exponent, offset = thetas.T[:, :, None]
        value = amplitude * t**exponent + offset
    return value if floor is None else np.maximum(value, floor)


def f_at(
    point: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> OfPairs:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    rows = _between(point.rows[-2:], time, t1, t2)
    problem, scales = point.problem, point.scales(q, phi)
    dG, dC = rows.reshape(len(rows), -1)
    family = {"shear": problem.model.shear, "convention": problem.convention}
    f, size = np.empty((len(q), dC.size)), max(AT_ONCE // len(q), 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # 1/x at x = 0, where series are taken
        for n in range(0, dC.size, size):
            changes = np.abs(dC[n : n + size]), dG[n : n + size]
            f[:, n : n + size] = f_between(*changes, scales.k[:, None], scales.s[:, None], **family)
    return f.reshape(len(q), *rows.shape[1:])


def f_and_derivatives_at(
    point: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> tuple[OfPairs, Float[np.ndarray, "bin p ..."]]:
    rows = _between(point.rows[1:], time, t1, t2)
    flat, shape = rows.reshape(len(rows), -1), rows.shape[1:]
    f, derivatives = f_and_derivatives(point.problem, point.scales(q, phi), flat)
    return f.reshape(len(q), *shape), derivatives.reshape(*derivatives.shape[:2], *shape)


def f_and_derivatives(
    problem: Problem, scales: BinScales, differences: Float[np.ndarray, "row pair"]
) -> tuple[Float[np.ndarray, "bin pair"], Float[np.ndarray, "bin p pair"]]:
    """Return f and its derivatives from the differences of the `tables` without their first row."""
    model, (*by_rates, dC) = problem.model, differences
    k, s, ds = (scale[:, None] for scale in (scales.k, scales.s, scales.ds))
    E = decay(problem.convention, k, np.abs(dC))
    derivatives = np.empty((len(k), model.size, dC.size))
    if model.shear:
        dG, slope = strain(problem.convention, by_rates.pop())
        with np.errstate(divide="ignore", invalid="ignore"):  # as in `f_at`
            f, by_x = sheared(model.shear, problem.convention, E, wave(s * dG))
        derivatives[:, model.direction] = (by_x * ds * dG)[:, None]
        stronger = by_x * s * slope
        for n in range(model.size)[model.shear_rate]:
            derivatives[:, n] = stronger * by_rates[n]
    else:
        f = unsheared(problem.convention, E)
    faster = -k * np.sign(dC) * f
    for n in range(model.size)[model.diffusion]:
        derivatives[:, n] = faster * by_rates[n]
    return f, derivatives


def sign_at(
    point: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> OfPairs:
    """Return the sign of g, f = g²: that of sin x/x between plates that move; complex g have phase 0."""
    dG = _between(point.rows[-2:-1], time, t1, t2)[0]
    shear, convention = point.problem.model.shear, point.problem.convention
    if shear is not Shear.LINEAR or convention is Convention.HOMODYNE:
        return np.ones((len(q), *dG.shape))
    x = np.multiply.outer(point.scales(q, phi).s, dG)
    return np.where(np.sin(x) * x < 0, -1.0, 1.0)


def _between(
    rows: Float[np.ndarray, "row n"], time: Times, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "row ..."]:
    most = max(np.ndim(t1), np.ndim(t2))
    at_t1, at_t2 = (
        _interpolated(rows, time, np.reshape(t, (1,) * (most - np.ndim(t)) + np.shape(t)))
        for t in (t1, t2)
    )
    return at_t2 - at_t1


def _interpolated(
    rows: Float[np.ndarray, "row n"], time: Times, t: np.ndarray
) -> Float[np.ndarray, "row ..."]:
    t = np.clip(t, time[0], time[-1])
    before = np.searchsorted(time[1:-1], t, "right")
    low, values = rows.take(before, axis=1), rows.take(before + 1, axis=1)
    values -= low
    values *= (t - time[before]) / (time[before + 1] - time[before])
    values += low
    return values


def f_between(
    dC: Array, dG: Array, k: Array, s: Array, *, shear: Shear, convention: Convention
) -> Array:
    """Return f from ΔC, ΔG and the scales k and s, which broadcast: arrays of JAX or of NumPy."""
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(shear, convention, E, wave(s * strain(convention, dG)[0]))[0]


TRANSPORT_EVALUATION = Evaluation(
    point=point,
    f_at=f_at,
    f_and_derivatives_at=f_and_derivatives_at,
    rates=rates,
    rates_of_draws=rates_of_draws,
    sign_at=sign_at,
)
