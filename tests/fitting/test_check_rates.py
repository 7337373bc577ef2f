"""Whether rates follow their power laws: the test against counted photons, and what it says."""

import json
from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.check_rates import deviations_in, with_deviations
from homodyne_dask.models import STATIC, STATIC_FREE, STRETCHED
from homodyne_dask.models.parameters import search
from homodyne_dask.models.rate_forms import DeviatingForm
from homodyne_dask.models.spline_basis import SplineForm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.sign_flip_test import Scores, largest, project, shares, signs_of, weighted
from tests import photons, reference
from tests.photons import FLOW, OFFSETS, STILL
from tests.results.made_results import scan_of
from tests.synthetic import Q, angles, evaluator, fit_here, measured, solve, store

DIP = 0.3
"""Of J over the middle tenth of the record."""


def dipped(theta, time):
    """C and G of a motion whose J is 30 % lower over a tenth of the record."""
    C, G = photons.rates_integrated(theta, time)
    low = (time >= 0.45 * time[-1]) & (time < 0.55 * time[-1])
    J = np.gradient(C, time) * np.where(low, 1 - DIP, 1.0)
    return reference.integral(J, time), G


def checked(scans):
    """The check of a fit of a scan, from its truth."""
    held = {name: value for name, value in OFFSETS.items() if name in scans.model.names}
    chosen = search(scans.model.parameters, fixed=held)
    last = solve(evaluator(scans), chosen, scans.theta)[-1]
    of = with_deviations(scans.model, scans.time)
    grams = evaluator(scans, replace(scans.problem(), model=of.model))

    def evaluate(whole):
        return reduce(grams(whole), "individual")

    return deviations_in(of, evaluate, last.theta, chosen.free, np.arange(len(scans.phi)))


WEAK = np.array([*FLOW[:3], 6e-5, 0.2, 2e-5, 5.0])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("theta", "phi"), [(STILL, angles(9)), (FLOW, angles(10))])
def test_true_power_laws_are_rejected_as_often_as_it_says(theta, phi):
    scans = (photons.photographed(theta, 80, phi, seed, pixels=400) for seed in range(150))
    p = np.array([checked(one).p for one in scans])
    # 5 % and three binomial standard deviations above it
    assert (p <= 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)
    assert (p <= 0.2).mean() >= 0.2 - 3 * np.sqrt(0.2 * 0.8 / 150)


def of_dips(theta, repeats):
    """Checks of scans with a dip at mid-record, and the first deviations of those that show one."""
    scans = (
        photons.photographed(theta, 160, angles(12), seed, pixels=1000, rates=dipped)
        for seed in range(repeats)
    )
    found = [checked(one) for one in scans]
    return found, [one.deviations[0] for one in found if one.deviations]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("theta", "repeats"), [(STILL, 25), (WEAK, 15)])
def test_a_dip_of_a_third_over_a_tenth_of_the_record_is_found_where_it_is(theta, repeats):
    found, first = of_dips(theta, repeats)
    assert len(first) / len(found) >= 0.8
    assert np.mean([one.rate == "J" and one.size < 0 for one in first]) > 0.8
    dips = [one for one in first if one.rate == "J"]
    # under weak shear 24 and 27 % in two sets of scans: the rates that are free beside it take a part
    assert np.median([one.size for one in dips]) == pytest.approx(-DIP, abs=0.08)
    assert np.mean([(one.first or 0.0) < 8.0 < (one.last or 16.0) for one in dips]) > 0.8


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_in_strong_shear_a_dip_of_J_is_called_one_of_J():
    """Two of twelve angles show J, so that such a dip is not always found."""
    found, first = of_dips(FLOW, 20)
    expected = 0.62
    assert len(first) / len(found) > expected - 3 * np.sqrt(expected * (1 - expected) / 20)
    dips = [one for one in first if one.rate == "J"]
    assert len(dips) > len(first) / 2
    assert np.median([one.size for one in dips]) == pytest.approx(-DIP, abs=0.1)


def test_the_size_of_a_deviation_is_that_of_the_rate():
    """One step takes f for linear in the rate, and would find 9 % more; what surrounds it is its shape."""
    scans = measured(STILL, 80, angles(8), dt=0.2, contrast=0.3, sigma=0.02, noise=False)
    C = dipped(STILL, scans.time)[0]
    f = np.exp(-(Q**2) * np.abs(C[None] - C[:, None]))
    noise = 0.02 * np.random.default_rng(7).standard_normal(scans.c2.shape)
    c2 = np.where(np.isnan(scans.c2), np.nan, 1 + 0.3 * f + noise)
    [one] = checked(replace(scans, c2=c2.astype(np.float32))).deviations
    assert one.rate == "J"
    assert one.size == pytest.approx(-DIP, abs=0.03)
    assert (one.first, one.last) == pytest.approx((7.2, 8.7), abs=0.6)


def test_deviations_have_the_derivatives_that_they_say():
    form, t = DeviatingForm(SplineForm(6, 0.0, 9.0)), np.linspace(0.1, 9.0, 40)
    theta = np.array([3.0, -0.4, 0.2, 0.1, -0.2, 0.3, 0.0, -0.1, 0.05])
    steps = 1e-6 * np.eye(len(theta))
    slopes = [
        (form.at(t, theta + h, None)[0] - form.at(t, theta - h, None)[0]) / 2e-6 for h in steps
    ]
    np.testing.assert_allclose(form.at(t, theta, None)[1:], slopes, rtol=1e-6, atol=1e-8)


def test_a_cluster_counts_in_units_of_its_own_noise():
    """Scores of twice the size have four times the variance, and count a quarter."""
    rng = np.random.default_rng(5)
    blocks = np.broadcast_to(np.eye(3), (40, 3, 3))
    scores = rng.standard_normal((40, 3))
    scores[::2] *= 2
    known = Scores(scores, blocks, blocks.sum(0), scores.sum(0), np.array([False, True, True]))
    share = shares(known)
    assert np.exp(np.log(share[1::2] / share[::2]).mean()) == pytest.approx(4, rel=0.8)
    one = weighted(known, share)
    np.testing.assert_allclose(one.normal, one.blocks.sum(0))
    np.testing.assert_allclose(one.gradient, one.scores.sum(0))


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
    assert str(found).endswith("; a fit with --rates spline shows the form of the rate")
    found.to_json(tmp_path / "check.json")
    written = json.loads((tmp_path / "check.json").read_text())
    assert written["sentence"] == str(found)
    assert written["deviations"][0]["size"] == found.deviations[0].size


def test_data_of_a_power_law_are_not_called_others(tmp_path):
    scan = store(measured(STILL, 60, angles(8), sigma=0.05, seed=5), tmp_path)
    found = hd.check_rates(fit_here(scan, STATIC, fixed={"D_offset": STILL[2]}), scan)
    assert found.p > 0.05
    assert "J follows the power law of static (p = " in str(found)
    assert "a deviation of J by " in str(found)


def test_what_cannot_be_checked_is_refused(stepping, tmp_path):
    result, scan = stepping
    with pytest.raises(
        OptionError, match="only fits that converged can be checked; this fit ended with"
    ):
        hd.check_rates(replace(result, outcome=hd.Outcome.STALLED), scan)
    few = scan_of(tmp_path, STILL, n=30)
    with pytest.raises(OptionError, match="but this fit has only 3: fit 6 or more"):
        hd.check_rates(fit_here(few, STATIC, fixed={"D_offset": STILL[2]}), few)
    assert with_deviations(STATIC_FREE, scan.time) is None
    other = fit_here(few, STRETCHED, fixed={"stretching": 1.0})
    with pytest.raises(OptionError, match="stretched has no rates, or rates without a power law"):
        hd.check_rates(other, few)
