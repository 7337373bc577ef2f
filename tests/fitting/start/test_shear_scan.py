"""The sign of the shear rate: no data show it, both are searched; it changes where data show that."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.start.initial_values import coarse_to_fine
from homodyne_dask.fitting.start.transport_search import (
    Grid,
    Minimum,
    mirrored_shear,
    undecided_minima,
)
from homodyne_dask.models.transport import Convention
from homodyne_dask.sweep.sweep import sweep_of
from tests import truths
from tests.speckle_scans import Photons
from tests.synthetic import GAP, Q, angles, asked, fit_here, measured, plan_here, store, summary


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


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("seed", [12, 35])
def test_the_better_of_both_signs_is_found(seed):
    assert truths.attempt(truths.drawn("laminar_flow", seed)).excess < 0.1


@pytest.mark.long
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


OPTIONS = {"rates": "spline", "bounds": {"gamma_dot": (-0.1, 0.1)}, "gap": f"{GAP} A"}


def oscillating(x):
    return 4e-4 * np.sin(2 * np.pi * 1.5 * x + 0.4)


def resting(x):
    return 4e-4 * np.clip((2 / 3 - x) / 0.08, 0, 1)


def photons(frames, bins, shear):
    theta = np.array([1500.0, 0, 0, 0, 0, 0, 5.0])
    phi = tuple(angles(bins) + 3.0)
    return Photons(theta, frames, (Q,) * bins, phi, spacing=80 / frames, gap=GAP, shear=shear)


def shear_of(result):
    return result.rates["gamma_dot"].values


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("frames", "options"),
    [
        pytest.param(24, {}, marks=pytest.mark.long),
        pytest.param(60, {}, marks=pytest.mark.long),
        pytest.param(60, {"min_lag": 3}, marks=pytest.mark.slow),
        pytest.param(60, {"loss": "soft_l1"}, marks=pytest.mark.slow),
    ],
    ids=["few frames", "plain", "longer lags only", "loss"],
)
def test_an_oscillating_shear_rate_is_found_with_its_signs(frames, options, tmp_path):
    flow = photons(frames, 6, oscillating)
    result = fit_here(store(flow.scan(1), tmp_path), hd.LAMINAR_FLOW, **OPTIONS, **options)
    found, truth = shear_of(result), flow.rate
    assert abs(np.corrcoef(found, truth)[0, 1]) > 0.95, np.round(found * 1e4, 1)
    assert result.findings.of("shear-sign")


@pytest.mark.long
def test_a_misfit_of_a_shear_rate_that_was_kept_above_0_suggests_both_signs(tmp_path):
    scan = store(replace(photons(60, 6, oscillating), pixels=1500).scan(1), tmp_path)
    given = {"rates": "gamma_dot=spline", "fixed": {"alpha": 0.0, "D_offset": 0.0}, "gap": GAP}
    (reverse,) = fit_here(scan, hd.LAMINAR_FLOW, **given).findings.of("flow-may-reverse")
    assert reverse.advice.endswith(" --bounds gamma_dot=-0.1:0.1")


@pytest.mark.long
def test_a_band_holds_a_shear_rate_that_is_zero(tmp_path):
    """With the coefficients at the bound fixed there it held 37 % of these times, and had no width."""
    flow = photons(160, 8, resting)
    result = fit_here(
        store(flow.scan(1), tmp_path), hd.LAMINAR_FLOW, rates="spline", gap=f"{GAP} A"
    )
    rest = (flow.rate == 0)[: len(shear_of(result))]
    low, high = (result.rates[f"gamma_dot_{side}_95"].values[rest] for side in ("low", "high"))
    assert (low <= 0).mean() > 0.85
    assert (high > 1e-6).all()
    assert (low >= 0).all()
