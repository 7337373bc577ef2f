"""A loss against outliers: the optimum is scipy's, wherever the pairs are and whoever sums them."""

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from tests import reference
from tests.solver.dense_problem import (
    ALL_MODES,
    GIVEN,
    TIGHT_TOLERANCE,
    robust_evaluator,
    scaling_at,
    series,
)
from tests.synthetic import (
    CREEP,
    STRONG_FLOW,
    angles,
    evaluator,
    measured,
    solve,
    solve_robust,
    with_outliers,
    without_some,
)

LOSSES = [("huber", 1.345), ("soft_l1", 1.0), ("cauchy", 2.0)]
FAST = np.array([2e6, -0.3, 0, 2e-3, 0.2, 0, 5])
"""f is gone after a few frames."""


@pytest.fixture(scope="module")
def creep():
    return with_outliers(measured(CREEP, 40, angles(4), **GIVEN, sigma=0.003))


@pytest.fixture(scope="module")
def flow():
    return with_outliers(measured(STRONG_FLOW, 30, angles(4), **GIVEN, sigma=0.001))


CASES = [(mode, *LOSSES[0]) for mode in ALL_MODES]
CASES += [(mode, *loss) for loss in LOSSES[1:] for mode in ("individual", "shared")]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("mode", "loss", "scale"), CASES)
def test_the_optimum_is_scipys(creep, mode, loss, scale):
    """All contrasts and offsets are free as the mode has them."""
    chosen = search(creep.model.parameters, bounds={"D_offset": (-1e6, 1e6)})
    evaluate, scaling = robust_evaluator(creep, loss, scale), scaling_at(creep.phi, mode)
    last = solve_robust(evaluate, chosen, CREEP * 1.02, scaling, TIGHT_TOLERANCE)[-1]
    start = (GIVEN["offset"] - 1, GIVEN["contrast"]) if mode == "fixed" else (0.0, 0.2)
    theta, offset, contrast, cost = reference.robust_fit(
        CREEP, creep.dense(), series(creep.phi, mode), np.tile(start, (4, 1)), loss, scale
    )
    assert last.outcome is Outcome.CONVERGED
    assert last.reduced.chisqr / 2 == pytest.approx(cost, rel=1e-10)
    away = last.theta - theta
    assert np.sqrt(away @ last.reduced.hessian @ away) < 1e-6
    np.testing.assert_allclose(last.reduced.offset, offset, rtol=1e-8)
    np.testing.assert_allclose(last.reduced.contrast, contrast, rtol=1e-6)


GRAMS = [(CREEP, *loss) for loss in LOSSES] + [(STRONG_FLOW, *LOSSES[0]), (FAST, *LOSSES[0])]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("truth", "loss", "scale"), GRAMS)
def test_the_gram_is_that_of_the_dense_weights(truth, loss, scale):
    """Cut small, so that nothing is left of f in some blocks; their residuals count all the same."""
    scans = without_some(with_outliers(measured(truth, 90, (-40.0, 3.0, 30.0, 80.0), sigma=0.01)))
    linear_params = np.array([[0.02, 0.18], [-0.01, 0.23], [0.0, 0.2], [0.1, -0.1]])
    gram = robust_evaluator(scans, loss, scale, min_lag=2)(truth, linear_params)
    for b, part in enumerate(scans.dense()):
        with np.errstate(over="ignore", invalid="ignore"):  # below the diagonal
            moments, cost, pairs = reference.robust_gram(
                truth, linear_params[b], part, 2, loss, scale
            )
        size = np.sqrt(np.diag(moments))
        size = np.where(size > 0, size, 1.0)
        assert (np.abs(gram.moments[b] - moments) <= 1e-10 * np.outer(size, size)).all()
        assert gram.loss[b, 0] == pytest.approx(cost, rel=1e-12)
        assert gram.pairs[b] == pairs


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_gradient_is_that_of_the_cost_at_fixed_contrast_and_offset(flow, mode):
    """Where contrast and offset rest, so that the reduced gradient is the plain one."""
    scaling = scaling_at(flow.phi, mode)
    evaluate = robust_evaluator(flow)
    theta = STRONG_FLOW * 1.01
    linear_params = reduce(evaluate(theta), scaling).linear_params
    for _ in range(25):
        here = reduce(evaluate(theta, linear_params), scaling, linear_params=linear_params)
        linear_params = here.linear_params + here.linear_step
    for p in range(7):
        step = 1e-3 / np.sqrt(here.hessian[p, p]) * np.eye(7)[p]
        at, rest = (theta + step, theta - step), here.linear_params
        up, down = (reduce(evaluate(x, rest), scaling, linear_params=rest).chisqr for x in at)
        slope = -(up - down) / 4e-3 * np.sqrt(here.hessian[p, p])
        assert here.gradient[p] == pytest.approx(
            slope, rel=1e-4, abs=1e-3 * here.hessian[p, p] ** 0.5
        )


@pytest.mark.long
def test_a_loss_that_takes_no_pair_for_an_outlier_is_the_sum_of_squares(flow):
    chosen, plain = search(LAMINAR_FLOW.parameters), evaluator(flow, side=32)
    squares = solve(plain, chosen, STRONG_FLOW, options=TIGHT_TOLERANCE)[-1]
    evaluate, scaling = robust_evaluator(flow, scale=1e4), scaling_at(flow.phi, "individual")
    loss = solve_robust(evaluate, chosen, STRONG_FLOW, scaling, TIGHT_TOLERANCE)[-1]
    assert loss.reduced.chisqr == pytest.approx(squares.reduced.chisqr, rel=1e-12)
    away = loss.theta - squares.theta
    assert np.sqrt(away @ squares.reduced.hessian @ away) < 1e-6
    assert loss.reduced.variance(7) == pytest.approx(squares.reduced.variance(7), rel=1e-9)
    np.testing.assert_allclose(loss.reduced.hessian, squares.reduced.hessian, rtol=1e-6)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("sigma", "at_most"), [(0.01, 60), (0.003, 100)])
@pytest.mark.parametrize(("loss", "scale"), LOSSES)
def test_one_contrast_for_bins_of_many_ends_and_says_how(loss, scale, sigma, at_most):
    """Most pairs are outliers then: a step closes a share of the way, however near the end is."""
    phi, contrast = angles(4), [0.1, 0.17, 0.23, 0.3]
    scans = with_outliers(measured(CREEP, 40, phi, contrast=contrast, sigma=sigma))
    chosen, scaling = search(STATIC.parameters), scaling_at(phi, "shared")
    last = solve_robust(robust_evaluator(scans, loss, scale), chosen, CREEP, scaling)[-1]
    assert last.passes <= at_most
    assert last.outcome is (Outcome.CONVERGED if last.passes < 100 else Outcome.MAX_PASSES)


def errors_over_repeats(share, loss, scale):
    """(values, naive errors) of D0, alpha, offset and contrast over repeats of the noise."""
    chosen = search(STATIC.parameters, fixed={"D_offset": 0.0})
    scaling = scaling_at(np.zeros(4), "individual")
    truth, values, errors = np.array([20000.0, -0.4, 0.0]), [], []
    for seed in range(120):
        scans = with_outliers(measured(truth, 24, np.zeros(4), seed=seed), share, 100 + seed)
        last = solve_robust(robust_evaluator(scans, loss, scale), chosen, truth, scaling)[-1]
        known = uncertainty(STATIC.names, joint_equations(last.reduced, chosen.free), np.arange(4))
        values.append([*last.theta[:2], *last.reduced.linear_params[0]])
        errors.append([*np.sqrt(np.diag(known.naive)[:2]), *known.scaling_naive[0]])
    return np.array(values), np.array(errors)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("share", "loss", "scale"),
    [(0.0, "huber", 1.0), pytest.param(0.05, "cauchy", 2.0, marks=pytest.mark.slow)],
)
def test_naive_errors_under_a_loss_are_the_spread_of_repeats(share, loss, scale):
    values, errors = errors_over_repeats(share, loss, scale)
    ratio = np.sqrt((errors**2).mean(0)) / values.std(0)
    assert (np.abs(ratio - 1) < 0.25).all(), ratio  # the spread of 120 is known to 6.5 %
