"""The sign of the shear rate: no data show it, both signs are searched, and a negative rate is said."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.start.coarse_to_fine import coarse_to_fine
from homodyne_dask.fitting.start.grid_scan import Grid
from homodyne_dask.fitting.start.shear_scan import mirrored_shear
from homodyne_dask.fitting.start.transport_minima import Minimum, undecided_minima
from homodyne_dask.models.transport import Convention
from homodyne_dask.sweep.sweep import sweep_of
from tests import truths
from tests.synthetic import GAP, angles, asked, measured, plan_here, store, summary


def test_the_start_has_the_opposite_rate_and_growth_in_the_middle_of_the_record():
    scans = measured([8000, -0.3, 300, 1e-3, 0.1, 1e-4, 10], 40, angles(5))
    grid = Grid(summary(scans), asked(scans))
    [theta] = mirrored_shear(grid, scans.theta)

    def rate(t, at):
        return at[3] * t ** at[4] + at[5]

    t, step = grid.middle, 1e-4
    assert theta[3] > 0
    assert rate(t, theta) == pytest.approx(-rate(t, scans.theta))
    growth = [rate(t + step, at) - rate(t - step, at) for at in (theta, scans.theta)]
    assert growth[0] == pytest.approx(-growth[1], rel=1e-5)
    given = Grid(summary(scans), asked(scans, fixed={"gamma_dot_t_offset": 0.0}))
    assert mirrored_shear(given, scans.theta) == []
    floored = summary(scans, replace(scans.problem(), convention=Convention.HOMODYNE))
    assert mirrored_shear(Grid(floored, asked(scans)), scans.theta) == []


@pytest.mark.parametrize("seed", [12, 35])
def test_the_better_of_both_signs_is_found(seed):
    """From starts of one sign alone these ended 2.0 and 1.6 above."""
    assert truths.attempt(truths.drawn("laminar_flow", seed)).excess < 0.1


def test_minima_that_the_averages_do_not_tell_apart_are_fitted_to_the_data(tmp_path):
    truth = np.array([8000, -0.2, 200, 3e-3, -0.1, 0, 20])
    scan = store(measured(truth, 60, angles(9), dt=0.1, sigma=0.01), tmp_path)
    request = prepare(scan, hd.LAMINAR_FLOW, gap=GAP)
    sweep = sweep_of(plan_here(request), scan.selection, request.problem, None)
    wrong = truth.copy()
    wrong[[3, 6]] = 2e-3, -60
    undecided = [Minimum(wrong, 100.0, 1, 2.0), Minimum(truth, 101.0, 1, 2.0)]
    theta, [level] = coarse_to_fine(request, undecided, [sweep])
    assert theta[6] == pytest.approx(20, abs=0.5)
    assert level["level"] == 1
    decided = [undecided[0], undecided[1]._replace(chisqr=102.5)]
    theta, levels = coarse_to_fine(request, decided, [sweep])
    assert theta[6] == -60
    assert levels == []
    assert [at.tolist() for at in undecided_minima(decided)] == [wrong.tolist()]
