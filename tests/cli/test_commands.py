"""The commands as a user runs them."""

import csv
import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ingest
from homodyne_dask.cli import progress_bar
from homodyne_dask.results.files.saved_results import load_result
from homodyne_dask.results.views.figures import fit_figures as plots
from tests.run_command import FIT, done, interrupting, run


@pytest.mark.long
def test_a_fit_writes_a_folder_with_the_whole_result(here):
    printed = done(*FIT)
    folder = here / "A_fit"
    names = {path.name for path in folder.iterdir()}
    assert {"summary.json", "parameters.csv", "scaling.csv", "report.txt"} <= names
    assert any(name.endswith(".png") for name in names)
    assert not [name for name in names if "checkpoint" in name or "partial" in name]
    report = (folder / "report.txt").read_text()
    assert report in printed
    assert done("show", "A_fit") == report
    assert "truth" in report
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["outcome"] == "CONVERGED"
    assert summary["nbins"] == 3
    with (folder / "parameters.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["D0", "alpha", "D_offset"]
    assert float(rows["D0"]["value"]) == summary["parameters"]["D0"]["value"]
    assert rows["D0"]["truth"] == "20000.0"
    assert float(rows["D0"]["stderr"]) == summary["parameters"]["D0"]["stderr"]
    assert rows["D0"]["method"] == summary["parameters"]["D0"]["method"] == "speckle"
    with (folder / "scaling.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


def test_figures_are_drawn_later_where_they_were_not_wanted(here, monkeypatch):
    monkeypatch.setattr(plots, "PICTURES", {"passes": plots.draw_passes})
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


def test_a_selection_and_other_options_reach_the_fit(here, no_pictures):
    options = ("--phi", "-30:70", "--frames", "0:30", "--min-lag", "2", "--bounds", "D0=1:1e7")
    done(*FIT, *options, "--scaling", "shared", "--initial", "alpha=-0.3", "--q", "0.0054")
    result = load_result("A_fit")
    assert result.provenance.inputs["bins"] == 2
    assert result.provenance.inputs["frames"] == [0, 30]
    assert (result.config["min_lag"], result.config["scaling"]) == (2, "shared")
    assert result.ndata == 2 * 29 * 28 // 2


def test_info_and_plan_describe_the_data_without_reading_them(here):
    info = done("info", "F_c2.zarr")
    assert "5 of 5 bins" in info
    assert "F_results.hdf (aps-u)" in info
    assert "gap 200 um" in info
    plan = ("plan", "F_c2.zarr", "--model")
    assert "3,900" in done(*plan, "laminar_flow")
    assert "780" in done(*plan, "static", "--phi", "0")


@pytest.mark.long
def test_every_command_can_be_run_twice(here, no_pictures):
    done("ingest", "A_results.hdf")
    for _ in range(2):
        done("simulate", "B_results.hdf", "--angles", "1", "--frames", "8", "--overwrite")
        done("ingest", "B_results.hdf", "B.zarr", "--overwrite")
        done(*FIT, "--overwrite")
        done("config", "--overwrite")


def test_plain_arrays_are_ingested_with_the_values_they_lack(here):
    c2 = np.ones((2, 8, 8)) + np.arange(8)
    np.save("chx.npy", (c2 + c2.transpose(0, 2, 1)) / 20)
    options = ("--q", "0.01,0.02", "--phi", "0", "--phi", "90", "--dt", "0.5", "--sigma", "0.1")
    printed = done("ingest", "chx.npy", "C.zarr", *options, "--gap", "1 mm", "--time-offset", "3")
    assert "2 bins" in printed
    info = done("info", "C.zarr")
    assert "3 to 6.5 s" in info
    assert "gap 1000 um" in info


def test_the_template_goes_to_a_file_or_to_standard_output(here):
    assert "homodyne-dask fit fit.yaml" in done("config")
    assert Path("fit.yaml").read_text() == done("config", "-")


def test_a_fit_that_ends_without_converging_exits_with_3(here, no_pictures):
    result = run(*FIT, "--max-passes", "1")
    assert result.exit_code == 3
    assert load_result("A_fit").outcome.name == "MAX_PASSES"
    assert "stopped at the limit of passes" in result.stdout


def test_a_fit_at_its_limit_of_passes_can_be_resumed(here, no_pictures):
    assert run(*FIT, "--max-passes", "1").exit_code == 3
    done(*FIT, "--resume")
    assert not Path("A_fit/checkpoint.json").exists()


def test_of_several_stores_a_bad_one_does_not_stop_the_others(here, no_pictures):
    result = run("fit", "none_c2.zarr", "A_c2.zarr", "--model", "static")
    assert result.exit_code == 2
    assert "none_c2.zarr does not exist" in result.stderr
    assert load_result("A_fit").converged


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


def test_a_full_disk_leaves_the_earlier_result_whole(here, no_pictures, monkeypatch):
    done(*FIT)
    before = {path.name: path.read_bytes() for path in Path("A_fit").iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "maps.png")

    monkeypatch.setattr(plots, "save_all", full)
    result = run(*FIT, "--overwrite", "--checkpoint", "c.json")
    assert result.exit_code == 2
    assert "maps.png cannot be written: the disk is full (" in result.stderr
    assert {path.name: path.read_bytes() for path in Path("A_fit").iterdir()} == before


def test_a_bad_option_leaves_no_folder(here):
    assert run(*FIT, "--convention", "physics").exit_code == 2
    assert not Path("A_fit").exists()


def test_overwrite_keeps_a_folder_with_other_files(here):
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("all of it")
    result = run(*FIT, "--output", "mine", "--overwrite")
    assert result.exit_code == 2
    assert "contains files that are not a result" in result.stderr
    assert Path("mine/thesis.tex").read_text() == "all of it"


PROGRAM = (sys.executable, "-m", "homodyne_dask.cli")


def test_help_is_quick_because_nothing_heavy_is_loaded(here):
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", *PROGRAM[1:], "--help"], capture_output=True, text=True
    )
    assert loaded.returncode == 0
    for heavy in ("jax", "numpy", "distributed", "zarr", "xarray", "h5py", "pydantic"):
        assert not any(line.endswith(f" {heavy}") for line in loaded.stderr.splitlines()), heavy


SLOW_FIT = """
import sys, time
from dataclasses import replace
from homodyne_dask.cli import main
from homodyne_dask.sweep import sweep

quick = sweep.sweep_of

def slow(*arguments):
    made = quick(*arguments)

    def compute(*pass_):
        time.sleep(2.0)
        yield from made.compute(*pass_)

    return replace(made, compute=compute)

sweep.sweep_of = slow
main(sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_fit_with_a_checkpoint_and_exit_130(here, sent):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_FIT, *FIT], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("pass   1"):
            process.send_signal(sent)
            break
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 130
    assert "the checkpoint is A_fit/checkpoint.json; repeat the command with --resume" in rest
    assert "Traceback" not in rest
    assert Path("A_fit/checkpoint.json").exists()
