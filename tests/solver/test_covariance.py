"""Error bars and influence of bins and modes against dense formulas, every column and pair written out."""

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.cluster_robust import cr3
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.influence import compare_scalings, leave_one_out, left_out_clusters
from homodyne_dask.solver.normal_equations import deviation, joint_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from tests.solver.dense_problem import (
    ALL_MODES,
    DenseProblem,
    cluster_sums,
    clustered_rows,
    scaling_at,
)
from tests.synthetic import (
    CREEP,
    STRONG_FLOW,
    angles,
    evaluator,
    fit_here,
    measured,
    solve,
    store,
    without_some,
)


def inverse_where_known(M):
    values, vectors = np.linalg.eigh(M)
    keep = values > 1e-9
    return vectors[:, keep] / values[keep] @ vectors[:, keep].T


def clubsandwich(dense: DenseProblem, clusters, p):
    X = np.concatenate([dense.J, dense.Z], axis=1)
    size = np.sqrt((X**2).sum(0))
    X = X / size
    B = np.linalg.pinv(X.T @ X, rcond=1e-13, hermitian=True)
    off = np.eye(len(X)) - X @ B @ X.T
    owner = np.asarray(clusters)[dense.owner]
    V, vectors = np.zeros_like(B), []
    for cluster in np.unique(owner):
        at = np.flatnonzero(owner == cluster)
        A = inverse_where_known(off[np.ix_(at, at)])
        g = X[at].T @ A @ dense.residual[at]
        V += np.outer(g, g)
        vectors.append(off[:, at] @ A @ X[at] @ B)
    dof = []
    for n in range(p):
        S = np.array([v[:, n] for v in vectors])
        form = S @ S.T
        dof.append(np.trace(form) ** 2 / (form**2).sum())
    V = B @ V @ B / np.outer(size, size)
    return (1 - 1 / len(vectors)) * V, np.array(dof)


def assert_covariance(found, everything, atol):
    wanted = everything[: len(found), : len(found)]
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    np.testing.assert_allclose(found / scale, wanted / scale, atol=atol)


def assert_scaling_errors(found, dense: DenseProblem, covariance, p):
    t, m = dense.series, dense.series.shape[1]
    parts = covariance[p : p + m, p : p + m], covariance[p + m :, p + m :]
    wanted = np.sqrt(np.stack([np.einsum("km,mn,kn->k", t, V, t) for V in parts], axis=1))
    np.testing.assert_allclose(found, wanted if m else np.full_like(wanted, np.nan), rtol=1e-4)


def at_optimum(theta, bins=10, n=12, mode="individual", seed=0):
    phi = angles(bins)
    scans = measured(theta, n, phi, sigma=0.004, contrast=np.linspace(0.2, 0.4, bins), seed=seed)
    scans = without_some(scans, 0.1)
    reduced = reduce(evaluator(scans)(theta), scaling_at(phi, mode))
    return scans, reduced, DenseProblem(scans, theta, mode)


def errors_at_optimum(theta, mode, clusters):
    _, reduced, dense = at_optimum(theta, len(clusters), mode=mode)
    names = (STATIC if len(theta) == 3 else LAMINAR_FLOW).names
    return uncertainty(names, joint_equations(reduced, np.ones(len(theta), bool)), clusters), dense


EVERY = [("each bin its own", np.arange(10)), ("pairs of bins", np.arange(20) // 2)]


@pytest.mark.long
@pytest.mark.parametrize(("word", "clusters"), EVERY, ids=[w for w, _ in EVERY])
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("theta", [CREEP, STRONG_FLOW], ids=["static", "flow"])
def test_cr3_and_its_degrees_of_freedom_are_those_of_the_dense_formulas(
    word, clusters, theta, mode
):
    found, dense = errors_at_optimum(theta, mode, clusters)
    everything, dof = clubsandwich(dense, clusters, len(theta))
    assert_covariance(found.robust, everything, atol=1e-5)
    np.testing.assert_allclose(found.dof, dof, rtol=1e-4)
    if mode != "individual":  # there no other bin knows of a bin's own noise
        assert_scaling_errors(found.scaling_robust, dense, everything, len(theta))


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("theta", [CREEP, STRONG_FLOW], ids=["static", "flow"])
def test_naive_errors_are_the_inverse_of_the_joint_normal_matrix(mode, theta):
    found, dense = errors_at_optimum(theta, mode, np.arange(10))
    assert_covariance(found.naive, dense.covariance, atol=1e-6)
    assert_scaling_errors(found.scaling_naive, dense, dense.covariance, len(theta))


def test_what_follows_from_a_parameter_at_a_bound_has_no_error_and_the_rest_keep_theirs():
    _, reduced, _ = at_optimum(STRONG_FLOW)
    names, clusters = LAMINAR_FLOW.names, np.arange(10)
    at_bound = np.array(names) == "D_offset"
    found = uncertainty(names, joint_equations(reduced, ~at_bound), clusters, at_bound)
    plain = uncertainty(names, joint_equations(reduced, ~at_bound), clusters)
    size = np.sqrt(np.diag(reduced.hessian))
    inverse = np.linalg.inv(reduced.hessian / np.outer(size, size))
    correlation = inverse[:, 2] / np.sqrt(np.diag(inverse) * inverse[2, 2])
    withheld = (np.abs(correlation) > np.sqrt(0.5)) & ~at_bound
    assert set(np.array(names)[withheld]) == {"D0", "alpha"}
    assert found.withheld.tolist() == withheld.tolist()
    known = ~at_bound & ~withheld
    for some, every in ((found.naive, plain.naive), (found.robust, plain.robust)):
        assert np.isfinite(np.diag(some)).tolist() == known.tolist()
        np.testing.assert_array_equal(some[np.ix_(known, known)], every[np.ix_(known, known)])
    assert np.isfinite(found.dof).tolist() == known.tolist()


def test_errors_are_given_at_a_bound_as_beside_it(tmp_path):
    scan = store(measured(CREEP, 40, angles(9), sigma=0.01), tmp_path)
    free = fit_here(scan, STATIC).parameters
    value, error = (float(free[of].sel(param="D_offset")) for of in ("value", "stderr"))
    found = fit_here(scan, STATIC, bounds={"D_offset": (value + error / 2, 1e5)})
    assert found.parameters["at_bound"].values.tolist() == [False, False, True]
    ratio = np.sqrt(np.diag(found.covariance)) / free["stderr"].values
    assert ((ratio > 0.5) & (ratio < 2)).all(), ratio
    (bound,) = found.findings.of("at-bound")
    assert bound.about == ("D_offset",)
    assert bound.numbers["conditional"] == []
    (limits,) = found.findings.of("limits-only")
    low, high, unit = limits.numbers["limits"]["D_offset"]
    assert low is None
    assert high > value
    assert unit == "Å²/s"


def test_with_fewer_than_eight_clusters_there_is_no_robust_error():
    _, reduced, _ = at_optimum(STRONG_FLOW)
    for clusters, some in ((np.arange(10) % 7, False), (np.arange(10) % 8, True)):
        found = uncertainty(
            LAMINAR_FLOW.names, joint_equations(reduced, np.ones(7, bool)), clusters
        )
        assert (found.robust is not None) is some
        assert found.naive is not None
    scans = measured(STRONG_FLOW, 12, angles(10), sigma=0.004)
    scans.c2[:3] = np.nan  # bins without pairs are no clusters
    reduced = reduce(evaluator(scans)(STRONG_FLOW), "individual")
    assert (
        uncertainty(
            LAMINAR_FLOW.names, joint_equations(reduced, np.ones(7, bool)), np.arange(10)
        ).robust
        is None
    )


def test_directions_are_the_eigenvectors_of_the_hessian_of_unit_diagonal():
    _, reduced, _ = at_optimum(STRONG_FLOW)
    moved = np.array([True, True, False, True, True, True, True])
    found = uncertainty(LAMINAR_FLOW.names, joint_equations(reduced, moved), np.arange(10))
    H = reduced.hessian / np.sqrt(np.outer(*[np.diag(reduced.hessian)] * 2))
    H = np.where(np.outer(moved, moved), H, 0)
    assert (np.diff(found.eigenvalues) > 0).all()
    assert not found.directions[:, 2].any()
    for value, vector in zip(found.eigenvalues, found.directions, strict=True):
        np.testing.assert_allclose(H @ vector, value * vector, atol=1e-12)


FRIEDEL = [
    ("none opposite", [0, 10, 20, 30], [0, 1, 2, 3]),
    ("opposite", [0, 90, 180, 270], [0, 1, 0, 1]),
    ("opposite within half the spacing", [0, 20, 183, 201], [0, 1, 0, 1]),
    ("opposite across 360", [-175, 4, 90], [0, 0, 2]),
    ("not quite opposite", [0, 20, 195], [0, 1, 2]),
]


@pytest.mark.parametrize(("word", "phi", "wanted"), FRIEDEL, ids=[w for w, *_ in FRIEDEL])
def test_opposite_bins_of_a_ring_are_one_cluster(word, phi, wanted):
    phi = np.array(phi, float)
    assert friedel_clusters(np.full(len(phi), 0.005), phi).tolist() == wanted
    assert friedel_clusters(np.full(len(phi), np.nan), phi).tolist() == wanted


def test_q_of_a_ring_may_differ_by_rounding():
    phi = np.array([0, 90, 180.0])
    for q, wanted in ((0.005 * (1 + 3e-7), [0, 1, 0]), (0.006, [0, 1, 2])):
        assert friedel_clusters(np.array([0.005, 0.006, q]), phi).tolist() == wanted


def test_a_variance_that_rounding_leaves_below_zero_is_not_known():
    assert deviation(np.array([4.0, -1e-20])) == pytest.approx([2.0, np.nan], nan_ok=True)


def test_the_covariance_is_that_of_the_jackknife_over_clusters():
    X, y, owner = clustered_rows(9)
    covariance, _ = cr3(*cluster_sums(X, y, owner))
    whole = np.linalg.lstsq(X, y)[0]
    apart = [np.linalg.lstsq(X[owner != k], y[owner != k])[0] - whole for k in range(9)]
    np.testing.assert_allclose(covariance, 8 / 9 * sum(np.outer(d, d) for d in apart), rtol=1e-9)


def test_a_combination_has_the_degrees_of_freedom_of_the_same_one_as_a_parameter():
    X, y, owner = clustered_rows(9)
    weights = np.array([0.3, -1.0, 2.0])
    other = np.linalg.inv(np.stack([weights, [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    _, each = cr3(*cluster_sums(X @ other, y, owner))
    _, found = cr3(*cluster_sums(X, y, owner), combinations=weights[None])
    np.testing.assert_allclose(found, each[:1], rtol=1e-9)
    _, parts = cr3(*cluster_sums(X, y, owner))
    assert abs(found[0] / parts - 1).min() > 0.01


def test_what_strongly_correlated_parameters_determine_has_the_error_it_has_alone():
    """Their sum; rounding left ten times its variance, and no degrees of freedom of some parameters."""
    inverse, scores, blocks = cluster_sums(*clustered_rows(9))
    to = np.array([[1.0, 1.0, 0.0], [0.0, 1e-5, 0.0], [0.0, 0.0, 1.0]])  # X @ to: two columns alike
    back = np.linalg.inv(to)
    weights = np.array([1.0, 1.0, 0.0])
    alone = np.eye(3)[:1]
    wanted, dof = cr3(inverse, scores, blocks, combinations=alone)
    rows = to.T @ blocks @ to
    found, found_dof = cr3(back @ inverse @ back.T, scores @ to, rows, combinations=weights[None])
    np.testing.assert_allclose(weights @ found @ weights, wanted[0, 0], rtol=1e-3)
    np.testing.assert_allclose(found_dof, dof, rtol=1e-3)


def test_a_cluster_that_says_nothing_is_none():
    X, y, owner = clustered_rows(9)
    inverse, scores, blocks = cluster_sums(X, y, owner)
    more = np.concatenate([scores, np.zeros((1, 3))]), np.concatenate([blocks, np.zeros((1, 3, 3))])
    for found, wanted in zip(cr3(inverse, *more), cr3(inverse, scores, blocks), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def one_of_ten(q_of_others, **options):
    q = np.full(10, q_of_others)
    q[0] = 0.0054
    return measured(CREEP, 30, angles(10), q=q, sigma=0.004, seed=1, **options)


@pytest.mark.parametrize("q_of_others", [1e-9, 5.0])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_what_one_bin_determines_has_no_robust_error(mode, q_of_others):
    scans = one_of_ten(q_of_others, contrast=0.21, offset=1.03)
    reduced = reduce(evaluator(scans)(CREEP), scaling_at(scans.phi, mode))
    found = uncertainty(STATIC.names, joint_equations(reduced, np.ones(3, bool)), np.arange(10))
    assert (np.diag(found.naive) > 0).all()
    assert np.isnan(found.dof).all()
    if mode == "individual":  # the others are no clusters
        assert found.robust is None
    else:
        assert np.isnan(found.robust).all()
        assert found.of_few(STATIC.names) == list(STATIC.names)


def test_a_parameter_of_one_cluster_has_no_error_and_the_others_keep_theirs():
    """Their covariance is that of the regression without the cluster, whose residuals are all fitted."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(10), 6)
    X, noise = rng.standard_normal((60, 3)), rng.standard_normal(60)
    X[owner > 0, 1] = 0.0
    X[owner == 0, 0] = X[owner == 0, 2] = 0.0

    def of(some, columns):
        return cr3(*cluster_sums(X[np.ix_(some, columns)], noise[some], owner[some]))

    covariance, dof = of(owner >= 0, [0, 1, 2])
    without, dof_without = of(owner > 0, [0, 2])
    assert np.isnan(covariance[1]).all()
    assert np.isnan(dof[1])
    wanted = without * (9 / 10) / (8 / 9)  # of ten clusters instead of nine
    np.testing.assert_allclose(covariance[np.ix_([0, 2], [0, 2])], wanted, rtol=1e-9)
    np.testing.assert_allclose(dof[[0, 2]], dof_without, rtol=1e-9)


NEAR = 1 + 0.002


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("theta", [CREEP, STRONG_FLOW], ids=["static", "flow"])
def test_leaving_out_a_bin_is_a_step_of_the_joint_problem_without_its_rows(mode, theta):
    phi, p = angles(9), len(theta)
    scans = measured(theta, 14, phi, sigma=0.01, contrast=np.linspace(0.2, 0.4, 9))
    dense = DenseProblem(scans, theta * NEAR, mode)
    reduced = reduce(evaluator(scans)(theta * NEAR), scaling_at(phi, mode))
    found = leave_one_out(joint_equations(reduced, np.ones(p, bool)))
    X = np.concatenate([dense.J, dense.Z], axis=1)
    size = np.sqrt((X**2).sum(0))
    for b in range(9):
        rest = dense.owner != b
        step = np.linalg.lstsq(X[rest] / size, dense.residual[rest], rcond=1e-13)[0] / size
        np.testing.assert_allclose(found[b] * size[:p], step[:p] * size[:p], rtol=1e-5, atol=1e-6)


def test_the_penalty_is_what_parameters_move_by_when_a_bin_is_left_out():
    """tr(HV) with the covariance V of the jackknife; for white noise about the number of parameters."""
    reduced = fitted(measured(CREEP, 40, angles(9), sigma=0.01), "individual").reduced
    joint = joint_equations(reduced, np.ones(3, bool))
    found = left_out_clusters(joint, np.arange(9))
    change = leave_one_out(joint)
    moved = np.einsum("ka,ab,kb->", change, reduced.hessian, change)
    assert found.penalty == pytest.approx(8 / 9 * moved, rel=1e-6)
    assert 0.5 < found.penalty < 15
    pair = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0])
    both = left_out_clusters(joint, pair)
    assert both.left_out_chisqr[0] == pytest.approx(both.of_bin[0] + both.of_bin[8])
    assert (both.ndata.sum(), both.chisqr.sum()) == (reduced.ndata, pytest.approx(reduced.chisqr))
    assert list(both.first) == list(range(8))


def fitted(scans, mode):
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


def test_an_error_that_rests_on_one_bin_is_left_out():
    scans = measured(STRONG_FLOW, 30, angles(10), sigma=0.004, contrast=[0.4] + [0.002] * 9)
    reduced = reduce(evaluator(scans)(STRONG_FLOW), "individual")
    found = uncertainty(
        LAMINAR_FLOW.names, joint_equations(reduced, np.ones(7, bool)), np.arange(10)
    )
    assert (found.dof[:3] < 2).all()
    assert found.of_few(LAMINAR_FLOW.names)[:3] == ["D0", "alpha", "D_offset"]
    left = found.without_few()
    assert left.robust is None
    assert np.isnan(left.dof).all()
