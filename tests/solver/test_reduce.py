"""Contrast and offset eliminated, with bounds and priors, against scipy and the dense joint problem."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import scaling_of, scaling_prior
from tests import reference
from tests.solver.dense_problem import (
    ALL_MODES,
    MODES,
    TIGHT_TOLERANCE,
    DenseProblem,
    scaling_at,
    series,
    without_bins,
)
from tests.synthetic import (
    CREEP,
    FLOW,
    angles,
    evaluator,
    fit_here,
    measured,
    solve,
    solve_robust,
    store,
    with_outliers,
    without_some,
)

CHOSEN = search(STATIC.parameters, bounds={"D_offset": (-1e6, 1e6)})
BOUNDS = {"contrast": {"bounds": (0.21, 0.28)}, "offset": {"bounds": (0.995, 1.015)}}
PRIORS = {"contrast": {"prior": (0.23, 1e-3)}, "offset": {"prior": (1.005, 1e-4)}}
BOTH = {name: BOUNDS[name] | PRIORS[name] for name in BOUNDS}


@pytest.fixture(scope="module")
def scans():
    return measured(
        CREEP, 40, angles(4), contrast=[0.2, 0.25, 0.3, 0.22], offset=[1, 1.01, 1.02, 0.99],
        sigma=0.003,
    )  # fmt: skip


def restrained(scans, mode, given):
    return scaling_of(mode, scans.phi, prior=scaling_prior(**given))


def scipys(scans, mode, loss, given):
    limits, prior = None, []
    if "bounds" in given["contrast"]:
        both = [given[name]["bounds"] for name in ("offset", "contrast")]
        limits = np.array(both).T - [1, 0]
    if "prior" in given["contrast"]:
        parts = (*given["offset"]["prior"], 1.0), (*given["contrast"]["prior"], 0.0)
        prior = [
            (b, part, mean - shift, sd)
            for b in range(len(scans.q) if mode == "individual" else 1)
            for part, (mean, sd, shift) in enumerate(parts)
        ]
    beta = np.tile([0.005, 0.24], (len(scans.q), 1))
    columns = series(scans.phi, mode)
    return reference.robust_fit(
        CREEP, scans.dense(), columns, beta, loss, 1.345, limits=limits, prior=prior
    )


@pytest.mark.long
@pytest.mark.parametrize("loss", ["linear", "huber"])
@pytest.mark.parametrize("given", [BOUNDS, PRIORS, BOTH], ids=["bounds", "priors", "both"])
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_the_optimum_is_scipys(scans, mode, given, loss):
    if mode == "shared":  # of all bins alike, and again beyond the bounds
        scans = measured(CREEP, 40, angles(4), contrast=0.3, offset=0.99, sigma=0.003)
    scans = with_outliers(scans) if loss == "huber" else scans
    scaling = restrained(scans, mode, given)
    if loss == "linear":
        last = solve(evaluator(scans), CHOSEN, CREEP * 1.02, scaling, TIGHT_TOLERANCE)[-1]
    else:
        evaluate = evaluator(scans, scans.problem(loss=loss, loss_scale=1.345))
        last = solve_robust(evaluate, CHOSEN, CREEP * 1.02, scaling, TIGHT_TOLERANCE)[-1]
    theta, offset, contrast, cost = scipys(scans, mode, loss, given)
    assert last.outcome is Outcome.CONVERGED
    assert last.reduced.chisqr / 2 == pytest.approx(cost, rel=1e-9)
    away = last.theta - theta
    assert np.sqrt(away @ last.reduced.hessian @ away) < 1e-4
    np.testing.assert_allclose(last.reduced.offset, offset, atol=1e-8)
    np.testing.assert_allclose(last.reduced.contrast, contrast, atol=1e-7)
    assert last.reduced.at_bound.any() == ("bounds" in given["contrast"])


@pytest.mark.parametrize(
    "given",
    [
        {"contrast": {"bounds": (0.05, 0.1)}, "offset": {"bounds": (1.2, 1.3)}},
        {"contrast": {"prior": (0.05, 1e-8)}, "offset": {"prior": (1.2, 1e-8)}},
    ],
    ids=["bounds", "priors"],
)
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_what_is_pressed_or_known_for_certain_is_as_good_as_fixed(scans, mode, given):
    gram = evaluator(scans)(CREEP)
    found = reduce(gram, restrained(scans, mode, given))
    fixed = reduce(gram, scaling_of("fixed", scans.phi, contrast=0.05, offset=1.2))
    np.testing.assert_allclose(found.contrast, 0.05, rtol=1e-6)
    np.testing.assert_allclose(found.offset, 1.2, rtol=1e-6)
    assert found.chisqr == pytest.approx(fixed.chisqr, rel=1e-5)
    np.testing.assert_allclose(found.hessian, fixed.hessian, rtol=1e-4)
    errors = [
        uncertainty(STATIC.names, joint_equations(each, np.ones(3, bool)), np.arange(4))
        for each in (found, fixed)
    ]
    np.testing.assert_allclose(errors[0].naive, errors[1].naive, rtol=1e-3)
    if "bounds" in given["contrast"]:
        assert found.linear == 0
        assert np.isnan(errors[0].scaling_naive).all()
    else:
        assert (errors[0].scaling_naive < 1.1e-8).all()
    blocks = [joint_equations(of, np.ones(3, bool)).blocks.sum(0)[:3, :3] for of in (found, fixed)]
    np.testing.assert_allclose(*blocks, rtol=1e-4)


def test_a_bin_without_decay_has_the_contrast_that_is_known_beforehand(scans):
    fast = measured(CREEP, 40, angles(2), q=[0.0054, 5.0], contrast=0.25, sigma=0.003)
    found = reduce(evaluator(fast)(CREEP), restrained(fast, "individual", PRIORS))
    assert found.contrast[1] == pytest.approx(0.23)
    assert not found.undetermined.any()
    assert found.finite


def test_a_fit_says_what_stands_at_a_bound(scans, tmp_path):
    scan = store(scans, tmp_path)
    result = fit_here(
        scan, hd.STATIC, contrast={"bounds": (0.21, 0.28)}, initial={"D_offset": 1000.0}
    )
    (bound,) = result.findings.of("scaling-at-bound")
    assert (bound.about, bound.numbers) == (("contrast",), {"bins": 2, "total": 4})
    held = np.isnan(result.scaling["contrast_stderr_naive"].values)
    assert held.tolist() == [True, False, True, False]
    assert result.diagnosis.scalings is None
    result.to_json(tmp_path / "result.json")


REFUSED = [
    ("a series", {"scaling": "fourier1", "contrast": {"prior": (0.2, 0.1)}}, "do not apply to"),
    ("fixed", {"scaling": "fixed", "offset": {"bounds": (0.9, 1.1)}}, "to scaling 'fixed'"),
    ("empty bounds", {"contrast": {"bounds": (0.3, 0.2)}}, "0.3 is not below 0.2"),
    ("no deviation", {"contrast": {"prior": (0.3, 0.0)}}, "positive standard deviation"),
    ("one number", {"offset": {"prior": 1.0}}, "offset = {'prior': 1.0} cannot be used"),
]


@pytest.mark.parametrize(("word", "given", "says"), REFUSED, ids=[w for w, *_ in REFUSED])
def test_what_makes_no_sense_is_refused(scans, tmp_path, word, given, says):
    with pytest.raises(OptionError, match=says):
        hd.fit(store(scans, tmp_path), hd.STATIC, **given)


CREEPING = np.array([20000.0, -0.4, 100.0])
TRUTHS = [("static", CREEPING), ("flow", FLOW)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "truth"), TRUTHS, ids=[w for w, _ in TRUTHS])
def test_the_reduced_problem_is_the_schur_complement_of_the_joint_one(
    mode, convention, word, truth
):
    phi = (-70.0, -35.0, -10.0, 10.0, 25.0, 60.0)
    scans = measured(
        truth, 40, phi, contrast=[0.1, 0.2, 0.3, 0.15, 0.2, 0.25],
        offset=[1.0, 1.1, 0.98, 1.02, 1.05, 1.01], convention=convention,
    )  # fmt: skip
    scans = without_some(scans)
    theta = truth * 1.15 + 1e-5
    found = reduce(evaluator(scans)(theta), scaling_at(phi, mode))
    dense = DenseProblem(scans, theta, mode)
    p = len(theta)
    assert found.chisqr == pytest.approx(dense.chisqr, rel=1e-11)
    assert found.linear == (np.linalg.matrix_rank(dense.Z) if dense.Z.size else 0)
    np.testing.assert_allclose(found.contrast, dense.contrast, rtol=1e-9)
    np.testing.assert_allclose(found.offset, dense.offset, rtol=1e-10)
    H, g = dense.projected.T @ dense.projected, dense.J.T @ dense.residual
    size = np.sqrt(np.einsum("np,np->p", dense.J, dense.J))
    scale, small = np.outer(size, size), 1e-9 * np.sqrt(dense.chisqr)
    np.testing.assert_allclose(found.hessian / scale, H / scale, atol=1e-10)
    np.testing.assert_allclose(found.gradient / size, g / size, atol=small)
    by_bin = zip(dense.by_bin(dense.projected), dense.by_bin(dense.residual), strict=True)
    for b, (D, r) in enumerate(by_bin):
        # a bin's own score is not orthogonal to [1, f] when they are shared
        np.testing.assert_allclose(found.bin_gradient[b] / size, D.T @ r / size, atol=small)
        np.testing.assert_allclose(found.bin_hessian[b] / scale, D.T @ D / scale, atol=1e-10)
        assert found.chisqr_per_bin[b] == pytest.approx(r @ r, rel=1e-11)
    covariance = np.linalg.inv(found.hessian / scale) / scale
    error = np.sqrt(np.diag(dense.covariance)[:p])
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), error, rtol=1e-6)


UNDETERMINED = [("f constant: too small a q", 1e-9), ("f gone: too large a q", 5.0)]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("word", "q"), UNDETERMINED, ids=[w for w, _ in UNDETERMINED])
def test_a_bin_without_decay_adds_its_offset_only_chisqr_and_nothing_else(word, q):
    scans = measured(FLOW, 40, (0.0, 40.0, 80.0), q=[0.0054, 0.0054, q])
    found, without = (
        reduce(evaluator(some)(FLOW), "individual") for some in (scans, without_bins(scans, [2]))
    )
    y = scans.c2[2][np.triu_indices(40, 1)].astype(float)
    assert found.undetermined.tolist() == [False, False, True]
    assert found.contrast[2] == 0
    assert found.offset[2] == pytest.approx(y.mean(), rel=1e-12)
    assert found.chisqr_per_bin[2] == pytest.approx(((y - y.mean()) ** 2).sum() / 0.02**2, rel=1e-9)
    np.testing.assert_allclose(found.hessian, without.hessian, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, without.gradient, rtol=1e-12)
    assert found.linear == without.linear + 1
    assert found.finite


@pytest.mark.long
def test_a_bin_without_pairs_is_absent():
    scans = measured(FLOW, 40, (0.0, 40.0, 80.0))
    scans.c2[1] = np.nan
    for mode in MODES:
        found = reduce(evaluator(scans)(FLOW), mode)
        without = reduce(evaluator(without_bins(scans, [1]))(FLOW), mode)
        assert np.isnan(found.contrast[1])
        assert np.isnan(found.offset[1])
        assert not found.undetermined[1]
        assert (found.ndata, found.linear) == (without.ndata, without.linear)
        assert found.chisqr == pytest.approx(without.chisqr, rel=1e-13)
        np.testing.assert_allclose(found.hessian, without.hessian, rtol=1e-12)


def test_bins_without_any_pair_at_all_give_zero_and_no_warning():
    found = reduce(Gram(np.zeros((3, 10, 10)), np.zeros(3, np.int64)), "individual")
    assert (found.chisqr, found.ndata, found.linear) == (0, 0, 0)
    assert not found.hessian.any()
    assert np.isnan(found.contrast).all()


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("at", [(0, 0), (1, 1), (2, 2), (1, 2), (5, 5), (2, 6)])
def test_sums_that_are_not_finite_stay_so(mode, value, at):
    scans = measured(FLOW, 30, (0.0, 40.0))
    gram = evaluator(scans)(FLOW)
    gram.moments[1][at] = gram.moments[1][at[::-1]] = value
    assert not reduce(gram, scaling_at(scans.phi, mode)).finite


def test_degrees_of_freedom_count_pairs_less_what_is_fitted():
    scans = measured(FLOW, 30, (0.0, 40.0, 80.0))
    gram = evaluator(scans)(FLOW)
    pairs = 3 * 30 * 29 // 2
    for mode, linear in (("individual", 6), ("shared", 2)):
        found = reduce(gram, mode)
        assert found.ndata == pairs
        assert found.variance(7) == pytest.approx(found.chisqr / (pairs - 7 - linear))


WRONG = [
    ("individuell", {}, "did you mean 'individual'"),
    ("shared", {"contrast": 0.2}, "use scaling 'fixed'"),
    ("fixed", {"contrast": 0.2}, "needs offset"),
    ("fixed", {"contrast": [0.1, 0.2], "offset": 1.0}, "give one number, or 3"),
]


@pytest.mark.parametrize(("mode", "given", "sentence"), WRONG)
def test_a_mode_and_its_values_are_checked(mode, given, sentence):
    with pytest.raises(OptionError, match=sentence):
        scaling_of(mode, np.zeros(3), **given)
