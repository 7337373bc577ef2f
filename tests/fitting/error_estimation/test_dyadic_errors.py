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
from tests.solver.test_covariance import CREEP, STRONG
from tests.solver.test_reduce import Dense, scaling_at
from tests.synthetic import angles, evaluator, fit_here, measured, store, without_some


def by_blocks(scans, theta, length):
    """Moments of 1, y - 1 and f, by pairs of blocks of frames: the kernel on data with the rest unknown."""
    n = len(scans.time)
    number = -(-n // length)
    evaluate, kept = evaluator(scans), scans.c2.copy()
    found = None
    for a in range(number):
        for b in range(a, number):
            here = np.zeros((n, n), bool)
            here[a * length : (a + 1) * length, b * length : (b + 1) * length] = True
            only = type(scans)(**{**vars(scans), "c2": np.where(here, kept, np.float32(np.nan))})
            gram = evaluator(only)(theta).moments
            if found is None:
                found = np.zeros((len(gram), number, number, 3, gram.shape[2]))
            found[:, a, b] = gram[:, :3]
    assert np.allclose(found.sum((1, 2)), evaluate(theta).moments[:, :3], rtol=1e-9)
    return found


@pytest.mark.parametrize("mode", ["individual", "shared", "fourier1", "fixed"])
@pytest.mark.parametrize("theta", [CREEP, STRONG], ids=["static", "flow"])
def test_the_meat_is_the_sum_over_pairs_of_pairs_that_share_a_block(mode, theta):
    length, phi = 3, angles(5)
    scans = without_some(measured(theta, 20, phi, sigma=0.01, contrast=0.3))
    clusters = np.array([0, 1, 2, 1, 4])
    reduced = reduce(evaluator(scans)(theta), scaling_at(phi, mode))
    p = len(theta)
    found = dyadic(reduced, by_blocks(scans, theta, length), np.ones(p, bool), clusters)
    dense = Dense(scans, theta, mode)
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
    np.testing.assert_allclose(
        found * np.outer(size / scale, size / scale), wanted / np.outer(scale, scale), atol=1e-6
    )


def test_a_fit_of_few_bins_gives_a_lower_bound_and_no_robust_error(tmp_path):
    scans = measured(STRONG, 80, angles(5), sigma=0.01, contrast=0.3)
    result = fit_here(store(scans, tmp_path), LAMINAR_FLOW, gap="200 um")
    assert result.covariance is None
    lower = np.sqrt(np.diag(result.covariance_lower))
    naive = np.sqrt(np.diag(result.covariance_naive))
    assert ((lower > 0.2 * naive) & (lower < 3 * naive)).all()  # white noise: about the same


@pytest.mark.slow
def test_where_the_lower_bound_is_below_the_naive_error_everything_counts_in_the_naive_one(
    tmp_path,
):
    scans = measured(CREEP, 40, np.zeros(3), sigma=0.01, seed=2)
    result = fit_here(store(scans, tmp_path), STATIC, profile=("D0",))
    lower = np.sqrt(np.diag(result.covariance_lower))
    naive = np.sqrt(np.diag(result.covariance_naive))
    assert (lower < 0.6 * naive).all()
    used = np.maximum(lower, naive)
    np.testing.assert_array_equal(result.error_used, used)
    point = result.profiles["D0"]
    steps = (point["value"].values - float(result.parameters["value"][0])) / used[0]
    np.testing.assert_allclose(steps, [-2, -1, 0, 1, 2], atol=1e-9)
    state = reduce(evaluator(scans)(result.parameters["value"].values), "individual")
    away = leave_one_out(state, np.ones(3, bool)) / used
    np.testing.assert_allclose(result.influence["change"], away, rtol=1e-4)
    own = result.scalings["change"].sel(mode="individual").values
    assert np.abs(own).max() < 1e-3
    shared = compare_scalings(
        state, scaling_at(scans.phi, "individual"), scans.phi, np.ones(3, bool)
    )
    moved = next(one.change for one in shared if one.mode == "shared") / used
    np.testing.assert_allclose(result.scalings["change"].sel(mode="shared"), moved, atol=1e-3)


def test_a_fit_of_enough_bins_needs_none(tmp_path):
    scans = measured(CREEP, 40, angles(9), sigma=0.01)
    assert fit_here(store(scans, tmp_path), STATIC).covariance_lower is None


def test_there_is_no_bound_where_the_data_determine_nothing():
    theta, moved = np.array([20000.0, 0.0, 500.0]), np.array([True, False, True])
    scans = measured(theta, 20, np.zeros(3))
    reduced = reduce(evaluator(scans)(theta), "individual")
    assert dyadic(reduced, by_blocks(scans, theta, 3), moved, np.arange(3)) is None


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
    assert result.covariance_lower is not None
    cut = replace(scans, time=scans.time[200:], c2=scans.c2[:, 200:, 200:])
    cut = replace(cut, sigma_row=scans.sigma_row[:, 200:])
    (tmp_path / "cut").mkdir()
    alone = fit_here(store(cut, tmp_path / "cut"), STATIC, fixed=fixed)
    lower = [of.covariance_lower.values[0, 0] for of in (result, alone)]
    assert lower[0] == pytest.approx(lower[1], rel=1e-6)
