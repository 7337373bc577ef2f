"""homodyne-dask watch: ingest and fit of what is in a folder, with the options of a file."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote_to_bytes

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.results.files.result_folder import locked_folder
from homodyne_dask.results.saved_results import load_result
from tests.html_pages import ParsedPage
from tests.run_command import csv_rows, run

pytestmark = pytest.mark.usefixtures("no_page_pictures")
ONCE = ("--once", "--interval", "0.02", "--no-pictures")
WATCH = ("watch", "in", "fit.yaml", "-o", "out", *ONCE)


@pytest.fixture
def watched(made, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    shutil.copy(made / "A_results.hdf", "in/A0001_results.hdf")
    Path("fit.yaml").write_text("data: not_used.zarr\nmodel: static\nfixed: {D_offset: 0}\n")
    Path("in/A0002_results.hdf").write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    return tmp_path


def rows() -> list[dict[str, str]]:
    return csv_rows("out/scans.csv")


@pytest.mark.long
def test_what_is_in_a_folder_is_fitted_once_with_the_options_of_a_file(watched):
    result = run(*WATCH)
    assert result.exit_code == 2, result.output  # for the file that is none
    assert [row["outcome"] for row in rows()] == ["CONVERGED", "FAILED"]
    assert [row["number"] for row in rows()] == ["1", "2"]
    assert "cannot be opened as HDF5" in rows()[1]["message"]
    fitted = load_result("out/A0001_results.hdf_fit")
    assert fitted.config["fixed"] == {"D_offset": 0.0}
    assert float(rows()[0]["D0"]) == fitted.parameters["value"].values[0]
    page = ParsedPage(Path("out/scans.html").read_text())
    assert "1 of 2 scans converged, 1 failed" in page.text
    assert 'http-equiv="refresh"' not in Path("out/scans.html").read_text()
    assert Path("out/stores/A0001_results.hdf.zarr").is_dir()
    before = Path("out/A0001_results.hdf_fit/summary.json").stat().st_mtime_ns
    again = run(*WATCH)
    assert again.exit_code == 0, again.output
    assert again.stderr == ""
    assert Path("out/A0001_results.hdf_fit/summary.json").stat().st_mtime_ns == before
    assert len(rows()) == 2
    with locked_folder(Path("out"), ".scans.lock"):
        refused = run(*WATCH)
    assert "another fit is writing out: wait until it has ended, or give another" in refused.stderr
    other = run(*WATCH, "--fixed", "alpha=0")
    assert "out contains fits with another fixed: give another --output" in other.stderr
    assert len(rows()) == 2


@pytest.mark.long
def test_files_of_a_layout_of_their_own_are_read_as_by_ingest(watched):
    with h5py.File("in/A0001_results.hdf") as source:
        matrix = source["xpcs/twotime/correlation_map/c2_00001"][:]
    for file in Path("in").iterdir():
        file.unlink()
    with h5py.File("in/own.h5", "w") as file:
        file["corr/ttc"] = matrix + np.triu(matrix, 1).T
    words = (*WATCH, "--dataset", "/corr/ttc")
    assert run(*words).exit_code == 2
    assert "--frame-time" in rows()[0]["message"]
    shutil.rmtree("out")
    words = (*words, "--q", "0.0054", "--phi", "0", "--dt", "100 ms")
    result = run(*words)
    assert result.exit_code == 0, result.output
    scan = hd.open_dataset("out/stores/own.h5.zarr")
    assert scan.attrs["frame_time"] == 0.1
    assert float(scan.q[0]) == 0.0054
    other = run(*words[:-1], "50 ms")
    assert "out contains fits with another reading: give another --output" in other.stderr


@pytest.mark.long
def test_an_overwritten_file_is_fitted_again_and_a_touched_one_keeps_its_result(watched, made):
    Path("in/A0002_results.hdf").unlink()
    file = Path("in/A0001_results.hdf")
    summary, digests = Path("out/A0001_results.hdf_fit/summary.json"), []
    for more in (b"", b"", b"1"):
        # HDF5 takes no notice of what follows its end
        file.write_bytes((made / "A_results.hdf").read_bytes() + more)
        result = run(*WATCH)
        assert result.exit_code == 0, result.output
        digest = load_result("out/A0001_results.hdf_fit").provenance.inputs["source_sha256"]
        digests.append((digest, summary.stat().st_mtime_ns))
    assert digests[0] == digests[1]
    assert digests[1][0] != digests[2][0]
    assert len(rows()) == 1


@pytest.mark.long
def test_a_file_of_the_size_and_time_of_the_one_that_it_replaces_is_fitted(watched, made):
    Path("in/A0002_results.hdf").unlink()
    file = Path("in/A0001_results.hdf")
    summary, results = Path("out/A0001_results.hdf_fit/summary.json"), []
    for end, mode in ((b"1", 0o644), (b"2", 0o644), (b"2", 0o640)):
        Path("copy").write_bytes((made / "A_results.hdf").read_bytes() + end)
        os.utime("copy", ns=(10**18, 10**18))
        Path("copy").chmod(mode)
        Path("copy").rename(file)
        assert run(*WATCH).exit_code == 0
        digest = load_result(summary.parent).provenance.inputs["source_sha256"]
        results.append((digest, summary.stat().st_mtime_ns))
    assert results[0][0] != results[1][0]
    assert results[1] == results[2]


@pytest.mark.long
def test_what_is_no_store_is_never_removed(watched):
    notes = Path("out/stores/A0001_results.hdf.zarr/notes.txt")
    Path("elsewhere").mkdir()
    notes.parent.mkdir(parents=True)
    notes.write_text("precious")
    Path("out/stores/A0002_results.hdf.zarr").symlink_to("../../elsewhere")
    result = run(*WATCH, "--stores", "delete")
    assert result.exit_code == 2
    assert notes.read_text() == "precious"
    assert "exists and is not a store of homodyne_dask" in rows()[0]["message"]
    assert f"is a link to {watched}/elsewhere: remove the link" in rows()[1]["message"]
    notes.unlink()
    notes.parent.rmdir()
    Path("in/A0001_results.hdf").touch()
    assert run(*WATCH, "--stores", "delete").exit_code == 0
    assert not [*Path("out/stores").glob("A0001*")]


@pytest.mark.long
def test_a_damaged_store_is_ingested_again_when_its_file_is_touched(watched):
    Path("in/A0002_results.hdf").unlink()
    assert run(*WATCH).exit_code == 0
    shutil.rmtree("out/A0001_results.hdf_fit")
    chunk = Path("out/stores/A0001_results.hdf.zarr/c2/c/0/0/0")
    chunk.write_bytes(chunk.read_bytes()[:-9])
    Path("in/A0001_results.hdf").touch()
    assert run(*WATCH).exit_code == 2
    assert "its checksum is wrong" in rows()[0]["message"]
    Path("in/A0001_results.hdf").touch()
    assert run(*WATCH).exit_code == 0


@pytest.mark.long
def test_a_program_reads_a_line_for_each_file(watched):
    result = run(*WATCH, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    by_file = {line["file"]: line for line in lines}
    assert by_file["A0001_results.hdf"]["usable"]
    assert by_file["A0001_results.hdf"]["parameters"]["D0"]["unit"] == "Å²/s"
    assert "cannot be opened as HDF5" in by_file["A0002_results.hdf"]["problem"]
    times = [
        datetime.fromisoformat(" ".join(said.split(" ")[:2])) for said in result.stderr.splitlines()
    ]
    assert all(abs((datetime.now().astimezone() - time).total_seconds()) < 600 for time in times)


MISTAKES = [
    (("watch", "nowhere", "-o", "out"), "nowhere is not a directory"),
    (
        ("watch", "in", "-o", "in/../in/"),
        "is the watched folder: give another one, such as in/fits",
    ),
    (("watch", "in", "-o", "out"), "model is missing"),
    (("watch", "in", "-o", "out", "--model", "auto"), "auto applies only to a single new fit"),
    (("watch", "in", "checked.yaml", "-o", "out"), "checkpoint cannot be used here"),
    (("watch", "in", "-o", "other", "--model", "static"), "contains the index of other scans"),
]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("words", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(watched, words, says):
    Path("other").mkdir()
    Path("other/scans.csv").write_text("scan,outcome\n")
    Path("checked.yaml").write_text("model: static\ncheckpoint: c.json\n")
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("out").exists()


@pytest.mark.long
def test_names_of_any_kind_are_fitted_and_run_by_nothing_that_shows_them(watched):
    folder = "out\n\t<b>=x"
    content = Path("in/A0001_results.hdf").read_bytes()
    shutil.rmtree("in")
    Path("in").mkdir()
    names = [
        b"A\xff_results.hdf", b"=cmd|'C'!A0.hdf", b"B\nok: converged\tD.hdf", b"@SUM(1).hdf",
        b"<script>alert(1)<img src=x onerror=alert(1)>.hdf", b"javascript:alert(1).hdf", b"-1+x.hdf",
        b"$\\frac{.hdf", b"{{ 7*7 }}%.hdf",
    ]  # fmt: skip
    for n, name in enumerate(names):
        # HDF5 takes no notice of what follows its end
        Path("in", os.fsdecode(name)).write_bytes(content + bytes([n]))
    result = run("watch", "in", "fit.yaml", "-o", folder, "--nexus", *ONCE)
    assert result.exit_code == 0, result.output
    assert "\nok" not in result.output
    assert r"B\nok: converged\tD.hdf: converged" in result.stderr
    cells = csv_rows(folder, "scans.csv")
    assert [row["outcome"] for row in cells] == ["CONVERGED"] * len(names)
    texts = [row[key] for row in cells for key in ("scan", "folder")]
    assert not [text for text in texts if text[0] in "=+-@" or {"\n", "\t"} & {*text}]
    assert {"'=cmd|'C'!A0.hdf", "'@SUM(1).hdf", "'-1+x.hdf"} <= {*texts}
    page = ParsedPage(Path(folder, "scans.html").read_text())
    assert "{{ 7*7 }}%.hdf" in page.text
    links = [str(link["href"]) for link in page.all("a")]
    reports = [link for link in links if not link.startswith("#")]
    assert len(reports) == len(names)
    for link in reports:
        report = Path(folder, os.fsdecode(unquote_to_bytes(link)))
        assert ":" not in link
        assert not ParsedPage(report.read_text()).all("script")
        assert load_result(report.parent).outcome.name == "CONVERGED"
    assert not [*page.all("script"), *page.all("b")]
    assert all(image["src"].startswith("data:image/png") for image in page.all("img"))
