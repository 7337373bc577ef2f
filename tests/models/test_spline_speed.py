"""Beats of a speed that follows no power law of time: splines, fitted from nothing to counted photons."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.models.parameters import Beat
from homodyne_dask.models.spline_basis import SplineForm
from tests import reference
from tests.beating_scans import DT, photographed
from tests.synthetic import store

FRAMES = 100
T = DT * np.arange(FRAMES)
SPLINE = hd.MODELS["beating_spline"]
TRUTH = {
    "D0_ref": 0.0, "alpha_ref": 0.0, "D0_sample": 3000.0, "alpha_sample": 0.0, "v0": 123.456, "v_beta": 0.0,
    "fraction": 0.5, "fraction_growth": 0.0, "phi0": 20.0,
}  # fmt: skip
WAVE = 400 * (1 + 0.6 * np.sin(2 * np.pi * T / T[-1]))
"""Å/s: fringes turn by up to 0.1 per frame."""


def speeds(theta):
    return [value for name, value in zip(SPLINE.names, theta, strict=True) if name[:2] == "v_"]


@pytest.mark.long
def test_splines_of_equal_speed_are_the_model_of_constant_speed():
    law = {"D0_sample": 3000.0, "alpha_sample": -0.2, "v0": 250.0, "v_beta": 0.0}
    law |= {"fraction": 0.4, "phi0": 10.0}
    splines = {name: value for name, value in law.items() if name not in ("v0", "v_beta")}
    splines |= {f"v_{n}": 250.0 for n in range(1, 7)}
    times = T + 0.5  # a power of the time is 0 at t = 0
    given = {"q": 0.01, "phi": 35.0}
    expected = hd.predict(
        "beating", law | {"D0_ref": 0, "alpha_ref": 0, "fraction_growth": 0}, times, **given
    )
    found = hd.predict(
        SPLINE, splines | {"D0_ref": 0, "alpha_ref": 0, "fraction_growth": 0}, times, **given
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_fringes_of_splines_turn_by_their_speed():
    theta = dict(zip(SPLINE.names, np.arange(1.0, 14.0), strict=True)) | {"phi0": 0.0}
    assert isinstance(SPLINE.beat, Beat)
    expected = (
        0.01 * SplineForm(6, T[1], T[-1]).basis(T[1:]).T @ speeds(theta.values()) / (2 * np.pi)
    )
    np.testing.assert_allclose(SPLINE.beat.turns(theta, T[1:], 0.01, 0.0), expected)


@pytest.mark.slow
def test_a_speed_that_rises_and_falls_is_found_from_nothing(tmp_path):
    scan = store(photographed(TRUTH, 4, FRAMES, way=reference.integral(WAVE, T)), tmp_path)
    result = hd.fit(scan, "beating_spline")
    assert result.converged
    found = SplineForm(6, 0.0, T[-1]).basis(T).T @ speeds(result.parameters["value"].values)
    assert np.sqrt(np.mean((found - WAVE) ** 2)) < 40
    assert float(result.parameters["value"].sel(param="phi0")) == pytest.approx(20, abs=2)
    assert not result.misfit
    assert hd.fit(scan, "beating").misfit  # no power law describes it
