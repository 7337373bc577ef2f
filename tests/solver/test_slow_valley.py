"""A valley along which the optimum recedes as a fit follows it: the fit ends and says what it knows."""

import pytest

from homodyne_dask.fitting.start.grid_scan import Grid
from homodyne_dask.fitting.start.shear_scan import mirrored_shear
from homodyne_dask.solver import acceptance
from homodyne_dask.solver.identifiability import determined_at
from homodyne_dask.solver.state import Options, Outcome
from tests import truths
from tests.synthetic import asked, evaluator, solve, summary


@pytest.fixture(scope="module")
def valley():
    scans = truths.drawn("laminar_flow", 24)
    return scans, asked(scans), evaluator(scans, side=128)


def test_with_second_derivatives_a_fit_passes_through_a_valley_to_its_end(valley, monkeypatch):
    scans, chosen, evaluate = valley
    last = solve(evaluate, chosen, scans.theta, options=Options(max_passes=400))[-1]
    assert last.decrement < 1e-4
    assert last.passes < 100
    monkeypatch.setattr(acceptance, "second_order_term_after", lambda *_: None)
    creeping = solve(evaluate, chosen, scans.theta, options=Options(max_passes=400))[-1]
    assert last.reduced.chisqr < creeping.reduced.chisqr - 0.01


def test_a_fit_that_creeps_along_a_valley_ends_and_says_what_is_determined(valley, monkeypatch):
    """Without an end for slow steps it took 400 passes, in which χ² fell by less than 0.1."""
    scans, chosen, evaluate = valley
    monkeypatch.setattr(acceptance, "second_order_term_after", lambda *_: None)
    last = solve(evaluate, chosen, scans.theta, options=Options(max_passes=400))[-1]
    assert last.outcome is Outcome.SINGULAR
    assert last.passes < 60
    found = determined_at(chosen, last)
    assert found.undetermined == [("gamma_dot_t0", "beta", "gamma_dot_t_offset")]
    assert found.determined == ("D0", "alpha", "D_offset", "phi0")
    [mirrored] = mirrored_shear(Grid(summary(scans), chosen), scans.theta)
    other = solve(evaluate, chosen, mirrored)[-1]
    assert last.reduced.chisqr < other.reduced.chisqr + 0.1
