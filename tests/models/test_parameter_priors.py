"""Priors of parameters: their densities against scipy.stats, mistakes in them, and the prior of a rate."""

import numpy as np
import pytest
from scipy import stats

from homodyne_dask.errors import OptionError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.parameter_priors import (
    AmplitudePrior,
    ExponentPrior,
    Prior,
    default_prior,
    log_size_prior,
    parsed_prior,
    priors_of,
    rate_draws,
)
from homodyne_dask.models.parameters import Parameter, search
from homodyne_dask.models.rate_forms import PowerLaw

LAW = PowerLaw(at=(0, 1, 2), first=0.5, ratio=3.0)
TIMES = 0.5 * 3.0 ** np.arange(3)
A, B = AmplitudePrior(1.0, 1e5, LAW), ExponentPrior(-2.0, 2.0, LAW)
C = Prior("uniform", (-1e4, 1e4), -1e4, 1e4)
CASES = {
    "normal": ("2500:300", stats.norm(2500, 300)),
    "normal by name": (("normal", 2500, 300), stats.norm(2500, 300)),
    "a prior": (Prior("normal", (2500, 300)), stats.norm(2500, 300)),
    "numbers of numpy": (np.array([2500.0, 300.0]), stats.norm(2500, 300)),
    "words of a file": (["truncnormal", "2500", "3e2", "2400", "1e4"],
                        stats.truncnorm(-1 / 3, 25, 2500, 300)),
    "upper tail": ("truncnormal:100:10:500:2600", stats.truncnorm(40, 250, 100, 10)),
    "lognormal": ("lognormal:2500:0.3", stats.lognorm(0.3, scale=2500)),
    "halfnormal": ("halfnormal:2000", stats.halfnorm(scale=2000)),
    "uniform": ("uniform:1000:4000", stats.uniform(1000, 3000)),
    "loguniform": ("loguniform:100:1e4", stats.loguniform(100, 1e4)),
}  # fmt: skip
X = np.array([-10.0, 0.0, 99.0, 510.0, 1000.0, 2400.0, 2500.0, 2999.0, 5000.0, 2e4])


@pytest.mark.parametrize("case", CASES)
def test_density_and_draws_are_those_of_scipy(case):
    given, truth = CASES[case]
    prior = parsed_prior("D0", given)
    wanted = truth.logpdf(X)
    np.testing.assert_allclose(prior.log_density(X), wanted, rtol=1e-11)
    np.testing.assert_allclose(prior.log_density(X.reshape(2, 5)), wanted.reshape(2, 5), rtol=1e-11)
    assert float(prior.log_density(2500.0)) == pytest.approx(truth.logpdf(2500.0), rel=1e-11)
    low, high = prior.support
    assert low == pytest.approx(truth.support()[0])
    assert high == pytest.approx(truth.support()[1])

    draws = prior.sample(np.random.default_rng(3), 2000)
    assert stats.kstest(draws, truth.cdf).pvalue > 1e-3


def test_bounds_cut_the_distribution():
    chosen = search(LAMINAR_FLOW.parameters, bounds={"D_offset": (-500, 4000)})
    prior = priors_of({"D_offset": "0:1000"}, chosen)["D_offset"]
    truth = stats.truncnorm(-0.5, 4, 0, 1000)
    np.testing.assert_allclose(prior.log_density(X), truth.logpdf(X), rtol=1e-11)
    draws = prior.sample(np.random.default_rng(4), 2000)
    assert stats.kstest(draws, truth.cdf).pvalue > 1e-3
    assert prior.text("Å²/s") == "normal, 0 ± 1000 Å²/s"


def test_by_default_a_parameter_is_uniform_within_its_bounds():
    by_name = {p.name: default_prior(p) for p in LAMINAR_FLOW.parameters}
    assert by_name["D0"] == Prior("loguniform", (1, 1e12), 1, 1e12)
    assert by_name["D_offset"].text("Å²/s") == "uniform, -10000 to 10000 Å²/s"
    logarithmic = LAMINAR_FLOW.parameters[0]
    assert default_prior(logarithmic, (-5.0, 5.0)).name == "uniform"
    unbounded = default_prior(Parameter("x"))
    assert not unbounded.proper
    assert unbounded.log_density(X).tolist() == [0.0] * len(X)
    with pytest.raises(OptionError, match="that is flat, -inf to inf: give bounds"):
        unbounded.sample(np.random.default_rng(6), 3)


MISTAKES = [
    {"D": "1:2"}, {"D0": "lognormall:1:2"}, {"D0": "2500"}, {"D0": ("halfnormal", 1, 2)},
    {"D0": (2500, 0)}, {"D0": "2500:nan"}, {"D0": "uniform:0:inf"}, {"D0": "2500:wide"},
    {"D0": (2500, True)}, {"D0": 2500}, {"D0": "uniform:2:1"}, {"D0": "truncnormal:2:1:5:5"},
    {"D0": "loguniform:0:1"}, {"D0": "lognormal:-2:1"}, {"D0": "uniform:1e13:2e13"}, {"beta": "0:1"},
    "D0=1:2",
]  # fmt: skip


@pytest.mark.parametrize("given", MISTAKES, ids=str)
def test_a_prior_that_cannot_be_meant_is_named(given):
    name = next(iter(given)) if isinstance(given, dict) else given
    with pytest.raises(OptionError, match=f"prior.* {name}|'{name}'"):
        priors_of(given, search(LAMINAR_FLOW.parameters, fixed={"beta": 0}))


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
    log_a, b = np.log(1e5) * middles(60), -2 + 4 * middles(80)
    ratio = np.sinh(16 * middles(400) - 8)
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
