"""The simplest adequate model, by bins left out."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.choose_model import FORMULAS, FREE_RATES, _allowed
from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.influence import left_out_clusters
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from tests.photons import photographed
from tests.results.three_rings import Q, three_rings
from tests.solver.dense_problem import scaling_at, without_bins
from tests.speckle_scans import Photons
from tests.synthetic import FLOW, angles, asked, evaluator, measured, of_decay, solve, store

STATIC_THETA = [20000.0, -0.4, 1000.0]
FLOW3 = FLOW * [1, 1, 1, 3, 1, 1, 1]


@pytest.mark.parametrize("clusters", [[0, 1, 2, 3, 4], [0, 1, 2, 2, 4]], ids=["bins", "a pair"])
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_the_score_of_a_bin_is_its_chisqr_at_the_optimum_of_the_others(mode, clusters):
    phi, clusters = angles(5), np.array(clusters)
    scans = measured(STATIC_THETA, 40, phi, sigma=0.01, seed=3)
    chosen, evaluate = search(STATIC.parameters), evaluator(scans)
    state = solve(evaluate, chosen, scans.theta, scaling_at(phi, mode))[-1]
    found = left_out_clusters(joint_equations(state.reduced, np.ones(3, bool)), clusters).of_bin
    for one in np.unique(clusters):
        left = clusters == one
        rest = without_bins(scans, np.flatnonzero(left))
        there = solve(evaluator(rest), chosen, state.theta, scaling_at(rest.phi, mode))[-1]
        moments = evaluate(there.theta).moments[left]
        if mode == "individual":
            expected = reduce(evaluate(there.theta), "individual").chisqr_per_bin[left]
        else:
            offset, contrast = there.reduced.linear_params[0]
            x = np.array([-offset, 1.0, -contrast])
            expected = np.einsum("i,bij,j->b", x, moments[:, :3, :3], x)
        found_rise, rise = (
            of - state.reduced.chisqr_per_bin[left] for of in (found[left], expected)
        )
        np.testing.assert_allclose(found_rise, rise, atol=0.03 + 0.02 * abs(rise).max())


def test_the_score_of_a_bin_that_moves_parameters_far_is_rough():
    """The most influential bin moves a parameter by three naive errors (docs/models.md)."""
    scans = photographed(STATIC_THETA, 60, angles(5), seed=5)
    chosen, evaluate = asked(scans), evaluator(scans, padded=5)
    state = solve(evaluate, chosen, scans.theta)[-1]
    free = np.ones(len(scans.theta), bool)
    left_out = left_out_clusters(joint_equations(state.reduced, free), np.arange(5)).of_bin
    found = left_out - state.reduced.chisqr_per_bin
    rises = []
    for b in (0, 2):
        there = solve(evaluator(without_bins(scans, [b]), padded=5), chosen, state.theta)[-1]
        at = reduce(evaluate(there.theta), "individual").chisqr_per_bin
        rises.append((at - state.reduced.chisqr_per_bin)[b])
    ratio = found[[0, 2]] / rises
    assert 0.8 < ratio.min() <= ratio.max() < 1.2


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("theta", "chosen"),
    [
        ([20000.0, 0.0, 0.0], "brownian"),
        ([20000.0, -0.6, 0.0], "power_law"),
        ([20000.0, -1.2, 6000.0], "static"),
        (FLOW3, "laminar_flow"),
    ],
)
def test_the_simplest_model_that_predicts_the_angles_left_out_is_chosen(tmp_path, theta, chosen):
    scan = store(measured(theta, 60, angles(9), sigma=0.02, seed=5), tmp_path)
    options = {"gap": "200 um"} if len(theta) == 7 else {}
    found = hd.compare_models(scan, **options)
    assert found.chosen == chosen
    assert found.results[chosen].converged
    usual = ["brownian", "power_law", "static", "stretched", "laminar_flow"]
    assert list(found.results) == usual[: len(found.fits)]
    assert hd.compare(found.results) == found


@pytest.mark.long
@pytest.mark.parametrize("option", [{"convention": "homodyne"}, {"precision": "mixed"}])
def test_models_that_do_not_take_an_option_are_left_out_of_a_choice(tmp_path, option):
    scan = store(measured([20000.0, -0.6, 0.0], 40, angles(3), sigma=0.02), tmp_path)
    assert list(hd.compare_models(scan, **option).results) == ["brownian", "power_law", "static"]


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_correlated_speckle_deceives_the_naive_aic_and_not_the_angles_left_out(tmp_path, seed):
    scan = store(photographed([20000.0, 0.0, 0.0], 40, angles(8), seed=seed), tmp_path)
    found = hd.compare([hd.fit(scan, model) for model in (hd.POWER_LAW, hd.BROWNIAN)])
    aic = found.table["aic_naive"].sel(fit=["brownian", "power_law"]).values
    assert aic[0] - aic[1] > 5
    assert found.chosen == "brownian"
    assert "the data do not distinguish" in found.sentence


@pytest.mark.long
def test_a_model_that_sees_no_decay_is_not_chosen(tmp_path):
    """Where c2 rises with the lag only a model that rises, too, sees its signal."""
    scan = store(measured(STATIC_THETA, 40, angles(9), contrast=-0.1, seed=5), tmp_path)
    rising = hd.separable(
        lambda theta, t1, t2, bin: 1 - jnp.exp(-theta[0] * (t2 - t1)),
        [hd.Parameter("rate", "1/s", (1e-3, 10.0))],
        name="rising",
    )
    found = hd.compare_models(scan, [hd.STATIC, rising])
    best, other = found.fits
    assert (best.outcome, other.outcome) == ("CONVERGED", "NO_DECAY")
    assert np.isnan(other.score)
    assert best.chosen
    with pytest.raises(OptionError, match="none of the fits has a score"):
        hd.compare_models(scan, [hd.STATIC])


@pytest.mark.long
def test_rings_of_ballistic_motion_are_described_by_a_power_of_q(tmp_path):
    thetas = [[20000.0 * 0.005 / q, 0.0, 0.0] for q in Q]
    found = hd.compare_models(store(three_rings(thetas), tmp_path), ["brownian", "stretched_q"])
    assert [fit.misfit for fit in found.fits] == [False, True]
    assert (found.chosen, found.adequate) == ("stretched_q", True)
    exponent = found.results["stretched_q"].params["q_exponent"]
    assert exponent.value == pytest.approx(1.0, abs=0.1)


OTHERS = {
    "beating": lambda lag, late, phi: (
        0.36 * np.exp(-0.03 * lag)
        + 0.16
        + 0.48 * np.exp(-0.015 * lag) * np.cos(0.3 * lag * np.cos(phi))
    ),
    "static_free": lambda lag, late, phi: np.exp(-0.02 * lag - 0.15 * late),
}
"""f of a sample that moves against a static one, and of a rate that rises after half the record."""


def test_where_no_default_model_is_adequate_those_are_tried_that_the_data_allow(tmp_path):
    def allowed(made, **options):
        reasons = _allowed(store(made, tmp_path), options, FORMULAS | FREE_RATES)
        return [model.name for model, why in reasons.items() if not why]

    one_ring = measured([1e4, 0.0, 0.0], 12, angles(4))
    rings = measured([1e4, 0.0, 0.0], 12, np.zeros(3), q=np.array(Q))
    of_ring = ["stretched_ageing", "cumulant", "stretched + stretched", "vibration"]
    fringes, free = ["beating", "two_component"], ["static_free", "stretched_free"]
    assert allowed(one_ring) == [*of_ring, *fringes, *free]
    flows = ["poiseuille", "poiseuille_flow"]
    assert allowed(one_ring, gap="200 um") == [
        *of_ring,
        *flows,
        *fringes,
        *free,
        "laminar_flow_free",
    ]
    powers = ["ballistic", "cumulant_q", "brownian + brownian"]
    assert allowed(rings) == [*powers, "vibration", "static_free"]
    assert allowed(rings, rates="spline") == []


@pytest.mark.slow
@pytest.mark.parametrize("chosen", OTHERS)
def test_motions_that_no_default_model_has_are_tried(tmp_path, chosen):
    made, t = measured([1e4, 0.0, 0.0], 80, angles(6), q=0.005, dt=1.0, sigma=0.02), np.arange(80.0)
    late = np.maximum(t - 40, 0)
    lag, late = np.abs(t[:, None] - t), np.abs(late[:, None] - late)
    f = OTHERS[chosen](lag, late, np.deg2rad(made.phi)[:, None, None])
    found = hd.compare_models(store(of_decay(made, f, 0.02, seed=3), tmp_path))
    assert (found.chosen, found.adequate) == (chosen, True), found


@pytest.mark.long
def test_rates_that_age_by_a_power_and_a_stretched_decay_are_found_and_what_was_left_out_is_said(
    tmp_path,
):
    made, t = measured([1e4, 0.0, 0.0], 80, [0.0], q=0.005, dt=1.0, sigma=0.02), np.arange(80.0)
    age, lag = 0.5 * (t[:, None] + t), np.abs(t[:, None] - t)
    x = 0.2 * np.maximum(age, 0.25) ** -0.4 * lag
    found = hd.compare_models(
        store(of_decay(made, np.exp(-2 * x**0.6)[None], 0.005, seed=3), tmp_path)
    )
    assert (found.chosen, found.adequate) == ("stretched_ageing", True), found
    ageing = found.results["stretched_ageing"].params
    for name, truth in {"mu": -0.4, "stretching": 0.6}.items():
        assert abs(ageing[name].value - truth) < 4 * ageing[name].stderr
    assert found.not_compared.keys() >= {"ballistic", "laminar_flow", "stretched_free"}
    assert found.not_compared.keys().isdisjoint(found.results)
    assert "not compared: ballistic" in " ".join(str(found).split())
    assert "needs the gap" in found.not_compared["poiseuille"]
    assert not hd.compare(found.results).not_compared


@pytest.mark.long
def test_the_sum_of_two_decays_is_found_in_a_table_of_one_curve(tmp_path):
    delay = np.geomspace(1e-4, 30, 60)
    g1 = 0.5 * np.exp(-0.05 * delay) + 0.5 * np.exp(-30 * delay)
    noise = 1e-3 * np.random.default_rng(0).standard_normal(60)
    table = np.column_stack([delay, 1 + 0.3 * g1**2 + noise, np.full(60, 1e-3)])
    names = "delay(s),g2(q=0.01),err(q=0.01)"
    np.savetxt(tmp_path / "g2.csv", table, delimiter=",", header=names, comments="")
    found = hd.compare_models(hd.read_g2(tmp_path / "g2.csv"))
    assert found.chosen == "stretched + stretched"
    assert found.not_compared["stretched_ageing"] == "a table has no ages"
    assert found.not_compared["frozen"].startswith("with an offset of 1")


@pytest.mark.long
def test_a_stretched_decay_is_found_in_a_table_of_one_q(tmp_path):
    delay = np.geomspace(1e-3, 10, 40)
    noise = 3e-4 * np.random.default_rng(0).standard_normal(40)
    g2 = 1 + 0.18 * np.exp(-2 * (3 * delay) ** 0.6) + noise
    table = np.column_stack([delay, g2, np.full(40, 3e-4)])
    names = "delay(s),g2(q=0.01),err(q=0.01)"
    np.savetxt(tmp_path / "g2.csv", table, delimiter=",", header=names, comments="")
    found = hd.compare_models(hd.read_g2(tmp_path / "g2.csv"))
    assert found.chosen == "stretched"
    assert found.results["stretched"].params["stretching"].value == pytest.approx(0.6, abs=0.02)


@pytest.mark.slow
def test_the_other_profile_of_a_flow_is_tried(tmp_path):
    phi = np.linspace(0, 160, 9)
    time, strain = 0.1 * np.arange(60), 1.2e-3
    lag = np.abs(time[:, None] - time)
    f = []
    for angle in np.deg2rad(phi):
        # the mean over the gap of the phase of a parabolic profile with this shear rate at the wall
        path = 2e6 / 4 * (1 - np.linspace(-1, 1, 4001) ** 2)
        turn = 0.01 * np.cos(np.deg2rad(5.0) - angle) * strain * path
        phase = np.exp(1j * np.multiply.outer(time, turn)).mean(1)
        f.append(
            np.exp(-(0.01**2) * 3e3 * lag)
            * np.abs(phase[np.abs(lag / 0.1).round().astype(int)]) ** 2
        )
    made = measured([3e3, 0.0, 0.0], 60, phi, q=0.01, dt=0.1, sigma=0.02)
    found = hd.compare_models(
        store(of_decay(made, np.array(f), 0.02, seed=3), tmp_path), gap="200 um"
    )
    assert found.chosen == "poiseuille", found


@pytest.mark.long
def test_a_shape_that_the_check_does_not_find_is_chosen(tmp_path):
    made = Photons(
        (3e3, 0, 0), 60, q=(0.01,) * 3, phi=(0.0, 60.0, 120.0), pixels=1000, stretching=0.85
    )
    found = hd.compare_models(store(made.scan(0), tmp_path))
    assert (found.chosen, found.adequate, found.by_left_out) == ("stretched", True, False)
    assert not found.results["brownian"].misfit
    assert float(found.results["stretched"].diagnosis.left_out["searched"]) == 1
    vibrating = hd.fit(found.results["stretched"].provenance.inputs["store_path"], "vibration")
    assert float(vibrating.diagnosis.left_out["searched"]) == 30


@pytest.mark.parametrize(
    ("theta", "chosen"), [((3e3, 0, 0), "brownian"), ((3e3, -0.5, 0), "power_law")]
)
def test_one_matrix_is_compared_by_clic_and_the_comparison_says_so(tmp_path, theta, chosen):
    scan = store(Photons(theta, 60, pixels=1000).scan(3), tmp_path)
    found = hd.compare_models(scan, ["brownian", "power_law"])
    assert (found.bins, found.chosen, found.adequate) == (1, chosen, True)
    for fit in found.fits:
        assert fit.score == pytest.approx(-fit.clic / 2)
        assert fit.penalty > fit.parameters
    assert "compared by CLIC" in str(found)
    assert "left-out bins" not in str(found)


def test_of_one_matrix_that_no_model_describes_the_closest_is_kept(tmp_path):
    made = Photons((3e3, 0, 0), 60, pixels=1000, stretching=1.8).scan(3)
    found = hd.compare_models(store(made, tmp_path), ["brownian", "power_law"])
    assert np.isfinite([fit.score for fit in found.fits]).all()
    assert found.sentence.endswith("none of the models describes the data")


@pytest.mark.long
def test_the_command_line_fits_the_model_that_it_chose(tmp_path, capsys):
    scan = store(measured([20000.0, 0.0, 0.0], 60, angles(5), sigma=0.02, seed=5), tmp_path)
    folder = tmp_path / "fit"
    with pytest.raises(SystemExit) as end:
        main(["fit", str(scan.path), "--model", "auto", "-o", str(folder)])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "use the one with the fewest parameters, brownian" in " ".join(printed.split())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model"] == "brownian"
    compared = {row["model"] for row in summary["comparison"]}
    assert compared == {"brownian", "power_law", "static", "stretched"}
    assert "chosen by comparison" in (folder / "report.txt").read_text()
    assert "chosen by comparison" in hd.load_result(folder).report(all=True)


def test_a_comparison_is_of_squares_and_for_one_new_fit(tmp_path, capsys):
    scan = store(measured([20000.0, 0.0, 0.0], 20, angles(5), sigma=0.02), tmp_path)
    with pytest.raises(OptionError, match="compared by least squares"):
        hd.compare_models(scan, loss="huber")
    for more in (["--resume"], ["--over", "age", "--windows", "2"], [str(scan.path)]):
        with pytest.raises(SystemExit) as end:
            main(["fit", str(scan.path), "--model", "auto", *more])
        assert end.value.code == 2
        assert "the model auto applies only to a single new fit" in capsys.readouterr().err
