"""Mean and deviation of draws against sums over a grid of the likelihood of all pairs, from formulas."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import homodyne_dask as hd
from homodyne_dask.models.rate_forms import EARLY_QUANTILE, LATE_QUANTILE
from tests.apps.posterior.samplers import TRUTH
from tests.synthetic import angles, measured, of_decay, store

FRAMES, BINS = 40, 3
BOUNDS = {"D0": (1e3, 1e5), "alpha": (-2.0, 2.0), "D_offset": (-2000.0, 4000.0)}


def turning(theta, t1, t2, bin):
    """Even in theta[1]."""
    return jnp.exp(-theta[0] * (t2 - t1)) * jnp.cos(theta[1] * (t2 - t1)) ** 2


def two_rates(theta, t1, t2, bin):
    """Of the two little but the sum is seen."""
    return jnp.exp(-(theta[0] + theta[1] * (1 + 0.01 * (t1 + t2))) * (t2 - t1))


def separable(f, *names, ends):
    return hd.separable(f, parameters=[hd.Parameter(name, "1/s", ends) for name in names])


class Case(NamedTuple):
    model: object
    options: dict
    log_prior: object
    """Of theta (n, p), but for the bounds."""
    priors: dict | None = None
    f: object = None
    """Of the data; None for a still sample."""
    cells: int = 400


def log_flat(theta):
    return -np.log(theta[:, 0])


def flat(theta):
    return np.zeros(len(theta))


CASES = {
    "still": Case("static", {"fixed": {"D_offset": 500.0}, "bounds": BOUNDS}, log_flat),
    "a bound beside the optimum": Case(
        "static",
        {"fixed": {"alpha": -0.4}, "bounds": BOUNDS | {"D_offset": (450.0, 4000.0)}},
        log_flat,
    ),
    "priors that are not normal": Case(
        "static",
        {"fixed": {"D_offset": 500.0}, "bounds": BOUNDS | {"alpha": (-0.38, 2.0)}},
        lambda theta: (
            stats.lognorm.logpdf(theta[:, 0], 0.05, scale=21000)
            + stats.truncnorm.logpdf(theta[:, 1], -5, 5, -0.3, 0.02)
        ),
        priors={"D0": "lognormal:21000:0.05", "alpha": "truncnormal:-0.3:0.02:-0.4:-0.2"},
    ),
    "ageing": Case("static", {"bounds": BOUNDS}, None, cells=60),
    "a rate whose amplitude is known": Case(
        "static",
        {"bounds": BOUNDS},
        lambda theta: -(((theta[:, 0] - 2e4) / 1e3) ** 2) / 2,
        priors={"D0": (2e4, 1e3)},
        cells=100,
    ),
    "two modes": Case(
        separable(turning, "decay", "turn", ends=(-5.0, 5.0)),
        {"initial": {"decay": 0.3, "turn": 0.8}},
        flat,
        f=lambda t1, t2: turning((0.3, 0.8), t1, t2, None),
    ),
    "nearly degenerate": Case(
        separable(two_rates, "first", "second", ends=(0.0, 1.0)),
        {"initial": {"first": 0.2, "second": 0.3}},
        flat,
        f=lambda t1, t2: two_rates((0.2, 0.3), t1, t2, None),
    ),
}


def still(theta, scans, i, j):
    """f of a still sample (n, pair)."""
    time, dt = scans.time, scans.time[1] - scans.time[0]
    t = np.where(time < dt / 2, dt / 2, time)
    rate = np.maximum(theta[:, :1] * t ** theta[:, 1:2] + theta[:, 2:], 1e-10)
    steps = (rate[:, 1:] + rate[:, :-1]) / 2 * np.diff(time)
    C = np.concatenate([np.zeros((len(theta), 1)), np.cumsum(steps, axis=1)], axis=1)
    return np.exp(-(scans.q[0] ** 2) * (C[:, j] - C[:, i]))


class Exact:
    """The density of theta: χ² of all pairs with the best contrast and offset of each bin, and a prior."""

    def __init__(self, scans, case, result):
        self.scans, self.case = scans, case
        self.i, self.j = np.triu_indices(FRAMES, 1)
        self.y = scans.c2[:, self.i, self.j].astype(float) - 1
        self.y -= self.y.mean(1)[:, None]
        self.sigma = scans.sigma_row[0, 0] ** 2
        of = [result.params[name] for name in result.parameters["param"].values.tolist()]
        self.low, self.high = (np.array([getattr(p, end) for p in of]) for end in ("min", "max"))
        self.free = np.array([p.vary for p in of])

    def f(self, theta):
        if self.case.f is None:
            return still(theta, self.scans, self.i, self.j)
        f = {"decay": turning, "first": two_rates}[self.case.model.names[0]]
        return np.asarray(
            f(theta.T[:, :, None], self.scans.time[self.i], self.scans.time[self.j], None)
        )

    def log_density(self, theta):
        inside = ((theta >= self.low) & (theta <= self.high))[:, self.free].all(1)
        found = np.full(len(theta), -np.inf)
        for some in np.array_split(np.flatnonzero(inside), -(-inside.sum() // 5000)):
            f = self.f(theta[some])
            f = f - f.mean(1)[:, None]
            gain = ((f @ self.y.T) ** 2).sum(1) / (f**2).sum(1) / self.sigma**2
            found[some] = gain / 2 + self.case.log_prior(theta[some])
        return found


def rates_of(scans):
    """The rates at three times of (D0, alpha, D_offset), and back."""
    ends = np.quantile(scans.time[scans.time > 0], [EARLY_QUANTILE, LATE_QUANTILE])
    times = np.geomspace(*ends, 3)

    def back(J):
        rise, ratio = np.diff(J), times[1] / times[0]
        with np.errstate(all="ignore"):
            b = np.log(rise[:, 1] / rise[:, 0]) / np.log(ratio)
            a = rise[:, 0] / (times[1] ** b - times[0] ** b)
            return np.stack([a, b, J[:, 0] - a * times[0] ** b], axis=1)

    return (lambda x: x[:, :1] * times ** x[:, 1:2] + x[:, 2:]), back


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", CASES)
def test_mean_and_deviation_are_those_of_a_grid(word, tmp_path):
    case = CASES[word]
    scans = measured(TRUTH, FRAMES, angles(BINS), sigma=0.1, seed=4)
    if case.f is not None:
        f = case.f(scans.time[:, None], scans.time)
        scans = of_decay(scans, np.asarray(f), 0.1, 4)
    scan = store(scans, tmp_path, "S")
    result = hd.fit(scan, case.model, **case.options)
    found = hd.posterior(result, scan, adjust="none", priors=case.priors, seed=2)
    assert found.plain["r_hat"] < 1.01
    assert found.plain["largest_error"] < 0.05
    to, back = (lambda x: x), (lambda x: x)
    if case.log_prior is None:  # the rates at three times are uniform but for their size
        to, back = rates_of(scans)
        case = case._replace(log_prior=lambda x: -3 * np.log(np.linalg.norm(to(x), axis=1)))
    exact = Exact(scans, case, result)
    free = exact.free
    middle, axes, sides = axes_of(to(found.theta[:, free]) if free.all() else found.theta[:, free])
    grid = np.stack(np.meshgrid(*sides(case.cells), indexing="ij"), -1).reshape(-1, free.sum())
    x = middle + grid @ axes
    theta = np.tile(result.parameters["optimum"].values, (len(x), 1))
    theta[:, free] = back(x) if free.all() else x
    density = exact.log_density(theta)
    weight = np.exp(density - density.max())
    weight /= weight.sum()
    mean = weight @ np.nan_to_num(theta)
    sd = np.sqrt(weight @ (np.nan_to_num(theta) - mean) ** 2)[free]
    assert (weight > 0.3 * weight.max()).sum() > 50
    drawn = found.theta[:, free]
    np.testing.assert_allclose(drawn.mean(0) / sd, mean[free] / sd, atol=0.12)
    np.testing.assert_allclose(drawn.std(0) / sd, 1.0, atol=0.1)


def axes_of(x):
    """The middle of draws, their principal axes, and what they reach along them, and more."""
    middle, size = x.mean(0), x.std(0)
    _, _, axes = np.linalg.svd((x - middle) / size, full_matrices=False)
    along = ((x - middle) / size) @ axes.T
    low, high = along.min(0), along.max(0)
    more = 0.2 * (high - low)

    def sides(cells):
        return np.linspace(low - more, high + more, cells).T

    return middle, axes * size, sides
