"""The commands with stores by URL; what they write and read of results is on this machine."""

import json

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.c2_means import cell_axes, read_window
from tests import object_server
from tests.applications import application
from tests.run_command import done, run

pytestmark = pytest.mark.usefixtures("server")

STORE = f"s3://{object_server.BUCKET}/A_c2.zarr"
FIT = ("--model", "static", "--fixed", "D_offset=0", "--no-pictures")


@pytest.mark.long
def test_a_scan_is_ingested_planned_fitted_and_shown_by_url(here):
    assert f"→ {STORE}: 3 bins" in done("ingest", "A_results.hdf", STORE)
    assert "A_c2.zarr: 3 of 3 bins" in done("info", STORE)
    assert "pairs" in done("plan", STORE, "--model", "static")
    said = done("fit", STORE, *FIT)
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


def test_what_is_saved_at_a_url_is_not_loaded_and_a_file_of_options_names_no_url(here):
    for load in (hd.load_result, hd.load_series, hd.load_comparison):
        with pytest.raises(OptionError, match=f"path = {REFUSED}"):
            load(RESULT)
    (here / "fit.yaml").write_text(f"data: {STORE}\nmodel: static\noutput: s3://elsewhere/A_fit\n")
    assert "output = 's3://elsewhere/A_fit' is a URL" in run("fit", "fit.yaml").output
