"""What a report says first where the model does not describe the data, however the fit ended."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.solver.state import Outcome
from tests.synthetic import angles, measured, store

Q, SPACING, FRAMES = 0.005, 0.5, 120


def heterodyne(folder):
    """Moving and still parts of one sample, as of a colloid in front of a wall."""
    rng, t = np.random.default_rng(1), SPACING * np.arange(FRAMES)
    lag, phi, still = np.abs(t[:, None] - t), angles(8), 0.4
    g = np.exp(-0.5 * Q**2 * 2000 * lag)
    turn = np.cos(Q * 60 * lag * np.cos(np.radians(phi))[:, None, None])
    f = ((1 - still) * g) ** 2 + still**2 + 2 * still * (1 - still) * g * turn
    made = measured([2000, 0, 0], FRAMES, phi, q=Q, dt=SPACING)
    c2 = 1 + 0.2 * f + 0.01 * rng.standard_normal(f.shape)
    c2[:, np.tril(np.ones((FRAMES, FRAMES), bool))] = np.nan
    made.c2[:] = c2
    return store(made, folder, sigma=0.01)


@pytest.mark.long
def test_misfit_comes_before_parameters_that_are_not_determined(tmp_path):
    """It was said in the last of four sentences."""
    result = hd.fit(heterodyne(tmp_path), "static")
    assert result.misfit or result.redchi > 2
    assert result.verdict.startswith(("the model does not describe", "χ²/N is", "converged, but"))
    if result.outcome is Outcome.SINGULAR:
        assert result.verdict.endswith("; besides, the data do not determine all parameters")


def test_c2_that_is_quieter_than_its_counts_is_said(tmp_path):
    """As of repeats that were averaged before, or of pixels that were counted wrongly."""
    quiet = measured([1e4, 0, 0], 60, q=0.01, dt=0.1, sigma=0.005)
    counted = {"sigma": None, "counts": np.full((1, 60), 2.0), "pixels": np.array([400])}
    result = hd.fit(store(quiet, tmp_path, **counted), "brownian")
    assert any("c2 scatters less than its counts" in warning for warning in result.warnings)
