"""The prior of a rate: any shape and any size are equally probable, and its draws have its density."""

import numpy as np
import pytest

from homodyne_dask.models.parameter_priors import (
    AmplitudePrior,
    ExponentPrior,
    Prior,
    log_size_prior,
    rate_draws,
)
from homodyne_dask.models.rate_forms import PowerLaw

LAW = PowerLaw(at=(0, 1, 2), first=0.5, ratio=3.0)
TIMES = 0.5 * 3.0 ** np.arange(3)
A, B = AmplitudePrior(1.0, 1e5, LAW), ExponentPrior(-2.0, 2.0, LAW)
C = Prior("uniform", (-1e4, 1e4), -1e4, 1e4)


def values(x):
    return x[..., :1] * TIMES ** x[..., 1:2] + x[..., 2:3]


def log_density(x):
    return A.log_density(x[..., 0]) + B.log_density(x[..., 1]) + log_size_prior(LAW, x)


@pytest.mark.parametrize("x", [(3000.0, -0.4, 500.0), (2e4, 0.02, -1.9e4), (40.0, 1.7, 2000.0)])
def test_the_values_of_the_rate_are_uniform_but_for_their_size(x):
    x = np.array(x)
    steps = np.diag([1e-4 * x[0], 1e-4, 1e-4 * x[0]])
    slopes = (values(x + steps) - values(x - steps)) / (2 * np.diag(steps))[:, None]
    of_values = log_density(x) - np.linalg.slogdet(slopes)[1]
    size = np.linalg.norm(values(x))
    other = np.array([1000.0, -0.5, 100.0])
    constant = log_density(other) - np.log(1000.0) - 2 * np.log(abs(1.5**-0.5 - 0.5**-0.5))
    constant += 0.5 * np.log(3) + 3 * np.log(np.linalg.norm(values(other)))
    # |∂(J1, J2, J3)/∂(a, b, c)| = a (t2^b - t1^b)² r^b log r
    assert of_values + 3 * np.log(size) == pytest.approx(constant - np.log(np.log(3)), abs=1e-4)


def test_draws_of_the_prior_have_its_density():
    x = rate_draws(A, B, C, 4000, np.random.default_rng(1))
    assert x.shape == (4000, 3)
    assert np.isfinite(log_density(x)).all()
    assert (np.abs(x[:, 2]) <= 1e4).all()
    # the density of (log a, b, c/a) is a³ times that of (a, b, c), on a grid
    log_a, b, ratio = (
        np.log(1e5) * middles(60),
        -2 + 4 * middles(80),
        np.sinh(16 * middles(400) - 8),
    )
    grid = np.stack(np.meshgrid(np.exp(log_a), b, ratio, indexing="ij"), -1)
    grid[..., 2] *= grid[..., 0]
    density = np.exp(log_density(grid)) * grid[..., 0] ** 2 * np.cosh(np.arcsinh(ratio))
    density = np.where(np.abs(grid[..., 2]) <= 1e4, density, 0.0)
    for axis, points, drawn in ((0, log_a, np.log(x[:, 0])), (1, b, x[:, 1])):
        others = tuple({0, 1, 2} - {axis})
        below = np.cumsum(density.sum(others)) / density.sum()
        for quantile in (0.16, 0.5, 0.84):
            share = (drawn <= np.interp(quantile, below, points)).mean()
            assert share == pytest.approx(quantile, abs=0.04)


def middles(n):
    return (np.arange(n) + 0.5) / n
