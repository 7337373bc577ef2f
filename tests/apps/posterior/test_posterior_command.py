"""homodyne-dask posterior: what it passes on, prints and writes; a sentence for what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

import homodyne_dask
from homodyne_dask.apps.posterior.posterior import load_posterior
from homodyne_dask.results.saved_results import load_result
from tests.apps.posterior.made_draws import gaussian, posterior_from
from tests.run_command import FIT, done, run


@pytest.fixture(scope="module")
def fitted(made, tmp_path_factory) -> Path:
    """A folder with a store and the fit of it."""
    folder = tmp_path_factory.mktemp("posterior")
    shutil.copytree(made / "A_c2.zarr", folder / "A_c2.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done(*FIT, "--fixed", "D_offset=0", "--no-pictures")
    return folder


@pytest.fixture
def given(fitted, monkeypatch) -> dict:
    """What the function gets, which draws from the distribution that the fit reports."""
    given = {}

    def drawn(result, scan, **options):
        given.update(options, scan=scan)
        changes = {"seed": options["seed"], **given.pop("changes", {})}
        return posterior_from(result, gaussian(result, options["draws"]), scan, **changes)

    monkeypatch.setattr(homodyne_dask, "posterior", drawn, raising=False)
    monkeypatch.chdir(fitted)
    return given


@pytest.mark.long
def test_options_are_passed_on_and_the_folder_is_written(given):
    words = ("--prior", "D0=normal:2500:300", "--prior", "alpha=-0.5:0.1", "--draws", "200")
    printed = done("posterior", "A_fit", *words, "--seed", "3", "--adjust", "none", "-q")
    scan = given.pop("scan")
    assert callable(given.pop("progress"))
    assert given == {
        "priors": {"D0": "normal:2500:300", "alpha": "-0.5:0.1"}, "draws": 200, "seed": 3,
        "adjust": "none", "client": None,
    }  # fmt: skip
    assert scan.digest == load_result("A_fit").provenance.inputs["store_sha256"]
    assert printed.startswith("posterior of static fitted to A_c2.zarr\n\nQuantiles")
    assert "written: A_fit/posterior.nc, " in printed
    assert load_posterior("A_fit").plain["seed"] == 3
    shown = done("show", "A_fit", "--all")
    assert "Quantiles of the posterior" in shown
    assert "seed 3" in shown
    assert json.loads(done("show", "A_fit", "--json"))["posterior"]["draws"] == 200


@pytest.mark.long
def test_one_json_object_has_the_numbers(given):
    values = json.loads(done("posterior", "A_fit", "--draws", "300", "--json"))
    assert values["draws"] == 300
    assert {*values["parameters"]} == {"D0", "alpha"}
    assert values["format"] == "homodyne_dask posterior"


def test_a_file_of_another_name_leaves_the_folder_as_it_is(given):
    before = {path: path.read_bytes() for path in Path("A_fit").iterdir()}
    assert "written: mine.nc" in done("posterior", "A_fit", "-o", "mine.nc", "--draws", "100")
    assert load_posterior("mine.nc").theta.shape == (100, 3)
    assert {path: path.read_bytes() for path in Path("A_fit").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r_hat": 1.23}, "the chains differ (R-hat 1.230, not below 1.01)"),
        ({"largest_error": 0.7}, "24 basis functions is inaccurate at these draws (its logarithm"),
    ],
)
def test_draws_that_are_not_to_be_trusted_are_called_so_and_exit_with_3(changes, words, given):
    given["changes"] = changes
    result = run("posterior", "A_fit", "--draws", "100", "-q")
    assert result.exit_code == 3
    assert words in " ".join(result.stdout.split())
    assert "enough" not in result.stdout


def refused(*words: str) -> str:
    result = run("posterior", *words)
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


def test_what_cannot_be_drawn_from_is_a_sentence(given, fitted):
    assert "nowhere cannot be read: No such file" in refused("nowhere")
    assert "--prior = 'D0' cannot be used" in refused("A_fit", "--prior", "D0")
    assert "'dyadic' is unknown" in refused("A_fit", "--adjust", "dyadic")
    assert "A_c2.zarr cannot be written" in refused("A_fit", "-o", "A_c2.zarr")
    assert "from 100 to a million" in refused("A_fit", "--draws", "5")
    Path("series/1").mkdir(parents=True)
    shutil.copy("A_fit/summary.json", "series/1")
    assert "series contains fits, but no result itself: give one of series/1" in refused("series")
    Path("A_c2.zarr").rename("B_c2.zarr")
    assert "A_c2.zarr" in refused("A_fit")
    Path("B_c2.zarr").rename("A_c2.zarr")
    assert not given


@pytest.mark.slow
def test_with_three_angles_the_drawn_widths_are_those_of_the_speckle_noise(fitted, monkeypatch):
    """The whole way: passes over the data, draws, files."""
    monkeypatch.chdir(fitted)
    result = run("posterior", "A_fit", "--draws", "400", "-o", "whole.nc")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "widths and correlations correspond to the speckle and counting noise" in said
    read, fit = load_posterior("whole.nc"), load_result("A_fit").parameters
    away = (read.summary["mean"] - fit["value"]) / read.summary["sd"]
    assert (abs(away) < 0.5).all()
    assert read.plain["largest_error"] < 0.05
    assert "wide pass" in result.stderr
