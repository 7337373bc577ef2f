"""A model linear in its parameters, contrast and offset known: the posterior is a known normal one."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import homodyne_dask as hd
from homodyne_dask.fitting.posterior.sample_posterior import posterior_draws
from tests.synthetic import angles, measured, store


def line(theta, t1, t2, bin):
    return theta[0] + theta[1] * (t2 - t1) / 10 + theta[2] * jnp.cos(t1)


LINE = hd.separable(
    line,
    parameters=[hd.Parameter(name, "", (-10, 10)) for name in ("a", "b", "c")],
)
KNOWN = {"scaling": "fixed", "contrast": 0.3, "offset": 1.0}
DRAWS = 20_000


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    scans = measured([2e4, -0.4, 500.0], 40, angles(4), sigma=0.1, seed=2)
    return store(scans, tmp_path_factory.mktemp("linear"), "L")


def normal_posterior(scan):
    """Mean and covariance by the normal equations over all pairs."""
    c2, time = scan.dataset["c2"].values, scan.time
    i, j = np.triu_indices(len(time), 1)
    X = np.column_stack([np.ones(len(i)), (time[j] - time[i]) / 10, np.cos(time[i])])
    X = 0.3 * np.tile(X, (len(c2), 1))
    sigma = np.concatenate([row[i] * row[j] for row in scan.sigma_row])
    y = np.concatenate([one[i, j] - 1.0 for one in c2])
    covariance = np.linalg.inv((X / sigma[:, None] ** 2).T @ X)
    return covariance @ ((X / sigma[:, None] ** 2).T @ y), covariance


@pytest.mark.slow
def test_moments_and_ends_are_those_of_the_normal_equations(scan):
    mean, covariance = normal_posterior(scan)
    sd = np.sqrt(np.diag(covariance))
    result = hd.fit(scan, LINE, **KNOWN)
    found = posterior_draws(result, scan, draws=DRAWS, adjust="none")
    assert found.sampler == "importance"
    # four times the error of so many draws, of which four in ten are effective at least
    assert found.effective_draws > 0.8 * DRAWS
    few = 4 / np.sqrt(0.4 * DRAWS)
    np.testing.assert_allclose(found.flat.mean(0) / sd, mean / sd, atol=few)
    whole = np.cov((found.flat / sd).T)
    np.testing.assert_allclose(whole, covariance / np.outer(sd, sd), atol=1.5 * few)
    for share in (0.025, 0.975):
        end = np.quantile(found.flat, share, axis=0)
        error = few * np.sqrt(share * (1 - share)) / norm.pdf(norm.ppf(share))
        np.testing.assert_allclose((end - mean) / sd, norm.ppf(share), atol=error)
