"""Profiles of χ² along one parameter, against fits that hold it."""

import numpy as np
import pytest

from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.levenberg_marquardt import Outcome
from tests.synthetic import CREEP, evaluator, fit_here, measured, solve, store


def test_every_point_of_a_profile_is_the_best_fit_with_the_parameter_held(tmp_path):
    scans = measured(CREEP, 40, np.zeros(9), sigma=0.01)
    result = fit_here(store(scans, tmp_path), STATIC, profile=("D_offset",))
    table = result.errors.profiles["D_offset"]
    assert len(table["point"]) == 5
    error = float(result.parameters["stderr"].sel(param="D_offset"))
    best = float(result.parameters["value"].sel(param="D_offset"))
    np.testing.assert_allclose((table["value"] - best) / error, [-2, -1, 0, 1, 2], atol=1e-9)
    assert table["converged"].all()
    evaluate = evaluator(scans)
    for n in (0, 3):
        chosen = search(STATIC.parameters, fixed={"D_offset": float(table["value"][n])})
        last = solve(evaluate, chosen, table["theta"].values[n] * [1.1, 1, 1])[-1]
        assert last.outcome is Outcome.CONVERGED
        assert table["chisqr"].values[n] == pytest.approx(last.reduced.chisqr, abs=0.01)
    # one decade of time hardly tells D0 and D_offset apart: near the optimum it is a parabola
    rise, wanted = (table[key].values - result.chisqr for key in ("chisqr", "parabola"))
    np.testing.assert_allclose(rise[[1, 3]], wanted[[1, 3]], rtol=0.5)


@pytest.mark.long
def test_a_profile_ends_at_a_bound(tmp_path):
    scans = measured(CREEP, 40, np.zeros(9), sigma=0.01)
    free = fit_here(store(scans, tmp_path), STATIC)
    value, error = (
        float(free.parameters[key].sel(param="D_offset")) for key in ("value", "stderr")
    )
    bounds = {"D_offset": (value - 0.5 * error, value + 100 * error)}
    result = fit_here(store(scans, tmp_path), STATIC, profile=("D_offset",), bounds=bounds)
    table = result.errors.profiles["D_offset"]
    assert len(table["point"]) == 4
    assert float(table["value"][0]) == bounds["D_offset"][0]


def test_a_profile_that_cannot_be_had_is_named(tmp_path):
    scan = store(measured(CREEP, 20, np.zeros(2), sigma=0.01), tmp_path)
    held = {"fixed": {"D_offset": CREEP[2]}, "bounds": {"alpha": (CREEP[1] + 1, 2)}}
    result = fit_here(scan, STATIC, profile=("alpha",), **held)
    assert result.parameters["at_bound"].sel(param="alpha")
    assert not result.errors.profiles
    assert [finding.about for finding in result.findings.of("no-profile")] == [("alpha",)]
