"""What single bins and the scaling mode do to a result, against fits of dense residuals."""

import numpy as np
import pytest

from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.influence import compare_scalings, leave_one_out, left_out_clusters
from homodyne_dask.solver.reduce import reduce
from tests.solver.dense_problem import ALL_MODES, DenseProblem, scaling_at
from tests.synthetic import CREEP, STRONG_FLOW, angles, evaluator, measured, solve

NEAR = 1 + 0.002


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("theta", [CREEP, STRONG_FLOW], ids=["static", "flow"])
def test_leaving_out_a_bin_is_a_step_of_the_joint_problem_without_its_rows(mode, theta):
    phi, p = angles(9), len(theta)
    scans = measured(theta, 14, phi, sigma=0.01, contrast=np.linspace(0.2, 0.4, 9))
    dense = DenseProblem(scans, theta * NEAR, mode)
    reduced = reduce(evaluator(scans)(theta * NEAR), scaling_at(phi, mode))
    found = leave_one_out(reduced, np.ones(p, bool))
    X = np.concatenate([dense.J, dense.Z], axis=1)
    size = np.sqrt((X**2).sum(0))
    for b in range(9):
        rest = dense.owner != b
        step = np.linalg.lstsq(X[rest] / size, dense.residual[rest], rcond=1e-13)[0] / size
        np.testing.assert_allclose(found[b] * size[:p], step[:p] * size[:p], rtol=1e-5, atol=1e-6)


def test_a_bin_that_a_parameter_rests_on_cannot_be_left_out():
    scans = measured(CREEP, 30, (0.0, 40.0, 80.0), q=[0.0054, 1e-9, 1e-9], sigma=0.004)
    found = leave_one_out(reduce(evaluator(scans)(CREEP), "individual"), np.ones(3, bool))
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1:], found[1:2].repeat(2, axis=0), rtol=1e-6)


def test_the_penalty_is_what_parameters_move_by_when_a_bin_is_left_out():
    """tr(HV) with the covariance V of the jackknife; for white noise about the number of parameters."""
    reduced = fitted(measured(CREEP, 40, angles(9), sigma=0.01), "individual").reduced
    all_move = np.ones(3, bool)
    clusters = np.arange(9)
    found = left_out_clusters(reduced, all_move, clusters)
    change = leave_one_out(reduced, all_move)
    moved = np.einsum("ka,ab,kb->", change, reduced.hessian, change)
    assert found.penalty == pytest.approx(8 / 9 * moved, rel=1e-6)
    assert 0.5 < found.penalty < 15
    pair = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0])
    both = left_out_clusters(reduced, all_move, pair)
    assert both.left_out_chisqr[0] == pytest.approx(both.of_bin[0] + both.of_bin[8])
    assert (both.ndata.sum(), both.chisqr.sum()) == (reduced.ndata, pytest.approx(reduced.chisqr))
    assert list(both.first) == list(range(8))


def fitted(scans, mode):
    """The last state of a fit in a mode."""
    chosen = search(STATIC.parameters)
    return solve(evaluator(scans), chosen, scans.theta, scaling_at(scans.phi, mode))[-1]


def test_modes_are_compared_at_nearly_their_own_optima():
    phi = angles(9)
    contrast = 0.25 + 0.05 * np.cos(np.deg2rad(phi))
    scans = measured(CREEP, 40, phi, sigma=0.01, contrast=contrast)
    state = fitted(scans, "individual")
    found = compare_scalings(state.reduced, scaling_at(phi, "individual"), phi, np.ones(3, bool))
    by_mode = {one.mode: one for one in found}
    assert list(by_mode) == ["individual", "shared", "fourier1", "fourier2", "fourier3"]
    for mode in ("fourier1", "fourier2"):
        own = fitted(scans, mode)
        assert by_mode[mode].chisqr == pytest.approx(own.reduced.chisqr, abs=0.05)
        assert by_mode[mode].fitted == 3 + own.reduced.linear
        error = 1 / np.sqrt(np.diag(state.reduced.hessian))
        away = (state.theta + by_mode[mode].change - own.theta) / error
        assert np.abs(away).max() < 0.5
    assert min(found, key=lambda one: one.bic).mode == "fourier1"
    assert by_mode["shared"].aic > by_mode["individual"].aic > by_mode["fourier1"].aic


def test_a_series_with_a_column_for_each_angle_is_left_out_of_the_comparison():
    phi = angles(4)
    state = fitted(measured(CREEP, 40, phi, sigma=0.01), "shared")
    found = compare_scalings(state.reduced, scaling_at(phi, "shared"), phi, np.ones(3, bool))
    assert [one.mode for one in found] == ["individual", "shared", "fourier1"]


def test_correlated_pairs_do_not_speak_for_more_parameters():
    phi = angles(9)
    state = fitted(measured(CREEP, 40, phi, sigma=0.01), "individual")
    mode, both = scaling_at(phi, "individual"), np.ones(3, bool)
    for effect in (1.0, 10.0):
        found = compare_scalings(state.reduced, mode, phi, both, effect)
        by_mode = {one.mode: one for one in found}
        gained = by_mode["shared"].chisqr - by_mode["individual"].chisqr
        wanted = gained / state.reduced.variance(3) / effect - 2 * 16
        assert by_mode["shared"].aic - by_mode["individual"].aic == pytest.approx(wanted)
