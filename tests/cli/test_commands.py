"""The commands as a user runs them; an error is one sentence that says what to do, and an exit status."""

import json
from pathlib import Path

import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.cli import progress_bar
from homodyne_dask.cluster import connect
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.c2_means import cell_axes, read_window
from homodyne_dask.results.saved_results import load_result
from homodyne_dask.results.views import fit_figures as plots
from tests import object_server
from tests.applications import application
from tests.run_command import FIT, csv_rows, done, interrupting, run


@pytest.mark.long
def test_a_fit_writes_a_folder_with_the_whole_result(here):
    printed = done(*FIT)
    folder = here / "A_fit"
    names = {path.name for path in folder.iterdir()}
    assert {"summary.json", "parameters.csv", "scaling.csv", "report.txt"} <= names
    assert any(name.endswith(".png") for name in names)
    assert not [name for name in names if "checkpoint" in name or "partial" in name]
    report = (folder / "report.txt").read_text()
    assert done("show", "A_fit", "--all") == report
    assert done("show", "A_fit") in printed
    assert "truth" in report
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["outcome"] == "CONVERGED"
    assert summary["nbins"] == 3
    rows = {row["name"]: row for row in csv_rows(folder, "parameters.csv")}
    assert list(rows) == ["D0", "alpha", "D_offset", "J", "Gamma", "D", "tau"]
    assert float(rows["D0"]["value"]) == summary["parameters"]["D0"]["value"]
    assert rows["D0"]["truth"] == "20000.0"
    assert float(rows["D0"]["stderr"]) == summary["parameters"]["D0"]["stderr"]
    assert rows["D0"]["method"] == summary["parameters"]["D0"]["method"] == "speckle"
    assert len(csv_rows(folder, "scaling.csv")) == 3


@pytest.mark.long
def test_figures_are_drawn_later_where_they_were_not_wanted(here, monkeypatch):
    monkeypatch.setattr(plots, "PICTURES", {"passes": plots.page_of_passes})
    printed = done(*FIT, "--no-pictures", "--nexus")
    folder, report = Path("A_fit"), Path("A_fit/report.html")
    assert "png" not in printed
    assert ingest.ingest(folder / "result.nx.h5", "again.zarr").bins[0].q == pytest.approx(0.0054)
    assert "<img" not in report.read_text()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path != report}
    printed = done("show", "A_fit", "--pictures")
    assert printed.endswith("written: A_fit/passes.png, A_fit/report.html\n")
    assert "<img" in report.read_text()
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path != report}
    assert after.pop("passes.png")
    assert after == before


@pytest.mark.long
def test_a_file_of_options_gives_the_same_as_the_command_line(here, no_pictures):
    Path("fit.yaml").write_text("data: F_c2.zarr\nmodel: laminar_flow\nfixed: {beta: -0.2}\n")
    done("fit", "fit.yaml", "--output", "one")
    done("fit", "F_c2.zarr", "--model", "laminar_flow", "--fixed", "beta=-0.2", "-o", "two")
    one, two = (load_result(name).to_dict() for name in ("one", "two"))
    for result in (one, two):
        for varying in ("timings", "history", "compilations"):
            del result[varying]
    assert one == two


@pytest.mark.long
def test_a_selection_and_other_options_reach_the_fit(here, no_pictures):
    options = ("--phi", "-30:70", "--frames", "0:30", "--min-lag", "2", "--bounds", "D0=1:1e7")
    done(*FIT, *options, "--scaling", "shared", "--initial", "alpha=-0.3", "--q", "0.0054")
    result = load_result("A_fit")
    assert result.provenance.inputs["bins"] == 2
    assert result.provenance.inputs["frames"] == [0, 30]
    assert (result.config["min_lag"], result.config["scaling"]) == (2, "shared")
    assert result.ndata == 2 * 29 * 28 // 2


def test_the_template_goes_to_a_file_or_to_standard_output(here):
    assert "homodyne-dask fit fit.yaml" in done("config")
    assert Path("fit.yaml").read_text() == done("config", "-")


def test_a_strict_fit_exits_with_4_where_its_model_does_not_describe_the_data(here, no_pictures):
    wrong = ("fit", "F_c2.zarr", "--model", "brownian", "--overwrite", "-o", "wrong_fit")
    assert [run(*wrong, *option).exit_code for option in ((), ("--strict",))] == [0, 4]
    written = json.loads(Path("wrong_fit/summary.json").read_text())
    assert (written["model_status"], written["usable"]) == ("misfit", False)
    right = (*FIT, "--strict", "-o", "right_fit")
    assert run(*right).exit_code == 0
    written = json.loads(Path("right_fit/summary.json").read_text())
    assert (written["model_status"], written["usable"]) == ("describes", True)


def test_strict_pictures_and_nexus_may_stand_in_the_file_and_an_option_wins(here):
    lines = "data: F_c2.zarr\nmodel: brownian\nstrict: true\npictures: none\nnexus: true\n"
    Path("fit.yaml").write_text(lines)
    assert run("fit", "fit.yaml", "-o", "one").exit_code == 4
    assert Path("one/result.nx.h5").exists()
    assert not [*Path("one").glob("*.png")]
    assert run("fit", "fit.yaml", "-o", "two", "--pictures", "svg").exit_code == 4
    assert Path("two/maps.svg").exists()
    assert (
        run("fit", "fit.yaml", "-o", "two", "--no-strict", "--no-nexus", "--overwrite").exit_code
        == 0
    )
    assert not Path("two/result.nx.h5").exists()
    Path("fit.yaml").write_text(lines.replace("none", "svg"))
    assert run("fit", "fit.yaml", "-o", "four", "--no-pictures").exit_code == 4
    assert not [*Path("four").glob("*.svg")]
    Path("fit.yaml").write_text(lines.replace("none", "jpg"))
    result = run("fit", "fit.yaml", "-o", "three")
    assert result.exit_code == 2
    assert "fit.yaml: pictures 'jpg' is unknown" in result.stderr


def test_a_fit_at_its_limit_of_passes_exits_with_3_and_can_be_resumed(here, no_pictures):
    assert run(*FIT, "--max-passes", "1").exit_code == 3
    assert load_result("A_fit").outcome.name == "MAX_PASSES"
    done(*FIT, "--resume")
    assert not Path("A_fit/checkpoint.json").exists()


def test_an_interrupted_fit_names_its_checkpoint_and_resumes_to_the_same_bits(
    here, no_pictures, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(progress_bar, "progress_on_stderr", interrupting)
        result = run(*FIT, "--output", "cut")
    assert result.exit_code == 130
    assert "after pass 2: the checkpoint is cut/checkpoint.json" in result.stderr
    assert [path.name for path in Path("cut").glob("*.json")] == ["checkpoint.json"]
    again = run(*FIT, "--output", "cut")
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    done(*FIT, "--output", "cut", "--resume")
    done(*FIT, "--output", "whole")
    one, two = (json.loads(Path(name, "summary.json").read_text()) for name in ("cut", "whole"))
    for key in ("parameters", "covariance_naive", "scaling", "chisqr", "passes"):
        assert one[key] == two[key]


def test_an_existing_result_is_refused_and_kept(here, no_pictures):
    done(*FIT)
    before = Path("A_fit/summary.json").read_bytes()
    result = run(*FIT)
    assert result.exit_code == 2
    assert "A_fit exists: give --overwrite" in result.stderr
    assert Path("A_fit/summary.json").read_bytes() == before


def files(here: Path) -> None:
    Path("foreign.h5").write_text("hello")
    Path("a_file").write_text("")


BAD = {
    "foreign file": (files, ["ingest", "foreign.h5"], "foreign.h5 is neither HDF5 nor"),
    "sigma of 0": (None, ["ingest", "A_results.hdf", "--sigma", "0"], "should be greater than 0"),
    "other frame time": (None, ["ingest", "A_results.hdf", "--dt", "3"], "3 s, but A_results.hdf"),
    "no store": (None, ["fit", "none.zarr", "--model", "static"], "none.zarr does not exist"),
    "another store": (None, ["fit", "A_c3.zarr", "--model", "static"], "did you mean A_c2.zarr? Else run"),
    "no such ring": (None, [*FIT, "--q", "0.1"], "no ring within 2 % of q = 0.1 1/Å; choose from"),
    "unknown model": (None, ["fit", "A_c2.zarr", "--model", "statik"], "did you mean 'static'?"),
    "unknown option": (None, [*FIT, "--modle", "x"], "no such option"),
    "no value": (None, ["preflight", "--model"], "(see `homodyne-dask preflight --help`)"),
    "no command": (None, ["cluster"], "give one of its commands (see `homodyne-dask cluster --help`)"),
    "unknown command": (None, ["fti"], "no such command 'fti'"),
    "no frames": (None, ["simulate", "x.h5", "--frames", "2"], "give a whole number of at least 3"),
    "not a pair": (None, [*FIT, "--bounds", "D0"], "give two numbers for each parameter, such as D0=1:1e7"),
    "not a number of a name": (None, [*FIT, "--initial", "D0=x"], "--initial D0 = 'x' cannot be used"),
    "output is a file": (files, [*FIT, "--output", "a_file"], "a_file is a file"),
    "target not writable": (None, [*FIT, "--output", "/proc/x"], "/proc/x: No such file"),
    "store not writable": (None, ["ingest", "A_results.hdf", "/proc/x"], "cannot be written"),
    "no folder": (None, ["simulate", "A_results.hdf/x.h5"], "cannot be written"),
    "scheduler unreachable": (
        None, [*FIT, "--scheduler", "tcp://127.0.0.1:1"], "no scheduler answers at tcp://127"
    ),
    "a key for jobs": (
        None, [*FIT, "--site", "generic", "--key", "k"], "jobs of a site have their own key"
    ),
    "a key for nothing": (None, [*FIT, "--key", "k"], "k would not be used: --key applies to --scheduler"),
    "no result": (None, ["show", "none"], "none cannot be read"),
    "an existing template": (lambda _: done("config"), ["config"], "fit.yaml exists"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(case, here, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 0.2)
    before, words, message = BAD[case]
    if before:
        before(here)
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert not list(here.glob("*_fit"))


def test_debug_shows_the_traceback_and_a_bug_is_reported_as_a_bug(here, monkeypatch):
    for words in (("--debug", "show", "none"), ("show", "none", "--debug")):
        result = run(*words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
    monkeypatch.setattr(plots, "save_all", lambda *_: 1 / 0)
    result = run(*FIT)
    assert result.exit_code == 1
    assert "a bug in homodyne-dask (ZeroDivisionError: division by zero)" in result.stderr


STORE = f"s3://{object_server.BUCKET}/A_c2.zarr"
URL_FIT = ("--model", "static", "--fixed", "D_offset=0", "--no-pictures")


@pytest.mark.long
@pytest.mark.usefixtures("server")
def test_a_scan_is_ingested_planned_fitted_and_shown_by_url(here):
    assert f"→ {STORE}: 3 bins" in done("ingest", "A_results.hdf", STORE)
    assert "A_c2.zarr: 3 of 3 bins" in done("info", STORE)
    assert "pairs" in done("plan", STORE, "--model", "static")
    said = done("fit", STORE, *URL_FIT)
    assert "A_fit/ written: parameters.csv" in said
    assert done("show", "A_fit").strip() in said
    assert json.loads(done("show", "A_fit", "--json"))["inputs"]["store_path"] == STORE
    refused = run("show", "A_fit", "--pictures").output
    assert f"at {STORE}, which is asked only on request: give --store {STORE}" in refused
    assert "A_fit/report.html" in done("show", "A_fit", "--pictures", "--store", STORE)
    viewed, maps = application("view.viewed_data"), []
    for what in (STORE, here / "A_c2.zarr"):
        shown = viewed.open_shown(*viewed.sources_of([what]))
        axes = cell_axes(shown.scan, *[(0.0, 1e9)] * 2)
        maps.append(read_window(shown.scan, shown.read, 1, *axes).c2)
    assert maps[0].tobytes() == maps[1].tobytes()


RESULT = "s3://bucket/A_fit"
REFUSED = "'s3://bucket/A_fit' is a URL, but only stores are at URLs: give a file or folder on this"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "words", [["fit", "A_c2.zarr", "--model", "static", "-o"], ["show"], ["compare", "A_fit"], ["posterior"],
              ["fit", "A_c2.zarr", "--model", "static", "--checkpoint"], ["watch", ".", "-o"], ["config"]],
    ids=lambda words: f"{words[0]} {words[-1]}",
)  # fmt: skip
def test_a_result_at_a_url_is_refused_with_what_to_do(here, words):
    made = run(*words, RESULT)
    assert (made.exit_code, REFUSED in made.output) == (2, True), made.output
    assert "copy it with the tool of the provider, such as `aws s3 cp --recursive`" in made.output
    assert "secret" not in run(*words, "s3://user:secret@bucket/A_fit").output


@pytest.mark.usefixtures("server")
def test_what_is_saved_at_a_url_is_not_loaded_and_a_file_of_options_names_no_url(here):
    for load in (hd.load_result, hd.load_series, hd.load_comparison):
        with pytest.raises(OptionError, match=f"path = {REFUSED}"):
            load(RESULT)
    (here / "fit.yaml").write_text(f"data: {STORE}\nmodel: static\noutput: s3://elsewhere/A_fit\n")
    assert "output = 's3://elsewhere/A_fit' is a URL" in run("fit", "fit.yaml").output
