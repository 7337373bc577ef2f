"""The cluster-robust covariance of linear regressions, where the jackknife over clusters is exact."""

import numpy as np

from homodyne_dask.solver.cluster_robust import cr3
from tests.solver.dense_problem import cluster_sums, clustered_rows


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


def test_a_cluster_that_says_nothing_is_none():
    X, y, owner = clustered_rows(9)
    inverse, scores, blocks = cluster_sums(X, y, owner)
    more = np.concatenate([scores, np.zeros((1, 3))]), np.concatenate([blocks, np.zeros((1, 3, 3))])
    for found, wanted in zip(cr3(inverse, *more), cr3(inverse, scores, blocks), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
