"""Diffusion and shear at constant rates."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from tests.synthetic import GAP, angles, measured, store

TRUTH = {"D0": 2500.0, "gamma_dot_t0": 2e-3, "phi0": 5.0}
THETA = [2500.0, 0.0, 0.0, 2e-3, 0.0, 0.0, 5.0]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return store(measured(THETA, 100, angles(12), dt=0.2), tmp_path_factory.mktemp("couette"))


def test_it_is_laminar_flow_with_constant_rates():
    times, of = 0.2 * np.arange(20), {"q": 0.0054, "phi": 30.0, "gap": GAP}
    np.testing.assert_array_equal(
        hd.predict("couette", list(TRUTH.values()), times, **of),
        hd.predict("laminar_flow", THETA, times, **of),
    )


@pytest.mark.long
def test_a_fit_has_three_parameters_and_finds_them(scan):
    result = hd.fit(scan, "couette", gap="200 um")
    assert result.converged
    free = [name for name, one in result.params.items() if one.vary]
    assert free == list(TRUTH)
    for name, value in TRUTH.items():
        one = result.params[name]
        assert abs(one.value - value) < 5 * one.stderr


@pytest.mark.long
def test_it_needs_the_gap_and_is_compared_with_others(scan):
    with pytest.raises(OptionError, match="gap"):
        hd.fit(scan, "couette")
    found = hd.compare_models(scan, ["static", "couette"], gap="200 um")
    assert found.chosen == "couette"
