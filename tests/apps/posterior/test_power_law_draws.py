"""Draws of a power law of which three values are known: their density against an integral over a, b and c."""

import numpy as np
import pytest

from homodyne_dask.apps.posterior.proposal import power_law_draws
from homodyne_dask.models.parameter_priors import AmplitudePrior, ExponentPrior, Prior
from homodyne_dask.models.rate_forms import PowerLaw

LAW = PowerLaw(at=(0, 1, 2), first=0.5, ratio=3.0)
TIMES = np.array([0.5, 1.5, 4.5])
BOUNDS = (1.0, 1e5), (-2.0, 2.0), (-4000.0, 9000.0)
SPREAD = np.array([400.0, 300.0, 500.0])
CORRELATED = np.array([[1.0, 0.3, -0.2], [0.3, 1.0, 0.4], [-0.2, 0.4, 1.0]])
PRECISION = np.linalg.inv(CORRELATED * np.outer(SPREAD, SPREAD))


def flat(kind, at):
    return Prior(kind, BOUNDS[at], *BOUNDS[at])


C = flat("uniform", 2)
RATE = (AmplitudePrior(*BOUNDS[0], law=LAW), ExponentPrior(*BOUNDS[1], law=LAW), C)
PRIORS = {
    "flat in the rate": RATE,
    "uniform": (flat("uniform", 0), flat("uniform", 1), C),
    "log-uniform amplitude": (flat("loguniform", 0), flat("uniform", 1), C),
    "normal offset": (*RATE[:2], Prior("normal", (2000.0, 300.0), *BOUNDS[2])),
    "normal exponent and amplitude": (
        Prior("normal", (5000.0, 500.0), *BOUNDS[0]), Prior("normal", (-0.5, 0.1), *BOUNDS[1]), C,
    ),
}  # fmt: skip
VALUES = {"falls": [9000.0, 6000.0, 4500.0], "nearly constant": [3000.0, 2900.0, 2950.0]}


def log_density(priors, mean, tau, x):
    """Of a, b and c."""
    a, b, c = np.moveaxis(x, -1, 0)[..., None]
    away = a * TIMES**b + c - mean
    total = -tau * (away @ PRECISION * away).sum(-1) / 2
    return total + sum(prior.log_density(x[..., n]) for n, prior in enumerate(priors))


@pytest.mark.parametrize(
    ("word", "values"),
    [(word, "falls") for word in PRIORS] + [("flat in the rate", "nearly constant")],
)
def test_draws_have_the_density_that_they_say(word, values):
    rng, n, tau = np.random.default_rng(1), 2000, 0.7
    mean = np.array(VALUES[values])
    many = np.repeat(mean[None], n, axis=0)
    x, log_q = power_law_draws(LAW, PRIORS[word], many, PRECISION, np.full(n, tau), rng)
    for k, (low, high) in enumerate(BOUNDS):
        assert ((x[:, k] >= low) & (x[:, k] <= high)).all()
    weight = np.exp(log_density(PRIORS[word], mean, tau, x) - log_q)
    assert weight.sum() ** 2 / (weight**2).sum() > 0.8 * n
    wanted, error = integral(PRIORS[word], mean, tau)
    assert weight.mean() == pytest.approx(
        wanted, rel=error + 5 * weight.std() / weight.mean() / n**0.5
    )


def test_draws_of_narrow_and_of_wide_values_in_one_call_have_the_density_that_they_say():
    rng, n = np.random.default_rng(2), 2000
    tau = rng.permutation(np.geomspace(0.02, 50.0, n))
    mean = np.repeat([VALUES["falls"]], n, axis=0)
    x, log_q = power_law_draws(LAW, RATE, mean, PRECISION, tau, rng)
    # each tau has an integral of its own: near tau^(-3/2) where neither bound nor prior cuts
    log_weight = np.array([
        log_density(RATE, one, t, at) for one, t, at in zip(mean, tau, x, strict=True)
    ]) - log_q + 1.5 * np.log(tau)  # fmt: skip
    narrow = np.exp(log_weight[tau > 5])
    assert narrow.sum() ** 2 / (narrow**2).sum() > 0.85 * len(narrow)


def integral(priors, mean, tau):
    """The integral of that density on a grid, and by how much it differs on a coarser one."""
    found = []
    for cells in (50, 80):
        b, c = middles(-2, 2, cells), middles(-4000, 9000, cells)
        a = np.exp(middles(0, np.log(1e5), 2 * cells))
        grid = np.stack(np.broadcast_arrays(a[:, None, None], b[:, None], c), -1)
        density = np.exp(log_density(priors, mean, tau, grid)) * a[:, None, None]
        found.append(density.mean() * np.log(1e5) * 4 * 13000)
    return found[1], abs(found[1] / found[0] - 1)


def middles(low, high, n):
    return low + (high - low) * (np.arange(n) + 0.5) / n


def test_near_an_exponent_of_0_amplitude_and_offset_are_the_same_and_draws_stay_inside():
    near = (RATE[0], ExponentPrior(-1e-9, 1e-9, law=LAW), C)
    mean = np.repeat([VALUES["nearly constant"]], 200, axis=0)
    rng = np.random.default_rng(4)
    x, log_q = power_law_draws(LAW, near, mean, PRECISION, np.full(200, 0.7), rng)
    assert np.isfinite(log_q).all()
    for k, (low, high) in enumerate((BOUNDS[0], (-1e-9, 1e-9), BOUNDS[2])):
        assert ((x[:, k] >= low) & (x[:, k] <= high)).all()
