"""Whether rates follow their power laws: the test against counted photons, and what it says."""

import json
from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.check_rates import deviations_in
from homodyne_dask.models import LAMINAR_FLOW, STATIC, STATIC_FREE, STRETCHED
from homodyne_dask.models.deviations import with_deviations
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.sign_flips import Scores, largest, project, signs_of
from homodyne_dask.solver.variable_projection import reduce
from tests import photons, reference
from tests.fitting.test_coverage import FLOW, OFFSETS, STILL
from tests.results.figures.made import scan_of
from tests.synthetic import angles, evaluator, fit_here, measured, solve, store

DIP = 0.3
"""Of J over the middle tenth of the record."""


@pytest.fixture
def dip(monkeypatch):
    """Photons of a motion whose J is 30 % lower over a tenth of the record."""
    law = photons.rates_integrated

    def with_dip(theta, time):
        J = np.gradient(law(theta, time)[0], time)
        low = (time >= 0.45 * time[-1]) & (time < 0.55 * time[-1])
        return reference.integral(J * np.where(low, 1 - DIP, 1.0), time), law(theta, time)[1]

    monkeypatch.setattr(photons, "rates_integrated", with_dip)


def checked(theta, phi, frames, seed, pixels):
    """The check of a fit of counted photons."""
    model = LAMINAR_FLOW if len(theta) == 7 else STATIC
    held = {name: value for name, value in OFFSETS.items() if name in model.names}
    chosen = search(model.parameters, fixed=held)
    scans = photons.photographed(theta, frames, phi, seed, pixels=pixels)
    last = solve(evaluator(scans), chosen, theta)[-1]
    of = with_deviations(model, scans.time)
    there = evaluator(scans, replace(scans.problem(), model=of.model))(of.whole(last.theta))
    reduced, clusters = reduce(there, "individual"), np.arange(len(phi))
    return deviations_in(of, reduced, chosen.free, clusters)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("theta", "phi"), [(STILL, angles(9)), (FLOW, angles(10))])
def test_true_power_laws_are_rejected_as_often_as_it_says(theta, phi):
    p = np.array([checked(theta, phi, 80, seed, 400).p for seed in range(200)])
    assert 0.02 <= (p <= 0.05).mean() <= 0.09


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dip_of_a_third_over_a_tenth_of_the_record_is_found_where_it_is(dip):
    found = [checked(STILL, angles(12), 160, seed, 1000) for seed in range(25)]
    assert np.mean([one.p <= 0.05 for one in found]) >= 0.8
    first = [one.deviations[0] for one in found if one.deviations]
    assert all(one.rate == "J" and one.size < 0 for one in first)
    assert np.median([one.size for one in first]) == pytest.approx(-DIP, abs=0.08)
    near = [(one.first or 0.0) < 8.0 < (one.last or 16.0) for one in first]
    assert np.mean(near) > 0.9


def test_signs_are_all_there_are_or_some_that_are_drawn():
    few, many = signs_of(6), signs_of(20)
    assert len({tuple(row) for row in few}) == 32
    assert (few[0] == 1).all()
    assert (many[:, 0] == 1).all()
    assert many.shape == (4096, 20)


def test_scores_of_directions_are_those_of_a_regression_with_the_others_removed():
    """The largest of few directions, its p by all signs, and one found does not hide the next."""
    rng = np.random.default_rng(3)
    clusters, rows, fitted, more = 8, 40, 2, 3
    X = rng.standard_normal((clusters, rows, fitted + more))
    y = rng.standard_normal((clusters, rows)) + 3 * X[..., 2] - 1.5 * X[..., 4]
    whole, target = X.reshape(-1, fitted + more), y.ravel()
    theta = np.linalg.lstsq(whole[:, :fitted], target)[0]
    left = (target - whole[:, :fitted] @ theta).reshape(clusters, rows)
    scores = np.einsum("krm,kr->km", X, left)
    blocks = np.einsum("krm,krn->kmn", X, X)
    added = np.arange(fitted + more) >= fitted
    known = Scores(scores, blocks, blocks.sum(0), scores.sum(0), added)
    eye, group = np.eye(more), np.zeros(more)
    there = project(known, eye, eye[:0])
    inside = whole[:, 2:] - whole[:, :2] @ np.linalg.lstsq(whole[:, :2], whole[:, 2:])[0]
    np.testing.assert_allclose(there.information, (inside**2).sum(0), rtol=1e-9)
    np.testing.assert_allclose(there.scores.sum(0), inside.T @ target, rtol=1e-9)
    first = largest(there, group, 0.05)
    assert (first.at, first.p) == (0, 1 / 128)
    second = largest(project(known, eye, eye[:1]), group, 0.05)
    assert (second.at, second.p) == (2, 1 / 128)
    third = largest(project(known, eye, eye[[0, 2]]), group, 0.05)
    assert third.p > 0.05


@pytest.fixture(scope="module")
def stepping(tmp_path_factory):
    """A fit of a power law to a step of temperature at 4 s of 8, of 6 bins."""
    folder = tmp_path_factory.mktemp("step")
    hd.simulate(folder / "S.h5", "step", angles=6, frames=80)
    scan = hd.open_dataset(hd.ingest(folder / "S.h5").store)
    return fit_here(scan, STATIC), scan


def test_a_step_of_temperature_is_found_and_said_in_words(stepping, tmp_path):
    result, scan = stepping
    steps: list[str] = []
    found = hd.check_rates(result, scan, progress=steps.append)
    assert steps == ["one pass at the optimum"]
    assert (found.clusters, found.p) == (6, 1 / 32)
    assert found.deviations[0].rate == "J"
    assert "S_c2.zarr: J " in str(found)
    assert " the power law " in str(found)
    assert str(found).endswith("; a fit with --rates spline shows the form")
    found.to_json(tmp_path / "check.json")
    written = json.loads((tmp_path / "check.json").read_text())
    assert written["sentence"] == str(found)
    assert written["deviations"][0]["size"] == found.deviations[0].size


def test_data_of_a_power_law_are_not_called_others(tmp_path):
    scan = store(measured(STILL, 60, angles(8), sigma=0.05, seed=5), tmp_path)
    found = hd.check_rates(fit_here(scan, STATIC, fixed={"D_offset": STILL[2]}), scan)
    assert found.p > 0.05
    assert "J follows the power law of static (p = " in str(found)
    assert "over a tenth of the record a deviation of J by " in str(found)


def test_what_cannot_be_checked_is_refused(stepping, tmp_path):
    result, scan = stepping
    with pytest.raises(OptionError, match="checked of a fit that converged, and this one ended so"):
        hd.check_rates(replace(result, outcome=hd.Outcome.STALLED), scan)
    few = scan_of(tmp_path, STILL, n=30)
    with pytest.raises(OptionError, match="and this fit has 3: fit 6 or more"):
        hd.check_rates(fit_here(few, STATIC, fixed={"D_offset": STILL[2]}), few)
    assert with_deviations(STATIC_FREE, scan.time) is None
    other = fit_here(few, STRETCHED, fixed={"stretching": 1.0})
    with pytest.raises(OptionError, match="stretched has rates without a power law, or none"):
        hd.check_rates(other, few)
