"""Priors of parameters: their densities against scipy.stats, mistakes in them, and the prior of a rate."""

import numpy as np
import pytest
from scipy import stats

from homodyne_dask.apps.posterior.log_density import coordinates, log_volume, rate_values
from homodyne_dask.apps.posterior.priors import posterior_priors, rate_draws
from homodyne_dask.errors import OptionError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.parameters import Parameter, gaussian_priors, search
from homodyne_dask.models.rate_forms import PowerLaw

LAW = PowerLaw(places=(0, 1, 2), first=0.5, ratio=3.0)
CASES = {
    "normal": ("2500:300", stats.truncnorm(-2499 / 300, np.inf, 2500, 300)),
    "normal by name": (("normal", 2500, 300), stats.truncnorm(-2499 / 300, np.inf, 2500, 300)),
    "numbers of numpy": (
        np.array([2500.0, 300.0]), stats.truncnorm(-2499 / 300, np.inf, 2500, 300),
    ),
    "words of a file": (["truncnormal", "2500", "3e2", "2400", "1e4"],
                        stats.truncnorm(-1 / 3, 25, 2500, 300)),
    "upper tail": ("truncnormal:100:10:500:2600", stats.truncnorm(40, 250, 100, 10)),
    "lognormal": ("lognormal:2500:0.3", stats.lognorm(0.3, scale=2500)),
    "halfnormal": ("halfnormal:2000", stats.truncnorm(1 / 2000, np.inf, 0, 2000)),
    "uniform": ("uniform:1000:4000", stats.uniform(1000, 3000)),
    "loguniform": ("loguniform:100:1e4", stats.loguniform(100, 1e4)),
}  # fmt: skip
X = np.array([-10.0, 0.0, 99.0, 510.0, 1000.0, 2400.0, 2500.0, 2999.0, 5000.0, 2e4])
FLOW = search(LAMINAR_FLOW.parameters, fixed={"beta": 0}, laws=(LAW,))


def priors(chosen=FLOW, parameters=LAMINAR_FLOW.parameters, **given):
    return posterior_priors(parameters, chosen, given)[0]


@pytest.mark.parametrize("case", CASES)
def test_density_and_draws_are_those_of_scipy(case):
    given, truth = CASES[case]
    prior = priors(D0=given)["D0"]
    with np.errstate(invalid="ignore"):
        away = prior.log_density(X) - truth.logpdf(X)
    inside = np.isfinite(truth.logpdf(X))
    np.testing.assert_array_equal(np.isfinite(prior.log_density(X)), inside)
    assert np.ptp(away[inside]) < 1e-7
    draws = prior.sample(np.random.default_rng(3), 2000)
    assert stats.kstest(draws, truth.cdf).pvalue > 1e-3


def test_bounds_cut_the_distribution():
    chosen = search(LAMINAR_FLOW.parameters, bounds={"D_offset": (-500, 4000)})
    prior = priors(chosen, D_offset="0:1000")["D_offset"]
    assert prior.log_density(np.array([-501.0, 4001.0])).tolist() == [-np.inf, -np.inf]
    draws = prior.sample(np.random.default_rng(4), 2000)
    assert stats.kstest(draws, stats.truncnorm(-0.5, 4, 0, 1000).cdf).pvalue > 1e-3
    assert prior.text == "normal, 0 ± 1000 Å²/s"


def test_by_default_a_parameter_is_uniform_within_its_bounds():
    found = priors()
    assert found["D0"].text == "flat in the rate, 1 to 1e+12 Å²/s"
    assert found["D_offset"].text == "uniform, -10000 to 10000 Å²/s"
    assert found["gamma_dot_t0"].text == "log-uniform, 1e-08 to 1 1/s"
    assert priors(alpha=(0, 1))["D0"].text == "log-uniform, 1 to 1e+12 Å²/s"
    unbounded = (Parameter("x"),)
    with pytest.raises(OptionError, match="the prior of x is flat, -inf to inf, so its posterior"):
        priors(search(unbounded), unbounded)


def test_a_periodic_parameter_has_the_same_prior_a_period_on():
    for given in ((80, 20), ("uniform", -90, -30), None):
        prior = priors(**({} if given is None else {"phi0": given}))["phi0"]
        x = np.array([-85.0, -40.0, 10.0, 85.0])
        np.testing.assert_allclose(prior.log_density(x), prior.log_density(x - 180))
    assert np.diff(priors(phi0=(80, 20))["phi0"].log_density(np.array([80.0, -90.0])))[0] == -0.125


MISTAKES = {
    "unknown parameter 'D'": {"D": "1:2"},
    "prior of D0 = .*unknown distribution 'lognormall'; did you mean 'lognormal'": {
        "D0": "lognormall:1:2"
    },
    "normal takes mean, sd, not 1 numbers": {"D0": "2500"},
    "halfnormal takes sd, not 2": {"D0": ("halfnormal", 1, 2)},
    "sd = 0 is not positive": {"D0": (2500, 0)},
    "'nan' is not a finite number": {"D0": "2500:nan"},
    "'inf' is not a finite number": {"D0": "uniform:0:inf"},
    "'wide' is not a finite number": {"D0": "2500:wide"},
    "True is not a finite number": {"D0": (2500, True)},
    "= 2500 cannot be used: give mean and standard deviation": {"D0": 2500},
    "low = 2 is not below high = 1": {"D0": "uniform:2:1"},
    "low = 5 is not below high = 5": {"D0": "truncnormal:2:1:5:5"},
    "low = 0 is not positive": {"D0": "loguniform:0:1"},
    "median = -2 is not positive": {"D0": "lognormal:-2:1"},
    "1e\\+70 is not between 1e-60 and 1e60": {"D0": "1e70:1"},
    "prior of D0 extends from 1e\\+13 to 2e\\+13, outside the bounds": {"D0": "uniform:1e13:2e13"},
    "beta is fixed at 0, so a prior would have no effect": {"beta": "0:1"},
}


@pytest.mark.parametrize("says", MISTAKES)
def test_a_prior_that_cannot_be_meant_is_named(says):
    with pytest.raises(OptionError, match=says):
        priors(**MISTAKES[says])


def test_a_fit_takes_normal_priors_only():
    found = gaussian_priors({"D0": "2500:300"}, FLOW)
    assert (found.mean[0], found.sd[0]) == (2500, 300)
    assert np.isnan(found.mean[1:]).all()
    with pytest.raises(OptionError, match="'D0=1:2'"):
        gaussian_priors("D0=1:2", FLOW)


@pytest.mark.parametrize("x", [(3000.0, -0.4, 500.0), (2e4, 0.02, -1.9e4), (40.0, 1.7, 2000.0)])
def test_the_volume_of_the_values_of_a_rate_is_that_of_their_slopes(x):
    at = coordinates(FLOW, np.array([*x, 1e-3, 0, 1e-3, 0]), (LAW,))
    wanted = np.linalg.slogdet(at.slope()[:3, :3])[1] - np.log(np.log(3.0))
    assert log_volume(LAW, np.array([x]))[0] == pytest.approx(wanted, rel=1e-9)


def test_draws_of_the_prior_of_a_rate_are_uniform_in_its_values_but_for_their_size():
    ends = {"D0": (1.0, 1e5), "alpha": (-2.0, 2.0), "D_offset": (-1e4, 1e4)}
    found = priors(search(LAMINAR_FLOW.parameters, bounds=ends, laws=(LAW,)))
    x = rate_draws(LAW, tuple(found[name] for name in ends), 4000, np.random.default_rng(1))
    for k, (low, high) in enumerate(ends.values()):
        assert ((x[:, k] >= low) & (x[:, k] <= high)).all()
    # the density of (log a, b, c/a) is a³ times that of (a, b, c), on a grid
    log_a, b = np.log(1e5) * middles(60), -2 + 4 * middles(80)
    ratio = np.sinh(16 * middles(400) - 8)
    grid = np.stack(np.meshgrid(np.exp(log_a), b, ratio, indexing="ij"), -1)
    grid[..., 2] *= grid[..., 0]
    flat = grid.reshape(-1, 3)
    density = log_volume(LAW, flat) - 3 * np.log(np.linalg.norm(rate_values(LAW, flat), axis=1))
    density = np.exp(density.reshape(grid.shape[:3]))
    density *= grid[..., 0] ** 2 * np.cosh(np.arcsinh(ratio)) * (np.abs(grid[..., 2]) <= 1e4)
    for axis, points, drawn in ((0, log_a, np.log(x[:, 0])), (1, b, x[:, 1])):
        others = tuple({0, 1, 2} - {axis})
        below = np.cumsum(density.sum(others)) / density.sum()
        for quantile in (0.16, 0.5, 0.84):
            share = (drawn <= np.interp(quantile, below, points)).mean()
            assert share == pytest.approx(quantile, abs=0.04)


def middles(n):
    return (np.arange(n) + 0.5) / n
