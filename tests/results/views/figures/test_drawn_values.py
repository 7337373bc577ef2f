"""What is drawn are the numbers of slow NumPy."""

import numpy as np
import pytest

from homodyne_dask.fitting.predict import predict
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.rate_forms import rate
from homodyne_dask.results.data.block_means import (
    MAX_BLOCKS_PER_SIDE,
    BlockGrid,
    bin_map,
    block_grid,
    block_means,
    model_means,
    representative,
)
from homodyne_dask.results.data.fit_view import FitView, decay_times
from homodyne_dask.results.views.figures.lag_cuts import ages, cut_of
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import limits
from tests import synthetic
from tests.results.made_results import FLOW, result_for, scan_of
from tests.synthetic import CREEP

GRIDS = {
    "one frame a block": (1, 0, 60),
    "blocks of three, a rest left out": (3, 0, 20),
    "blocks that begin inside a tile": (4, 37, 40),
    "blocks across tiles": (7, 3, 27),
}


@pytest.mark.parametrize("case", GRIDS)
def test_block_means_are_the_means_of_all_known_pairs(case):
    merged, first, blocks = GRIDS[case]
    n = 200
    rng = np.random.default_rng(3)
    c2 = rng.normal(1.0, 0.1, (2, n, n)).astype(np.float32)
    c2[rng.random(c2.shape) < 0.2] = np.nan
    c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    use = rng.random(n) > 0.05
    padded = np.pad(c2[1], (0, 56), constant_values=np.nan)

    def read(i, j):
        return padded[64 * i : 64 * (i + 1), 64 * j : 64 * (j + 1)]

    grid = BlockGrid(1, first, merged, blocks)
    mean, count = block_means(read, 64, grid, use)
    known = np.where(use[:, None] & use, c2[1].astype(float), np.nan)
    for i in range(blocks):
        for j in range(blocks):
            block = known[np.ix_(grid.frames[i], grid.frames[j])]
            there = block[np.isfinite(block)]
            assert count[i, j] == len(there)
            enough = len(there) >= merged**2 / 2
            wanted = there.mean() if enough and len(there) else np.nan
            np.testing.assert_allclose(mean[i, j], wanted, rtol=1e-12)


def test_a_long_scan_is_read_from_block_means_of_the_store(tmp_path):
    n = 2 * MAX_BLOCKS_PER_SIDE * 4 + 9
    rng = np.random.default_rng(5)
    scan = scan_of(tmp_path, CREEP, n=64)
    time = np.arange(n) * 0.1
    c2 = rng.normal(1.0, 0.1, (1, n, n)).astype(np.float32)
    held = synthetic.Scans(
        CREEP, time, scan.q[:1], scan.phi[:1], *([np.ones(1)] * 2), np.ones((1, n)), np.triu(c2, 1),
        "physical",
    )  # fmt: skip
    held.c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    scan = synthetic.store(held, tmp_path, "long")
    grid = block_grid(scan)
    assert (grid.level, grid.merged, grid.blocks) == (4, 3, 171)
    view = bin_map(FitView(result_for(scan, CREEP), scan), 0)
    block = c2[0][np.ix_(grid.frames[5], grid.frames[90])]
    np.testing.assert_allclose(view.data[90, 5], block.mean(), rtol=1e-6)
    model = FitView(result_for(scan, CREEP), scan).model
    np.testing.assert_allclose(
        view.residual[5, 90], (block.mean() - 1 - 0.2 * model_means(scan, model, grid, 0)[5, 90])
        / (1 / grid.side), rtol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_the_model_of_a_picture_is_the_mean_of_the_prediction(convention, flowing):
    model = FitView(result_for(flowing, FLOW, convention=convention), flowing).model
    full = predict(
        LAMINAR_FLOW, FLOW, flowing.time, q=flowing.q[1], phi=flowing.phi[1], gap=synthetic.GAP,
        convention=convention,
    )[0]  # fmt: skip
    means = model_means(flowing, model, BlockGrid(1, 4, 5, 11), 1)
    slow = full[4:59, 4:59].reshape(11, 5, 11, 5).mean(axis=(1, 3))
    np.testing.assert_allclose(means, slow, rtol=1e-10, atol=1e-12)


def test_maps_are_symmetric_with_a_blank_diagonal_and_residuals_in_units_of_sigma(tmp_path):
    scan = scan_of(tmp_path, FLOW, dead=[30])
    view = bin_map(FitView(result_for(scan, FLOW), scan), 0)
    for part in (view.data, view.model, view.residual):
        np.testing.assert_array_equal(part, part.T)
        assert np.isnan(np.diag(part)).all()
    assert np.isnan(view.data[30]).all()
    _, residual = view.upper
    assert len(residual) == 59 * 58 // 2
    assert residual.std() == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(view.edges, np.arange(61) * 0.1, rtol=1e-12)


def test_the_decay_time_is_where_f_falls_to_one_over_e(tmp_path):
    theta = np.array([20000.0, 0.0, 0.0])
    scan = scan_of(tmp_path, theta, n=100)
    times = decay_times(FitView(result_for(scan, theta), scan).model, scan)
    np.testing.assert_allclose(times, 1 / (synthetic.Q**2 * 20000), rtol=1e-3)
    slow = decay_times(FitView(result_for(scan, theta * 0.01), scan).model, scan)
    assert np.isnan(slow).all()


def test_cuts_have_the_error_of_a_mean_of_their_pairs(tmp_path):
    scan = scan_of(tmp_path, CREEP, n=128, phi=[0.0])
    model, read = FitView(result_for(scan, CREEP), scan).model, scan.cuts()
    shown = ages(read, 0, scan)
    assert 3 <= len(shown) <= 5
    pulls = []
    for age in shown:
        cut = cut_of(scan, read, 0, age)
        assert (np.diff(cut.lag) > 0).all()
        wanted = 1 + 0.2 * model.shape(np.array([0]), cut.t1, cut.t1 + cut.lag)[0]
        pulls.append((cut.c2 - wanted) / cut.stderr)
    assert np.concatenate(pulls).std() == pytest.approx(1, abs=0.3)


def test_bins_shown_lie_along_the_flow_across_it_and_between(tmp_path):
    phi = np.arange(-90.0, 90.0, 10.0)
    scan = scan_of(tmp_path, FLOW, n=8, phi=phi)
    shown = representative(result_for(scan, FLOW), scan)
    assert (scan.phi[shown] - FLOW[6] + 90) % 180 - 90 == pytest.approx([-3, 27, 57, 87])
    static = representative(result_for(scan, CREEP), scan)
    assert scan.phi[static].tolist() == [-90, -30, 20, 80]


def test_the_band_of_a_nearly_constant_curve_is_seen():
    axis = FitFigure().subplots()
    limits(axis, np.array([8000.0, 8020.0]), np.array([7840.0, 8170.0]))
    low, high = axis.get_ylim()
    assert 7700 < low < 7840
    assert 8170 < high < 8300


def test_a_rate_at_its_floor_has_no_gradient():
    value, gradient = rate(np.array([0.05, 1.0, 30.0]), np.array([1.0, -1.0, -2.0]), 1e-10)
    assert value[2] == 1e-10
    assert (gradient[:, 2] == 0).all()
