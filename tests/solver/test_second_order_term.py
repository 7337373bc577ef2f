"""Second derivatives by differences of gradients: where Gauss-Newton steps overshoot, fits still converge."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask.fitting.start.transport_search import Grid, mirrored_shear
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import Parameter, search
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import determined_at
from homodyne_dask.solver.levenberg_marquardt import (
    Damping,
    Options,
    Outcome,
    second_order_term_after,
    with_second_order_term,
)
from homodyne_dask.solver.reduce import reduce
from tests import truths
from tests.result_bits import result_bits
from tests.synthetic import (
    CREEP,
    angles,
    asked,
    evaluator,
    fit_here,
    measured,
    solve,
    started_as_given,
    store,
    summary,
)

P = 3
ANYWHERE = search([Parameter(name, "", (-10.0, 10.0)) for name in "abc"])
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def some():
    scans = measured(CREEP, 12, angles(3))
    return reduce(evaluator(scans)(CREEP), "individual")


def problem(some, chisqr, gradient, hessian):
    return replace(
        some, chisqr=chisqr, gradient=gradient, hessian=hessian, ndata=100,
        bin_hessian_rounding=np.zeros_like(some.bin_hessian_rounding),
    )  # fmt: skip


def test_under_a_loss_there_are_none(some):
    state, step, there, _ = drawn(some, 1, 1.0)
    there = replace(there, linear_step=np.zeros((3, 2)))
    assert second_order_term_after(ANYWHERE, state, step, there) is None


def drawn(some, seed, curved):
    """A state near a minimum, a step from it, and the problem there: positive matrices, drawn."""
    rng = np.random.default_rng(seed)
    half, true = rng.standard_normal((2, P, P))
    hessian, true = half @ half.T + 0.1 * np.eye(P), true @ true.T + 0.1 * np.eye(P)
    step, gradient = rng.standard_normal((2, P))
    after = gradient - curved * true @ step
    state = lm.State(
        np.zeros(P), problem(some, 1.0, gradient, hessian), Damping(0.0), decrement=1.0
    )
    return state, step, problem(some, 1.0, after, hessian), true


@settings(deadline=None)
@given(SEEDS)
def test_the_hessian_with_them_is_positive_and_explains_the_change_of_the_gradient(some, seed):
    state, step, there, true = drawn(some, seed, 1.0)
    updated = with_second_order_term(
        ANYWHERE,
        replace(state, second_order_term=second_order_term_after(ANYWHERE, state, step, there)),
    )
    assert np.linalg.eigvalsh(updated.hessian)[0] > 0
    along, least = step @ true @ step, 0.2 * step @ state.reduced.hessian @ step
    if along > least:
        np.testing.assert_allclose(updated.hessian @ step, true @ step, rtol=1e-8, atol=1e-8)
    else:
        assert step @ updated.hessian @ step == pytest.approx(least, rel=1e-9)


def test_a_step_across_the_end_of_a_period_is_as_short_as_it_is(some):
    periodic = search([*STATIC.parameters[:2], LAMINAR_FLOW.parameters[-1]])
    state, step, there, _ = drawn(some, 2, 1.0)
    at, wrapped = np.array([5.0, 0.0, 89.9]), step.copy()
    wrapped[2] -= 180
    state = replace(state, theta=at)
    np.testing.assert_allclose(
        second_order_term_after(periodic, state, at + wrapped, there),
        second_order_term_after(periodic, state, at + step, there),
        atol=1e-9,
    )


@pytest.fixture
def started_far_off():
    with started_as_given():
        yield


@pytest.mark.long
@pytest.mark.usefixtures("started_far_off")
def test_a_fit_with_them_is_resumed_to_the_same_bits(tmp_path):
    scans = truths.drawn("laminar_flow", 24)
    scan = store(scans, tmp_path)
    names = LAMINAR_FLOW.names
    options = {"gap": 2e6, "initial": dict(zip(names, scans.theta, strict=True))}
    whole = fit_here(scan, LAMINAR_FLOW, tmp_path / "whole.ckpt", **options)
    held = []
    for passes in (whole.passes // 2, whole.passes - 2):
        path = tmp_path / f"after-{passes}.ckpt"
        assert fit_here(scan, LAMINAR_FLOW, path, stop_after=passes, **options) is None
        saved = checkpoints.load(path, checkpoints.saved_identity(path))
        held.append(saved.state.secant is not None)
        again = fit_here(scan, LAMINAR_FLOW, path, resume=True, **options)
        assert result_bits(again) == result_bits(whole)
    assert any(held)


@pytest.fixture(scope="module")
def valley():
    scans = truths.drawn("laminar_flow", 24)
    return scans, asked(scans), evaluator(scans, side=128)


def test_a_valley_is_passed_with_them_and_creeping_along_it_without_them_ends(valley, monkeypatch):
    scans, chosen, evaluate = valley
    through = solve(evaluate, chosen, scans.theta, options=Options(max_passes=400))[-1]
    assert through.decrement < 1e-4
    assert through.passes < 100
    monkeypatch.setattr(lm, "second_order_term_after", lambda *_: None)
    last = solve(evaluate, chosen, scans.theta, options=Options(max_passes=400))[-1]
    assert through.reduced.chisqr < last.reduced.chisqr - 0.01
    assert last.outcome is Outcome.SINGULAR
    assert last.passes < 60
    found = determined_at(chosen, last)
    assert found.undetermined == [("gamma_dot_t0", "beta", "gamma_dot_t_offset")]
    assert found.determined == ("D0", "alpha", "D_offset", "phi0")
    [mirrored] = mirrored_shear(Grid(summary(scans), chosen), scans.theta)
    other = solve(evaluate, chosen, mirrored)[-1]
    assert last.reduced.chisqr < other.reduced.chisqr + 0.1
