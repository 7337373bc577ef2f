"""Dyadic-robust errors against scores of every pair of frames written out."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.fitting.error_estimation import estimate_errors as estimate
from homodyne_dask.fitting.error_estimation.dyadic_errors import dyadic, frame_scores
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.solver.influence import leave_one_out
from homodyne_dask.solver.information_criteria import compare_scalings
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.speckle import nearest_correlation
from tests.solver.dense_problem import DenseProblem, scaling_at
from tests.speckle_scans import RING
from tests.synthetic import (
    CREEP,
    STRONG_FLOW,
    angles,
    block_pair_moments,
    evaluator,
    fit_here,
    measured,
    store,
    without_some,
)


@pytest.mark.parametrize("mode", ["individual", "shared", "fourier1", "fixed"])
@pytest.mark.parametrize("theta", [CREEP, STRONG_FLOW], ids=["static", "flow"])
def test_the_meat_is_the_sum_over_pairs_of_pairs_that_share_a_block(mode, theta):
    length, phi = 3, angles(5)
    scans = without_some(measured(theta, 20, phi, sigma=0.01, contrast=0.3))
    clusters = np.array([0, 1, 2, 1, 4])
    reduced = reduce(evaluator(scans)(theta), scaling_at(phi, mode))
    p = len(theta)
    found = dyadic(reduced, block_pair_moments(scans, theta, length), np.ones(p, bool), clusters)
    dense = DenseProblem(scans, theta, mode)
    pairs = [np.argwhere(np.triu(np.isfinite(c2), 1)) for c2, *_ in scans.dense()]
    block = np.concatenate(pairs) // length
    size = np.sqrt((dense.projected**2).sum(0))
    D = dense.projected / size
    meat = np.zeros((p, p))
    for cluster in np.unique(clusters):
        of = clusters[dense.owner] == cluster
        s = D[of] * dense.residual[of, None]
        a, b = block[of].T
        shares = (a[:, None] == a) | (a[:, None] == b) | (b[:, None] == a) | (b[:, None] == b)
        meat += s.T @ (shares @ s)
    inverse = np.linalg.inv(D.T @ D)
    wanted = inverse @ meat @ inverse
    scale = np.sqrt(np.diag(wanted))
    correlation = found * np.outer(size / scale, size / scale)
    nearest, _ = nearest_correlation(wanted / np.outer(scale, scale))
    np.testing.assert_allclose(correlation, nearest, atol=1e-6)
    assert np.linalg.eigvalsh(correlation).min() > -1e-12


@pytest.mark.long
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_a_fit_of_few_bins_gives_a_lower_bound_and_no_robust_error(tmp_path):
    scans = measured(STRONG_FLOW, 80, angles(5), sigma=0.01, contrast=0.3)
    result = fit_here(store(scans, tmp_path), LAMINAR_FLOW, gap="200 um")
    assert result.covariance is None
    lower = np.sqrt(np.diag(result.errors.covariance_lower))
    naive = np.sqrt(np.diag(result.errors.covariance_naive))
    assert ((lower > 0.2 * naive) & (lower < 3 * naive)).all()  # white noise: about the same


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_of_one_angle_of_photons_the_lower_bound_is_a_covariance(tmp_path):
    """The sum over pairs of blocks has a correlation of -1.15 here."""
    scan = store(replace(RING, frames=40).scan(0), tmp_path)
    lower = fit_here(scan, STATIC, fixed={"D_offset": 0.0}).errors.covariance_lower
    assert lower is not None
    known = lower.values[:2, :2]
    size = np.sqrt(np.diag(known))
    assert np.linalg.eigvalsh(known / np.outer(size, size)).min() > -1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_where_the_lower_bound_is_below_the_naive_error_everything_counts_in_the_naive_one(
    tmp_path,
):
    scans = measured(CREEP, 40, np.zeros(3), sigma=0.01, seed=2)
    result = fit_here(store(scans, tmp_path), STATIC, profile=("D0",))
    lower = np.sqrt(np.diag(result.errors.covariance_lower))
    naive = np.sqrt(np.diag(result.errors.covariance_naive))
    assert (lower < 0.6 * naive).all()
    used = np.maximum(lower, naive)
    np.testing.assert_array_equal(result.error_used, used)
    point = result.errors.profiles["D0"]
    steps = (point["value"].values - float(result.parameters["value"][0])) / used[0]
    np.testing.assert_allclose(steps, [-2, -1, 0, 1, 2], atol=1e-9)
    state = reduce(evaluator(scans)(result.parameters["value"].values), "individual")
    away = leave_one_out(state, np.ones(3, bool)) / used
    np.testing.assert_allclose(result.diagnosis.influence["change"], away, rtol=1e-4)
    own = result.diagnosis.scalings["change"].sel(mode="individual").values
    assert np.abs(own).max() < 1e-3
    shared = compare_scalings(
        state, scaling_at(scans.phi, "individual"), scans.phi, np.ones(3, bool)
    )
    moved = next(one.change for one in shared if one.mode == "shared") / used
    np.testing.assert_allclose(
        result.diagnosis.scalings["change"].sel(mode="shared"), moved, atol=1e-3
    )


def test_a_fit_of_enough_bins_needs_none(tmp_path):
    scans = measured(CREEP, 40, angles(9), sigma=0.01)
    assert fit_here(store(scans, tmp_path), STATIC).errors.covariance_lower is None


def test_there_is_no_bound_where_the_data_determine_nothing():
    theta, moved = np.array([20000.0, 0.0, 500.0]), np.array([True, False, True])
    scans = measured(theta, 20, np.zeros(3))
    reduced = reduce(evaluator(scans)(theta), "individual")
    assert dyadic(reduced, block_pair_moments(scans, theta, 3), moved, np.arange(3)) is None


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_blocks_of_frames_are_those_of_the_window_alone(tmp_path, monkeypatch):
    """Else a short window of a long record takes memory for all pairs of short blocks of all of it."""
    seen = []

    def kept(*given):
        seen.append(frame_scores(*given))
        return seen[-1]

    monkeypatch.setattr(estimate, "frame_scores", kept)
    scans = measured((20000.0, 0.0, 0.0), 240, np.zeros(3), sigma=0.01)
    fixed = {"alpha": 0.0, "D_offset": 0.0}
    result = fit_here(store(scans, tmp_path).select(frames=(200, 240)), STATIC, fixed=fixed)
    assert seen[0].shape[1:] == (10, 10, 3, 6)
    assert result.errors.covariance_lower is not None
    cut = replace(scans, time=scans.time[200:], c2=scans.c2[:, 200:, 200:])
    cut = replace(cut, sigma_row=scans.sigma_row[:, 200:])
    (tmp_path / "cut").mkdir()
    alone = fit_here(store(cut, tmp_path / "cut"), STATIC, fixed=fixed)
    lower = [of.errors.covariance_lower.values[0, 0] for of in (result, alone)]
    assert lower[0] == pytest.approx(lower[1], rel=1e-6)
