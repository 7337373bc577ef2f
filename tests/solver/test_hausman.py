"""The test of the difference of two estimates."""

import numpy as np

from homodyne_dask.solver.hausman import hausman_test


def test_p_is_uniform_for_differences_that_are_noise():
    rng = np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    weighted = np.diag([1.0, 2.0, 0.5])
    between = root @ root.T
    unweighted = weighted + between
    found = []
    for _ in range(400):
        nu = 60
        scale = nu / rng.chisquare(nu)  # the size of the noise is measured
        d = root @ rng.standard_normal(3)
        found.append(hausman_test(d, unweighted / scale, between / scale, nu).p)
    assert abs(np.mean(np.array(found) < 0.5) - 0.5) < 0.08
    assert abs(np.mean(np.array(found) < 0.1) - 0.1) < 0.05


def test_units_of_parameters_do_not_matter():
    unweighted = np.array([[4.0, 1.0], [1.0, 3.0]])
    between = unweighted - np.eye(2)
    d, units = np.array([1.0, -2.0]), np.array([1e6, 1e-4])
    both = np.outer(units, units)
    one = hausman_test(d, unweighted, between, 50.0)
    other = hausman_test(d * units, unweighted * both, between * both, 50.0)
    np.testing.assert_allclose(one.p, other.p, rtol=1e-9)
    np.testing.assert_allclose(one.difference, other.difference, rtol=1e-9)


def test_there_is_no_test_where_the_weights_do_not_matter():
    assert hausman_test(np.ones(2), np.eye(2), 0.001 * np.eye(2), 50.0) is None


def test_directions_in_which_the_weights_do_not_matter_are_not_compared():
    found = hausman_test(np.array([0.0, 100.0]), np.diag([2.0, 1.0]), np.diag([1.0, 0.0]), 50.0)
    assert found.directions == 1
    assert found.p > 0.99
