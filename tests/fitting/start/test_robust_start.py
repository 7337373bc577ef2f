"""First values among gross outliers, and the fit under a loss that follows: nothing given by the user."""

import numpy as np
import pytest

import homodyne_dask as hd
from tests.synthetic import (
    angles,
    fit_here,
    measured,
    store,
    with_outliers,
)

CREEP = [60000, -1.0, 500]
FLOWS = [
    ("ageing", [30000, -0.5, 500, 5e-4, -0.5, 5e-5, -3]),
    ("steady flow", [10000, 0, 0, 3e-3, 0, 0, -45]),
]
QUIET = {"dt": 0.1, "sigma": 0.01, "contrast": 0.3}
HELD = {"fixed": {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}}
"""Offsets that so short a record does not tell from the amplitudes."""


@pytest.mark.parametrize(
    ("word", "truth"),
    [
        pytest.param("creep", CREEP, marks=pytest.mark.slow),
        pytest.param(*FLOWS[0], marks=pytest.mark.slow),
        pytest.param(*FLOWS[1], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_two_percent_of_gross_outliers_move_nothing_by_a_standard_error(word, truth, tmp_path):
    flow = len(truth) == 7
    clean = measured(truth, 150, angles(11) if flow else np.zeros(4), **QUIET)
    model = hd.LAMINAR_FLOW if flow else hd.STATIC
    given = (HELD if flow else {}) | {"gap": 2e6 if flow else None}
    wanted = fit_here(store(clean, tmp_path, "clean"), model, **given).parameters
    spoilt = store(with_outliers(clean), tmp_path)
    found = fit_here(spoilt, model, loss="huber", loss_scale=1.345, **given)
    assert found.converged
    free = ~wanted["fixed"].values
    moved = found.parameters["value"].values - wanted["value"].values
    assert (np.abs(moved / wanted["stderr_naive"].values)[free] < 1).all()
    assert "pairs 8 σ or more from neighbouring pairs" in str(found.provenance.inputs["notes"])
