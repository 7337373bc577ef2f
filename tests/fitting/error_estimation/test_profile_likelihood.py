"""Profiles of χ² along one parameter, against fits that hold it."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, PlanError
from homodyne_dask.fitting import fit as fit_module
from homodyne_dask.fitting.error_estimation import estimate_errors as estimate
from homodyne_dask.fitting.error_estimation import profile_likelihood as wide_profile
from homodyne_dask.fitting.error_estimation.profile_likelihood import (
    ProfilePoint,
    Profiles,
    profile,
)
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.request import prepare
from homodyne_dask.fitting.surrogate import interpolation_nodes as basis
from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.results.files.saved_results import load_result
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.state import Outcome
from homodyne_dask.sweep.sweep import sweep_of
from tests.synthetic import CREEP, FLOW, angles, evaluator, fit_here, measured, solve, store


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A scan in which D0, alpha and D_offset are known only together: valleys of χ² are bent."""
    truth = np.array([20000.0, -0.4, 500.0])
    scans = measured(truth, 40, angles(9), sigma=0.1, seed=4)
    return store(scans, tmp_path_factory.mktemp("still"))


def ended(scan, model, **options):
    """The request of a fit, passes over its data, its last state, and a list of the tasks of its passes."""
    passes = hd.iterate(scan, model, **options)
    *_, state = passes
    request = prepare(scan, model, **options)
    sweep = sweep_of(plan_for(request, None), scan.selection, request.problem, None)
    tasks = []

    def recorded(sweep, task, at, compute=sweep.compute):
        tasks.append(task.label)
        return compute(sweep, task, at)

    return request, replace(sweep, compute=recorded), state, tasks


def exact(request, sweep, state, steps):
    """The profiles with a pass over all pairs for every step of every point."""
    options = lm.Options(decrement=1e-3)
    return {n: profile(request, sweep, state, n, step, options) for n, step in steps.items()}


CURVED = {"D0": 3800.0, "alpha": 0.17, "D_offset": 3300.0}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, CURVED),
        pytest.param(
            {"prior": {"alpha": (-0.5, 0.05)}},
            {"D0": 2400.0, "alpha": 0.047},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"scaling": "shared", "precision": "mixed"},
            {"D_offset": 3300.0},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bent valleys", "prior", "shared, mixed precision"],
)
def test_profiles_from_one_wide_pass_are_those_of_passes(still, options, steps):
    request, sweep, state, tasks = ended(still, "static", **options)
    found = wide_profile.wide_profiles(request, sweep, state, steps)
    points = 1 + 4 * len(steps)
    assert found.found
    assert tasks == ["at many parameters"] + [tasks[-1]] * -(-points // 8)
    request, sweep, state, tasks = ended(still, "static", **options | {"precision": "float64"})
    wanted = exact(request, sweep, state, steps)
    assert len(tasks) > 8 * len(steps)
    rises = []
    for name in steps:
        for point, known in zip(found.points[name], wanted[name], strict=True):
            at = request.search.names.index(name)
            assert point.theta[at] == pytest.approx(known.theta[at], rel=1e-4)
            rises.append(known.chisqr - state.reduced.chisqr)
            there = point.chisqr - found.points[name][2].chisqr
            assert there == pytest.approx(rises[-1], abs=1e-3)
        assert found.points[name][2].converged
    assert max(rises) > 4


@pytest.mark.slow
def test_profiles_of_all_seven_parameters_take_one_wide_pass(tmp_path):
    scan = store(measured(FLOW, 200, angles(12), sigma=0.004, seed=6), tmp_path)
    options = {"gap": "200 um"}
    request, sweep, state, tasks = ended(scan, "laminar_flow", **options)
    error = hd.fit(scan, "laminar_flow", **options).error_used
    steps = {name: 5 * float(e) for name, e in zip(request.search.names, error, strict=True)}
    found = wide_profile.wide_profiles(request, sweep, state, steps)
    assert found.found
    assert len(tasks) == 1 + 4
    wanted = exact(request, sweep, state, steps)
    known, there = (
        np.array([point.chisqr for name in steps for point in of[name]])
        for of in (wanted, found.points)
    )
    assert (known - state.reduced.chisqr).max() > 100
    np.testing.assert_allclose(there, known, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_a_basis_that_is_too_small_is_chosen_anew_and_said_if_it_stays_so(still, monkeypatch):
    request, sweep, state, tasks = ended(still, "static")
    monkeypatch.setattr(basis, "SIZES", (3,))
    found = wide_profile.wide_profiles(request, sweep, state, {"D0": CURVED["D0"]})
    assert not found.found
    assert tasks.count("at many parameters") == 3
    lowest = exact(request, sweep, state, {"D0": CURVED["D0"]})["D0"]
    above = [p.chisqr - q.chisqr for p, q in zip(found.points["D0"], lowest, strict=True)]
    assert min(above) > -1e-3
    assert max(above) > 1e-3


def test_a_profile_that_may_not_be_the_least_says_so(still, monkeypatch):
    points = [ProfilePoint(np.ones(3), 1.0, n, True) for n in range(2)]
    monkeypatch.setattr(estimate, "wide_profiles", lambda *_: Profiles({"D0": points}, found=False))
    result = fit_here(still, STATIC, profile=("D0",))
    assert any("the profiles show χ² of all pairs, but" in w for w in result.warnings)


def test_a_profile_needs_memory_for_its_wide_pass(still, monkeypatch):
    plain = hd.plan(still, "static")
    little = replace(plain.workers, memory=plain.memory_per_worker)
    monkeypatch.setattr(fit_module, "this_process", lambda: little)
    assert hd.plan(still, "static").workers == little
    with pytest.raises(PlanError, match="this process would need"):
        plan_for(prepare(still, "static", profile=("D0",)), None)
    robust = prepare(still, "static", profile=("D0",), loss="huber")
    assert plan_for(robust, None).workers == little


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


def test_a_profile_of_an_unknown_parameter_is_refused(tmp_path):
    scan = store(measured(CREEP, 20, np.zeros(2)), tmp_path)
    with pytest.raises(OptionError, match="profile: unknown parameter 'D_ofset'; did you mean"):
        fit_here(scan, STATIC, profile=("D_ofset",))


def test_a_profile_that_cannot_be_had_is_refused_or_named(tmp_path):
    scan = store(measured(CREEP, 20, np.zeros(2), sigma=0.01), tmp_path)
    with pytest.raises(OptionError, match="profile: alpha is fixed and has no profile"):
        fit_here(scan, STATIC, profile=("D0", "alpha"), fixed={"alpha": CREEP[1]})
    held = {"fixed": {"D_offset": CREEP[2]}, "bounds": {"alpha": (CREEP[1] + 1, 2)}}
    result = fit_here(scan, STATIC, profile=("alpha",), **held)
    assert result.parameters["at_bound"].sel(param="alpha")
    assert not result.errors.profiles
    assert any("there is no profile of alpha: it is at a bound" in w for w in result.warnings)


@pytest.mark.long
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_what_is_known_of_the_parameters_survives_json(tmp_path):
    scans = measured(CREEP, 40, np.linspace(0, 160, 5), sigma=0.01)
    result = fit_here(store(scans, tmp_path), STATIC, profile=("alpha",))
    result.to_json(tmp_path / "result.json")
    read = load_result(tmp_path / "result.json")
    for key in ("influence", "scalings", "identifiability"):
        assert getattr(read.diagnosis, key).equals(getattr(result.diagnosis, key)), key
    assert read.errors.profiles["alpha"].equals(result.errors.profiles["alpha"])
    assert read.errors.covariance_lower.equals(result.errors.covariance_lower)
    assert str(read) == str(result)
    assert "profile of alpha" in str(result)
    assert "influence of individual bins" in str(result)
    assert "the lower bound on the error allows for correlations" in str(result)
