"""The cluster-robust covariance of linear regressions, where the jackknife over clusters is exact."""

import numpy as np
import pytest

from homodyne_dask.models import STATIC
from homodyne_dask.solver.cluster_robust import cr3
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.reduce import reduce
from tests.solver.dense_problem import ALL_MODES, cluster_sums, clustered_rows, scaling_at
from tests.synthetic import CREEP, angles, evaluator, fit_here, measured, store


def test_the_covariance_is_that_of_the_jackknife_over_clusters():
    X, y, owner = clustered_rows(9)
    covariance, _ = cr3(*cluster_sums(X, y, owner))
    whole = np.linalg.lstsq(X, y)[0]
    apart = [np.linalg.lstsq(X[owner != k], y[owner != k])[0] - whole for k in range(9)]
    np.testing.assert_allclose(covariance, 8 / 9 * sum(np.outer(d, d) for d in apart), rtol=1e-9)


def test_the_degrees_of_freedom_are_those_of_the_mean_of_clusters_alike():
    """Of a mean over K clusters of one size the variance has K - 1."""
    owner = np.repeat(np.arange(8), 5)
    _, dof = cr3(*cluster_sums(np.ones((40, 1)), clustered_rows(8)[1][:40], owner))
    np.testing.assert_allclose(dof, 7, rtol=1e-9)


def test_a_combination_has_the_degrees_of_freedom_of_the_same_one_as_a_parameter():
    """With other parameters, of which the first is the combination, it is one of them."""
    X, y, owner = clustered_rows(9)
    weights = np.array([0.3, -1.0, 2.0])
    other = np.linalg.inv(np.stack([weights, [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    _, each = cr3(*cluster_sums(X @ other, y, owner))
    _, found = cr3(*cluster_sums(X, y, owner), combinations=weights[None])
    np.testing.assert_allclose(found, each[:1], rtol=1e-9)
    _, parts = cr3(*cluster_sums(X, y, owner))
    assert abs(found[0] / parts - 1).min() > 0.01


def test_what_strongly_correlated_parameters_determine_has_the_error_it_has_alone():
    """Their sum; rounding left ten times its variance, and no degrees of freedom of some parameters."""
    inverse, scores, blocks = cluster_sums(*clustered_rows(9))
    to = np.array([[1.0, 1.0, 0.0], [0.0, 1e-5, 0.0], [0.0, 0.0, 1.0]])  # X @ to: two columns alike
    back = np.linalg.inv(to)
    weights = np.array([1.0, 1.0, 0.0])
    alone = np.eye(3)[:1]
    wanted, dof = cr3(inverse, scores, blocks, combinations=alone)
    rows = to.T @ blocks @ to
    found, found_dof = cr3(back @ inverse @ back.T, scores @ to, rows, combinations=weights[None])
    np.testing.assert_allclose(weights @ found @ weights, wanted[0, 0], rtol=1e-3)
    np.testing.assert_allclose(found_dof, dof, rtol=1e-3)


def test_a_cluster_that_says_nothing_is_none():
    X, y, owner = clustered_rows(9)
    inverse, scores, blocks = cluster_sums(X, y, owner)
    more = np.concatenate([scores, np.zeros((1, 3))]), np.concatenate([blocks, np.zeros((1, 3, 3))])
    for found, wanted in zip(cr3(inverse, *more), cr3(inverse, scores, blocks), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def one_of_ten(q_of_others, **options):
    """Ten bins; at this q f of nine of them is constant, or gone."""
    q = np.full(10, q_of_others)
    q[0] = 0.0054
    return measured(CREEP, 30, angles(10), q=q, sigma=0.004, seed=1, **options)


@pytest.mark.parametrize("q_of_others", [1e-9, 5.0])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_what_one_bin_determines_has_no_robust_error(mode, q_of_others):
    scans = one_of_ten(q_of_others, contrast=0.21, offset=1.03)
    reduced = reduce(evaluator(scans)(CREEP), scaling_at(scans.phi, mode))
    found = uncertainty(STATIC.names, reduced, np.ones(3, bool), np.arange(10))
    assert (np.diag(found.naive) > 0).all()
    assert np.isnan(found.dof).all()
    if mode == "individual":  # the others are no clusters
        assert found.robust is None
    else:
        assert np.isnan(found.robust).all()
        assert found.of_few(STATIC.names) == list(STATIC.names)


def test_a_parameter_of_one_cluster_has_no_error_and_the_others_keep_theirs():
    """Their covariance is that of the regression without the cluster, whose residuals are all fitted."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(10), 6)
    X, noise = rng.standard_normal((60, 3)), rng.standard_normal(60)
    X[owner > 0, 1] = 0.0
    X[owner == 0, 0] = X[owner == 0, 2] = 0.0

    def of(some, columns):
        return cr3(*cluster_sums(X[np.ix_(some, columns)], noise[some], owner[some]))

    covariance, dof = of(owner >= 0, [0, 1, 2])
    without, dof_without = of(owner > 0, [0, 2])
    assert np.isnan(covariance[1]).all()
    assert np.isnan(dof[1])
    wanted = without * (9 / 10) / (8 / 9)  # of ten clusters instead of nine
    np.testing.assert_allclose(covariance[np.ix_([0, 2], [0, 2])], wanted, rtol=1e-9)
    np.testing.assert_allclose(dof[[0, 2]], dof_without, rtol=1e-9)


def test_bins_without_a_decay_are_not_counted_for_robust_errors(tmp_path):
    result = fit_here(store(one_of_ten(5.0), tmp_path), STATIC)
    assert "cluster-robust" not in result.parameters["method"].values
    assert (result.error_used > 0).all()
