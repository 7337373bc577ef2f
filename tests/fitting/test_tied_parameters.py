"""Parameters tied to others by expressions: the chain rule, fits, stored results, and messages."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of, evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.derived_models import with_ties
from tests.synthetic import FLOW, GAP, angles, blocks, measured, module_scan

TIES = {"beta": "alpha + 0.5", "D_offset": "0.04*D0", "gamma_dot_t_offset": "gamma_dot_t0/20"}
REST = ("D0", "alpha", "gamma_dot_t0", "phi0")
TRUTH = np.array([2500.0, -0.3, 2e-4, 5.0])
TIED = with_ties(LAMINAR_FLOW, TIES)
scan = module_scan(lambda: measured(FLOW, 60, angles(4), sigma=1e-3))


def test_the_parameters_of_a_tied_model_are_the_others():
    assert TIED.names == REST
    np.testing.assert_allclose(TIED.ties.expand(TRUTH), FLOW)


def test_ties_may_refer_to_ties():
    model = with_ties(LAMINAR_FLOW, {"beta": "alpha", "alpha": "-sqrt(abs(phi0))/2", "phi0": "4"})
    at = model.ties.expand(np.array([2500.0, 100.0, 2e-4, 1e-5]))
    np.testing.assert_allclose(at[[1, 4, 6]], [-1.0, -1.0, 4.0])


def test_a_tie_may_refer_to_a_parameter_that_is_named_like_a_function():
    bounded = [hd.Parameter(name, bounds=(0.1, 10.0)) for name in ("k", "log")]
    model = with_ties(
        hd.separable(lambda t, theta: theta[0] * t + theta[1], bounded), {"k": "log(log)"}
    )
    assert model.names == ("log",)
    np.testing.assert_allclose(model.ties.expand(np.array([2.0])), [np.log(2.0), 2.0])


def test_derivatives_of_a_tied_model_are_those_of_differences():
    time, q, phi = np.arange(30) * 0.1, np.array([0.0054]), np.array([30.0])
    evaluation, problem = evaluation_of(TIED), Problem(TIED, gap=GAP)
    t1, t2 = time[2:10], time[12:20]

    def f(theta):
        return evaluation.f_at(evaluation.point(problem, theta, time), time, q, phi, t1, t2)

    at = evaluation.point(problem, TRUTH, time)
    slopes = evaluation.f_and_derivatives_at(at, time, q, phi, t1, t2)[1]
    for n, step in enumerate(1e-5 * TRUTH):
        up, down = (f(TRUTH + sign * step * np.eye(4)[n]) for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, n], (up - down) / (2 * step), rtol=1e-5, atol=1e-12)


@pytest.mark.long
def test_the_gram_of_a_tied_model_is_that_of_its_columns():
    scans = measured(FLOW, 60, angles(3), offset=1.1)
    whole, tied = backend_of(LAMINAR_FLOW), backend_of(TIED)
    here = whole.point(scans.problem(), FLOW, scans.time)
    there = tied.point(Problem(TIED, gap=GAP), TRUTH, scans.time)
    J = np.zeros((7, 4))
    J[[0, 2], 0], J[[1, 4], 1], J[[3, 5], 2], J[6, 3] = (1, 0.04), 1, (1, 0.05), 1
    columns = np.block([[np.eye(3), np.zeros((3, 4))], [np.zeros((7, 3)), J]])
    for _, block in blocks(scans):
        wanted, found = whole.gram(here, block)[0], tied.gram(there, block, None)[0]
        np.testing.assert_allclose(
            found.moments, columns.T @ wanted.moments @ columns, rtol=1e-12, atol=1e-9
        )


@pytest.mark.long
def test_a_tied_fit_finds_the_truth_and_the_errors_of_what_is_tied(scan):
    result = hd.fit(scan, "laminar_flow", gap=GAP, tie=TIES)
    assert result.converged
    assert list(result.params) == list(REST)
    value = result.parameters["value"].values
    np.testing.assert_allclose(value, TRUTH, rtol=0.1)
    beta, offset = result.derived["beta"], result.derived["D_offset"]
    assert beta.value == pytest.approx(result.params["alpha"].value + 0.5)
    assert beta.stderr == pytest.approx(result.params["alpha"].stderr)
    assert offset.stderr == pytest.approx(0.04 * result.params["D0"].stderr)
    assert "(alpha + 0.5)" in str(result)


@pytest.mark.long
def test_a_tied_fit_is_that_of_the_same_model_written_out(scan):
    """`power_law` is `static` with D_offset tied to 0, `couette` is `laminar_flow` with constant rates."""
    tied = hd.fit(scan, "static", tie={"D_offset": "0"}, initial={"D0": 2000.0, "alpha": -0.2})
    plain = hd.fit(scan, "power_law", initial={"D0": 2000.0, "alpha": -0.2})
    assert tied.chisqr == pytest.approx(plain.chisqr, rel=1e-9)
    for name in ("D0", "alpha"):
        assert tied.params[name].value == pytest.approx(plain.params[name].value, rel=1e-6)
        error = plain.params[name].stderr_naive
        assert tied.params[name].stderr_naive == pytest.approx(error, rel=1e-5)


@pytest.mark.long
def test_a_stored_tied_fit_is_read_with_its_ties(scan, tmp_path):
    result = hd.fit(scan, "static", tie={"D_offset": "0.04*D0"})
    result.to_json(tmp_path / "summary.json")
    read = hd.load_result(tmp_path)
    assert read.derived == result.derived
    np.testing.assert_array_equal(read.eval(0.0, [1.0, 2.0]), result.eval(0.0, [1.0, 2.0]))
    assert set(read.rates.data_vars) >= {"J", "J_stderr"}
    assert np.isfinite(read.rates["J_stderr"]).all()


@pytest.mark.long
def test_a_parameter_of_a_tie_may_be_fixed(scan):
    result = hd.fit(scan, "static", tie={"D_offset": "0.04*D0"}, fixed={"D0": 2500.0})
    assert result.derived["D_offset"].value == pytest.approx(100.0)
    assert np.isnan(result.derived["D_offset"].stderr)


def test_a_model_without_ties_is_itself():
    assert with_ties(STATIC, {}) is STATIC
    assert with_ties(TIED, None) is LAMINAR_FLOW
