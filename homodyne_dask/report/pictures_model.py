"""The fitted model at any pair of times, its rates, and how well they are known."""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int
from scipy.special import ndtri, stdtrit

from homodyne_dask.dataset import Scan, known_q
from homodyne_dask.models.shapes import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.transport import (
    RATE_FLOOR,
    BinScales,
    Convention,
    TransportModel,
    bin_scales,
    convention_named,
    frame_spacing,
    model_named,
    tables,
)
from homodyne_dask.rates import rate, rate_stderr
from homodyne_dask.report.text import truth_of
from homodyne_dask.result import FitResult

TWO_SIDED_95 = 0.975
DECAY_POINTS = 400
"""Lags at which a decay is followed to 1/e."""


@dataclass(frozen=True)
class Fitted:
    """A model with its parameters, on the times and bins of a scan."""

    model: TransportModel
    convention: Convention
    theta: Float[np.ndarray, " p"]
    time: Float[np.ndarray, " t"]
    """s, all frames of the store."""
    rows: Float[np.ndarray, "rows t"]
    """Its integrals at these times (see `transport.tables`)."""
    scales: BinScales

    def shape(
        self,
        bins: Int[np.ndarray, " b"],
        t1: Float[np.ndarray, "..."],
        t2: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "b ..."]:
        """Return f of some bins at times that broadcast together; between frames integrals are linear."""
        k, s = (scale[bins].reshape(-1, *[1] * np.ndim(t1 + t2)) for scale in self._scales)
        dC = np.abs(self._between(-1, t1, t2))
        dG = self._between(-2, t1, t2) if self.model.shear else dC
        with jax.enable_x64(True):
            f = _shape(dC, dG, k, s, shear=self.model.shear, convention=self.convention)
            return np.asarray(f)

    @property
    def _scales(self) -> tuple[np.ndarray, np.ndarray]:
        return self.scales.k, self.scales.s

    def _between(self, row: int, t1: np.ndarray, t2: np.ndarray) -> np.ndarray:
        values = self.rows[row]
        return np.interp(t2, self.time, values) - np.interp(t1, self.time, values)


@partial(jax.jit, static_argnames=("shear", "convention"))
def _shape(
    dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention
) -> Array:
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


def fitted(result: FitResult, scan: Scan) -> Fitted:
    """Return the model a fit ended with."""
    return _on(result, scan, result.parameters["value"].values)


def true_model(result: FitResult, scan: Scan) -> Fitted | None:
    """Return the model that simulated data were made from, or None where it says something else.

    The parameters compare only within one model and convention, and where q is known.
    """
    truth = truth_of(result)
    if truth is None or np.isnan(scan.q).any():
        return None
    names = result.parameters["param"].values
    return _on(result, scan, np.array([truth[name] for name in names], float))


def around(result: FitResult, scan: Scan, q: float, phi: Float[np.ndarray, " n"]) -> Fitted:
    """Return the model a fit ended with at any angles of one ring, as if they were bins."""
    return _on(result, scan, result.parameters["value"].values, np.full(len(phi), q), phi)


def _on(
    result: FitResult,
    scan: Scan,
    theta: Float[np.ndarray, " p"],
    q: Float[np.ndarray, " bin"] | None = None,
    phi: Float[np.ndarray, " bin"] | None = None,
) -> Fitted:
    q, phi = (known_q(scan), scan.phi) if q is None or phi is None else (q, phi)
    model = model_named(result.config["model"])
    convention = convention_named(result.config["convention"])
    spacing = frame_spacing(scan.time, convention)
    gap = result.config["gap_angstrom"]
    scales = bin_scales(model, convention, theta, q, phi, gap, spacing)
    rows = tables(model, convention, theta, scan.time)
    return Fitted(model, convention, theta, scan.time, rows, scales)


def decay_times(model: Fitted, scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which f of each bin first falls to 1/e, from the middle age on.

    NaN where f stays above 1/e up to the end of the selected frames.
    """
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    middle = 0.5 * (first + last)
    shortest = 1e-3 * frame_spacing(scan.time, model.convention)
    lag = np.concatenate([[0.0], np.geomspace(shortest, last - middle, DECAY_POINTS)])
    f = model.shape(np.arange(len(scan.bins)), np.array([middle]), middle + lag)
    return np.array([_first_below(lag, row, np.exp(-1)) for row in f])


def _first_below(lag: Float[np.ndarray, " l"], f: Float[np.ndarray, " l"], level: float) -> float:
    below = np.flatnonzero(f < level)
    if not len(below) or below[0] == 0:
        return np.nan
    n = below[0]
    share = (f[n - 1] - level) / (f[n - 1] - f[n])
    return float(lag[n - 1] + share * (lag[n] - lag[n - 1]))


@dataclass(frozen=True)
class Curve:
    """Something a model says at each time, and how well it is known."""

    time: Float[np.ndarray, " n"]
    """s."""
    value: Float[np.ndarray, " n"]
    stderr: Float[np.ndarray, " n"] | None
    """One standard error by the delta method; None where no covariance is known."""
    quantile: float
    """Half width of the 95 % band in standard errors."""
    floor: float
    """What it cannot be below: 0 for J, -inf for what may change sign."""


@dataclass(frozen=True)
class Curves:
    """The rates of a fit over the selected frames."""

    transport: Curve
    """J, Å²/s; q²J in 1/s where q is unknown."""
    shear_rate: Curve | None
    """γ̇, 1/s."""
    strain: Curve | None
    """∫γ̇ dt since the first selected frame."""
    errors: str
    """Which covariance the bands come from: robust, naive or none."""


def curves(model: Fitted, result: FitResult, scan: Scan) -> Curves:
    """Return the rates of `model` with the bands of the fit's covariance."""
    known = result.covariance if result.covariance is not None else result.covariance_naive
    covariance = None if known is None else known.values
    dof = result.parameters["dof"].values if result.covariance is not None else None
    window = slice(*scan.frames)
    spacing = frame_spacing(scan.time, model.convention)
    t = np.maximum(scan.time, spacing / 2)[window]

    def curve(value: np.ndarray, gradient: np.ndarray, first: int) -> Curve:
        some = slice(first, first + 3)
        error = None if covariance is None else rate_stderr(gradient, covariance[some, some])
        floor = 0.0 if first == 0 else -np.inf
        return Curve(t, value, error, _quantile(None if dof is None else dof[some]), floor)

    homodyne = model.convention is Convention.HOMODYNE
    transport = curve(*rate(t, model.theta[:3], RATE_FLOOR), 0)
    errors = "none" if known is None else "naive" if result.covariance is None else "robust"
    if not model.model.shear:
        return Curves(transport, None, None, errors)
    shear_rate = curve(*rate(t, model.theta[3:6], RATE_FLOOR if homodyne else None), 3)
    seconds = spacing if homodyne else 1.0  # the sums of that convention carry no Δt
    G = (model.rows[4:8, window] - model.rows[4:8, window][:, :1]) * seconds
    return Curves(transport, shear_rate, curve(G[3], G[:3], 3), errors)


def _quantile(dof: Float[np.ndarray, " 3"] | None) -> float:
    """Return the 97.5 % quantile: Student's with the fewest degrees of freedom, or the normal one."""
    known = np.array([]) if dof is None else dof[np.isfinite(dof)]
    if not len(known):
        return float(ndtri(TWO_SIDED_95))
    return float(stdtrit(max(float(known.min()), 1.0), TWO_SIDED_95))
