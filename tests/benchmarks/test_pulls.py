"""For white noise, fitted parameters scatter around the truth by their naive errors."""

import pytest

from tests.solver.test_covariance import pulls


@pytest.mark.slow
def test_pulls_of_two_hundred_seeds_are_normal():
    z = pulls(range(1000, 1200))
    print("mean", z.mean(0), "sd", z.std(0))
    assert (abs(z.mean(0)) < 0.25).all(), z.mean(0)
    assert ((z.std(0) > 0.85) & (z.std(0) < 1.15)).all(), z.std(0)
