"""Draws against an ensemble sampler on the likelihood of all pairs, both written from the formulas alone."""

import emcee
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.apps.posterior.sample_posterior import posterior_draws
from homodyne_dask.models.rate_forms import EARLY_QUANTILE, LATE_QUANTILE
from tests.apps.posterior.samplers import TRUTH
from tests.synthetic import angles, measured, store

WALKERS, STEPS, FIRST = 24, 6000, 1000
QUANTILES = [0.025, 0.16, 0.5, 0.84, 0.975]
BOUNDS = {"D0": (1e3, 1e5), "alpha": (-2.0, 2.0), "D_offset": (-2000.0, 4000.0)}
CASES = {
    "alpha and D_offset": {"fixed": {"D0": 20000.0}, "bounds": BOUNDS},
    "a bound beside the optimum": {
        "fixed": {"alpha": -0.4}, "bounds": BOUNDS | {"D_offset": (450.0, 4000.0)},
    },
    "D0, alpha and D_offset": {"bounds": BOUNDS},
}  # fmt: skip


class Exact:
    """The density of free parameters of a still sample: χ² of all pairs, and the prior by its words."""

    def __init__(self, scans, result, bounds):
        lag = np.triu_indices(len(scans.time), 1)
        self.i, self.j, self.time, self.q = *lag, scans.time, scans.q[0]
        self.weight = 1 / (scans.sigma_row[:, self.i] * scans.sigma_row[:, self.j]) ** 2
        self.y = scans.c2[:, self.i, self.j].astype(float) - 1
        found = result.parameters
        self.free, self.theta = ~found["fixed"].values, found["value"].values
        self.low, self.high = np.array(list(bounds.values())).T
        self.least = self.chisqr(self.theta)

    def chisqr(self, theta):
        """χ² with the best contrast and offset of each bin."""
        dt = np.median(np.diff(self.time))
        t = np.where(self.time < dt / 2, dt / 2, self.time)
        rate = np.maximum(theta[0] * t ** theta[1] + theta[2], 1e-10)
        C = np.append(0, np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(self.time)))
        f = np.exp(-(self.q**2) * (C[self.j] - C[self.i]))
        w = self.weight[0]  # the same in all bins
        f = f - (w @ f) / w.sum()
        y = self.y - (self.y @ w / w.sum())[:, None]
        slope = (y * w) @ f / (w @ f**2)
        return float((w * (y - slope[:, None] * f) ** 2).sum())

    def log_prior(self, theta):
        """Uniform, in ln D0; with three free parameters 1/|J|³ in the rates at three times."""
        if not self.free.all():
            return -np.log(theta[0])
        ends = np.quantile(self.time[self.time > 0], [EARLY_QUANTILE, LATE_QUANTILE])
        times = np.geomspace(*ends, 3)

        def rates(theta):
            return theta[0] * times ** theta[1] + theta[2]

        step = 1e-5 * np.array([theta[0], 1.0, 1e4])
        columns = [(rates(theta + h) - rates(theta - h)) / (2 * h.sum()) for h in np.diag(step)]
        det = abs(np.linalg.det(np.array(columns)))
        return np.log(det + 1e-300) - 3 * np.log(np.linalg.norm(rates(theta)))

    def __call__(self, x):
        theta = self.theta.copy()
        theta[self.free] = x
        if not ((theta > self.low) & (theta < self.high)).all():
            return -np.inf
        return -(self.chisqr(theta) - self.least) / 2 + self.log_prior(theta)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("word", CASES)
def test_quantiles_are_those_of_an_ensemble_sampler_on_all_pairs(word, tmp_path):
    scans = measured(TRUTH, 60, angles(8), sigma=0.1, seed=4)
    scan = store(scans, tmp_path, "S")
    result = hd.fit(scan, "static", **CASES[word])
    found = posterior_draws(result, scan, draws=100_000, adjust="none")
    assert found.pareto_k < 0.7
    assert found.largest_error < 0.05
    density = Exact(scans, result, CASES[word]["bounds"])
    free = density.free
    rng = np.random.default_rng(1)
    start = found.flat[rng.choice(len(found.flat), WALKERS)][:, free]
    np.random.seed(1)
    chains = emcee.EnsembleSampler(WALKERS, free.sum(), density)
    chains.run_mcmc(start, STEPS)
    wanted = np.quantile(chains.get_chain(discard=FIRST, flat=True), QUANTILES, axis=0)
    ours = np.quantile(found.flat[:, free], QUANTILES, axis=0)
    width = (wanted[3] - wanted[1]) / 2
    np.testing.assert_allclose(ours / width, wanted / width, atol=0.05)
