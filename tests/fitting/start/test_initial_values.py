"""First values from the data alone end in the global optimum, also among outliers: that from the truth."""

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.start import transport_search as transport
from homodyne_dask.fitting.start.averages import BinnedFits
from homodyne_dask.fitting.start.transport_search import Minimum, competing_minima, transport_minima
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.saved_results import load_result
from homodyne_dask.solver.levenberg_marquardt import Outcome
from tests import truths
from tests.synthetic import (
    angles,
    asked,
    evaluator,
    fit_here,
    measured,
    searched,
    solve,
    store,
    summary,
    with_outliers,
)

# D0, alpha, D_offset, gamma_dot_t0, beta, gamma_dot_t_offset, phi0, Δt
TRUTHS = [
    ("slow", [3000, 0, 100], 0.3),
    ("fast", [3e5, 0, 100], 0.05),
    ("slows down", [60000, -1.0, 500], 0.1),
    ("speeds up", [2000, 0.5, 0], 0.2),
    ("negative offset", [20000, -0.3, -1500], 0.1),
    ("PHYSICS.md §5", [2500, -0.3, 100, 2e-4, 0.2, 1e-5, 5], 1 / 3),
    ("creep", [68480, -1.327, 1708, 9e-4, -0.212, -2.7e-4, 2], 0.1),
    ("ageing", [30000, -0.5, 500, 5e-4, -0.5, 5e-5, -3], 0.1),
    ("andrade", [8000, -0.3, 500, 1e-3, -0.667, 0, 5], 0.1),
    ("steady flow", [10000, 0, 0, 3e-3, 0, 0, -45], 0.1),
    ("strong flow", [20000, -0.2, 100, 2e-2, -0.1, 1e-4, 30], 0.05),
    ("flow across the ring", [5000, 0.1, 100, 1e-3, 0.3, 1e-5, 89], 0.2),
]
# enough bins and quiet enough that the optimum is one point, whatever the truth
QUIET = {"sigma": 0.01, "contrast": 0.3}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("word", "truth", "dt"), TRUTHS, ids=[w for w, *_ in TRUTHS])
@pytest.mark.parametrize(
    "convention", ["physical", pytest.param("homodyne", marks=pytest.mark.slow)]
)
def test_the_fit_ends_where_the_one_from_the_truth_does(word, truth, dt, convention):
    phi = angles(11) if len(truth) == 7 else np.zeros(4)
    scans = measured(truth, 150, phi, dt=dt, convention=convention, **QUIET)
    found = searched(scans)[-1]
    chosen = asked(scans)
    best = solve(evaluator(scans, side=256), chosen, chosen.inside(scans.theta))[-1]
    # along what the data do not determine a fit rests within three standard errors of its best
    rests = found.outcome is Outcome.SINGULAR
    assert found.reduced.chisqr <= best.reduced.chisqr + (9 if rests else 0.1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("model", "convention"),
    [("static", "physical"), ("laminar_flow", "physical"), ("laminar_flow", "homodyne")],
)
def test_ninety_eight_of_a_hundred_random_truths_are_found(model, convention):
    found = [truths.attempt(truths.drawn(model, seed, convention)) for seed in range(100)]
    missed = [(seed, f) for seed, f in enumerate(found) if not f.succeeded]
    assert len(missed) <= 2, "\n".join(f"seed {seed}: {f}" for seed, f in missed)


def test_a_minimum_that_only_the_given_values_lead_to_is_among_those_compared(monkeypatch):
    scans = measured([20000.0, -0.4, 100.0], 40, np.zeros(2), **QUIET)
    given = {"D0": 19000.0, "alpha": -0.5, "D_offset": 50.0}
    monkeypatch.setattr(transport, "_searched", lambda *_: [])
    [only] = transport_minima(summary(scans), asked(scans, initial=given), "individual")
    assert only.theta[0] == pytest.approx(20000, rel=0.05)


def test_a_fit_without_a_free_parameter_stays_where_it_is():
    scans = measured([20000.0, -0.4, 100.0], 40, np.zeros(2))
    fixed = {"D0": 777.0, "alpha": 0.1, "D_offset": -3.0}
    [only] = transport_minima(summary(scans), asked(scans, fixed=fixed), "individual")
    assert only.theta.tolist() == [777.0, 0.1, -3.0]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("phi0", [-66, -10, 6, 11, 24, 48, 83])
@pytest.mark.parametrize("shear", [2e-4, 2e-2])
def test_the_direction_of_flow_is_found_wherever_it_is(phi0, shear):
    scans = measured([8000, -0.2, 200, shear, -0.1, 0, phi0], 150, angles(11), dt=0.1, **QUIET)
    found = searched(scans)[-1]
    best = solve(evaluator(scans, side=256), asked(scans), scans.theta)[-1]
    assert found.theta[6] == pytest.approx(phi0, abs=0.3)
    # within one standard error: strong shear leaves D0, alpha and D_offset more than one such end
    assert found.reduced.chisqr <= best.reduced.chisqr + 1


@pytest.mark.long
def test_directions_the_data_cannot_tell_apart_are_both_reported():
    # two bins across each other see phi0 and -phi0 alike
    scans = measured([8000, -0.2, 200, 3e-3, -0.1, 0, 20], 120, [0.0, 90.0], dt=0.1, **QUIET)
    minima = transport_minima(summary(scans), asked(scans), "individual", 20)
    assert sum(at.starts for at in minima) >= 20
    assert [at.chisqr for at in minima] == sorted(at.chisqr for at in minima)
    good = [at for at in minima if at.chisqr < minima[0].chisqr + 0.1]
    # the averages are of many frames under this shear: a start, not the answer
    assert sorted(at.theta[6] for at in good) == pytest.approx([-20, 20], abs=1)
    ends = [solve(evaluator(scans), asked(scans), at.theta)[-1] for at in good]
    assert sorted(end.theta[6] for end in ends) == pytest.approx([-20, 20], abs=0.4)
    assert ends[0].reduced.chisqr == pytest.approx(ends[1].reduced.chisqr, abs=1e-3)


def test_a_fit_that_hardly_comes_closer_to_the_lowest_minimum_stops_early():
    scans = measured([8000, -0.2, 200, 3e-3, -0.1, 0, 20], 60, angles(9), dt=0.1, **QUIET)
    fits = BinnedFits(summary(scans), asked(scans), "individual")
    hopeless = np.array([8000, -0.2, 200, 3e-3, -0.1, 0, -20.0])
    [alone] = fits.completed(fits.started([hopeless]))
    lowest, *others = fits.completed(fits.started([scans.theta, hopeless]))
    assert lowest.lowest.theta[6] == pytest.approx(20, abs=0.5)
    assert max(end.state.passes for end in others) < alone.state.passes


def test_only_minima_that_may_be_the_lowest_are_compared_on_the_data():
    at = np.arange(3.0)
    minima = [Minimum(at, 100.0, 5), Minimum(at + 1, 101.0, 2), Minimum(at + 2, 1e4, 1)]
    assert [theta.tolist() for theta in competing_minima(minima)] == [[0, 1, 2], [1, 2, 3]]
    assert len(competing_minima([Minimum(at, np.nan, 1)])) == 1


@pytest.mark.long
def test_a_fit_reports_the_minima_of_its_starts(tmp_path):
    scan = store(measured([8000, -0.2, 200, 3e-3, -0.1, 0, 20], 60, angles(9), dt=0.1), tmp_path)
    result = fit_here(scan, LAMINAR_FLOW, gap=2e6, starts=20)
    best = result.diagnosis.minima[0]
    assert best["theta"]["phi0"] == pytest.approx(20, abs=0.5)
    said = " ".join(result.report(all=True).split())
    assert f" phi0 {best['starts']} 0 " in said
    result.to_json(tmp_path / "result.json")
    assert load_result(tmp_path / "result.json").diagnosis.minima == result.diagnosis.minima


GIVEN = [
    {"fixed": {"alpha": -0.5}},
    {"fixed": {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}},
    {"fixed": {"phi0": 0.0}},
    {"fixed": {"gamma_dot_t0": 5e-4}},
    {"fixed": {"gamma_dot_t0": -5e-4}},
    {"fixed": {"D0": 30000.0, "beta": -0.5}},
    {"initial": {"gamma_dot_t0": 4e-4, "phi0": 10.0}},
    {"bounds": {"beta": (-0.6, -0.4), "phi0": (-20.0, 20.0), "D0": (2e4, 4e4)}},
]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("given", GIVEN, ids=[str(g) for g in GIVEN])
def test_what_the_user_gave_is_kept_and_the_rest_is_found(given):
    truth = np.array([30000, -0.5, 0, 5e-4, -0.5, 0, 0])
    scans = measured(truth, 150, angles(9), dt=0.1, **QUIET)
    states = searched(scans, **given)
    last = states[-1]
    assert last.outcome is Outcome.CONVERGED
    for name, value in given.get("fixed", {}).items():
        assert last.theta[LAMINAR_FLOW.names.index(name)] == value
    for name, (low, high) in given.get("bounds", {}).items():
        assert low <= last.theta[LAMINAR_FLOW.names.index(name)] <= high
    chosen = asked(scans, **given)
    best = solve(evaluator(scans, side=256), chosen, truth)[-1]
    assert last.reduced.chisqr <= best.reduced.chisqr + 0.1


@pytest.mark.long
def test_a_short_window_of_a_long_record_starts_from_its_own_averages(tmp_path):
    window = slice(200, 225)
    whole = measured([3e5, 0, 0], 400, np.zeros(3), dt=0.1, **QUIET)
    slow = measured([2e4, 0, 0], 400, np.zeros(3), dt=0.1, **QUIET, seed=1)
    whole.c2[:, window, window] = slow.c2[:, window, window]
    scan = store(whole, tmp_path).select(frames=(window.start, window.stop))
    result = hd.fit(scan, "brownian")
    assert result.diagnosis.minima[0]["theta"]["D0"] == pytest.approx(2e4, rel=0.2)


HELD = {"fixed": {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}}
"""Offsets that so short a record does not tell from the amplitudes."""


AMONG_OUTLIERS = {"slows down": "slow", "ageing": "slow", "steady flow": "long"}


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param(truth, marks=getattr(pytest.mark, AMONG_OUTLIERS[word]), id=word)
        for word, truth, _ in TRUTHS
        if word in AMONG_OUTLIERS
    ],
)
def test_two_percent_of_gross_outliers_move_nothing_by_a_standard_error(truth, tmp_path):
    flow = len(truth) == 7
    clean = measured(truth, 150, angles(11) if flow else np.zeros(4), dt=0.1, **QUIET)
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


def test_positive_bounds_over_many_decades_are_searched_on_a_scale_of_logarithms(tmp_path):
    def decay(theta, t1, t2, bin):
        return jnp.exp(-2 * bin.q**2 * theta[0] * (t2 - t1))

    scan = store(measured([3000, 0, 0], 60, np.zeros(3), **QUIET), tmp_path)
    of_user = hd.separable(decay, [hd.Parameter("rate", "Å²/s", bounds=(1e-3, 1e12))])
    fitted = fit_here(scan, of_user)
    assert fitted.converged
    rate = fitted.parameters.sel(param="rate")
    assert abs(float(rate["value"]) - 1500) < 5 * float(rate["stderr"])
