"""Finished fits compared by bins left out: the verdict in words, what is refused, what is written."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, SourceError
from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.data.fit_result import covariance_table
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.views.fits_report import _difference
from tests.results.made_results import LEFT_OUT_CHISQR, MISFIT, changed, result_of_model
from tests.run_command import done, run

WORSE = np.array([10.0, 20, 30, 20, 10, 20, 30, 20, 20])
EVEN = np.array([1.0, -2, 3, -2, 1, -2, 3, -2, 2])
FLOW, STATIC, BROWNIAN = 7, 3, 1


def in_config(result: FitResult, **changes) -> FitResult:
    return changed(result, config=result.config | changes)


def in_inputs(result: FitResult, **changes) -> FitResult:
    return changed(result, inputs=result.provenance.inputs | changes)


UNKNOWN = np.where(np.arange(9) == 4, np.nan, 0.0)
TINY = np.full(9, 1e-5) + 1e-6 * np.arange(9)
BOTH = {"static", "laminar_flow"}
VERDICTS = {
    "the richer": ({"laminar_flow": 0.0, "static": WORSE}, {}, "laminar_flow", "prefer laminar_flow"),
    "the simpler": ({"laminar_flow": WORSE, "static": 0.0}, {}, "static", "prefer static"),
    "not told": ({"laminar_flow": 0.0, "static": EVEN}, {}, "static", "do not distinguish"),
    "equal but for where fits end": (
        {"laminar_flow": 0.0, "static": TINY}, {}, "static", r"static from laminar_flow .difference 0"
    ),
    "one of three": (
        {"laminar_flow": EVEN, "static": 0.0, "brownian": WORSE}, {}, "static", "brownian .* by 90 ± 11"
    ),
    "as many": ({"stretched": 0.0, "static": EVEN}, {}, "stretched", "do not distinguish"),
    "no score": ({"laminar_flow": UNKNOWN, "static": 0.0}, {}, "static", "laminar_flow has no score"),
    "a misfit": (
        {"laminar_flow": 0.0, "static": -EVEN}, {"static"}, "laminar_flow",
        "static predicts .* better by .* .and does not describe the data",
    ),
    "a worse misfit": (
        {"laminar_flow": 0.0, "static": WORSE}, {"static"}, "laminar_flow", "worse .* .and does not des"
    ),
    "only misfits": (
        {"laminar_flow": 0.0, "static": WORSE}, BOTH, "laminar_flow",
        "none of the models describes the data",
    ),
}  # fmt: skip
"""χ² of bins left out above the lowest, models that do not describe the data, what is chosen, words."""
FREE = {"laminar_flow": FLOW, "static": STATIC, "stretched": STATIC, "brownian": BROWNIAN}


def by_noise(model: str, free: int, fall: float = 0.0, bins: int = 3, **changes) -> FitResult:
    """Return a fit whose χ² is lower by `fall`; its covariance is 4 times that of independent pairs."""
    made = result_of_model(model, free)
    names = made.parameters["param"].values
    columns = {name: ("cluster", np.full(bins, (1000.0 - fall) / bins)) for name in CHISQR}
    columns["ndata"] = ("cluster", np.full(bins, 300))
    numbers = {"penalty": 4.0 * free, "linear": 2 * bins, "searched": changes.pop("searched", 1)}
    errors = {"covariance": 4.0, "covariance_naive": 1.0}
    tables = {key: covariance_table(size * np.eye(7), names) for key, size in errors.items()}
    dof = ("param", np.full(7, changes.pop("dof", np.nan)))
    at_bound = ("param", np.isin(np.arange(7), changes.pop("at_bound", [])))
    parameters = made.parameters.assign(dof=dof, at_bound=at_bound)
    left_out = xarray.Dataset(columns | numbers)
    return changed(made, left_out=left_out, parameters=parameters, **(tables | changes))


CHISQR = "chisqr", "left_out_chisqr"
T2 = scipy.stats.f.isf
"""t² that noise exceeds with a probability, of one and so many degrees of freedom."""
FALLS = {
    "one richer fit": (T2(0.05, 1, 1e9), 1, {}),
    "two richer fits share the level": (T2(0.025, 1, 1e9), 2, {}),
    "few degrees of freedom": (T2(0.05, 1, 10), 1, {"dof": 10.0}),
    "the frequencies of a search": (T2(0.001, 1, 1e9), 1, {"searched": 50}),
    "a parameter at a bound": (T2(0.05, 1, 1e9), 1, {"at_bound": [1]}),
}
"""By how much χ² must fall, over the part 4 of a parameter in the penalty; richer fits, what they have."""


@pytest.mark.parametrize(("fall", "richer", "has"), FALLS.values(), ids=FALLS)
@pytest.mark.parametrize("bins", [1, 3, 7])
def test_by_clic_a_richer_fit_is_chosen_in_five_percent_of_cases(bins, fall, richer, has):
    for factor, chosen in ((0.98, "brownian"), (1.02, "power_law")):
        fits = {"brownian": by_noise("static", 1, bins=bins)}
        fits["power_law"] = by_noise("static", 2, 4 * fall * factor, bins, **has)
        if richer == 2:
            fits["static"] = by_noise("static", 3, 4 * fall * factor, bins)
        found = hd.compare(fits)
        assert (found.chosen, found.by_left_out) == (chosen, False)
    assert found.fits[0].penalty == 8


@pytest.mark.parametrize(("best", "level"), [("power_law", 0.05 / 2), ("vibration", 0.05 / 2 / 50)])
def test_the_frequencies_of_a_search_are_paid_by_the_fit_that_made_it(best, level):
    for factor, chosen in ((0.98, "brownian"), (1.02, best)):
        fall = {best: 4 * T2(level, 1, 1e9) * factor}
        found = hd.compare(
            {
                "brownian": by_noise("static", 1),
                "power_law": by_noise("static", 2, fall.get("power_law", 0.0)),
                "vibration": by_noise("static", 2, fall.get("vibration", 0.0), searched=50),
            }
        )
        assert found.chosen == chosen


def test_bins_are_left_out_where_they_are_many_or_their_noise_is_unknown():
    def left_out(bins: int, **changes) -> bool:
        fits = [by_noise(name, FREE[name], bins=bins, **changes) for name in ("static", "brownian")]
        return hd.compare(fits).by_left_out

    assert [left_out(bins) for bins in (3, 7, 8)] == [False, False, True]
    assert left_out(3, covariance=None)
    assert left_out(3, findings=MISFIT)


def check(fits: list[FitResult], chosen: str, words: str) -> None:
    found = hd.compare(fits)
    assert found.chosen == chosen
    assert re.search(words, found.sentence)
    assert found.sentence in " ".join(str(found).split())
    assert found.sentence in found._repr_html_()
    for order in itertools.permutations(fits):
        assert hd.compare(list(order)).to_dict() == found.to_dict()


@pytest.mark.parametrize(("above", "misfit", "chosen", "words"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_is_the_same_whatever_the_order(above, misfit, chosen, words):
    fits = [
        result_of_model(name, FREE[name], of, misfit=name in misfit) for name, of in above.items()
    ]
    check(fits, chosen, words)


def test_a_fit_that_was_not_checked_is_not_called_adequate():
    unchecked = Findings([finding("not-checked")])
    fits = [
        result_of_model("laminar_flow", FLOW, WORSE),
        result_of_model("static", STATIC, findings=unchecked),
    ]
    check(fits, "laminar_flow", "whether static describes the data was not checked")
    assert hd.compare(fits).adequate
    fits[0] = result_of_model("laminar_flow", FLOW, WORSE, misfit=True)
    check(fits, "static", "whether static describes the data was not checked")
    assert not hd.compare(fits).adequate


def test_scores_and_criteria_count_in_one_variance_of_a_pair():
    fits = [
        result_of_model("laminar_flow", FLOW, redchi=2.0),
        result_of_model("static", STATIC, WORSE, redchi=2.5),
    ]
    found = hd.compare(fits)
    assert (found.noise, found.bins, found.store) == (2.0, 9, "A0001_c2.zarr")
    best, other = found.fits
    assert best.score == pytest.approx(-LEFT_OUT_CHISQR.sum() / 4)
    assert (best.score - other.score, other.worse_by) == pytest.approx((WORSE.sum() / 4,) * 2)
    assert other.stderr == pytest.approx(3 * WORSE.std(ddof=1) / 4)
    assert best.clic == pytest.approx(930 / 2 + 2 * 21 / 2)
    assert best.aic_naive == pytest.approx(930 / 2 + 2 * 25)
    table = found.table
    assert list(table["fit"].values) == ["laminar_flow", "static"]
    assert float(table["worse_by"].sel(fit="static")) == other.worse_by


def test_a_fit_that_did_not_converge_has_no_score():
    fits = [result_of_model(name, FREE[name]) for name in ("laminar_flow", "static", "brownian")]
    fits[0] = changed(fits[0], left_out=None, outcome=hd.Outcome.STALLED)
    check(fits, "brownian", "laminar_flow has no score: stalled")
    last = hd.compare(fits).fits[-1]
    assert (last.name, last.outcome) == ("laminar_flow", "STALLED")
    assert np.isnan([last.score, last.worse_by, last.clic, last.aic_naive]).all()
    with pytest.raises(HomodyneDaskError, match="none of the fits has a score"):
        hd.compare([fits[0], changed(fits[1], left_out=None)])


def test_a_prior_is_no_datum_of_a_criterion():
    of = (result_of_model("static", STATIC, chisqr=chisqr) for chisqr in (970.0, 970.0 + 25))
    one, other = hd.compare(dict(zip(("plain", "prior 5 sd away"), of, strict=True))).fits
    assert (one.clic, one.aic_naive) == (other.clic, other.aic_naive)
    assert {one.chisqr, other.chisqr} == {970.0, 995.0}


def test_a_fit_is_not_told_from_itself():
    found = hd.compare(
        {"one": result_of_model("static", STATIC), "two": result_of_model("static", STATIC)}
    )
    assert [fit.worse_by for fit in found.fits] == [0.0, 0.0]
    assert "the data do not distinguish one from two (difference 0)" in found.sentence
    assert len({fit[2:-3] for fit in found.fits}) == 1
    many = hd.compare({f"fit {n}": result_of_model("static", STATIC) for n in range(20)})
    assert len(repr(many).splitlines()) == 20 < len(str(many).splitlines())


GOOD, OTHER = result_of_model("laminar_flow", FLOW), result_of_model("static", STATIC)
LESS = GOOD.scaling.assign(ndata=GOOD.scaling["ndata"] - 1)
REFUSED = {
    "one fit": [GOOD],
    "no fits": 5,
    "another thing": [GOOD, 5],
    "one model twice": [GOOD, GOOD],
    "no folder": [GOOD, "nowhere"],
    "loss": [GOOD, in_config(OTHER, loss="huber")],
    "data": [GOOD, in_inputs(OTHER, store_sha256="cd" * 32)],
    "bins": [GOOD, in_inputs(OTHER, labels=[3, 4])],
    "frames": [GOOD, in_inputs(OTHER, frames=[0, 9])],
    "chunks": [GOOD, in_inputs(OTHER, chunks_left_out=[[1, 0, 0, 0]])],
    "min_lag": [GOOD, in_config(OTHER, min_lag=2)],
    "pairs": [GOOD, replace(OTHER, scaling=LESS)],
    "precision": [GOOD, in_config(OTHER, precision="mixed")],
    "contrast": [GOOD, in_config(OTHER, contrast={"prior": [0.3, 0.1]})],
    "scalings": [GOOD, in_config(OTHER, scaling="shared")],
    "no scores": [
        result_of_model("laminar_flow", 7, UNKNOWN),
        result_of_model("static", 3, UNKNOWN),
    ],
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_be_compared_is_refused_in_one_sentence(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HomodyneDaskError, match=word if word.isidentifier() else ".") as raised:
        hd.compare(REFUSED[word])
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_shared_and_given_scalings_are_compared():
    shared, series = (in_config(GOOD, scaling=mode) for mode in ("shared", "fourier1"))
    assert hd.compare({"shared": shared, "series": series}).chosen in ("shared", "series")


def test_results_and_comparisons_are_read_back(tmp_path):
    fits = [
        result_of_model("laminar_flow", FLOW, UNKNOWN),
        result_of_model("static", STATIC, WORSE),
    ]
    fits += [result_of_model("brownian", BROWNIAN)]
    for fit in fits:
        fit.to_json(tmp_path / f"{fit.config['model']}.json")
    found = hd.compare([tmp_path / f"{fit.config['model']}.json" for fit in fits])
    assert found.to_dict() == hd.compare(fits).to_dict()
    found.to_json(tmp_path / "c.json")
    read = hd.load_comparison(tmp_path / "c.json")
    assert (str(read), read.to_dict()) == (str(found), found.to_dict())
    assert found.table["fit"].values.tolist() == ["brownian", "static", "laminar_flow"]
    with pytest.raises(SourceError, match="is not a homodyne_dask comparison"):
        hd.load_comparison(tmp_path / "static.json")


def test_the_command_prints_table_and_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fits = [GOOD, result_of_model("static", STATIC, WORSE)]
    for name, fit in zip(("A_fit", "B_fit"), fits, strict=True):
        (tmp_path / name).mkdir()
        fit.to_json(tmp_path / name / "summary.json")
    assert done("compare", "A_fit", "B_fit").strip() == str(hd.compare(fits))
    values = json.loads(done("compare", "B_fit", "A_fit", "--json"))
    assert values["chosen"] == "laminar_flow"
    assert [fit["name"] for fit in values["fits"]] == ["laminar_flow", "static"]
    for words in (["A_fit"], ["A_fit", "A_fit"], ["A_fit", "nowhere"], []):
        refused = run("compare", *words)
        assert refused.exit_code == 2
        assert len(refused.stderr.splitlines()) == 1


def test_results_of_different_data_are_compared_with_their_difference():
    here = result_of_model("brownian", BROWNIAN)
    there = in_inputs(result_of_model("static", STATIC), store_sha256="of another scan")
    series = hd.compare_results({"20 °C": here, "40 °C": there})
    value, error, other, other_error = (
        float(fit.parameters.sel(param="D0")[key])
        for fit in (here, there)
        for key in ("value", "stderr")
    )
    z = (other - value) / np.hypot(error, other_error)
    assert series.agreement["D0"].chisqr == pytest.approx(z**2)
    assert value_and_error(other - value, np.hypot(error, other_error)) in str(series)
    assert all(name in str(series) for name in ("20 °C", "40 °C"))


SAME = {
    "the same": ({}, {}),
    "bins in another order": ({"labels": [1, 2]}, {"labels": [2, 1]}),
    "a bin in common": ({"labels": [1, 2]}, {"labels": [2, 3]}),
    "windows that overlap": ({"frames": [0, 40]}, {"frames": [20, 60]}),
}
APART = {
    "windows": ({"frames": [0, 40]}, {"frames": [40, 60]}),
    "bins": ({"labels": [1, 2]}, {"labels": [3, 4]}),
    "scans of a store": ({"labels": [1], "scans": [1]}, {"labels": [1], "scans": [2]}),
}


@pytest.mark.parametrize(("of_first", "of_second"), SAME.values(), ids=SAME)
def test_results_that_share_data_are_not_taken_for_independent(of_first, of_second):
    first, second = result_of_model("brownian", BROWNIAN), result_of_model("static", STATIC)
    fits = [in_inputs(first, **of_first), in_inputs(second, **of_second)]
    with pytest.raises(HomodyneDaskError, match=r"compare models by hd\.compare"):
        hd.compare_results(fits)


@pytest.mark.parametrize(("of_first", "of_second"), APART.values(), ids=APART)
def test_results_of_other_bins_frames_or_scans_are_compared(of_first, of_second):
    fit = result_of_model("brownian", BROWNIAN)
    fits = {"a": in_inputs(fit, **of_first), "b": in_inputs(fit, **of_second)}
    assert hd.compare_results(fits).agreement["D0"].p == pytest.approx(1)


def test_results_of_other_conventions_are_not_compared():
    fit = result_of_model("laminar_flow", FLOW)
    other = in_inputs(in_config(fit, convention="homodyne"), store_sha256="of another scan")
    with pytest.raises(HomodyneDaskError, match="conventions physical and homodyne"):
        hd.compare_results({"a": fit, "b": other})


def test_angles_differ_by_less_than_half_a_period():
    fit = in_config(result_of_model("laminar_flow", FLOW), periods={"phi0": 180.0})
    turned = fit.parameters.copy(deep=True)
    turned["value"].loc[{"param": "phi0"}] = (
        float(fit.parameters["value"].sel(param="phi0")) - 179.5
    )
    other = replace(in_inputs(fit, store_sha256="of another scan"), parameters=turned)
    series = hd.compare_results({"a": fit, "b": other})
    assert _difference(series, "phi0")[0].startswith("0.5")


def test_rates_at_other_mean_ages_are_shown_and_not_compared():
    fit = result_of_model("power_law", STATIC)
    later = in_inputs(fit, store_sha256="of another scan", seconds=[100.0, 130.0])
    rows = str(hd.compare_results({"a": fit, "b": later})).split("Agreement")[1]
    assert "D0" in rows
    assert "\nJ" not in rows
