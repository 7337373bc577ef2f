"""Control characters from files reach neither the terminal nor a report."""

import csv
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray

import ingest
from homodyne_dask.document.blocks import Document, Facts, Outcome, Section, Table, as_page, as_text
from homodyne_dask.errors import StoreError, in_line, printable
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.files.csv_and_netcdf import entries_csv, rows_csv
from homodyne_dask.store.scan import Scan
from tests.run_command import run
from tests.synthetic import FLOW, angles, measured, store

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b1m\x00\r\u202eb\ud800"
SAFE = r"a\x1b]0;title\x07\x1b[2J\x9b1m\x00\r\u202eb\ud800"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def test_control_characters_are_written_out_and_other_text_stays():
    assert printable(HOSTILE) == SAFE
    assert printable("σ = 0.1 Å⁻¹\n\tφ ✓") == "σ = 0.1 Å⁻¹\n\tφ ✓"
    assert str(StoreError(HOSTILE)) == SAFE


def test_a_page_and_a_table_hold_none():
    blocks = [Outcome(False, HOSTILE, [("note", HOSTILE)]), Facts([(HOSTILE, HOSTILE)])]
    table = Table(HOSTILE, [[HOSTILE], [HOSTILE]])
    document = Document(HOSTILE, [Section(HOSTILE, [*blocks, table])], HOSTILE)
    for shown in (as_page(document), as_text(document)):
        assert SAFE in shown
        assert not CONTROL.search(shown)
    entry = fit_row(HOSTILE, None, None, HOSTILE, {})
    assert not CONTROL.search(entries_csv([], [entry], Path(), "scan"))


@pytest.mark.parametrize("text", [str, Scan._repr_html_])
def test_the_notes_of_a_store_hold_none(tmp_path, text):
    scan = store(measured(FLOW, 24, angles(2)), tmp_path)
    scan = replace(scan, attributes=scan.attributes.model_copy(update={"notes": [HOSTILE]}))
    assert SAFE in text(scan)
    assert not CONTROL.search(text(scan))


def test_names_in_a_file_reach_no_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "A\x1b[31m.npz"
    np.savez(name, c2=np.full((1, 8, 8), 1.1), q=0.1, phi=0.0, dt=1.0, sigma=1.0, **{"\x1b[2J": 1})
    assert not CONTROL.search(str(ingest.ingest(name, "A.zarr")))
    for words in (("ingest", name, "A.zarr"), ("ingest", name + "\x1b"), ("info", "A.zarr")):
        assert not CONTROL.search(run(*words).output)


@pytest.mark.long
def test_line_breaks_and_tabs_of_names_begin_no_line_of_what_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "A\nconverged: yes\tB"
    source, store, fit = f"{name}_results.hdf", f"{name}_c2.zarr", f"{name}_fit"
    model = ("--model", "static", "--fixed", "D_offset=0")
    for words in (
        ("simulate", source, "--scenario", "static", "--angles", "3", "--frames", "40"),
        ("ingest", source),
        ("info", store),
        ("fit", store, *model, "--no-pictures"),
        ("fit", store, *model, "--no-pictures", "--over", "age", "--windows", "2"),
        ("show", fit),
        ("posterior", fit),
        ("show", fit, "--pictures"),
        ("config", f"{name}.yaml"),
    ):
        result = run(*words)
        assert result.exit_code in (0, 3), result.output
        assert r"A\nconverged: yes\tB" in result.output, words
        assert "\nconverged: yes" not in result.output, words
    failed = run("fit", store, *model, "-o", source)
    assert failed.exit_code == 2
    assert "\nconverged: yes" not in failed.output


@pytest.mark.long
def test_a_file_whose_name_is_not_utf_8_is_fitted_and_all_its_files_are_written(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"A\xff")
    run("simulate", "S.hdf", "--scenario", "static", "--angles", "3", "--frames", "40")
    Path("S.hdf").rename(f"{name}_results.hdf")
    model = ("--model", "static", "--fixed", "D_offset=0")
    for words in (
        ("ingest", f"{name}_results.hdf"),
        ("fit", f"{name}_c2.zarr", *model, "--nexus"),
        ("posterior", f"{name}_fit"),
        ("fit", f"{name}_c2.zarr", *model, "--over", "age", "--windows", "2"),
    ):
        result = run(*words)
        assert result.exit_code in (0, 3), result.output
    written = {file.name for file in Path(f"{name}_fit").iterdir()}
    assert written >= {"result.nc", "result.nx.h5", "posterior.nc", "report.html", "maps.png"}
    with xarray.open_dataset(f"{name}_fit/result.nc") as held:
        assert held.attrs["source"] == r"A\udcff_results.hdf"
    shutil.copytree(f"{name}_c2.zarr", f"B{name}_c2.zarr")
    both = run("fit", f"{name}_c2.zarr", f"B{name}_c2.zarr", *model, "--no-pictures", "-o", "both")
    assert both.exit_code == 0, both.output
    assert r"A\udcff_c2.zarr" in Path("both/scans.html").read_text()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd", "@SUM(1)", " =1+1", "\t=1+1", "＝1"])
def test_a_text_in_a_table_begins_no_formula(text):
    table = rows_csv([{"name": text, text: -1.5}])
    head, cells = list(csv.reader(table.splitlines()))
    assert cells == [head[1], "-1.5"]
    assert head[1] == "'" + in_line(text) or head[1] == r"\t=1+1"
