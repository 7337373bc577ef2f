"""Several stores in one command: one that fails does not stop the others, and an index lists all."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.cli import progress_bar, run_fits
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.files import result_folder as folder
from homodyne_dask.results.saved_results import load_result, load_series
from homodyne_dask.results.views import fit_figures as plots
from tests.html_pages import ParsedPage
from tests.results.made_results import changed, flow_result
from tests.run_command import csv_rows, done, interrupting, run

FIT = ("fit", "--model", "static")
STORES = ("A_c2.zarr", "B_c2.zarr", "N_c2.zarr")


@pytest.fixture
def three(here, no_pictures) -> Path:
    """Two stores that can be fitted, and between them one that is damaged."""
    shutil.copytree("A_c2.zarr", "N_c2.zarr")
    shutil.copytree("A_c2.zarr", "B_c2.zarr")
    (here / "B_c2.zarr" / "time" / "zarr.json").unlink()
    return here


def rows(where: str | Path = ".") -> list[dict[str, str]]:
    return csv_rows(where, "scans.csv")


def test_a_bad_scan_does_not_stop_the_others_and_all_are_listed(three):
    result = run(*FIT, *STORES)
    assert result.exit_code == 2
    assert "2 of 3 scans converged, 1 failed" in result.stdout
    assert [row["outcome"] for row in rows()] == ["CONVERGED", "FAILED", "CONVERGED"]
    good, bad, _ = rows()
    stored = load_result("A_fit")
    for n, name in enumerate(("D0", "alpha", "D_offset")):
        for column, key in ((name, "value"), (f"{name}_stderr", "stderr")):
            known = float(good[column] or "nan")  # what is not determined is empty
            np.testing.assert_equal(known, stored.parameters[key].values[n])
    assert (good["method"], bad["method"]) == ("speckle", "")
    assert float(good["redchi"]) == stored.redchi
    assert good["folder"] == "A_fit"
    assert bad["D0"] == ""
    assert "B_c2.zarr is damaged" in bad["message"]


def test_one_json_file_has_status_values_errors_and_units_of_all_fits(three):
    run(*FIT, *STORES)
    fits = json.loads(Path("scans.json").read_text())["fits"]
    assert [fit["name"] for fit in fits] == [*STORES]
    assert [fit["outcome"] for fit in fits] == ["CONVERGED", "FAILED", "CONVERGED"]
    assert [fit["folder"] for fit in fits] == ["A_fit", "B_fit", "N_fit"]
    stored = load_result("A_fit")
    good, bad, _ = fits
    assert good["usable"] == stored.usable
    assert (bad["usable"], bad["values"], bad["result"]) == (False, {}, None)
    assert "B_c2.zarr is damaged" in bad["message"]
    for name, parameter in stored.params.items():
        value = good["values"][name]
        assert value["unit"] == parameter.unit
        for key in ("value", "stderr", "dof"):
            known = (np.nan if v is None else v for v in (value[key], getattr(parameter, key)))
            np.testing.assert_equal(*known)
    read = load_series("scans.json")
    assert read.over == "scan"
    assert [row.outcome for row in read.entries] == ["CONVERGED", "FAILED", "CONVERGED"]
    run(*FIT, *STORES[::2], "--overwrite")
    assert len(json.loads(Path("scans.json").read_text())["fits"]) == 2


def test_strict_counts_of_many_fits_what_chance_does_not_explain(here, no_pictures, monkeypatch):
    fit = ("fit", "A_c2.zarr", "F_c2.zarr", "--model", "brownian", "--strict", "--overwrite")
    assert run(*fit).exit_code == 4
    monkeypatch.setattr("homodyne_dask.results.data.fit_rows._p_over_level", lambda _: 1.0)
    result = run(*fit)
    assert result.exit_code == 0
    by_chance = "of 2 fits, one deviates so far by chance in over 1 of 200 series: not counted"
    assert by_chance in " ".join(result.stdout.split())
    assert load_result("F_fit").misfit


def test_the_json_of_all_fits_is_not_there_before_all_are_done(tmp_path):
    rows = [fit_row(f"{n}.zarr", tmp_path / f"{n}", flow_result()) for n in range(2)]
    folder.write_index(tmp_path, [], rows, 2)
    assert (tmp_path / "scans.json").exists()
    folder.write_index(tmp_path, [], rows[:1], 2)
    assert not (tmp_path / "scans.json").exists()


@pytest.mark.long
def test_the_index_is_a_page_with_links_to_every_report(three):
    run(*FIT, *STORES)
    page = ParsedPage((three / "scans.html").read_text())
    assert len(page.all("h1")) == 1
    assert "p: ✗ 2 of 3 scans converged, 1 failed" in page.text
    assert "li: failed: B_c2.zarr: B_c2.zarr is damaged" in page.text
    links = [a["href"] for a in page.all("a") if not str(a["href"]).startswith("#")]
    assert links == ["A_fit/report.html", "N_fit/report.html"]
    for link in links:
        assert (three / str(link)).exists()
    (picture,) = page.all("img")
    assert "D0 " in str(picture["alt"])


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("words", "most", "drawn"),
    [((), 3, True), ((), 2, False), (("--pictures",), 2, True), (("--no-pictures",), 3, False)],
)
def test_figures_of_many_fits_are_drawn_where_they_are_asked_for(
    three, monkeypatch, words, most, drawn
):
    folders = []
    monkeypatch.setattr(run_fits, "MOST_DRAWN", most)
    monkeypatch.setattr(plots, "save_all", lambda _, folder, *__: folders.append(folder) or [])
    printed = run(*FIT, *STORES, *words).stdout
    assert bool(folders) == drawn
    assert ("--pictures` draws them" in printed) == (not drawn and not words)


@pytest.mark.long
def test_each_of_several_stores_is_opened_once(three, monkeypatch):
    of, select = [], run_fits.selected
    monkeypatch.setattr(
        run_fits, "selected", lambda config, store: of.append(store.name) or select(config, store)
    )
    assert run(*FIT, "A_c2.zarr", "N_c2.zarr", "--no-pictures").exit_code == 0
    assert of == ["A_c2.zarr", "N_c2.zarr"]


def test_a_bug_in_one_scan_does_not_stop_the_others(three, monkeypatch):
    real = folder.write_result

    def write(result, scan, where, *more):
        return 1 / 0 if where.name == "A_fit" else real(result, scan, where, *more)

    monkeypatch.setattr(folder, "write_result", write)
    result = run(*FIT, "A_c2.zarr", "N_c2.zarr")
    assert result.exit_code == 1
    assert [row["outcome"] for row in rows()] == ["FAILED", "CONVERGED"]
    assert "a bug in homodyne-dask (ZeroDivisionError" in rows()[0]["message"]


def test_scans_that_do_not_converge_are_distinguished_from_those_that_fail(three):
    result = run(*FIT, "A_c2.zarr", "N_c2.zarr", "--max-passes", "1")
    assert result.exit_code == 3
    assert "0 of 2 scans converged, 2 ended without converging" in result.stdout
    assert {row["outcome"] for row in rows()} == {"MAX_PASSES"}


@pytest.mark.long
def test_an_index_is_replaced_only_with_overwrite(three):
    done(*FIT, "A_c2.zarr", "N_c2.zarr")
    before = Path("scans.csv").read_bytes()
    refused = run(*FIT, "A_c2.zarr", "N_c2.zarr")
    assert refused.exit_code == 2
    assert re.search(r"scans.csv exists: give --resume", refused.stderr)
    assert Path("scans.csv").read_bytes() == before
    done(*FIT, "A_c2.zarr", "N_c2.zarr", "--overwrite")


@pytest.mark.long
def test_resume_keeps_earlier_results_and_fits_the_rest(three):
    assert run(*FIT, *STORES).exit_code == 2
    before = {name: Path(f"{name}_fit/summary.json").stat().st_mtime_ns for name in "AN"}
    shutil.rmtree("B_c2.zarr")
    shutil.copytree("A_c2.zarr", "B_c2.zarr")
    result = run(*FIT, *STORES, "--resume")
    assert result.exit_code == 0, result.output
    assert [row["outcome"] for row in rows()] == ["CONVERGED"] * 3
    for name, when in before.items():
        assert Path(f"{name}_fit/summary.json").stat().st_mtime_ns == when
    assert result.stderr.count("already contains its result") == 2


@pytest.mark.long
def test_resume_fits_again_what_changed_and_says_what(three):
    """Data with another origin of time, another sigma, another program and another model's code."""
    stores = [f"{name}_c2.zarr" for name in "ANOQ"]
    for copy in stores[2:]:
        shutil.copytree("A_c2.zarr", copy)
    done(*FIT, *stores)
    done("ingest", "A_results.hdf", stores[0], "--overwrite", "--time-offset", "100")
    done("ingest", "A_results.hdf", stores[1], "--overwrite", "--sigma", "0.02")
    other = load_result("O_fit")
    other = changed(other, version="0.0.1", config=other.config | {"model_digest": "ab"})
    other.to_json("O_fit/summary.json")
    before = {name: load_result(f"{name}_fit") for name in "ANQ"}
    result = run(*FIT, *stores, "--resume")
    assert result.exit_code == 0, result.output
    said = re.findall(r"(\w)_fit/ is fitted again; changed since the last fit: (.*)", result.stderr)
    assert said == [
        ("A", "data"), ("N", "data"), ("O", "version of homodyne-dask and code of the model"),
    ]  # fmt: skip
    assert result.stderr.count("already contains its result") == 1
    after = {name: load_result(f"{name}_fit") for name in "ANQ"}
    first, again = (of["A"].provenance.inputs["seconds"][0] for of in (before, after))
    assert again == first + 100
    assert after["N"].chisqr != before["N"].chisqr
    assert str(after["Q"]) == str(before["Q"])
    assert run(*FIT, *stores, "--resume").stderr.count("already contains its result") == 4


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("what", "options"),
    [("scaling", ["--scaling", "shared"]), ("frames", ["--frames", "0:30"]), ("labels", ["--phi", "0"])],
)  # fmt: skip
def test_resume_keeps_no_result_of_another_fit(what, options, three):
    done(*FIT, "A_c2.zarr", "N_c2.zarr")
    result = run(*FIT, "A_c2.zarr", "N_c2.zarr", "--resume", *options)
    assert result.exit_code == 2
    assert f"A_fit contains a fit with a different {what}: give --overwrite" in result.stderr


def test_ctrl_c_ends_the_command_and_the_index_lists_the_finished_fits(three, monkeypatch):
    shutil.rmtree("A_fit", ignore_errors=True)
    done(*FIT, "A_c2.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(progress_bar, "progress_on_stderr", interrupting)
        result = run(*FIT, "A_c2.zarr", "N_c2.zarr", "--resume")
    assert result.exit_code == 130
    assert [row["scan"] for row in rows()] == ["A_c2.zarr"]
    page = ParsedPage(Path("scans.html").read_text())
    assert "1 of 1 scans converged, 1 not yet done" in page.text
    done(*FIT, "A_c2.zarr", "N_c2.zarr", "--resume")
    assert [row["outcome"] for row in rows()] == ["CONVERGED"] * 2


@pytest.mark.long
def test_an_output_holds_all_results_but_not_those_of_two_stores_of_one_name(three):
    done(*FIT, "A_c2.zarr", "N_c2.zarr", "--output", "both")
    names = {path.name for path in Path("both").iterdir()}
    assert names == {"A_fit", "N_fit", "scans.csv", "scans.html"}
    shutil.copytree("A_c2.zarr", "other/A_c2.zarr")
    result = run(*FIT, "A_c2.zarr", "other/A_c2.zarr", "--output", "all")
    assert result.exit_code == 2
    assert "would both be written to all/A_fit" in result.stderr
    assert not Path("all").exists()
    done(*FIT, "A_c2.zarr", "other/A_c2.zarr")
    assert [row["folder"] for row in rows()] == ["A_fit", "other/A_fit"]


def test_names_and_messages_of_an_index_never_become_markup(tmp_path):
    nasty = '<b>"&'
    names = tuple(flow_result().parameters["param"].values)
    good, failed = (
        fit_row(nasty, tmp_path / "a b <i>", flow_result()),
        fit_row("x", None, None, nasty),
    )
    folder.write_index(tmp_path, names, [good, failed], 2)
    page = ParsedPage((tmp_path / "scans.html").read_text())
    assert not page.all("i") + page.all("b")
    assert page.all("a")[2]["href"] == "a%20b%20%3Ci%3E/report.html"
    assert page.text.count(nasty) >= 2


def test_the_figure_of_all_scans_is_drawn_when_all_are_done(tmp_path):
    names = tuple(flow_result().parameters["param"].values)
    entries = [fit_row(f"{n}", tmp_path / f"{n}", flow_result()) for n in range(2)]
    folder.write_index(tmp_path, names, entries, 3)
    assert not ParsedPage((tmp_path / "scans.html").read_text()).all("img")
    folder.write_index(tmp_path, names, entries, 2)
    assert len(ParsedPage((tmp_path / "scans.html").read_text()).all("img")) == 1
