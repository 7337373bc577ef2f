"""The fitted model at any pair of times, and its decay times."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import Model, convention_named
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.scan import Scan, q_or_one

DECAY_POINTS = 400
"""Lags at which f is evaluated to find its decay time."""


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
        f_at = evaluation_of(self.at.problem.model).f_at
        return f_at(self.at, self.time, self.q[bins], self.phi[bins], t1, t2)

    def slopes(
        self,
        bins: Int[np.ndarray, " b"],
        t1: Float[np.ndarray, "..."],
        t2: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "b p ..."]:
        """Return the derivatives of f by the parameters at such times."""
        of = evaluation_of(self.at.problem.model).f_and_derivatives_at
        return of(self.at, self.time, self.q[bins], self.phi[bins], t1, t2)[1]


def model_of(result: FitResult) -> Model:
    """Return the model that was fitted; raises OptionError where this process does not have it."""
    return result.provenance.fitted_model()


def fitted_model(result: FitResult, scan: Scan) -> FittedModel:
    """Return the model at the parameters of a fit.

    Where no decay was seen they have no value: the model then is that of the last pass, times a
    contrast of 0.
    """
    value = result.parameters["value"].values
    if result.outcome is Outcome.NO_DECAY:
        value = np.array(result.run.history[-1]["theta"])
    return _on(result, scan, value)


def fitted_at_angles(
    result: FitResult, scan: Scan, q: float, phi: Float[np.ndarray, " n"]
) -> FittedModel:
    """Return the model at the parameters of a fit, with bins at any angles of one ring."""
    return _on(result, scan, result.parameters["value"].values, np.full(len(phi), q), phi)


def _on(
    result: FitResult,
    scan: Scan,
    theta: Float[np.ndarray, " p"],
    q: Float[np.ndarray, " bin"] | None = None,
    phi: Float[np.ndarray, " bin"] | None = None,
) -> FittedModel:
    q, phi = (q_or_one(scan), scan.phi) if q is None or phi is None else (q, phi)
    model = model_of(result)
    convention = convention_named(result.config["convention"])
    problem = Problem(model, convention, result.config["gap_angstrom"])
    return FittedModel(evaluation_of(model).point(problem, theta, scan.time), scan.time, q, phi)


def decay_times(model: FittedModel, scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which f of each bin of the model first falls to 1/e, at the age in the middle.

    NaN where f stays above 1/e to the end of the selected frames.
    """
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    middle = 0.5 * (first + last)
    shortest = 1e-3 * frame_spacing(scan.time)
    lag = np.concatenate([[0.0], np.geomspace(shortest, last - middle, DECAY_POINTS)])
    f = model.shape(np.arange(len(model.q)), np.array([middle]), middle + lag)
    found, level = np.full(len(f), np.nan), np.exp(-1)
    for b, row in enumerate(f):
        n = int(np.argmax(row < level))
        if n > 0:
            share = (row[n - 1] - level) / (row[n - 1] - row[n])
            found[b] = lag[n - 1] + share * (lag[n] - lag[n - 1])
    return found
