"""The wide Gram of a block against dense sums of f; f of theta as JAX traces it."""

import jax
import numpy as np
import pytest

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet, Problem
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import merge_tree
from tests.kernels.gram_errors import EXACT, STATIC, worst_error
from tests.kernels.user_functions import INTEGRATED, STRETCHED
from tests.synthetic import FLOW, blocks, measured, without_some

PHI = (-40.0, 3.0, 61.0)


CASES = {
    "flow": (None, FLOW),
    "flow that turns round": (None, np.array([2500, -0.3, 100, 1e-3, -0.5, -2e-4, 17])),
    "fast decay": (None, np.array([2e5, -0.5, 100, 2e-3, -0.3, 0, -60])),
    "static": (None, STATIC),
    "user-defined": (STRETCHED, np.array([3e3, 0.8])),
    "user-defined with integrals": (INTEGRATED, np.array([3e3, -0.2])),
}


def scans_of(word, convention="physical"):
    model, theta = CASES[word]
    truth = theta if model is None else STATIC
    scans = without_some(measured(truth, 150, PHI, convention=convention, offset=1.1))
    thetas = theta * (1 + 0.05 * np.random.default_rng(3).standard_normal((5, len(theta))))
    problem = scans.problem(min_lag=2) if model is None else Problem(model, min_lag=2)
    return scans, problem, thetas


def f_of(scans, problem, theta):
    backend, time = backend_of(problem.model), scans.time
    at = backend.point(problem, theta, time)
    with np.errstate(over="ignore"):
        return backend.f_at(at, time, scans.q, scans.phi, time[:, None], time[None, :])


def dense(scans, problem, thetas):
    f = [f_of(scans, problem, theta) for theta in thetas]
    lag = np.subtract.outer(-np.arange(len(scans.time)), -np.arange(len(scans.time)))
    counted = np.isfinite(scans.c2) & (lag >= problem.min_lag)
    y = np.where(counted, scans.c2.astype(float) - 1, 0)
    X = np.stack([np.ones_like(y), y, f[0], *(one - f[0] for one in f[1:])], axis=1)
    X = np.where(counted[:, None], X, 0.0)
    w = counted / (scans.sigma_row[:, :, None] * scans.sigma_row[:, None, :]) ** 2
    return np.einsum("bixy,bxy,bjxy->bij", X, w, X, optimize=True), counted.sum((1, 2))


ROWS = [
    *((word, "physical", 64) for word in CASES),
    ("flow", "physical", 256),
    ("flow", "homodyne", 64),
]
BOTH = [(word, "physical") for word in CASES]
BOTH += [(word, "homodyne") for word, (model, _) in CASES.items() if model is None]


@pytest.mark.long
@pytest.mark.parametrize(("word", "convention", "side"), ROWS)
def test_the_moments_are_the_dense_sums(word, convention, side):
    scans, problem, thetas = scans_of(word, convention)
    backend = backend_of(problem.model)
    points = [backend.point(problem, theta, scans.time) for theta in thetas]
    parts = [backend.wide_gram(points, block, None)[0] for _, block in blocks(scans, side=side)]
    moments, pairs = dense(scans, problem, thetas)
    found = merge_tree(parts)
    np.testing.assert_array_equal(found.pairs, pairs)
    assert (worst_error(found.moments, moments) <= EXACT).all()


@pytest.mark.long
@pytest.mark.parametrize(("word", "convention"), BOTH)
def test_f_and_its_derivatives_are_those_of_jax_in_either_order_of_frames_and_at_one_frame(
    word, convention
):
    scans, problem, thetas = scans_of(word, convention)
    i, j = np.array([1, 3, 75, 148]), np.array([2, 90, 70, 149])
    backend, time, theta = backend_of(problem.model), scans.time, thetas[1]
    at = PairSet(
        backend.pair_times(problem, time), np.minimum(i, j), np.maximum(i, j), scans.q, scans.phi,
        problem.gap or 0.0,
    )  # fmt: skip

    def f_of_theta(theta):
        return backend.f_of_theta(theta, at, problem.model, problem.convention)

    with float64_on_cpu():
        traced = np.asarray(jax.jit(f_of_theta)(theta))
        expected = np.moveaxis(np.asarray(jax.jit(jax.jacfwd(f_of_theta))(theta)), 2, 1)
    of_bins = backend.point(problem, theta, time), time, scans.q, scans.phi
    f, found = backend.f_and_derivatives_at(*of_bins, time[i], time[j])
    for one in (traced, f):
        np.testing.assert_allclose(one, f_of(scans, problem, theta)[:, i, j], rtol=0, atol=1e-12)
    size = np.abs(expected).max((0, 2), keepdims=True)
    np.testing.assert_allclose(found / size, expected / size, rtol=0, atol=1e-9)
    same = backend.f_and_derivatives_at(*of_bins, time[i], time[i])[1]
    np.testing.assert_allclose(same / size, 0.0, rtol=0, atol=1e-5)  # homodyne smooths there
