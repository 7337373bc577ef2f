"""The heterodyne model: its published numbers, and what data say of its fourteen parameters."""

import numpy as np
import pytest

import homodyne_dask as hd
from tests.synthetic import measured, store

TIMES = 0.1 * np.arange(8)
GOLDEN = [1e4, 0, 0, 1e4, 0, 0, 1e3, 1, 0, 0.5, 0, 0, 0, 0]
Q = 0.0237
MODEL = hd.MODELS["two_component_xpcsjax"]
VALUES = [3000.0, 0.0, 0.0, 400.0, -0.3, 0.0, 60.0, 0.2, 0.0, 0.6, 0.0, 0.0, 0.0, 20.0]
TRUTH = dict(zip(MODEL.names, VALUES, strict=True))


@pytest.mark.parametrize(
    ("phi", "pair", "wanted"),
    [
        (0.0, (1, 4), 1.02210616790179),
        (0.0, (0, 7), 1.00735546901377),
        (45.0, (1, 4), 1.03640345041784),
    ],
)
def test_the_published_numbers(phi, pair, wanted):
    c2 = hd.predict(MODEL, GOLDEN, TIMES, q=Q, phi=phi, contrast=0.3, offset=1.0)
    assert c2[0][pair] == pytest.approx(wanted, rel=1e-12)


def heterodyne(n=80, angles=10, sigma=0.004, seed=0):
    phi = np.arange(angles) * 180.0 / angles - 90
    time = 0.2 * np.arange(n)
    c2 = hd.predict(MODEL, TRUTH, time, q=Q, phi=phi, contrast=0.3, offset=1.0)
    scans = measured(np.ones(3), time=time, phi=phi, q=Q, sigma=sigma, noise=False)
    noisy = c2 + sigma * np.random.default_rng(seed).standard_normal(c2.shape)
    scans.c2[...] = np.where(np.isnan(scans.c2), np.nan, noisy)
    return scans


HELD = ("D_offset_ref", "D_offset_sample", "v_offset", "f1", "f2", "f3")


@pytest.mark.long
def test_what_the_data_determine_is_recovered(tmp_path):
    scan = store(heterodyne(), tmp_path)
    held = {name: TRUTH[name] for name in HELD}
    first = {name: 1.2 * value + 0.05 for name, value in TRUTH.items() if name not in HELD}
    first |= {"f0": 0.5, "phi0_het": 10.0}
    result = hd.fit(scan, MODEL, fixed=held, initial=first)
    assert result.converged
    table = result.parameters
    free = ~table["fixed"].values
    truth = np.array([TRUTH[name] for name in table["param"].values])
    pull = (table["value"].values - truth)[free] / table["stderr_naive"].values[free]
    assert np.abs(pull).max() < 4, pull
    assert not result.findings.at_least("warning")


@pytest.mark.long
def test_weakly_determined_combinations_are_named(tmp_path):
    """A constant fraction is f0·exp(f1(t - f2)) + f3 with f1 = 0: f0, f2 and f3 are one number."""
    scan = store(heterodyne(60, 8), tmp_path)
    result = hd.fit(scan, MODEL, initial=TRUTH | {"f1": 1e-4, "f3": 0.01, "f2": 1.0}, max_passes=40)
    assert any({"f0", "f3"} <= set(one.about) for one in result.findings.at_least("note"))
    assert result.outcome is not hd.Outcome.NONFINITE
