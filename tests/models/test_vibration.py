"""A decay with a vibration, found without initial values in counted photons."""

from dataclasses import dataclass

import numpy as np
import pytest

import homodyne_dask as hd
from tests.speckle_scans import Photons
from tests.synthetic import store


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


def photographed(tmp_path, frames=150, **truth):
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
    result = hd.fit(photographed(tmp_path, **truth), "vibration")
    assert result.converged
    assert not result.misfit
    for name, value in ({"amplitude": 0.15, "frequency": 23.0, "rate": 1.5} | truth).items():
        if name != "frames":
            assert abs(result.params[name].value - value) < 4 * result.params[name].stderr


@pytest.mark.long
def test_the_alias_of_a_vibration_faster_than_half_the_frame_rate_is_found(tmp_path):
    result = hd.fit(photographed(tmp_path, frames=80, frequency=177.0), "vibration")
    assert result.params["frequency"].value == pytest.approx(200 - 177, abs=0.5)


@pytest.mark.long
def test_without_a_vibration_its_amplitude_is_zero_within_its_error(tmp_path):
    result = hd.fit(photographed(tmp_path, frames=80, amplitude=0.0), "vibration")
    assert result.params["amplitude"].upper_limit < 0.02
    assert result.findings.codes
