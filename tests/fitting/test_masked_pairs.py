"""Fits of scans in which pairs of frames are unknown: bands of lags, blocks, single ones."""

import numpy as np
import pytest

import homodyne_dask as hd
from tests.synthetic import angles, measured, store

FRAMES = 80
TRUTH = np.array([2e4, -0.2, 0.0])
FIRST, SECOND = np.triu_indices(FRAMES, 1)
LAG = SECOND - FIRST
MASKS = {
    "lags below 10": LAG < 10,
    "even lags": LAG % 2 == 0,
    "one lag": LAG == 7,
    "a block": (FIRST < 30) & (SECOND >= 45) & (SECOND < 70),
    "long lags at late ages": (LAG > 20) & (FIRST > 40),
}


def masked(folder, mask, sigma=0.01):
    scans = measured(TRUTH, FRAMES, angles(6), sigma=sigma)
    scans.c2[:, FIRST[mask], SECOND[mask]] = np.nan
    return store(scans, folder)


def rate(result):
    """J over that of the truth at a third of the record, and its standard error."""
    rates = result.rates.isel(t=len(result.rates["t"]) // 3)
    truth = TRUTH[0] * float(rates["t"]) ** TRUTH[1]
    return float(rates["J"]) / truth, float(rates["J_stderr"]) / truth


@pytest.mark.parametrize("weighting", ["pairs", "speckle"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_right_model_is_found_right_whatever_pairs_are_unknown(mask, weighting, tmp_path):
    scan = masked(tmp_path, MASKS[mask])
    result = hd.fit(scan, "static", fixed={"D_offset": 0.0}, weighting=weighting)
    value, error = rate(result)
    assert result.converged
    assert not result.misfit, result.verdict
    assert abs(value - 1) < 3 * error
    assert error < 0.013  # 0.004 with all pairs, 0.011 without lags below 10


def test_unknown_pairs_of_short_lags_give_the_errors_of_a_smallest_lag(tmp_path):
    scan = masked(tmp_path, LAG < 20, sigma=0.03)
    unknown, left_out = (
        rate(hd.fit(scan, "static", fixed={"D_offset": 0.0}, min_lag=lag)) for lag in (1, 20)
    )
    assert unknown[0] == pytest.approx(left_out[0], rel=1e-4)
    assert unknown[1] == pytest.approx(left_out[1], rel=0.1)


def test_scattered_frames_that_are_excluded_leave_the_errors_known(tmp_path):
    scan = store(measured(TRUTH, 150, angles(4), sigma=0.02), tmp_path)
    frames = [(first, first + 1) for first in range(7, 150, 12)]
    whole, without = (
        hd.fit(of, "static", fixed={"D_offset": 0.0})
        for of in (scan, scan.select(exclude={"frames": frames}))
    )
    stderr = [of.parameters["stderr"].values[:2] for of in (whole, without)]
    assert (stderr[1] / stderr[0] < 1.4).all()
    assert not without.misfit
