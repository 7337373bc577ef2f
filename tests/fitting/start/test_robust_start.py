"""First values among gross outliers, and the fit under a loss that follows: nothing given by the user."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.start.transport_minima import transport_minima
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling
from tests import truths
from tests.synthetic import (
    angles,
    asked,
    evaluator,
    fit_here,
    measured,
    solve_robust,
    store,
    summary,
    with_outliers,
)

CREEP = [60000, -1.0, 500]
FLOWS = [
    ("ageing", [30000, -0.5, 500, 5e-4, -0.5, 5e-5, -3]),
    ("steady flow", [10000, 0, 0, 3e-3, 0, 0, -45]),
]
QUIET = {"dt": 0.1, "sigma": 0.01, "contrast": 0.3}
HELD = {"fixed": {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}}
"""Offsets that so short a record does not tell from the amplitudes."""


@pytest.mark.parametrize(
    ("word", "truth"),
    [
        pytest.param("creep", CREEP, marks=pytest.mark.slow),
        pytest.param(*FLOWS[0], marks=pytest.mark.slow),
        FLOWS[1],
    ],
    ids=str,
)
def test_two_percent_of_gross_outliers_move_nothing_by_a_standard_error(word, truth, tmp_path):
    flow = len(truth) == 7
    clean = measured(truth, 150, angles(11) if flow else np.zeros(4), **QUIET)
    model = hd.LAMINAR_FLOW if flow else hd.STATIC
    given = (HELD if flow else {}) | {"gap": 2e6 if flow else None}
    wanted = fit_here(store(clean, tmp_path, "clean"), model, **given).parameters
    spoilt = store(with_outliers(clean), tmp_path)
    found = fit_here(spoilt, model, loss="huber", loss_scale=1.345, **given)
    assert found.converged
    free = ~wanted["fixed"].values
    moved = found.parameters["value"].values - wanted["value"].values
    assert (np.abs(moved / wanted["stderr_naive"].values)[free] < 1).all()
    assert "pairs 8 σ or more from neighbouring pairs" in str(found.provenance.inputs["notes"])


def ended(scans, theta):
    """Where the fit under a loss ends from theta."""
    chosen, scaling = asked(scans), Scaling()
    evaluate = evaluator(scans, scans.problem(loss="huber", loss_scale=1.345), 128)
    linear_params = reduce(summary(scans)(theta), scaling).linear_params
    last = solve_robust(evaluate, chosen, theta, scaling, linear_params=linear_params)[-1]
    return last.reduced.chisqr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nine_of_ten_random_flows_among_outliers_are_found():
    """From averages with the outliers in them it was half of these."""
    missed = []
    for seed in range(40):
        scans = with_outliers(truths.drawn("laminar_flow", seed), seed=1000 + seed)
        chosen = asked(scans)
        first = transport_minima(summary(scans), chosen, "individual")[0].theta
        above = ended(scans, first) - ended(scans, chosen.inside(scans.theta))
        missed += [(seed, above)] * (above >= 1)
    assert len(missed) <= 4, missed
