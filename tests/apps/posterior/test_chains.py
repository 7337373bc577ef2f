"""Chains on densities of which mean and deviation are known."""

import numpy as np
import pytest

from homodyne_dask.apps.posterior import chains
from homodyne_dask.apps.posterior.chains import Mixture, chains_of, root_of

CHAINS = 25
FAR = np.array([[0.0, 0.0], [-20.0, 0.0]])


def normal(z):
    return -(z**2).sum(1) / 2


def bent(z):
    return -(z[:, 0] ** 2 / 9 + (z[:, 1] + 0.3 * z[:, 0] ** 2 - 2.7) ** 2) / 2


def two_modes(z):
    right, left = (np.log(share) + normal(z - [at, 0.0]) for share, at in ((0.2, 10), (0.8, -10)))
    return np.logaddexp(right, left)


def narrow_and_far(z):
    return -((((z - 30) / [1e-3, 1.0]) ** 2).sum(1)) / 2


def inside(z):
    return np.where((z > 0).all(1), normal(z), -np.inf)


def of_few_degrees(z):
    return -(8 + 3) / 2 * np.log1p((z**2).sum(1) / 8)


CASES = {
    "one": (normal, 1, 0.0, 1.0),
    "fourteen": (normal, 14, 0.0, 1.0),
    "banana": (bent, 2, 0.0, [3.0, np.sqrt(1 + 2 * 0.09 * 81)]),
    "two modes": (two_modes, 2, [-6.0, 0.0], [np.sqrt(65.0), 1.0]),
    "narrow, far from the start": (narrow_and_far, 2, 30.0, [1e-3, 1.0]),
    "against bounds": (inside, 4, np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi)),
    "wide tails": (of_few_degrees, 3, 0.0, np.sqrt(8 / 6)),
}


def run(density, p, modes=None, draws=4000):
    rng = np.random.default_rng(1)
    start = np.abs(rng.standard_normal((CHAINS * -(-p // 8), p)))
    modes = np.zeros((1, p)) if modes is None else modes
    start += modes[np.arange(len(start)) % len(modes)] - modes[-1] / 2
    by = Mixture(np.ones(1), start.mean(0)[None], root_of(np.eye(p))[None], 5.0)
    return chains_of(density, start, by, draws, rng)


@pytest.mark.parametrize("word", CASES)
def test_draws_have_the_mean_and_the_deviation_of_the_density(word):
    density, p, mean, sd = CASES[word]
    found, _ = run(density, p, FAR if word == "two modes" else None)
    assert found.r_hat < 1.01
    z = found.z.reshape(-1, p)
    np.testing.assert_allclose(z.mean(0) / sd, np.broadcast_to(mean, p) / sd, atol=0.15)
    np.testing.assert_allclose(z.std(0) / sd, 1.0, atol=0.15)
    assert found.effective > 1000


def test_chains_that_do_not_agree_end_and_say_so(monkeypatch):
    monkeypatch.setattr(chains, "MAX_R_HAT", 0.9)
    found, _ = run(normal, 2, draws=100)
    assert len(found.z) > 1000
    assert found.r_hat > 0.9


def test_a_mixture_is_fitted_to_draws_of_another():
    rng = np.random.default_rng(3)
    root = np.array([[[4.0, 0.0], [1.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    truth = Mixture(np.array([0.3, 0.7]), np.array([[1.0, -2.0], [300.0, 0.0]]), root, 5.0)
    drawn, fresh = truth.draws(4000, rng), truth.draws(4000, rng)
    near = truth._replace(mean=np.zeros((2, 2))).fitted_to(drawn, rng)
    log_ratio = near.log_density(fresh) - truth.log_density(fresh)
    assert log_ratio.mean() == pytest.approx(0, abs=0.03)
    assert log_ratio.std() < 0.3
