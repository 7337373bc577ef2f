"""Stretched exponentials, with a rate that is constant or a power of the age."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

import homodyne_dask as hd
from tests.synthetic import measured, store


def written(name, theta, t1, t2):
    if name == "stretched":
        return np.exp(-2 * (theta[0] * (t2 - t1)) ** theta[1])
    return np.exp(-2 * (theta[0] * (0.5 * (t1 + t2)) ** theta[1] * (t2 - t1)) ** theta[2])


CASES = [
    ("stretched", (0.35, 0.7)),
    ("stretched", (0.2, 1.6)),
    ("stretched_ageing", (0.6, -0.5, 1.3)),
]


def scans_of(name, theta, n=50):
    scans = measured(np.ones(3), n, np.zeros(2), sigma=0.01, noise=False)
    i, j = np.triu_indices(n, 1)
    noise = 0.01 * np.random.default_rng(1).standard_normal((2, len(i)))
    scans.c2[:, i, j] = 1.02 + 0.15 * written(name, theta, scans.time[i], scans.time[j]) + noise
    return scans, i, j


@pytest.mark.parametrize(("name", "theta"), CASES)
def test_predict_is_the_formula(name, theta):
    time = 0.3 + 0.5 * np.arange(6)
    f = hd.predict(hd.MODELS[name], theta, time, q=np.nan)[0]
    i, j = np.triu_indices(6, 1)
    np.testing.assert_allclose(f[i, j], written(name, theta, time[i], time[j]), rtol=1e-13)
    np.testing.assert_array_equal(np.diag(f), 1.0)


@pytest.mark.long
@pytest.mark.parametrize(("name", "theta"), CASES)
def test_a_fit_from_the_data_alone_is_scipys_optimum(tmp_path, name, theta):
    scans, i, j = scans_of(name, theta)
    result = hd.fit(store(scans, tmp_path), hd.MODELS[name])
    assert result.converged
    y = scans.c2[:, i, j].astype(float)

    def residual(x):
        f = written(name, x[:-4], scans.time[i], scans.time[j])
        return ((y - x[-4:-2, None] - x[-2:, None] * f) / 0.01).ravel()

    start = [*theta, 1.0, 1.0, 0.2, 0.2]
    best = scipy.optimize.least_squares(residual, start, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    assert result.chisqr == pytest.approx(2 * best.cost, rel=1e-9)
    away = (result.parameters["value"].values - best.x[:-4]) / result.parameters["stderr_naive"]
    assert np.abs(away).max() < 1e-3


def test_a_rate_that_is_a_power_of_q_is_found_from_several_rings(tmp_path):
    q, theta = np.array([0.004, 0.008, 0.016]), (0.3, 2.0, 0.9)
    scans = measured(np.ones(3), 50, np.zeros(3), q=q, sigma=0.01, noise=False)
    i, j = np.triu_indices(50, 1)
    rates = theta[0] * (q / 0.01) ** theta[1]
    for b, rate in enumerate(rates):
        f = written("stretched", (rate, theta[2]), scans.time[i], scans.time[j])
        noise = 0.01 * np.random.default_rng(b).standard_normal(len(i))
        scans.c2[b, i, j] = 1.02 + 0.15 * f + noise
    result = hd.fit(store(scans, tmp_path), "stretched_q")
    assert result.converged
    away = (result.parameters["value"].values - theta) / result.parameters["stderr_naive"].values
    assert np.abs(away).max() < 4
    ring = hd.predict(hd.MODELS["stretched_q"], theta, scans.time, q=q[2])[0]
    np.testing.assert_allclose(
        ring[i, j],
        written("stretched", (rates[2], theta[2]), scans.time[i], scans.time[j]),
        rtol=1e-12,
    )


def test_a_model_with_a_power_of_q_needs_q(tmp_path):
    scans = measured([20000.0, 0.0, 0.0], 20, np.zeros(2), sigma=0.01)
    scans = replace(scans, q=np.full(2, np.nan))
    with pytest.raises(hd.HomodyneDaskError, match="needs q"):
        hd.fit(store(scans, tmp_path), "stretched_q")
