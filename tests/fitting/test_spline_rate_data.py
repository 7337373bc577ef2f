"""Free rates of data of every kind: the optimum is that of dense penalized least squares."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.models.spline_basis import SplineForm
from tests import reference
from tests.synthetic import angles, fit_here, measured, store

LAMBDA, HUBER, SIGMA = 1e-3, 1.345, 0.01
UNEVEN = np.cumsum(np.random.default_rng(3).uniform(0.1, 0.8, 30))
DATA = [
    ("uneven times, unknown pairs, two q", {"time": UNEVEN, "missing": 0.1, "two_q": True}),
    ("homodyne convention", {"convention": "homodyne"}),
    ("a loss", {"loss": "huber", "outliers": 0.02}),
]


def f_of(J, time, q, convention):
    if convention == "homodyne":
        dt = time[1] - time[0]
        C = reference.integral(J, np.arange(float(len(time))))
        dC = np.sqrt((C[None] - C[:, None]) ** 2 + 1e-12)
        return np.exp(-(q**2) * dt * dC)
    C = reference.integral(J, time)
    return np.exp(-(q**2) * (C[None] - C[:, None]))


def made(time=None, missing=0.0, two_q=False, convention="physical", outliers=0.0):
    """J is a sine of ± 20 % around 4000 Å²/s."""
    time = np.arange(30) / 3 if time is None else time - time[0]
    q, rng = np.repeat([0.0054, 0.0075], 3) if two_q else 0.0054, np.random.default_rng(1)
    scans = measured(
        (2500.0, 0.0, 0.0),
        phi=angles(6),
        q=q,
        time=time,
        convention=convention,
        noise=False,
        sigma=SIGMA,
    )
    J = 4000 * (1 + 0.2 * np.sin(2 * np.pi * time / time[-1]))
    c2 = np.array([1 + 0.3 * f_of(J, time, one, convention) for one in scans.q])
    c2 += SIGMA * rng.standard_normal(c2.shape)
    c2 += 0.4 * (rng.random(c2.shape) < outliers)
    c2[rng.random(c2.shape) < missing] = np.nan
    c2[:, np.tril(np.ones((len(time), len(time)), bool))] = np.nan
    return replace(scans, c2=c2.astype(np.float32))


def step_left(scans, result, loss, convention):
    """The Gauss-Newton step from where the fit ended: of coefficients that are not at a bound.

    Contrasts and offsets move with them.
    """
    form = SplineForm(**result.config["splines"]["J"])
    t, bins = np.maximum(scans.time, np.median(np.diff(scans.time)) / 2), len(scans.q)
    c, basis = result.parameters["value"].values, form.basis(t)
    i, j = np.triu_indices(len(t), 1)
    rows, left = [], []
    for b in range(bins):

        def of_bin(c, b=b):
            return f_of(c @ basis, scans.time, scans.q[b], convention)[i, j]

        y = scans.c2[b][i, j].astype(float)
        known = np.isfinite(y)
        contrast, offset = (result.scaling[name].values[b] for name in ("contrast", "offset"))
        f, slopes = of_bin(c), reference.gradient(of_bin, c)
        r = (y - offset - contrast * f) / SIGMA
        weight = np.where(np.abs(r) > HUBER, HUBER / np.abs(r), 1.0) if loss else np.ones(len(r))
        X = np.zeros((len(y), form.size + 2 * bins))
        X[:, : form.size] = contrast * slopes.T
        X[:, form.size + 2 * b], X[:, form.size + 2 * b + 1] = f, 1.0
        rows.append((X / SIGMA * np.sqrt(weight)[:, None])[known])
        left.append((r * np.sqrt(weight))[known])
    D = np.zeros((form.size - 2, form.size + 2 * bins))
    weight = form.ages ** result.diagnosis.smoothing["exponent"].values[0]
    D[:, : form.size] = weight[:, None] * np.diff(np.eye(form.size), 2, axis=0)
    rows.append(np.sqrt(LAMBDA) * D)
    left.append(-np.sqrt(LAMBDA) * D[:, : form.size] @ c)
    moving = np.append(~result.parameters["at_bound"].values, np.full(2 * bins, True))
    step = np.linalg.lstsq(np.concatenate(rows)[:, moving], np.concatenate(left))[0]
    return step[: -2 * bins]


@pytest.mark.long
@pytest.mark.parametrize(("word", "given"), DATA, ids=[word for word, _ in DATA])
def test_the_optimum_is_that_of_dense_penalized_least_squares(word, given, tmp_path):
    given = dict(given)
    loss = given.pop("loss", None)
    scans, convention = made(**given), given.get("convention", "physical")
    robust = {"loss": loss, "loss_scale": HUBER} if loss else {}
    result = fit_here(
        store(scans, tmp_path), "static", rates="spline", knots=6, smoothness={"J": LAMBDA},
        convention=convention, initial={"J": 4000.0}, **robust,
    )  # fmt: skip
    assert result.converged
    inside = ~result.parameters["at_bound"].values
    assert inside[1:].all()  # the first spline is nearly all before the record
    step = step_left(scans, result, loss, convention)
    # what fits with penalties leave at most (`levenberg_marquardt.SMOOTHED`)
    assert (np.abs(step) < 0.02 * result.parameters["stderr_naive"].values[inside]).all()
