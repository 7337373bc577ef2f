"""Options that several commands share: -h, -v, -q, --json; and intervals of `show`."""

import json

import pytest

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import MODELS
from homodyne_dask.cli.program import main
from tests.run_command import FIT, done, run

BROWNIAN = ("--model", "brownian", "--no-pictures")


@pytest.mark.parametrize("command", ["", *main.commands])
def test_h_is_help(command):
    words = [command] if command else []
    assert done(*words, "-h") == done(*words, "--help")
    assert "Usage: " in done(*words, "-h")


def test_help_names_every_built_in_model_but_rates_without_a_formula():
    """An option has those: --rates spline."""
    assert list(MODELS) == [*(name for name in hd.MODELS if "_free" not in name), "auto"]


@pytest.fixture
def fitted(here):
    """The printed output and the progress of a fit without pictures."""
    result = run(*FIT, "--no-pictures")
    assert result.exit_code == 0
    return result


def test_a_quiet_fit_prints_its_report_and_no_progress(fitted):
    assert "pass   1" in fitted.stderr
    quiet = run(*FIT, "--no-pictures", "--overwrite", "-q")
    assert quiet.stderr == ""
    assert quiet.stdout.splitlines()[:3] == fitted.stdout.splitlines()[:3]


def test_a_verbose_fit_shows_logs(fitted, caplog):
    with caplog.at_level("INFO", "homodyne_dask"):
        assert run(*FIT, "--no-pictures", "--overwrite", "-v").exit_code == 0
    assert any("pass   1" in record.message for record in caplog.records)


def test_info_and_plan_as_json_have_what_they_print_as_values(here):
    info = json.loads(done("info", "A_c2.zarr", "--json"))
    assert info["frames"] == 40
    assert [row["label"] for row in info["bins"]] == [3, 4, 5]
    assert f"{info['bins'][0]['sigma']:.4g}" in done("info", "A_c2.zarr")
    (plan,) = json.loads(done("plan", "A_c2.zarr", "--model", "static", "--json")).values()
    assert (plan["model"], plan["bins"], plan["pairs"]) == ("static", 3, 3 * 40 * 39 // 2)
    assert plan["pass_s"] == plan["pairs"] / 150e6 / plan["worker_threads"]


def test_show_prints_json_and_intervals(here):
    assert run("fit", "F_c2.zarr", *BROWNIAN).exit_code in (0, 3)
    shown = json.loads(done("show", "F_fit", "--json"))
    assert shown["model"] == "brownian"
    saved = json.loads((here / "F_fit/summary.json").read_text())
    assert shown == {key: value for key, value in saved.items() if key != "sha256"}
    printed = done("show", "F_fit", "--ci", "95")
    assert "95 % confidence intervals" in printed
    assert run("show", "F_fit", "--ci", "100").exit_code == 2


def test_show_prints_a_series_as_json(here):
    done("fit", "A_c2.zarr", *BROWNIAN, "--over", "age", "--windows", "2")
    shown = json.loads(done("show", "A_fit_age", "--json"))
    assert len(shown["fits"]) == 2
    assert done("show", "A_fit_age", "--ci", "68").count("68 % confidence intervals") == 2


def test_show_names_the_fits_of_several_stores(here):
    assert run("fit", "A_c2.zarr", "F_c2.zarr", *BROWNIAN, "-o", "both").exit_code in (0, 3)
    shown = run("show", "both")
    assert shown.exit_code == 2
    assert (
        "both contains fits, but no result itself: give one of both/A_fit, both/F_fit"
        in shown.stderr
    )


def test_times_before_0_are_not_fitted_with_powers_of_time(here):
    done("ingest", "A_results.hdf", "N_c2.zarr", "--time-offset", "-0.5")
    wrong = run("fit", "N_c2.zarr", "--model", "static")
    assert wrong.exit_code == 2
    assert "the selected times begin at -0.5 s" in wrong.stderr
    words = ["fit", "N_c2.zarr", "--model", "static", "--time", "0:9", "--no-pictures"]
    assert run(*words).exit_code in (0, 3)
