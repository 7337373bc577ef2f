"""χ² from a wide Gram against passes over all pairs, in every scaling mode, for models of both backends."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.posterior.likelihood import likelihood_of
from homodyne_dask.fitting.surrogate.coordinates import coordinates
from homodyne_dask.fitting.surrogate.pair_sample import sample_pairs
from homodyne_dask.solver.reduce import reduce
from tests.fitting.posterior.samplers import TRUTH, sampler_of
from tests.kernels.user_functions import stretched
from tests.synthetic import FLOW, angles, asked, measured, module_scan, store

STRETCHED = hd.separable(
    stretched,
    parameters=[
        hd.Parameter("rate", "Å²/s", (1.0, 1e6), scale="log"),
        hd.Parameter("gamma", "", (0.1, 2)),
    ],
)
CASES = {
    "individual": ("static", {}),
    "shared": ("static", {"scaling": "shared"}),
    "Fourier series": ("static", {"scaling": "fourier1"}),
    "fixed": ("static", {"scaling": "fixed", "contrast": 0.2, "offset": 1.0}),
    "priors of contrast and offset": (
        "static", {"contrast": {"prior": (0.25, 0.002)}, "offset": {"prior": (1.0, 0.0005)}},
    ),
    "shared, with a prior": ("static", {"scaling": "shared", "contrast": {"prior": (0.25, 0.001)}}),
    "mixed precision": ("static", {"precision": "mixed"}),
    "homodyne": ("static", {"convention": "homodyne"}),
    "user-defined": (STRETCHED, {}),
}  # fmt: skip
still = module_scan(
    lambda: measured(TRUTH, 70, angles(9), contrast=0.2 + 0.02 * np.cos(np.arange(9)), seed=4)
)


QUICK = ("individual", "priors of contrast and offset")


@pytest.mark.parametrize(
    "word", [pytest.param(w, marks=[] if w in QUICK else pytest.mark.slow) for w in CASES]
)
def test_chisqr_contrast_and_offset_are_those_of_a_pass(still, word):
    model, options = CASES[word]
    sampler = sampler_of(still, model, **options)
    by, near = sampler.explored()
    of = sampler.likelihood(near)
    assert of.basis.error < 0.05
    thetas = sampler.target.at.whole(by.draws(40, np.random.default_rng(0))[0])
    thetas = thetas[sampler.target.at.inside(thetas[:, sampler.target.at.free])][:12]
    found = likelihood_of(sampler.request.problem, of, thetas)
    mixed, compared = word == "mixed precision", 0
    for n, theta in enumerate(thetas):
        exact = reduce(
            sampler.sweep.gram(theta), sampler.request.scaling, sampler.request.sum_rounding
        )
        change = exact.chisqr - sampler.reduced.chisqr
        if change > 60:  # no draw of the posterior, whose tails are less wide than a proposal's
            continue
        compared += 1
        error = 0.02 * (1 + np.sqrt(max(change, 0))) + (0.5 if mixed else 0)
        assert found.chisqr[n].sum() == pytest.approx(change, abs=error)
        bins = exact.chisqr_per_bin - sampler.reduced.chisqr_per_bin
        np.testing.assert_allclose(found.chisqr[n], bins, atol=error)
        np.testing.assert_allclose(found.linear_params[n], exact.linear_params, atol=2e-5)
    assert compared >= 8


def test_the_spread_of_contrast_and_offset_is_that_of_their_normal_equations(still):
    sampler = sampler_of(still, "static")
    of = sampler.likelihood(sampler.explored()[1])
    theta = sampler.target.at.theta[None]
    spread = np.asarray(likelihood_of(sampler.request.problem, of, theta).spread)[0]
    covariance = spread @ np.swapaxes(spread, 1, 2)
    np.testing.assert_allclose(covariance, sampler.reduced.inverse, rtol=1e-6)


def test_the_curvature_of_an_adjusted_likelihood_is_that_of_the_robust_covariance(still):
    sampler = sampler_of(still, "static", adjust="robust", fixed={"D_offset": 500.0})
    target, at = sampler.target, sampler.target.at
    adjustment = target.adjustment
    assert adjustment.kind == "robust"
    result = hd.fit(still, "static", fixed={"D_offset": 500.0})
    error = result.parameters["stderr"].values[at.free]
    slope = at.slope_at(at.x)
    covariance = np.linalg.inv(slope.T @ adjustment.precision @ slope)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), error, rtol=1e-6)
    rng = np.random.default_rng(1)
    d = 1e-3 * rng.standard_normal((20, at.size)) * error @ slope.T
    u = adjustment.centre + d
    chisqr = np.einsum("ni,ij,nj->n", d, adjustment.hessian, d) - adjustment.below
    found = adjustment.log_likelihood(u, chisqr)
    wanted = -0.5 * np.einsum("ni,ij,nj->n", d, adjustment.precision, d)
    p, dof = at.size, adjustment.dof
    np.testing.assert_allclose(found, wanted * (dof + p) / dof, rtol=1e-3)


def test_slopes_of_coordinates_are_their_differences_and_periods_are_wrapped():
    scans = measured(FLOW, 40, angles(3))
    at = coordinates(asked(scans), FLOW)
    assert len(at.laws) == 2
    rng = np.random.default_rng(2)
    x = FLOW * (1 + 0.1 * rng.standard_normal((50, 7)))
    for n in range(7):
        step = np.zeros(7)
        step[n] = 1e-6 * abs(FLOW[n])
        change = (at.of(FLOW + step) - at.of(FLOW - step)) / (2 * step[n])
        np.testing.assert_allclose(at.slope_at(FLOW)[:, n], change, rtol=1e-6, atol=1e-9)
    turned = x + np.eye(7)[6] * 180 * rng.integers(-2, 3, (50, 1))
    np.testing.assert_allclose(at.wrapped(turned), x, rtol=1e-9)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    scan = store(measured([2e4, -0.4, 500.0], 60, angles(4)), tmp_path_factory.mktemp("pairs"), "S")
    scan = scan.select(frames=(3, 60))
    return [sample_pairs(scan, 1, np.random.default_rng(seed)) for seed in range(40)]


def test_sums_over_a_sample_are_on_average_those_over_all_pairs(samples):
    i, j = np.triu_indices(57, 1)
    for of in (lambda i, j: np.ones(len(i)), lambda i, j: 1 / (1.0 + i), lambda i, j: j * 1.0):
        wanted = of(i, j).sum()
        found = [(s.number * of(s.i - 3.0, s.j - 3.0)).sum() for s in samples]
        error = np.std(found) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(wanted, abs=4 * error + 0.01 * wanted)


def test_early_frames_are_sampled_more_than_late_ones(samples):
    first = np.mean([(s.i < 9).mean() for s in samples])
    assert first > 0.25  # a tenth of the frames
    for s in samples:
        assert (s.i >= 3).all()
        assert (s.j < 60).all()
        assert (s.j > s.i).all()
