"""What is drawn are the numbers of slow NumPy."""

import numpy as np
import pytest

from homodyne_dask.fitting.predict import predict
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.rate_forms import rate
from homodyne_dask.results.data.cuts import ages, cut_at_age
from homodyne_dask.results.data.fit_view import FitView, decay_times, representative
from homodyne_dask.results.data.window_means import CellAxis, Window
from homodyne_dask.results.views.figures.maps import lags_and_residuals
from homodyne_dask.results.views.figures.panels import FitFigure, limits
from tests import synthetic
from tests.results.made_results import FLOW, result_for, scan_of
from tests.synthetic import CREEP


def test_a_long_scan_is_read_from_block_means_of_the_store(tmp_path):
    n, side = 2057, 8
    rng = np.random.default_rng(5)
    scan = scan_of(tmp_path, CREEP, n=64)
    held = synthetic.Scans(
        CREEP, np.arange(n) * 0.1, scan.q[:1], scan.phi[:1], *([np.ones(1)] * 2), np.ones((1, n)),
        np.triu(rng.normal(1.0, 0.1, (1, n, n)).astype(np.float32), 1), "physical",
    )  # fmt: skip
    c2 = held.c2[0].copy()
    held.c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    view = FitView(result_for(scan := synthetic.store(held, tmp_path, "long"), CREEP), scan)
    axis, drawn = view.axis, view.map_of(0)
    assert (axis.level, axis.merged, axis.number) == (4, 2, 257)
    block = c2[side * 5 : side * 6, side * 90 : side * 91]
    np.testing.assert_allclose(drawn.data[90, 5], block.mean(), rtol=1e-6)
    residual = (block.mean() - drawn.model[5, 90]) * side
    np.testing.assert_allclose(drawn.residual[5, 90], residual, rtol=1e-5)


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_the_model_of_a_picture_is_the_mean_of_the_prediction(convention, flowing):
    view = FitView(result_for(flowing, FLOW, convention=convention), flowing)
    full = predict(
        LAMINAR_FLOW, FLOW, flowing.time, q=flowing.q[1], phi=flowing.phi[1], gap=synthetic.GAP,
        convention=convention,
    )[0]  # fmt: skip
    rows, columns = CellAxis(1, 3, 0, 4), CellAxis(1, 3, 8, 10)
    means, _ = view.model_of(1, Window(rows, columns, *[np.ones((4, 10))] * 3))
    slow = full[:12, 24:54].reshape(4, 3, 10, 3).mean(axis=(1, 3))
    np.testing.assert_allclose((means - 1.0) / 0.2, slow, rtol=1e-10, atol=1e-12)


def test_maps_are_symmetric_with_a_blank_diagonal_and_residuals_in_units_of_sigma(tmp_path):
    scan = scan_of(tmp_path, FLOW, dead=[30])
    view = FitView(result_for(scan, FLOW), scan)
    drawn = view.map_of(0)
    for part in (drawn.data, drawn.model, drawn.residual):
        np.testing.assert_allclose(part, part.T, rtol=1e-12)
        assert np.isnan(np.diag(part)).all()
    assert np.isnan(drawn.data[30]).all()
    lag, residual = lags_and_residuals(view)
    assert len(lag) == len(residual) == 3 * 59 * 58 // 2
    assert lag.min() > 0
    assert residual.std() == pytest.approx(1, abs=0.05)


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
        cut = cut_at_age(scan, read, 0, age)
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
