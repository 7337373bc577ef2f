"""The commands with stores and folders of results by URL."""

import json

import pytest

import homodyne_dask as hd
from homodyne_dask.store import objects
from homodyne_dask.store.url_path import url_path
from tests import object_server
from tests.cli.commands import done, run

ROOT = f"s3://{object_server.BUCKET}"
STORE, RESULT = f"{ROOT}/A_c2.zarr", f"{ROOT}/results/A_fit"
FIT = ("fit", STORE, "--model", "static", "--fixed", "D_offset=0", "--no-pictures")


@pytest.fixture(scope="module", autouse=True)
def server():
    with object_server.s3_server() as address:
        yield address


def names_below(url: str) -> set[str]:
    below = url_path("url", url)
    return {path.relative_to(below) for path in objects.below(below)}


def test_a_scan_is_ingested_planned_fitted_and_shown_by_url(here):
    assert f"→ {STORE}: 3 bins" in done("ingest", "A_results.hdf", STORE)
    assert "A_c2.zarr: 3 of 3 bins" in done("info", STORE)
    assert "pairs" in done("plan", STORE, "--model", "static", "--no-measure")
    said = done(*FIT, "-o", RESULT)
    assert f"{RESULT}/ written: parameters.csv" in said
    assert {"summary.json", "report.txt", "result.nc"} <= names_below(RESULT)
    assert ".lock" not in names_below(RESULT)
    assert not (here / "A_fit.checkpoint.json").exists()
    shown = done("show", RESULT)
    assert shown.strip() in said
    assert hd.load_result(RESULT).inputs["store_path"] == STORE
    assert json.loads(done("show", RESULT, "--json"))["inputs"]["store_path"] == STORE

    refused = run(*FIT, "-o", RESULT)
    assert (refused.exit_code, f"{RESULT} exists: give --overwrite" in refused.output) == (2, True)
    objects.write(url_path("old", f"{RESULT}/result.nx.h5"), b"of an earlier result")
    done(*FIT, "-o", RESULT, "--overwrite")
    assert "result.nx.h5" not in names_below(RESULT)
    other = run(*FIT, "-o", ROOT, "--overwrite")
    assert "holds objects that are no result: give another --output" in other.output
    pictures = run("show", RESULT, "--pictures")
    assert "figures are drawn on disk: leave out --pictures" in pictures.output


def test_a_file_of_somebody_else_names_no_url_to_write_to(here):
    (here / "fit.yaml").write_text(f"data: {STORE}\nmodel: static\noutput: {ROOT}/elsewhere\n")
    assert "give --output on the command line instead" in run("fit", "fit.yaml").output


@pytest.mark.parametrize("words", [["watch", ".", "-o"], ["view"], ["compare", "A_fit"]])
def test_commands_that_work_on_this_machine_refuse_urls_without_quoting_them(words):
    made = run(*words, "s3://user:secret@bucket/A_fit")
    assert made.exit_code == 2
    assert "it is a URL: give a path of this machine" in made.output
    assert "secret" not in made.output
