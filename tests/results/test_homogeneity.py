"""Agreement of values with errors, and the exponent of a power law, against scipy and numpy."""

import numpy as np
import pytest
from scipy import stats

from homodyne_dask.results.homogeneity import homogeneity_test, power_law_of_q


def test_agreement_with_few_degrees_of_freedom_is_that_of_welch():
    rng = np.random.default_rng(3)
    groups = [rng.normal(0.3 * n, 1 + n, 4 + n) for n in range(4)]
    value, stderr, dof = np.array(
        [(g.mean(), g.std(ddof=1) / len(g) ** 0.5, len(g) - 1) for g in groups]
    ).T
    wanted = stats.f_oneway(*groups, equal_var=False)
    assert homogeneity_test(value, stderr, dof).p == pytest.approx(wanted.pvalue, rel=1e-9)
    certain = homogeneity_test(value, stderr, np.full(4, np.nan))
    mean = np.average(value, weights=stderr**-2.0)
    assert certain.mean == pytest.approx(mean)
    assert certain.p == pytest.approx(stats.chi2.sf((((value - mean) / stderr) ** 2).sum(), 3))


def test_nothing_is_said_of_fewer_than_two_known_values():
    nan = np.nan
    assert homogeneity_test(np.array([1.0, 2.0]), np.array([0.1, nan]), np.full(2, nan)) is None
    assert power_law_of_q(np.array([1.0, 2.0]), np.array([1.0, -1.0]), np.ones(2)) is None
    assert power_law_of_q(np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.ones(2)) is None


def test_the_exponent_is_that_of_a_weighted_line_through_logarithms():
    x, y = np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 3.0, 7.0, 9.0])
    stderr = np.array([0.1, 0.2, 0.3, 0.1])
    slope, covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / stderr, cov="unscaled")
    found = power_law_of_q(x, y, stderr)
    assert found.exponent == pytest.approx(slope[0])
    assert found.stderr == pytest.approx(covariance[0, 0] ** 0.5)
