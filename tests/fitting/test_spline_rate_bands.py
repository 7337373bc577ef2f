"""Bands of rates without a formula hold bends: they count what splines and smoothing miss."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.models.spline_basis import SplineForm, basis_error
from homodyne_dask.results.data.fit_result import from_summary
from tests.speckle_scans import Photons
from tests.synthetic import GAP, Q, angles, fit_here, measured, of_rate, store


def test_splines_miss_a_sharp_bend_by_what_their_coefficients_tell():
    """Of all places of a kink between two splines, and of sines, which they follow."""
    t, form = np.linspace(0, 1, 1500), SplineForm(20)
    basis = form.basis(t)
    inside = []
    for kink in np.linspace(0.45, 0.45 + form.step, 15):
        rate = np.maximum(t - kink, 0)
        c = np.linalg.solve(basis @ basis.T, basis @ rate)
        missed = np.abs(c @ basis - rate)
        some = missed > 0.05 * missed.max()
        inside.append((missed < 2 * basis_error(c) @ basis)[some].mean())
    assert 0.8 <= np.mean(inside) <= 0.99
    for periods in (1.0, 2.0, 3.0, 3.5):
        sine = np.sin(2 * np.pi * periods * t)
        c = np.linalg.solve(basis @ basis.T, basis @ sine)
        told, missed = basis_error(c) @ basis, np.abs(c @ basis - sine)
        assert told[100:-100].mean() < 2 * missed[100:-100].mean()
    assert (basis_error(np.array([1.0, 5.0, 2.0, 9.0])) == 0).all()


def test_the_bias_of_smoothing_is_that_of_a_fit_of_data_without_noise(tmp_path):
    """The penalty pulls a hump down by a sixth; two standard errors hold J at a third of the times."""
    scans = measured((2500.0, 0.0, 0.0), 60, angles(8), noise=False, sigma=0.02)
    J = 2500 * (1 + np.exp(-(((scans.time - 10) / 2) ** 2)))
    scans = of_rate(scans, J, 1e-3, seed=1)
    result = fit_here(store(scans, tmp_path), "static", rates="spline", smoothness={"J": 3e-4})
    rates, splines = result.rates, SplineForm(**result.config["splines"]["J"])
    bias = result.diagnosis.smoothing["bias"].values @ splines.basis(scans.time)
    missed = rates["J"].values - J
    assert missed.min() < -0.14 * J.max()
    assert np.corrcoef(missed, bias)[0, 1] > 0.97
    assert 0.8 < (bias @ missed) / (missed @ missed) < 1.2
    assert (np.abs(missed) < 2 * rates["J_stderr"].values).mean() < 0.5
    assert _held(rates, "J", J).mean() > 0.95
    read = from_summary(result.to_dict())
    assert read.diagnosis.smoothing.equals(result.diagnosis.smoothing)


def test_a_diffusion_that_stops_has_a_band_where_it_rests(tmp_path):
    """J at its floor had none, though its splines have derivatives there; the edge is held, too."""
    scans = measured((2500.0, 0.0, 0.0), 60, angles(8), noise=False, sigma=0.05)
    J = 4000 * np.clip((2 / 3 - scans.time / scans.time[-1]) / 0.1, 0, 1)
    scans = of_rate(scans, J, 0.05, seed=2)
    rates = fit_here(store(scans, tmp_path), "static", rates="spline").rates
    held, rest = _held(rates, "J", J), J == 0
    assert held[rest].mean() > 0.88
    assert held.mean() > 0.88
    high = rates["J_high_95"].values[rest]
    assert (high > 0).all()
    assert np.median(high) < 0.2 * J.max()


def _held(rates, name, truth):
    low, high = (rates[f"{name}_{side}_95"].values for side in ("low", "high"))
    return (low <= truth) & (truth <= high)


RATES = {
    "a shear rate that stops": (
        lambda x: 1500.0 + 0 * x,
        lambda x: 4e-4 * np.clip((2 / 3 - x) / 0.08, 0, 1),
    ),
    "a step of J": (
        lambda x: 1500.0 * (1 + 2 / (1 + np.exp(-(x - 0.5) / 0.05))),
        lambda x: 4e-4 * (1 + 0.6 * np.sin(4 * np.pi * x)),
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("word", RATES)
def test_bands_of_counted_photons_hold_rates_around_their_bends(word, tmp_path):
    """By thirds of the record, at the bends, and at each time."""
    held, bins, (J, shear) = {"J": [], "gamma_dot": []}, 10, RATES[word]
    flow = Photons(
        np.array([1500.0, 0, 0, 0, 0, 0, 5.0]), 160, (Q,) * bins, tuple(angles(bins) + 3.0),
        spacing=0.5, gap=GAP, J=J, shear=shear,
    )  # fmt: skip
    x = flow.time / flow.time[-1]
    for seed in range(16):
        scan = store(flow.scan(seed), tmp_path, f"{seed}")
        rates = fit_here(scan, hd.LAMINAR_FLOW, rates="spline", gap=f"{GAP} A").rates
        for name, truth in (("J", J(x)), ("gamma_dot", shear(x))):
            held[name].append(_held(rates, name, truth))
    of_J, of_shear = (np.mean(of, axis=0) for of in held.values())
    for of in (of_J, of_shear):
        assert 0.88 <= of.mean() <= 0.995
        assert all(part.mean() >= 0.88 for part in np.array_split(of, 3))
    stops = word == "a shear rate that stops"
    of_bends, near = (of_shear, np.abs(x - 0.63) < 0.07) if stops else (of_J, np.abs(x - 0.5) < 0.1)
    assert of_bends[near].mean() >= 0.88
    assert (of_bends >= 0.7).all()
