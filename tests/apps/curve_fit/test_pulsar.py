"""The example of pulsar timing: columns whose sizes differ by 10²⁴, and no XPCS anywhere."""

import numpy as np
import pytest

import homodyne_dask as hd
from tests.examples.pulsar_timing import FIRST, MODEL, TRUTH, arrivals, design, residuals


@pytest.fixture(scope="module")
def data():
    return residuals(arrivals())


@pytest.fixture(scope="module")
def result(data):
    return hd.fit(data, MODEL, initial=FIRST)


def extended(data):
    """The weighted least squares of the same residuals, solved in extended precision."""
    weight = 1 / data["sigma"].values.astype(np.longdouble)
    M, y = design(data) * weight[:, None], data["late"].values * weight
    size = np.sqrt((M**2).sum(0))
    M = M / size
    rest, R = M.copy(), np.zeros((5, 5), np.longdouble)
    for n in range(5):  # modified Gram-Schmidt, twice for the last digits
        for _ in range(2):
            for k in range(n):
                part = rest[:, k] @ rest[:, n]
                R[k, n] += part
                rest[:, n] -= part * rest[:, k]
        R[n, n] = np.sqrt(rest[:, n] @ rest[:, n])
        rest[:, n] /= R[n, n]
    inverse = np.zeros((5, 5), np.longdouble)
    for column in range(5):  # R is upper triangular
        for n in range(4, -1, -1):
            right = (n == column) - R[n, n + 1 :] @ inverse[n + 1 :, column]
            inverse[n, column] = right / R[n, n]
    theta = inverse @ (rest.T @ y) / size
    return theta.astype(float), (inverse @ inverse.T / np.outer(size, size)).astype(float)


@pytest.mark.long
def test_the_values_and_the_covariance_are_those_of_extended_precision(data, result):
    theta, covariance = extended(data)
    sigma = np.sqrt(np.diag(covariance))
    assert result.converged
    assert result.passes <= 6  # it is nearly linear
    assert np.abs((result.popt - theta) / sigma).max() < 1e-10
    np.testing.assert_allclose(
        result.pcov / np.outer(sigma, sigma), covariance / np.outer(sigma, sigma), atol=1e-9
    )


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_truth_lies_within_its_errors(seed):
    found = hd.fit(residuals(arrivals(seed=seed)), MODEL, initial=FIRST)
    pull = (found.popt - list(TRUTH.values())) / found.stderr
    assert np.abs(pull).max() < 3.5
    assert found.redchi == pytest.approx(1, abs=0.1)
