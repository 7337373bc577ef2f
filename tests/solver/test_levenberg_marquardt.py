"""The optimum is that of a dense solver; every way a fit can end, its bounds, and sums of float32."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.levenberg_marquardt import Damping, Outcome, with_outcome
from homodyne_dask.solver.reduce import reduce
from tests import reference
from tests.solver.dense_problem import DenseProblem
from tests.synthetic import (
    CREEP,
    FLOW,
    angles,
    asked,
    evaluator,
    fit_here,
    measured,
    published_case,
    solve,
    store,
    without_some,
)

START = np.array([4000.0, -0.1, 50.0, 4e-4, 0.0, 2e-5, 0.0])
"""Where PHYSICS.md §5 starts."""
TIGHT = lm.Options(decrement=1e-7)
ANYWHERE = search(LAMINAR_FLOW.parameters)


def in_errors(found, wanted, reduced) -> float:
    away = found - wanted
    return float(np.sqrt(away @ reduced.hessian @ away))


@pytest.fixture(scope="module")
def published():
    scans = published_case()
    return scans, evaluator(scans, side=512)


@pytest.mark.long
def test_the_published_case_reaches_its_optimum_in_ten_passes(published):
    scans, evaluate = published
    states = solve(evaluate, ANYWHERE, START)
    last = states[-1]
    assert last.outcome is Outcome.CONVERGED
    assert last.passes <= 10
    assert last.passes == len(states)
    # how far the reference's own Newton step still goes, in standard errors
    H, g = np.zeros((7, 7)), np.zeros(7)
    for b, part in enumerate(scans.dense()):
        M, _ = reference.gram(last.theta, *part, convention="homodyne", exact_phi0=True)
        beta = np.linalg.solve(M[np.ix_([0, 2], [0, 2])], M[[0, 2], 1])
        assert last.reduced.contrast[b] == pytest.approx(beta[1], rel=1e-8)
        x = np.zeros(10)
        x[:3] = -beta[0], 1, -beta[1]
        d, z = slice(3, None), [0, 2]
        A, B = M[np.ix_(z, z)], M[z, d]
        H += beta[1] ** 2 * (M[d, d] - B.T @ np.linalg.solve(A, B))
        g += beta[1] * (M @ x)[d]
    size = np.sqrt(np.diag(H))
    left = g / size @ np.linalg.solve(H / np.outer(size, size), g / size)
    assert np.sqrt(left) < 1e-4
    error = np.sqrt(np.diag(np.linalg.inv(H / np.outer(size, size)))) / size
    assert (np.abs(last.theta - FLOW) < 4 * error).all()
    assert last.reduced.chisqr / last.reduced.ndata == pytest.approx(1, abs=0.01)


STRONG = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
OFF = np.array([1.1, 1.2, 0.8, 1.1, 0.9, 1.3, 1.4])
DENSE = [
    ("static", np.array([20000.0, -0.4, 1000.0]), OFF[:3], "physical", "individual"),
    ("static", np.array([20000.0, -0.4, 1000.0]), OFF[:3], "homodyne", "shared"),
    ("flow", STRONG, OFF, "physical", "individual"),
    ("flow", STRONG, OFF, "physical", "shared"),
    ("flow", STRONG, OFF, "homodyne", "individual"),
]


@pytest.mark.long
@pytest.mark.parametrize(("word", "truth", "off", "convention", "mode"), DENSE)
def test_the_optimum_is_the_dense_solvers(word, truth, off, convention, mode):
    scans = measured(truth, 36, angles(4), sigma=0.003, convention=convention, contrast=0.3)
    scans = without_some(scans)
    last = solve(evaluator(scans), search(scans.model.parameters), truth * off, mode, TIGHT)[-1]
    assert last.outcome is Outcome.CONVERGED
    theta, contrast, offset, chisqr = reference.dense_fit(
        truth * off, scans.dense(), mode, convention=convention
    )
    assert last.reduced.chisqr == pytest.approx(chisqr, rel=1e-11)
    # scipy stops where χ² changes by rounding, √(1e-16 χ²) of a standard error from the optimum
    assert in_errors(last.theta, theta, last.reduced) < 1e-5
    np.testing.assert_allclose(last.reduced.contrast, np.broadcast_to(contrast, 4), rtol=1e-6)
    np.testing.assert_allclose(last.reduced.offset, np.broadcast_to(offset, 4), rtol=1e-7)
    # where the gradient of the joint problem, written out, vanishes: 1e-8 of a standard error
    dense = DenseProblem(scans, solve_on(scans, last, mode), mode)
    size = np.sqrt((dense.projected**2).sum(0))
    assert (np.abs(dense.projected.T @ dense.residual) / size < 1e-8 * len(dense.owner)).all()


def solve_on(scans, state, mode):
    step = lm.next_trial(search(scans.model.parameters), replace(state, control=Damping(0.0)))
    return step.theta


def quiet(n=60, bins=7, theta=STRONG, **options):
    return measured(theta, n, angles(bins), sigma=0.003, contrast=0.3, **options)


@pytest.mark.long
def test_a_bound_holds_and_the_rest_is_the_optimum_there():
    scans = quiet()
    evaluate = evaluator(scans, side=128)
    held = search(LAMINAR_FLOW.parameters, bounds={"alpha": (-0.2, 2.0)})
    bound = solve(evaluate, held, STRONG + np.array([0, 0.2, 0, 0, 0, 0, 0]), options=TIGHT)[-1]
    fixed = search(LAMINAR_FLOW.parameters, fixed={"alpha": -0.2})
    there = solve(evaluate, fixed, STRONG + np.array([0, 0.1, 0, 0, 0, 0, 0]), options=TIGHT)[-1]
    assert bound.outcome is Outcome.CONVERGED
    assert bound.theta[1] == -0.2
    assert in_errors(bound.theta, there.theta, there.reduced) < 1e-5


def test_a_start_at_a_bound_can_leave_it():
    scans = quiet()
    held = search(LAMINAR_FLOW.parameters, bounds={"alpha": (-0.9, 0.0), "D0": (15000.0, 1e5)})
    first = STRONG * [0.75, 0, 1, 1, 1, 1, 1]
    last = solve(evaluator(scans, side=128), held, first)[-1]
    free = solve(evaluator(scans, side=128), held, STRONG)[-1]
    assert last.outcome is Outcome.CONVERGED
    assert in_errors(last.theta, free.theta, free.reduced) < 1e-3


@pytest.mark.parametrize(("true", "first"), [(88.0, -88.0), (-89.5, 85.0)])
def test_phi0_goes_round_the_corner(true, first):
    truth = np.array([*STRONG[:6], true])
    scans = quiet(bins=9, theta=truth)
    last = solve(evaluator(scans, side=128), ANYWHERE, np.array([*truth[:6], first]))[-1]
    assert last.outcome is Outcome.CONVERGED
    assert -90 <= last.theta[6] <= 90
    assert abs((last.theta[6] - true + 90) % 180 - 90) < 1


@pytest.mark.parametrize(("fixed", "contrast"), [({"alpha": 0.0}, 0.2), ({}, 0.0)])
def test_data_that_do_not_determine_a_parameter_end_singular(fixed, contrast):
    scans = measured([20000.0, 0.0, 500.0], 60, np.zeros(3), contrast=contrast, noise=contrast > 0)
    chosen = search(STATIC.parameters, fixed=fixed)
    last = solve(evaluator(scans), chosen, [15000.0, 0.0, 400.0])[-1]
    assert last.outcome is Outcome.SINGULAR
    if contrast:
        assert (last.theta[0] + last.theta[2]) == pytest.approx(20500, rel=0.03)


def test_a_start_that_is_no_number_ends_nonfinite():
    scans = measured(FLOW, 40, angles(3))
    gram = evaluator(scans)(FLOW)
    gram.moments[1, 2, 4] = np.nan
    states = solve(lambda theta: gram, ANYWHERE, FLOW)
    assert [s.outcome for s in states] == [Outcome.NONFINITE]


@pytest.mark.long
def test_a_trial_that_is_no_number_is_stepped_back_from():
    scans = measured(FLOW, 60, angles(7))
    evaluate, seen = evaluator(scans), []

    def sometimes(theta):
        gram = evaluate(theta)
        seen.append(theta)
        return gram._replace(moments=gram.moments * np.nan) if len(seen) == 2 else gram

    last = solve(sometimes, ANYWHERE, FLOW * 1.1)[-1]
    wanted = solve(evaluate, ANYWHERE, FLOW * 1.1)[-1]
    assert last.outcome is wanted.outcome is Outcome.CONVERGED
    assert in_errors(last.theta, wanted.theta, wanted.reduced) < 1e-3


@pytest.mark.parametrize("trust_region", [False, True])
def test_a_gradient_that_lies_ends_stalled_where_chisqr_was_lowest_and_so_when_resumed(
    trust_region,
):
    evaluate, options = (
        evaluator(measured(FLOW, 30, angles(3))),
        lm.Options(trust_region=trust_region),
    )

    def lying(trial):
        reduced = reduce(evaluate(trial.theta), "individual")
        return replace(reduced, gradient=-reduced.gradient)

    states = list(lm.iterate(ANYWHERE, lying, lm.Trial(FLOW * 1.05), options))
    last = states[-1]
    assert last.outcome is Outcome.STALLED
    assert last.reduced.chisqr == min(state.reduced.chisqr for state in states)
    saved = replace(last, outcome=Outcome.RUNNING, decrement=np.inf)
    restored = with_outcome(ANYWHERE, saved, options)
    assert (restored.outcome, restored.decrement) == (Outcome.STALLED, last.decrement)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_the_limit_of_passes_is_kept_and_the_lowest_point_returned(limit):
    scans = measured(FLOW, 60, angles(7))
    evaluate, chisqr = evaluator(scans), []

    def counted(theta):
        gram = evaluate(theta)
        chisqr.append(reduce(gram, "individual").chisqr)
        return gram

    last = solve(counted, ANYWHERE, START, options=lm.Options(max_passes=limit))[-1]
    assert last.outcome is Outcome.MAX_PASSES
    assert last.passes == len(chisqr) == limit
    assert last.reduced.chisqr == min(chisqr)


FAST = FLOW * [5, 1, 5, 5, 1, 5, 1]
PRECISE = [
    ("static", CREEP, np.zeros(5), 1e-3, "individual"),
    ("static", CREEP, np.zeros(5), 1e-4, "shared"),
    ("static", CREEP, np.zeros(5), 1e-5, "individual"),
    ("flow", FLOW, angles(5), 1e-3, "individual"),
    ("flow", FLOW, angles(5), 1e-4, "individual"),
    ("fast flow", FAST, angles(5), 1e-3, "individual"),
    ("fast flow", FAST, angles(5), 1e-4, "individual"),
]


def last_state(scans, precision, mode):
    problem = scans.problem(precision=precision)
    evaluate = evaluator(scans, problem)

    def reduced(trial):
        return reduce(evaluate(trial.theta), mode, problem.sum_rounding)

    start = lm.Trial(scans.theta * 1.02)
    *_, last = lm.iterate(asked(scans), reduced, start, lm.Options())
    return last


@pytest.mark.long
@pytest.mark.parametrize(("word", "theta", "phi", "sigma", "mode"), PRECISE)
def test_a_fit_of_precise_data_converges_in_float32_as_in_float64(word, theta, phi, sigma, mode):
    scans = measured(theta, 60, phi, sigma=sigma, seed=3)
    double, single = (last_state(scans, precision, mode) for precision in ("float64", "mixed"))
    assert double.outcome is single.outcome is Outcome.CONVERGED
    assert single.passes <= double.passes + 2
    away, known = single.theta - double.theta, single.reduced.decrement_rounding(1.0)
    assert np.sqrt(away @ double.reduced.hessian @ away) < 2 * known
    of_chisqr = abs(single.reduced.chisqr - double.reduced.chisqr)
    assert of_chisqr < single.reduced.rounding
    assert double.reduced.rounding < 1e-6 * single.reduced.rounding


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("truth", "phi"), [(FLOW, angles(5)), (CREEP, np.zeros(3))])
def test_rounding_along_the_flattest_direction_is_below_what_is_said(truth, phi):
    """It is not that of the sum along the direction, 2⁻²⁵ of the eigenvalue: larger terms cancel in it."""
    rng, larger = np.random.default_rng(1), []
    for seed in range(5):
        size = 10 ** rng.uniform(-0.5, 0.5, len(truth))
        size[1::3] = rng.uniform(-1, 2, len(truth[1::3]))  # exponents, and phi0
        scans = measured(truth * size, 60, phi, sigma=1e-3, seed=seed)
        one, other = (
            evaluator(scans, scans.problem(precision=p))(scans.theta) for p in ("float64", "mixed")
        )
        exact, rounded = reduce(one, "individual"), reduce(other, "individual", 2.0**-25)
        size = np.sqrt(np.diag(exact.hessian))
        values, vectors = np.linalg.eigh(exact.hessian / np.outer(size, size))
        flattest = vectors[:, 0]
        away = flattest / size @ (rounded.hessian - exact.hessian) @ (flattest / size)
        said = np.sqrt(rounded.relative_hessian_rounding) @ np.abs(flattest)
        assert abs(away) < said**2
        larger.append(abs(away) > 2.0**-25 * values[0])
    assert any(larger)


@pytest.mark.long
def test_what_rounding_hides_is_not_said_to_be_undetermined_by_the_data(tmp_path):
    truth = CREEP * [1, 0.075, 1]
    scan = store(measured(truth, 60, np.zeros(3), sigma=3e-5, seed=3), tmp_path)
    double, single = (fit_here(scan, STATIC, precision=p) for p in ("float64", "mixed"))
    assert double.outcome is Outcome.CONVERGED
    assert double.parameters["stderr_naive"].values[0] < 0.2 * CREEP[0]
    assert single.outcome is Outcome.SINGULAR
    (hidden,) = single.findings.of("hidden-by-rounding")
    assert (hidden.about, hidden.advice) == (("D0", "D_offset"), "--precision float64")
    assert not single.findings.of("undetermined", "larger-error")


def test_noise_free_data_give_the_truth_back():
    scans = measured(FLOW * [1, 1, 1, 10, 1, 1, 1], 80, angles(9), noise=False, contrast=0.3)
    states = solve(evaluator(scans, side=128), ANYWHERE, scans.theta * 1.2)
    # c2 is stored in float32: noise of 3e-8
    assert states[-1].outcome is Outcome.CONVERGED
    np.testing.assert_allclose(states[-1].theta, scans.theta, rtol=2e-3, atol=1e-6)


def test_nothing_free_is_one_pass():
    scans = measured(FLOW, 40, angles(3))
    chosen = search(LAMINAR_FLOW.parameters, fixed=dict(zip(LAMINAR_FLOW.names, FLOW, strict=True)))
    states = solve(evaluator(scans), chosen, FLOW)
    assert [s.outcome for s in states] == [Outcome.CONVERGED]


@pytest.mark.long
def test_one_shared_contrast_and_offset_bias_the_published_case(published):
    _, evaluate = published
    last = solve(evaluate, ANYWHERE, START, "shared")[-1]
    assert last.outcome is Outcome.CONVERGED
    assert last.reduced.chisqr / last.reduced.ndata == pytest.approx(1.47, abs=0.01)
    assert last.theta[0] / 2500 - 1 == pytest.approx(0.2, abs=0.06)
