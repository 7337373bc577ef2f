"""The commands with stores and folders of results by URL."""

import json
from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.apps.view.viewed_data import name_of, open_shown, sources_of
from homodyne_dask.errors import ObjectStoreError
from homodyne_dask.results.data.window_means import cell_axes, read_window
from homodyne_dask.store import objects
from homodyne_dask.store.url_path import url_path
from tests import object_server
from tests.run_command import done, run

pytestmark = pytest.mark.usefixtures("server")

ROOT = f"s3://{object_server.BUCKET}"
STORE, RESULT = f"{ROOT}/A_c2.zarr", f"{ROOT}/results/A_fit"
FIT = ("fit", STORE, "--model", "static", "--fixed", "D_offset=0", "--no-pictures")


def names_below(url: str) -> set[str]:
    below = url_path("url", url)
    return {path.relative_to(below) for path in objects.below(below)}


@pytest.mark.long
def test_a_scan_is_ingested_planned_fitted_and_shown_by_url(here):
    assert f"→ {STORE}: 3 bins" in done("ingest", "A_results.hdf", STORE)
    assert "A_c2.zarr: 3 of 3 bins" in done("info", STORE)
    assert "pairs" in done("plan", STORE, "--model", "static")
    said = done(*FIT, "-o", RESULT)
    assert f"{RESULT}/ written: parameters.csv" in said
    assert {"summary.json", "report.txt", "result.nc"} <= names_below(RESULT)
    assert ".lock" not in names_below(RESULT)
    assert not (here / "A_fit.checkpoint.json").exists()
    shown = done("show", RESULT)
    assert shown.strip() in said
    assert hd.load_result(RESULT).provenance.inputs["store_path"] == STORE
    assert json.loads(done("show", RESULT, "--json"))["inputs"]["store_path"] == STORE

    refused = run(*FIT, "-o", RESULT)
    assert (refused.exit_code, f"{RESULT} exists: give --overwrite" in refused.output) == (2, True)
    objects.write(url_path("old", f"{RESULT}/result.nx.h5"), b"of an earlier result")
    done(*FIT, "-o", RESULT, "--overwrite")
    assert "result.nx.h5" not in names_below(RESULT)
    other = run(*FIT, "-o", ROOT, "--overwrite")
    assert "contains objects that do not belong to a result: give another --output" in other.output
    assert f"{RESULT}/report.html" in done("show", RESULT, "--pictures")
    assert "residuals.png" in names_below(RESULT)
    assert b"<img" in objects.read(url_path("report", f"{RESULT}/report.html"), 10**8)
    assert ".lock" not in names_below(RESULT)


def test_a_file_of_somebody_else_names_no_url_to_write_to(here):
    (here / "fit.yaml").write_text(f"data: {STORE}\nmodel: static\noutput: {ROOT}/elsewhere\n")
    assert "give --output on the command line instead" in run("fit", "fit.yaml").output


def test_a_result_that_cannot_be_copied_is_kept(here, monkeypatch):
    def refuse(path, content, mode="overwrite"):
        if path.name == "report.txt":
            raise ObjectStoreError(f"{path} cannot be used (access is refused): look at the URL")
        return written(path, content, mode)

    written = objects.write
    monkeypatch.setattr(objects, "write", refuse)
    made = run("fit", "A_c2.zarr", *FIT[2:], "-o", f"{ROOT}/refused")
    assert made.exit_code == 2
    said = made.output.strip().rpartition("look at the URL; the result is kept in ")[2]
    assert hd.load_result(said).converged
    assert Path(said).parent.name.startswith("refused_")
    assert "summary.json" not in names_below(f"{ROOT}/refused")


@pytest.mark.long
def test_a_series_by_url_is_shown_and_read_as_on_disk(here, no_pictures):
    series = ("fit", "A_c2.zarr", *FIT[2:], "--over", "age", "--windows", "2", "-o")
    done(*series, "A_fit_age")
    url = f"{ROOT}/A_fit_age"
    done(*series, url)
    assert done("show", url) == done("show", "A_fit_age")
    found = hd.load_series(url)
    assert found.table.identical(hd.load_series("A_fit_age").table)
    parts = [name for name in names_below(url) if name.endswith("/summary.json")]
    assert len(parts) == len(found.entries) == 2
    of_earlier = f"{parts[0].partition('/')[0]}/result.nx.h5"
    for name in (of_earlier, "other/summary.json"):
        objects.write(url_path("other", f"{url}/{name}"), b"{}")
    done(*series, url, "--overwrite")
    assert "other/summary.json" in names_below(url)
    assert of_earlier not in names_below(url)
    objects.write(url_path("other", f"{ROOT}/several/A_fit/summary.json"), b"{}")
    assert (
        "contains fits, but no result itself: give one of" in run("show", f"{ROOT}/several").output
    )


@pytest.mark.long
def test_the_page_of_view_opens_stores_and_results_by_url(here):
    maps = []
    for what in (STORE, here / "A_c2.zarr", RESULT):
        shown = open_shown(*sources_of([what]))
        axes = cell_axes(shown.scan, *[(0.0, 1e9)] * 2)
        maps.append(read_window(shown.scan, shown.read, 1, *axes).c2)
    assert (shown.name, shown.fit is None) == ("A_fit", False)
    assert maps[0].tobytes() == maps[1].tobytes() == maps[2].tobytes()
    several = sources_of([f"{ROOT}/results", STORE])
    assert [open_shown(one).name for one in several] == [*map(name_of, several)]


@pytest.mark.long
def test_fits_by_url_are_compared(here, no_pictures):
    urls = [f"{ROOT}/{model}" for model in ("brownian", "power_law")]
    for url in urls:
        done("fit", "F_c2.zarr", "--model", url.rpartition("/")[2], "-o", url)
    fits = [hd.load_result(url) for url in urls]
    assert done("compare", *urls).strip() == str(hd.compare(fits))


@pytest.mark.parametrize("words", [["watch", ".", "-o"], ["config"]])
def test_commands_that_work_on_this_machine_refuse_urls_without_quoting_them(words):
    made = run(*words, "s3://user:secret@bucket/A_fit")
    assert made.exit_code == 2
    assert "URL" in made.output
    assert "secret" not in made.output
