"""A shear rate that changes its sign: the fit finds where, as far as data show it."""

from dataclasses import dataclass

import numpy as np
import pytest

import homodyne_dask as hd
from tests import reference
from tests.speckle_scans import Photons
from tests.synthetic import GAP, Q, angles, fit_here, store

OPTIONS = {"rates": "spline", "bounds": {"gamma_dot": (-0.1, 0.1)}, "gap": f"{GAP} A"}


@dataclass(frozen=True)
class Oscillating(Photons):
    """Speckle of a constant J under a shear rate that is a sine of time."""

    amplitude: float = 4e-4
    periods: float = 1.5
    phase: float = 0.4

    @property
    def rate(self):
        return self.amplitude * np.sin(
            2 * np.pi * self.periods * self.time / self.time[-1] + self.phase
        )

    def g(self, bin):
        diffusion = self.theta[0] * self.time
        strain = reference.integral(self.rate, self.time)
        wave = 0.5 * self.q[bin] * self.gap * np.cos(np.deg2rad(self.theta[6] - self.angles[bin]))
        turned = np.sinc(wave * (strain[:, None] - strain) / np.pi)
        return np.exp(-0.5 * self.q[bin] ** 2 * np.abs(diffusion[:, None] - diffusion)) * turned


def photons(frames, bins, **shear):
    theta = np.array([1500.0, 0, 0, 0, 0, 0, 5.0])
    phi = tuple(angles(bins) + 3.0)
    return Oscillating(
        theta, frames, (Q,) * bins, phi, pixels=400, modes=4, spacing=80 / frames, gap=GAP, **shear
    )


def shear_of(result):
    return result.rates["gamma_dot"].values


@pytest.mark.parametrize(
    ("frames", "options"),
    [
        pytest.param(60, {}, marks=pytest.mark.long),
        pytest.param(60, {"min_lag": 3}, marks=pytest.mark.slow),
        pytest.param(60, {"loss": "soft_l1"}, marks=pytest.mark.slow),
        pytest.param(24, {}, marks=pytest.mark.slow),
    ],
    ids=["plain", "longer lags only", "loss", "few frames"],
)
def test_an_oscillating_shear_rate_is_found_with_its_signs(frames, options, tmp_path):
    flow = photons(frames, 6)
    result = fit_here(store(flow.scan(1), tmp_path), hd.LAMINAR_FLOW, **OPTIONS, **options)
    found, truth = shear_of(result), flow.rate
    assert abs(np.corrcoef(found, truth)[0, 1]) > 0.95, np.round(found * 1e4, 1)
    assert "not the overall sign" in " ".join(str(result).split())


@dataclass(frozen=True)
class Resting(Photons):
    """Speckle under a shear rate that is zero in the last third of the record."""

    @property
    def rate(self):
        return 4e-4 * np.clip((2 / 3 - self.time / self.time[-1]) / 0.08, 0, 1)

    g = Oscillating.g


@pytest.mark.long
def test_a_band_holds_a_shear_rate_that_is_zero(tmp_path):
    """With the coefficients at the bound fixed there it held 37 % of these times, and had no width."""
    bins, frames = 8, 160
    flow = Resting(
        np.array([1500.0, 0, 0, 0, 0, 0, 5.0]), frames, (Q,) * bins, tuple(angles(bins) + 3.0),
        pixels=400, modes=4, spacing=80 / frames, gap=GAP,
    )  # fmt: skip
    result = fit_here(
        store(flow.scan(1), tmp_path), hd.LAMINAR_FLOW, rates="spline", gap=f"{GAP} A"
    )
    rest = (flow.rate == 0)[: len(shear_of(result))]
    low, high = (result.rates[f"gamma_dot_{side}_95"].values[rest] for side in ("low", "high"))
    assert (low <= 0).mean() > 0.85
    assert (high > 1e-6).all()
    assert (low >= 0).all()
