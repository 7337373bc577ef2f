"""Gaussian priors of the parameters, against least squares with one row more for each."""

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import GaussianPriors, Search, gaussian_priors, search
from homodyne_dask.solver.cluster_robust import cr3
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.influence import leave_one_out, left_out_clusters
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.scaling_modes import scaling_of
from tests import reference
from tests.solver.dense_problem import (
    TIGHT_TOLERANCE,
    cluster_sums,
    clustered_rows,
    robust_evaluator,
    series,
    without_bins,
)
from tests.synthetic import CREEP, angles, evaluator, measured, solve, solve_robust, with_outliers

WIDE = {"D_offset": (-1e6, 1e6)}
PRIORS = {"D0": (21000, 150), "alpha": (-0.39, 0.002)}
ALL = np.ones(3, bool)


def known(given, bounds=WIDE) -> Search:
    chosen = search(STATIC.parameters, bounds=bounds)
    return search_with(chosen, gaussian_priors(given, chosen))


def search_with(chosen: Search, priors: GaussianPriors | None) -> Search:
    return Search(**(vars(chosen) | {"priors": priors}))


@pytest.fixture(scope="module")
def scans():
    return measured(CREEP, 40, angles(9), contrast=0.25, sigma=0.003)


def errors_of(state, clusters=9):
    return uncertainty(STATIC.names, joint_equations(state.reduced, ALL), np.arange(clusters))


SCALES = {"huber": 1.345, "soft_l1": 1.0, "cauchy": 2.0}
CASES = [(mode, "linear") for mode in ("individual", "shared", "fourier1", "fixed")]
CASES += [("individual", "huber")]
CASES += [
    pytest.param("individual", loss, marks=pytest.mark.slow) for loss in ("soft_l1", "cauchy")
]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("mode", "loss"), CASES)
def test_the_optimum_is_scipys_with_a_row_more_for_each_prior(mode, loss):
    scans = measured(CREEP, 16, angles(4), contrast=0.25, sigma=0.003)
    scans = scans if loss == "linear" else with_outliers(scans)
    more = {"contrast": 0.25, "offset": 1.0} if mode == "fixed" else {}
    chosen, scaling = known(PRIORS), scaling_of(mode, scans.phi, **more)
    if loss == "linear":
        last = solve(evaluator(scans), chosen, CREEP, scaling, TIGHT_TOLERANCE)[-1]
    else:
        evaluate = robust_evaluator(scans, loss, SCALES[loss])
        last = solve_robust(evaluate, chosen, CREEP, scaling, TIGHT_TOLERANCE)[-1]
    rows = [(0, *PRIORS["D0"]), (1, *PRIORS["alpha"])]
    start = np.tile([0.0, 0.25], (4, 1))
    columns, scale = series(scans.phi, mode), SCALES.get(loss, 1.0)
    theta, _, _, cost = reference.robust_fit(
        CREEP, scans.dense(), columns, start, loss, scale, of_theta=rows
    )
    away = last.theta - theta
    assert last.outcome is Outcome.CONVERGED
    assert np.sqrt(away @ last.reduced.hessian @ away) < 1e-6
    assert last.reduced.chisqr / 2 == pytest.approx(cost, rel=1e-9)
    assert last.reduced.ndata == int(last.reduced.count.sum()) + 2


@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_a_very_narrow_prior_fixes_its_parameter(scans, mode):
    narrow = known({"alpha": (-0.41, 1e-9)})
    last = solve(evaluator(scans), narrow, CREEP, mode)[-1]
    fixed = search(STATIC.parameters, bounds=WIDE, fixed={"alpha": -0.41})
    wanted = solve(evaluator(scans), fixed, [2e4, -0.41, 1e3], mode)[-1]
    assert last.outcome is wanted.outcome is Outcome.CONVERGED
    assert last.theta[1] == pytest.approx(-0.41, abs=1e-8)
    some = np.ix_([0, 2], [0, 2])
    moved = np.array([True, False, True])
    sure = uncertainty(STATIC.names, joint_equations(wanted.reduced, moved), np.arange(9))
    found = errors_of(last)
    away = (last.theta - wanted.theta)[[0, 2]]
    assert np.sqrt(away @ wanted.reduced.hessian[some] @ away) < 1e-3
    for name in ("naive", "robust"):
        np.testing.assert_allclose(getattr(found, name)[some], getattr(sure, name)[some], rtol=1e-3)
        assert np.sqrt(getattr(found, name)[1, 1]) == pytest.approx(1e-9, rel=1e-3)
    np.testing.assert_allclose(found.dof[[0, 2]], sure.dof[[0, 2]], rtol=1e-2)
    assert found.dof[1] == 1e4
    np.testing.assert_allclose(found.scaling_robust, sure.scaling_robust, rtol=1e-3)
    change = leave_one_out(joint_equations(last.reduced, ALL))
    expected = leave_one_out(joint_equations(wanted.reduced, moved))[:, [0, 2]]
    np.testing.assert_allclose(change[:, [0, 2]], expected, rtol=1e-2, atol=1e-2)
    assert np.abs(change[:, 1]).max() < 1e-7


def test_a_prior_determines_what_the_data_do_not():
    constant = measured([3e4, 0.0, 0.0], 40, angles(9), sigma=0.01)
    assert solve(evaluator(constant), known({}), [3e4, 0, 0])[-1].outcome is not Outcome.CONVERGED
    last = solve(evaluator(constant), known({"D_offset": (500, 200)}), [3e4, 0, 0])[-1]
    assert last.outcome is Outcome.CONVERGED
    found = errors_of(last)
    assert last.theta[2] == pytest.approx(500, abs=200)
    assert np.sqrt(found.robust[2, 2]) == pytest.approx(200, rel=0.05)
    assert found.dof[2] > 1000


def test_a_bin_is_left_out_with_the_priors_kept(scans):
    chosen = known(PRIORS)
    last = solve(evaluator(scans), chosen, CREEP, options=TIGHT_TOLERANCE)[-1]
    others = evaluator(without_bins(scans, [4]))
    rest = solve(others, chosen, last.theta, options=TIGHT_TOLERANCE)[-1]
    error = 1 / np.sqrt(np.diag(last.reduced.hessian))
    change = leave_one_out(joint_equations(last.reduced, ALL))[4]
    np.testing.assert_allclose(change / error, (rest.theta - last.theta) / error, atol=0.02)
    assert np.isfinite(
        left_out_clusters(joint_equations(last.reduced, ALL), np.arange(9)).of_bin
    ).all()


def test_the_jackknife_over_clusters_keeps_the_prior_and_adds_its_known_variance():
    X, y, owner = clustered_rows(9)
    weight = np.array([5.0, 0.0, 50.0])
    inverse, scores, blocks = cluster_sums(X, y, owner, weight)
    covariance, dof = cr3(inverse, scores, blocks, prior=np.diag(weight))
    each = [owner == k for k in range(9)]
    apart = [
        np.linalg.solve(X[~at].T @ X[~at] + np.diag(weight), X[~at].T @ y[~at]) - inverse @ X.T @ y
        for at in each
    ]
    data = 8 / 9 * sum(np.outer(d, d) for d in apart)
    np.testing.assert_allclose(covariance, data + inverse @ np.diag(weight) @ inverse, rtol=1e-9)
    assert (dof >= cr3(*cluster_sums(X, y, owner))[1] - 0.5).all()
    assert dof[2] > 20


def test_the_distance_of_angles_is_modulo_their_period():
    chosen = search(LAMINAR_FLOW.parameters)
    priors = gaussian_priors({"phi0": "175:2", "D0": "10:5"}, chosen)
    theta = np.array([20, 0, 0, 1e-3, 0, 0, -8.0])
    assert priors.deviation(theta).tolist() == [2, 0, 0, 0, 0, 0, -1.5]
    terms = search_with(chosen, priors).prior_terms(theta)
    assert terms.chisqr == 2**2 + 1.5**2
    np.testing.assert_allclose(terms.gradient, [-0.4, 0, 0, 0, 0, 0, 0.75])
    walls = search(LAMINAR_FLOW.parameters, bounds={"phi0": (-20, 20)})
    far = gaussian_priors({"phi0": (175, 2)}, walls)
    assert far.deviation(theta)[6] == -91.5
