"""Rates that do not scale as q², and contrasts that make up for it."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.result_findings import contrast_changes
from tests.speckle_scans import RING
from tests.synthetic import CREEP, angles, fit_here, measured, of_decay, store

Q = np.array([0.002, 0.003, 0.004, 0.005, 0.006])
FRAMES, SPACING = 120, 0.2


def rings(folder, power, seed=0, q=Q):
    made = measured([1000, 0, 0], FRAMES, np.zeros(len(q)), q=q, dt=SPACING)  # pyright: ignore
    rate = 0.3 * (q[:, None, None] / 0.004) ** power
    f = np.exp(-rate * np.abs(made.time[:, None] - made.time))
    folder.mkdir(exist_ok=True)
    return store(of_decay(made, f, 0.02, seed), folder)


def test_rings_of_ballistic_motion_are_not_called_brownian(tmp_path):
    """They converged, with D_SE and its error, and contrast made up for the power of q."""
    result = hd.fit(rings(tmp_path, 1.0), "brownian")
    law = result.diagnosis.power_of_q
    assert law is not None
    assert law.power == pytest.approx(1.0, abs=0.2)
    assert result.findings.codes[0] == "power-of-q"
    assert result.findings[0].numbers["power"] == [law.power, law.stderr]
    assert result.misfit
    assert ("q",) in [one.about for one in result.findings.of("contrast-changes")]
    kept = tmp_path / "fit.json"
    result.to_json(kept)
    assert hd.load_result(kept).diagnosis.power_of_q == law


OPTIONS = [{}, {"scaling": "shared"}, {"loss": "huber"}, {"model": "static", "rates": "spline"}]


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_power_is_tested_whatever_the_scaling_loss_and_rates(tmp_path, options):
    for power in (1.0, 2.0):
        result = hd.fit(rings(tmp_path / f"{power}", power), **({"model": "brownian"} | options))
        law = result.diagnosis.power_of_q
        assert law is not None
        # one step from q²: of another power it is an estimate to first order
        assert abs(law.power - power) < (0.2 if power == 1.0 else 5 * law.stderr)
        assert law.differs == bool(result.findings.of("power-of-q")) == (power == 1.0)


@pytest.mark.long
def test_two_rings_and_a_model_with_its_own_power_have_none(tmp_path):
    scan = rings(tmp_path, 2.0)
    assert hd.fit(scan.select(q=Q[:2].tolist()), "brownian").diagnosis.power_of_q is None
    assert hd.fit(scan, "stretched_q").diagnosis.power_of_q is None


EIGHT = np.linspace(0, 160, 8)
TURN = np.cos(np.deg2rad(2 * EIGHT))
DRIFTS = {
    "with φ": (EIGHT, None, 0.2 + 0.05 * TURN, 0.002, True, ["φ"]),
    "of a model with φ": (EIGHT, None, 0.2 + 0.05 * TURN, 0.002, False, []),
    "too small": (EIGHT, None, 0.2 + 0.002 * TURN, 0.002, True, []),
    "of unknown error": (EIGHT, None, 0.2 + 0.05 * TURN, np.nan, True, []),
    "one bin on each ring": ([0.0] * 3, Q[:3], [0.3, 0.25, 0.2], 0.002, True, ["q"]),
    "within its error": ([0.0] * 3, Q[:3], [0.3, 0.25, 0.2], 0.06, True, []),
    "two angles": ([0.0, 90.0], None, [0.3, 0.25], 0.002, True, ["φ"]),
}


@pytest.mark.parametrize("word", DRIFTS)
def test_a_contrast_that_drifts_is_found(word, tmp_path):
    phi, q, contrast, error, isotropic, about = DRIFTS[word]
    rings = {} if q is None else {"q": q}
    scan = store(measured(CREEP, 30, np.array(phi), dt=0.5, **rings), tmp_path)
    changes = contrast_changes(scan, np.array(contrast), np.full(len(phi), error), isotropic)
    assert [name for one in changes for name in one.about] == about


def test_a_contrast_that_scatters_is_no_drift(tmp_path):
    scan = store(measured(CREEP, 30, angles(8), dt=0.5), tmp_path)
    rng, error = np.random.default_rng(1), np.full(8, 0.03)
    scattered = (0.2 + 0.03 * rng.standard_normal(8) for _ in range(50))
    assert not any([*contrast_changes(scan, one, error, True)] for one in scattered)


def test_a_rate_whose_standard_error_exceeds_it_is_called_undetermined(tmp_path):
    """It was 1078 ± 7400, converged, without another word: naive errors said otherwise."""
    scans = replace(RING, theta=np.array([200.0, 0.0, 0.0]), frames=60)
    result = fit_here(store(scans.scan(3), tmp_path), hd.BROWNIAN)
    parameters = result.parameters
    assert result.covariance is not None
    assert float(result.covariance.values[0, 0]) ** 0.5 > float(parameters["optimum"].values[0])
    assert np.isnan(parameters["value"].values[0])
    assert [one.about for one in result.findings.of("larger-error")] == [("D0",)]
