"""Sums of float32: a fit ends where their rounding hides the optimum, as soon as one of float64 does."""

import numpy as np
import pytest

from homodyne_dask.models import STATIC
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.state import Outcome
from tests.synthetic import CREEP, FLOW, angles, asked, evaluator, fit_here, measured, store

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
    """D0 is known to 10 % with sums of float64; those of float32 leave its valley no certain rank."""
    truth = CREEP * [1, 0.075, 1]
    scan = store(measured(truth, 60, np.zeros(3), sigma=3e-5, seed=3), tmp_path)
    double, single = (fit_here(scan, STATIC, precision=p) for p in ("float64", "mixed"))
    assert double.outcome is Outcome.CONVERGED
    assert double.parameters["stderr_naive"].values[0] < 0.2 * CREEP[0]
    assert single.outcome is Outcome.SINGULAR
    (hidden,) = single.findings.of("hidden-by-rounding")
    assert (hidden.about, hidden.advice) == (("D0", "D_offset"), "--precision float64")
    assert not single.findings.of("undetermined", "larger-error")
