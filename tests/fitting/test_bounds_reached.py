"""Fits that end at a bound, and values that no speckle has."""

from typing import Any

import numpy as np
import pytest

import homodyne_dask as hd
from tests.synthetic import FLOW, angles, measured, store

Q: Any = np.array([0.002, 0.003, 0.004])


@pytest.mark.parametrize(
    "D0", [5.0, 5e8, 1e11], ids=["glass", "colloid of 100 nm", "small molecules"]
)
def test_the_search_covers_all_that_diffuses(tmp_path, D0):
    """Its bound was 1e6 Å²/s: a colloid of 100 nm in water has 5e8."""
    made = measured([D0, 0, 0], 150, np.zeros(3), q=Q, dt=1 / (Q[1] ** 2 * D0) / 20)
    result = hd.fit(store(made, tmp_path), "brownian")
    assert result.converged
    assert result.params["D0"].value == pytest.approx(D0, rel=0.02)


def test_errors_allow_for_a_bound_beside_the_optimum_and_hold_with_one_far_from_it(tmp_path):
    """Values that a bound keeps far from the optimum have no error that spans the two."""
    scan = store(measured([8000.0, 0.0, 0.0], 100, np.zeros(3), q=10 * Q / 2, dt=0.05), tmp_path)
    fixed = {"D_offset": 0.0}
    free = hd.fit(scan, "static", fixed=fixed).params["alpha"]
    assert free.stderr is not None
    naive = float(hd.fit(scan, "static", fixed=fixed).parameters["stderr_naive"].values[1])
    errors = []
    for beyond in (3 * naive, 30 * naive):
        bound = {"alpha": (free.value + beyond, 1.0)}
        table = hd.fit(scan, "static", fixed=fixed, bounds=bound).parameters
        assert table["at_bound"].values[1]
        errors.append(table["stderr"].values[1])
    assert np.isfinite(errors).tolist() == [True, False]


def test_a_decay_far_longer_than_the_record_is_undetermined_and_no_bound_is_to_be_moved(tmp_path):
    """It converged with D0 at its lower bound, which it advised to lower.

    c2 bends down where a decay bends up, so that of all decays the slowest is the nearest.
    """
    made = measured([100.0, 0, 0], 60, np.zeros(3), q=(0.005, 0.008, 0.012), dt=0.1, sigma=1e-3)
    lag = made.time - made.time[:, None]
    made.c2[:] -= made.contrast[:, None, None] * (made.q[:, None, None] ** 2 * 100 * lag) ** 2
    result = hd.fit(store(made, tmp_path), "brownian")
    assert float(result.parameters["value"].values[0]) == 1
    assert [one.about for one in result.findings.of("longer-than-record")] == [("D0",)]
    assert not result.findings.of("at-bound")


def test_c2_in_another_unit_is_asked_about(tmp_path):
    made = measured([3000.0, 0, 0], 60, np.zeros(3), q=Q, dt=1.0)
    made.c2[:] *= 100
    made.sigma_row[:] *= 10
    (high,) = hd.fit(store(made, tmp_path), "brownian").findings.of("offset-high")
    assert high.numbers == {"bins": 3, "total": 3, "limit": 2.0}


def fit_of_few_bins(folder):
    """A fit of D0 and phi0, which one or two bins determine."""
    named = zip(hd.LAMINAR_FLOW.names, FLOW, strict=True)
    held = {name: value for name, value in named if name not in ("D0", "phi0")}
    scan = store(measured(FLOW, 60, angles(9)), folder)
    return hd.fit(scan, "laminar_flow", gap="200 um", fixed=held)


def test_a_parameter_that_one_or_two_bins_determine_has_the_error_of_speckle(tmp_path):
    result = fit_of_few_bins(tmp_path)
    assert not result.findings.of("undetermined", "larger-error")
    assert result.params["D0"].method == "speckle"
    assert result.params["D0"].dof > 10


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_an_error_that_neither_bins_nor_speckle_give_is_absent(tmp_path):
    result = fit_of_few_bins(tmp_path)
    assert result.params["D0"].stderr is None
    (absent,) = result.findings.of("no-standard-error")
    assert absent.about[0] == "D0"
    assert result.covariance is None
    assert result.rates.attrs["covariance"] == "naive"
