"""Fits of scans in which pairs of frames are unknown: bands of lags, blocks, single ones."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from tests.synthetic import angles, measured, store

FRAMES = 80
TRUTH = np.array([2e4, -0.2, 0.0])
FIRST, SECOND = np.triu_indices(FRAMES, 1)
LAG = SECOND - FIRST
LAG_OF_50 = np.abs(np.subtract.outer(np.arange(50), np.arange(50)))
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


QUICK = [("lags below 10", "pairs"), ("one lag", "pairs"), ("even lags", "speckle")]
CASES = [(mask, weighting) for mask in MASKS for weighting in ("pairs", "speckle")]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("mask", "weighting"),
    [pytest.param(*of, marks=[] if of in QUICK else pytest.mark.long) for of in CASES],
)
def test_a_right_model_is_found_right_whatever_pairs_are_unknown(mask, weighting, tmp_path):
    scan = masked(tmp_path, MASKS[mask])
    result = hd.fit(scan, "static", fixed={"D_offset": 0.0}, weighting=weighting)
    value, error = rate(result)
    assert result.converged
    assert not result.misfit, result.verdict
    assert abs(value - 1) < 3 * error
    assert error < 0.013  # 0.004 with all pairs, 0.011 without lags below 10


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("lag", [16, pytest.param(20, marks=pytest.mark.long)])
def test_unknown_pairs_of_short_lags_give_the_errors_of_a_smallest_lag(lag, tmp_path):
    """16 is an edge of stored cells: they hold all of their pairs or none."""
    scan = masked(tmp_path, lag > LAG, sigma=0.03)
    unknown, left_out = (
        rate(hd.fit(scan, "static", fixed={"D_offset": 0.0}, min_lag=lowest)) for lowest in (1, lag)
    )
    assert unknown[0] == pytest.approx(left_out[0], rel=1e-4)
    assert unknown[1] == pytest.approx(left_out[1], rel=0.1)


@pytest.mark.long
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


def test_scans_fitted_together_lose_the_same_pairs_each(tmp_path):
    """The pass for their averages is over the bins of all scans."""
    paths = []
    for n, D0 in enumerate((2e4, 5e4, 1e4)):
        scans = measured([D0, -0.2, 0.0], 50, angles(3), sigma=0.01, seed=n)
        scans.c2[:, (5, 6, 7)[n] > LAG_OF_50] = np.nan
        store(scans, tmp_path, f"s{n}")
        paths.append(tmp_path / f"s{n}.npz")
    together = ingest.ingest(paths, tmp_path / "all.zarr").store
    options = {"alpha": -0.2, "D_offset": 0.0}
    found = hd.fit_each(together, "static", over="scan", per_scan="D0", fixed=options)
    for entry, D0, path in zip(found.entries, (2e4, 5e4, 1e4), paths, strict=True):
        alone = hd.fit(path.with_suffix(".zarr"), "static", fixed=options).params["D0"]
        one = entry.result.params["D0"]
        assert abs(one.value - D0) < 4 * one.stderr
        assert one.stderr == pytest.approx(alone.stderr, rel=0.05)
