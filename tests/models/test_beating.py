"""Models of c2 that beats, of two components, and stretched exponentials: fits from nothing."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.optimize

import homodyne_dask as hd
from homodyne_dask.assessment.speckle_covariance import regular
from homodyne_dask.errors import SelectionError
from homodyne_dask.kernels import separable_backend
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.separable_backend import separable_point
from homodyne_dask.models.rate_forms import SplineForm
from tests import reference
from tests.beating_scans import ANGLES, DT, TWO, Q, photographed
from tests.speckle_scans import Photons
from tests.synthetic import measured, module_scan, started_as_given, store

BEATING = hd.MODELS["beating"]


def free(model, truth):
    fitted = [p for p in model.parameters if p.constant is None]
    return {p.name: float(np.clip(truth[p.name], *p.bounds)) for p in fitted}


TRUTH = {
    "D0_ref": 0.0, "alpha_ref": 0.0, "D0_sample": 8000.0, "alpha_sample": -0.2, "v0": 1800.0, "v_beta": 0.1,
    "fraction": 0.4, "fraction_growth": 0.0, "phi0": -47.0,
}  # fmt: skip
"""Up to 0.35 turns per frame."""
flowing = module_scan(lambda: photographed(TRUTH, 1, 64, ANGLES[::2]))


@pytest.mark.long
def test_a_fit_from_nothing_finds_the_velocity_and_the_fraction(flowing):
    notes = []
    result = hd.fit(
        flowing,
        "beating",
        friedel="off",
        callbacks=[lambda e: notes.append(getattr(e, "note", ""))],
    )
    assert result.converged
    with started_as_given():
        at_truth = hd.fit(flowing, "beating", friedel="off", initial=free(BEATING, TRUTH))
    assert result.chisqr < at_truth.chisqr + 0.1
    value = {name: result.params[name].value for name in BEATING.names}
    assert value["v0"] == pytest.approx(TRUTH["v0"], rel=0.02)
    assert value["phi0"] == pytest.approx(TRUTH["phi0"], abs=2)
    assert value["fraction"] == pytest.approx(TRUTH["fraction"], abs=0.1)
    assert any("above 3142 Å/s along q at q = 0.01 1/Å, appear slower" in note for note in notes)
    assert not result.findings.of("exchangeable")


@pytest.mark.long
def test_an_aliased_speed_is_said_before_the_fit_and_after_it(flowing):
    notes = []
    far = free(BEATING, TRUTH) | {"v0": 6000.0, "v_beta": 0.0}
    with started_as_given():
        result = hd.fit(
            flowing, "beating", initial=far, max_passes=1,
            callbacks=[lambda e: notes.append(getattr(e, "note", ""))],
        )  # fmt: skip
    assert any(
        "v0 = 6000 moves the fringes of 2 of 3 bins by up to 0.93 periods" in n for n in notes
    )
    (aliased,) = result.findings.of("fringes-aliased")
    assert (aliased.numbers["fast"], aliased.numbers["bins"]) == (2, 3)


@pytest.mark.long
def test_the_parameters_of_xpcsjax_give_the_same_c2():
    truth = TRUTH | {"D0_ref": 500.0, "alpha_ref": 0.3}
    theirs = hd.MODELS["two_component_xpcsjax"]
    values = dict.fromkeys(theirs.names, 0.0) | {
        k: v for k, v in truth.items() if k in theirs.names
    }
    values |= {"f0": truth["fraction"], "phi0_het": -truth["phi0"]}
    time = DT * np.arange(1, 30)  # theirs has no rates at t = 0
    for phi in (0.0, 70.0):
        ours, other = (
            hd.predict(model, given, time, q=Q, phi=phi, contrast=0.3, offset=1.0)
            for model, given in ((TWO, truth), (theirs, values))
        )
        assert np.abs(ours - other).max() < 1e-9


def test_constant_rates_begin_with_the_first_frame():
    constant = {"alpha_ref": 0.0, "alpha_sample": 0.0, "v_beta": 0.0, "D0_ref": 500.0}
    time = DT * np.arange(30)
    c2 = hd.predict(TWO, TRUTH | constant, time, q=Q, phi=0.0, contrast=1.0, offset=0.0)[0]
    lag, s = time - time[:, None], TRUTH["fraction"]
    phase = Q * TRUTH["v0"] * np.cos(np.deg2rad(TRUTH["phi0"])) * lag
    at_rest = (1 - s) ** 2 * np.exp(-0.5 * Q**2 * 500.0 * np.abs(lag))
    moved = s**2 * np.exp(-0.5 * Q**2 * TRUTH["D0_sample"] * np.abs(lag) + 1j * phase)
    expected = np.abs(at_rest + moved) ** 2 / ((1 - s) ** 2 + s**2) ** 2
    pairs = np.triu_indices(30, 1)
    np.testing.assert_allclose(c2[pairs], expected[pairs], rtol=1e-9)


@pytest.mark.long
def test_exchanged_components_give_the_same_c2_and_that_is_said(tmp_path):
    truth = TRUTH | {"D0_ref": 500.0, "alpha_ref": 0.3, "fraction_growth": 0.1}
    exchanged = truth | {
        "D0_ref": truth["D0_sample"], "alpha_ref": truth["alpha_sample"], "D0_sample": 500.0,
        "alpha_sample": 0.3, "fraction": 1 - truth["fraction"], "fraction_growth": -0.1,
    }  # fmt: skip
    time = DT * np.arange(30)
    one, other = (
        hd.predict(TWO, given, time, q=Q, phi=20.0, contrast=0.3, offset=1.0)
        for given in (truth, exchanged)
    )
    assert np.abs(one - other).max() < 1e-12
    scan = store(photographed(truth, 0, 40, [0.0, 90.0]), tmp_path)
    assert hd.fit(scan, TWO, initial=truth, max_passes=1).findings.of("exchangeable")
    fixed = hd.fit(scan, TWO, initial={k: v for k, v in truth.items() if k != "D0_ref"},
                   fixed={"D0_ref": 500.0}, max_passes=1)  # fmt: skip
    assert not fixed.findings.of("exchangeable")


def test_fringes_need_the_angles_of_the_bins(tmp_path):
    unknown = measured([1e4, 0, 0], phi=(np.nan,), gap=None)
    with pytest.raises(SelectionError, match="φ"):
        hd.fit(store(unknown, tmp_path), "beating")


def test_a_whole_turn_over_the_frames_of_a_level_is_not_taken_for_none():
    fringes = hd.MODELS["damped_cosine"].current()
    for frequency, fine_enough in ((1 / (3 * DT), False), (0.01 / DT, True)):
        at = separable_point(Problem(fringes), np.array([1e-3, frequency]), DT * np.arange(200))
        found = separable_backend.adequate(at, np.array([Q]), np.zeros(1), (0, 200), 4)
        assert found is fine_enough


def test_noise_of_what_is_no_correlation_of_fields_is_made_positive():
    covariance = np.array([[1.0, 1.2], [1.2, 1.0]])
    assert np.linalg.eigvalsh(regular(covariance))[0] > 0
    fine = np.diag([1.0, 2.0])
    assert regular(fine) == pytest.approx(fine, abs=1e-6)


FRAMES = 100
FRAME_TIMES = DT * np.arange(FRAMES)
SPLINE = hd.MODELS["beating_spline"]
WAVING = {
    "D0_ref": 0.0, "alpha_ref": 0.0, "D0_sample": 3000.0, "alpha_sample": 0.0, "v0": 123.456, "v_beta": 0.0,
    "fraction": 0.5, "fraction_growth": 0.0, "phi0": 20.0,
}  # fmt: skip
WAVE = 400 * (1 + 0.6 * np.sin(2 * np.pi * FRAME_TIMES / FRAME_TIMES[-1]))
"""Å/s: fringes turn by up to 0.1 per frame."""


def speeds(theta):
    return [value for name, value in zip(SPLINE.names, theta, strict=True) if name[:2] == "v_"]


@pytest.mark.long
def test_splines_of_equal_speed_are_the_model_of_constant_speed():
    law = {"D0_sample": 3000.0, "alpha_sample": -0.2, "v0": 250.0, "v_beta": 0.0}
    law |= {"fraction": 0.4, "phi0": 10.0}
    splines = {name: value for name, value in law.items() if name not in ("v0", "v_beta")}
    splines |= {f"v_{n}": 250.0 for n in range(1, 7)}
    given = {"q": 0.01, "phi": 35.0}
    constant = {"D0_ref": 0, "alpha_ref": 0, "fraction_growth": 0}
    expected = hd.predict("beating", law | constant, FRAME_TIMES, **given)
    found = hd.predict(SPLINE, splines | constant, FRAME_TIMES, **given)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
def test_a_speed_that_rises_and_falls_is_found_from_nothing(tmp_path):
    scan = store(
        photographed(WAVING, 4, FRAMES, way=reference.integral(WAVE, FRAME_TIMES)), tmp_path
    )
    result = hd.fit(scan, "beating_spline")
    assert result.converged
    found = SplineForm(6, 0.0, FRAME_TIMES[-1]).basis(FRAME_TIMES).T @ speeds(
        result.parameters["value"].values
    )
    assert np.sqrt(np.mean((found - WAVE) ** 2)) < 40
    assert float(result.parameters["value"].sel(param="phi0")) == pytest.approx(20, abs=2)
    assert not result.misfit
    power_law = hd.fit(scan, "beating")  # which does not describe it
    (withheld,) = power_law.findings.of("no-standard-error")
    assert withheld.numbers["why"] == "deviating"
    assert power_law.redchi > 1.4 * result.redchi


GOLDEN = [1e4, 0, 0, 1e4, 0, 0, 1e3, 1, 0, 0.5, 0, 0, 0, 0]
Q_HETERODYNE = 0.0237
MODEL = hd.MODELS["two_component_xpcsjax"]


@pytest.mark.parametrize(
    ("phi", "pair", "wanted"),
    [
        (0.0, (1, 4), 1.02210616790179),
        (0.0, (0, 7), 1.00735546901377),
        (45.0, (1, 4), 1.03640345041784),
    ],
)
def test_the_published_numbers(phi, pair, wanted):
    c2 = hd.predict(
        MODEL, GOLDEN, 0.1 * np.arange(8), q=Q_HETERODYNE, phi=phi, contrast=0.3, offset=1.0
    )
    assert c2[0][pair] == pytest.approx(wanted, rel=1e-12)


def written(name, theta, t1, t2):
    if name == "stretched":
        return np.exp(-2 * (theta[0] * (t2 - t1)) ** theta[1])
    return np.exp(-2 * (theta[0] * (0.5 * (t1 + t2)) ** theta[1] * (t2 - t1)) ** theta[2])


CASES = [
    ("stretched", (0.35, 0.7)),
    ("stretched", (0.2, 1.6)),
    ("stretched_ageing", (0.6, -0.5, 1.3)),
]


def scans_of(name, theta, n=50):
    scans = measured(np.ones(3), n, np.zeros(2), sigma=0.01, noise=False)
    i, j = np.triu_indices(n, 1)
    noise = 0.01 * np.random.default_rng(1).standard_normal((2, len(i)))
    scans.c2[:, i, j] = 1.02 + 0.15 * written(name, theta, scans.time[i], scans.time[j]) + noise
    return scans, i, j


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("name", "theta"), CASES)
def test_a_fit_from_the_data_alone_is_scipys_optimum(tmp_path, name, theta):
    scans, i, j = scans_of(name, theta)
    result = hd.fit(store(scans, tmp_path), hd.MODELS[name])
    assert result.converged
    y = scans.c2[:, i, j].astype(float)

    def residual(x):
        f = written(name, x[:-4], scans.time[i], scans.time[j])
        return ((y - x[-4:-2, None] - x[-2:, None] * f) / 0.01).ravel()

    start = [*theta, 1.0, 1.0, 0.2, 0.2]
    best = scipy.optimize.least_squares(residual, start, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    assert result.chisqr == pytest.approx(2 * best.cost, rel=1e-9)
    away = (result.parameters["value"].values - best.x[:-4]) / result.parameters["stderr_naive"]
    assert np.abs(away).max() < 1e-3


@pytest.mark.long
def test_a_rate_that_is_a_power_of_q_is_found_from_several_rings(tmp_path):
    q, theta = np.array([0.004, 0.008, 0.016]), (0.3, 2.0, 0.9)
    scans = measured(np.ones(3), 50, np.zeros(3), q=q, sigma=0.01, noise=False)
    i, j = np.triu_indices(50, 1)
    rates = theta[0] * (q / 0.01) ** theta[1]
    for b, rate in enumerate(rates):
        f = written("stretched", (rate, theta[2]), scans.time[i], scans.time[j])
        noise = 0.01 * np.random.default_rng(b).standard_normal(len(i))
        scans.c2[b, i, j] = 1.02 + 0.15 * f + noise
    result = hd.fit(store(scans, tmp_path), "stretched_q")
    assert result.converged
    away = (result.parameters["value"].values - theta) / result.parameters["stderr_naive"].values
    assert np.abs(away).max() < 4
    ring = hd.predict(hd.MODELS["stretched_q"], theta, scans.time, q=q[2])[0]
    expected = written("stretched", (rates[2], theta[2]), scans.time[i], scans.time[j])
    np.testing.assert_allclose(ring[i, j], expected, rtol=1e-12)


@dataclass(frozen=True)
class Vibrating(Photons):
    """f = (1 + amplitude cos 2π frequency τ) / (1 + amplitude) · exp(-2 rate τ)."""

    amplitude: float = 0.15
    frequency: float = 23.0
    """Hz."""
    rate: float = 1.5

    def g(self, bin):
        lag = np.abs(self.time[:, None] - self.time)
        wave = 1 + self.amplitude * np.cos(2 * np.pi * self.frequency * lag)
        g = np.sqrt(wave / (1 + self.amplitude)) * np.exp(-self.rate * lag)
        values, vectors = np.linalg.eigh(g)  # of which some are below 0, by less than 1 %
        return (vectors * np.clip(values, 0, None)) @ vectors.T


def vibrating(tmp_path, frames=150, **truth):
    made = Vibrating((1.0, 0.0, 0.0), frames, pixels=2000, spacing=0.005, **truth)
    return store(made.scan(1), tmp_path)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("word", "truth"),
    [
        ("a tenth", {}),
        ("few frames", {"frames": 40, "amplitude": 0.3, "rate": 5.0}),
        ("a turn of half the record", {"amplitude": 0.3, "frequency": 2.8}),
    ],
)
def test_a_vibration_is_found_without_initial_values(tmp_path, word, truth):
    result = hd.fit(vibrating(tmp_path, **truth), "vibration")
    assert result.converged
    assert not result.misfit
    for name, value in ({"amplitude": 0.15, "frequency": 23.0, "rate": 1.5} | truth).items():
        if name != "frames":
            assert abs(result.params[name].value - value) < 4 * result.params[name].stderr


@pytest.mark.long
def test_the_alias_of_a_vibration_faster_than_half_the_frame_rate_is_found(tmp_path):
    result = hd.fit(vibrating(tmp_path, frames=80, frequency=177.0), "vibration")
    assert result.params["frequency"].value == pytest.approx(200 - 177, abs=0.5)


@pytest.mark.long
def test_without_a_vibration_its_amplitude_is_zero_within_its_error(tmp_path):
    result = hd.fit(vibrating(tmp_path, frames=80, amplitude=0.0), "vibration")
    assert result.params["amplitude"].upper_limit < 0.02
    assert result.findings.codes
