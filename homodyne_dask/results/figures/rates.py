"""The fitted model at any pair of times, its rates, and how well they are known."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri, stdtrit

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.interface import ModelPoint
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport import TransportPoint
from homodyne_dask.models import Convention, convention_named, model_named
from homodyne_dask.models.rates import rate, rate_stderr
from homodyne_dask.models.transport import RATE_FLOOR, frame_spacing
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.truth import truth_of
from homodyne_dask.store.scan import Scan, known_q

TWO_SIDED_95 = 0.975
DECAY_POINTS = 400
"""Lags at which a decay is followed to 1/e."""


@dataclass(frozen=True)
class FittedModel:
    """A model with its parameters, on the times and bins of a scan."""

    at: ModelPoint
    time: Float[np.ndarray, " t"]
    """s, all frames of the store."""
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def shape(
        self,
        bins: Int[np.ndarray, " b"],
        t1: Float[np.ndarray, "..."],
        t2: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "b ..."]:
        """Return f of some bins at times that broadcast together; between frames f is interpolated."""
        f_at = backend_of(self.at.problem.model).f_at
        return f_at(self.at, self.time, self.q[bins], self.phi[bins], t1, t2)


def fitted_model(result: FitResult, scan: Scan) -> FittedModel:
    """Return the model a fit ended with."""
    return _on(result, scan, result.parameters["value"].values)


def true_model(result: FitResult, scan: Scan) -> FittedModel | None:
    """Return the model that simulated data were made from, or None where it says something else.

    The parameters compare only within one model and convention, and where q is known.
    """
    truth = truth_of(result)
    if truth is None or np.isnan(scan.q).any():
        return None
    names = result.parameters["param"].values
    return _on(result, scan, np.array([truth[name] for name in names], float))


def fitted_at_angles(
    result: FitResult, scan: Scan, q: float, phi: Float[np.ndarray, " n"]
) -> FittedModel:
    """Return the model a fit ended with at any angles of one ring, as if they were bins."""
    return _on(result, scan, result.parameters["value"].values, np.full(len(phi), q), phi)


def _on(
    result: FitResult,
    scan: Scan,
    theta: Float[np.ndarray, " p"],
    q: Float[np.ndarray, " bin"] | None = None,
    phi: Float[np.ndarray, " bin"] | None = None,
) -> FittedModel:
    q, phi = (known_q(scan), scan.phi) if q is None or phi is None else (q, phi)
    model = model_named(result.config["model"])
    convention = convention_named(result.config["convention"])
    problem = Problem(model, convention, result.config["gap_angstrom"])
    return FittedModel(backend_of(model).point(problem, theta, scan.time), scan.time, q, phi)


def decay_times(model: FittedModel, scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which f of each bin first falls to 1/e, from the middle age on.

    NaN where f stays above 1/e up to the end of the selected frames.
    """
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    middle = 0.5 * (first + last)
    shortest = 1e-3 * frame_spacing(scan.time)
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


def curves(model: FittedModel, result: FitResult, scan: Scan) -> Curves:
    """Return the rates of `model` with the bands of the fit's covariance.

    Raises OptionError for a model of one's own: only transport models have rates.
    """
    if not isinstance(model.at, TransportPoint):
        raise OptionError(f"{model.at.problem.model.name} has no rates J and γ̇ to draw")
    problem, theta, rows = model.at.problem, model.at.theta, model.at.rows
    known = result.covariance if result.covariance is not None else result.covariance_naive
    covariance = None if known is None else known.values
    dof = result.parameters["dof"].values if result.covariance is not None else None
    window = slice(*scan.frames)
    spacing = frame_spacing(scan.time, problem.convention)
    t = np.maximum(scan.time, spacing / 2)[window]

    def curve(value: np.ndarray, gradient: np.ndarray, first: int) -> Curve:
        some = slice(first, first + 3)
        error = None if covariance is None else rate_stderr(gradient, covariance[some, some])
        floor = 0.0 if first == 0 else -np.inf
        return Curve(t, value, error, _quantile(None if dof is None else dof[some]), floor)

    homodyne = problem.convention is Convention.HOMODYNE
    transport = curve(*rate(t, theta[:3], RATE_FLOOR), 0)
    errors = "none" if known is None else "naive" if result.covariance is None else "robust"
    if not problem.model.shear:
        return Curves(transport, None, None, errors)
    shear_rate = curve(*rate(t, theta[3:6], RATE_FLOOR if homodyne else None), 3)
    seconds = spacing if homodyne else 1.0  # the sums of that convention carry no Δt
    G = (rows[4:8, window] - rows[4:8, window][:, :1]) * seconds
    return Curves(transport, shear_rate, curve(G[3], G[:3], 3), errors)


def _quantile(dof: Float[np.ndarray, " 3"] | None) -> float:
    """Return the 97.5 % quantile: Student's with the fewest degrees of freedom, or the normal one."""
    known = np.array([]) if dof is None else dof[np.isfinite(dof)]
    if not len(known):
        return float(ndtri(TWO_SIDED_95))
    return float(stdtrit(max(float(known.min()), 1.0), TWO_SIDED_95))
