"""Contrast and offset eliminated, against the dense joint problem in which they are free."""

import numpy as np
import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import scaling_of
from tests.solver.dense_problem import (
    ALL_MODES,
    MODES,
    DenseProblem,
    scaling_at,
    without_bins,
)
from tests.synthetic import FLOW, evaluator, measured, without_some

STATIC = np.array([20000.0, -0.4, 100.0])
CASES = [("static", STATIC), ("flow", FLOW)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "truth"), CASES, ids=[w for w, _ in CASES])
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
