"""The command line: what a user does, and what is said when something is wrong."""

import csv
import errno
import json
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from click.testing import CliRunner, Result

from homodyne_dask import connecting
from homodyne_dask.cli import main, progress
from homodyne_dask.report import plots
from homodyne_dask.result import load_result

FIT = ("fit", "A_c2.zarr", "--model", "static")


def run(*words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, words)


def done(*words: str) -> str:
    """Run a command that must succeed and return what it prints."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder with a small static scan and a small flow scan, as files and as stores."""
    folder = tmp_path_factory.mktemp("made")
    for name, scenario, angles in (("A", "static", 3), ("F", "creep", 5)):
        file = str(folder / f"{name}_results.hdf")
        done("simulate", file, "--scenario", scenario, "--angles", f"{angles}", "--frames", "40")
        done("ingest", file)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A copy of it, as the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_pictures(monkeypatch):
    """Leave out what takes longest."""
    monkeypatch.setattr(plots, "save_all", lambda *_: [])


def test_a_fit_leaves_a_folder_with_all_of_the_result(here):
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
    assert rows["D0"]["stderr"] == ""
    with (folder / "scaling.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


def test_a_file_of_options_gives_the_same_as_the_command_line(here, no_pictures):
    Path("fit.yaml").write_text("data: F_c2.zarr\nmodel: laminar_flow\nfixed: {beta: -0.2}\n")
    done("fit", "fit.yaml", "--output", "one")
    done("fit", "F_c2.zarr", "--model", "laminar_flow", "--fixed", "beta=-0.2", "-o", "two")
    one, two = (load_result(name).summary() for name in ("one", "two"))
    for result in (one, two):
        for varying in ("timings", "history", "compilations"):
            del result[varying]
    assert one == two


def test_a_selection_and_other_options_reach_the_fit(here, no_pictures):
    options = ("--phi", "-30:70", "--frames", "0:30", "--min-lag", "2", "--bounds", "D0=1:1e7")
    done(*FIT, *options, "--scaling", "shared", "--initial", "alpha=-0.3", "--q", "0.0054")
    result = load_result("A_fit")
    assert result.inputs["bins"] == 2
    assert result.inputs["frames"] == [0, 30]
    assert (result.config["min_lag"], result.config["scaling"]) == (2, "shared")
    assert result.ndata == 2 * 29 * 28 // 2


def test_info_and_plan_tell_what_there_is_without_reading_it(here):
    info = done("info", "F_c2.zarr")
    assert "5 of 5 bins" in info
    assert "F_results.hdf (aps-u)" in info
    assert "gap 200 um" in info
    plan = ("plan", "F_c2.zarr", "--no-measure", "--model")
    assert "3,900" in done(*plan, "laminar_flow")
    assert "780" in done(*plan, "static", "--phi", "0")


def test_plan_measures_a_pass(here):
    told = done("plan", "F_c2.zarr", "--model", "laminar_flow", "--frames", "0:30")
    for part in ("2,175", "tiles read         1, 0 skipped", "time per pass", "peak memory"):
        assert part in told, part


def test_every_command_can_be_run_twice(here, no_pictures):
    done("ingest", "A_results.hdf")
    for _ in range(2):
        done("simulate", "B_results.hdf", "--angles", "1", "--frames", "8", "--overwrite")
        done("ingest", "B_results.hdf", "B.zarr", "--overwrite")
        done(*FIT, "--overwrite")
        done("config", "--overwrite")


def test_plain_arrays_are_ingested_with_what_they_lack(here):
    c2 = np.ones((2, 8, 8)) + np.arange(8)
    np.save("chx.npy", (c2 + c2.transpose(0, 2, 1)) / 20)
    options = ("--q", "0.01,0.02", "--phi", "0", "--phi", "90", "--dt", "0.5", "--sigma", "0.1")
    printed = done("ingest", "chx.npy", "C.zarr", *options, "--gap", "1 mm", "--time-offset", "3")
    assert "2 bins" in printed
    info = done("info", "C.zarr")
    assert "3 to 6.5 s" in info
    assert "gap 1000 um" in info


def test_the_template_goes_where_it_is_asked_for(here):
    assert "homodyne-dask fit fit.yaml" in done("config")
    assert Path("fit.yaml").read_text() == done("config", "-")


def test_a_fit_that_ends_without_converging_exits_with_3(here, no_pictures):
    result = run(*FIT, "--max-passes", "1")
    assert result.exit_code == 3
    assert load_result("A_fit").outcome.name == "MAX_PASSES"
    assert "stopped at the limit of passes" in result.stdout


def test_a_fit_at_its_limit_of_passes_can_go_on(here, no_pictures):
    assert run(*FIT, "--max-passes", "1").exit_code == 3
    done(*FIT, "--resume")
    assert not Path("A_fit/checkpoint.json").exists()


def test_of_several_stores_a_bad_one_does_not_stop_the_others(here, no_pictures):
    result = run("fit", "none_c2.zarr", "A_c2.zarr", "--model", "static")
    assert result.exit_code == 2
    assert "none_c2.zarr does not exist" in result.stderr
    assert load_result("A_fit").converged


@contextmanager
def interrupting():
    """Progress during which Ctrl-C is pressed after the second pass."""

    def show(standing):
        if standing.passes == 2:
            raise KeyboardInterrupt

    yield show


def test_an_interrupted_fit_says_where_it_stands_and_resumes_to_the_same_bits(
    here, no_pictures, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(progress, "progress", interrupting)
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
    assert "maps.png: No space left on device" in result.stderr
    assert {path.name: path.read_bytes() for path in Path("A_fit").iterdir()} == before


def test_a_mistake_leaves_no_folder(here):
    assert run(*FIT, "--convention", "physics").exit_code == 2
    assert not Path("A_fit").exists()


def test_overwrite_touches_no_folder_that_is_not_ours(here):
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("all of it")
    result = run(*FIT, "--output", "mine", "--overwrite")
    assert result.exit_code == 2
    assert "holds files that are no result" in result.stderr
    assert Path("mine/thesis.tex").read_text() == "all of it"


def no_gap(here: Path) -> None:
    with h5py.File("F_results.hdf", "a") as file:
        del file.attrs["truth"]
    done("ingest", "F_results.hdf", "N.zarr")


def attribute(name, value):
    def change(here: Path) -> None:
        zarr.open_group("A_c2.zarr", mode="r+").attrs[name] = value

    return change


def files(here: Path) -> None:
    Path("foreign.h5").write_text("hello")
    with h5py.File("other.h5", "w") as file:
        file["x"] = 1
    Path("cut.h5").write_bytes(Path("A_results.hdf").read_bytes()[:3000])
    Path("a_file").write_text("")
    np.savez("short.npz", c2=np.ones((1, 2, 2)), q=0.1, phi=0.0, dt=1.0)
    np.savez("masked.npz", c2=np.full((1, 8, 8), np.nan), q=0.1, phi=0.0, dt=1.0, sigma=1.0)
    np.savez("sigma.npz", c2=np.full((1, 8, 8), 1.1), q=0.1, phi=0.0, dt=1.0, sigma=-1.0)
    Path("bad.yaml").write_text("data: A_c2.zarr\nmodel: static\nscailing: shared\n")


def masked(here: Path) -> None:
    mask = zarr.open_array("A_c2.zarr", path="frame_mask", mode="r+")
    mask.with_config({"write_empty_chunks": True})[:] = False


BAD = {
    "missing HDF5": (None, ["ingest", "none.h5"], "none.h5 is no file"),
    "foreign file": (files, ["ingest", "foreign.h5"], "foreign.h5 is neither HDF5 nor"),
    "HDF5 of another kind": (files, ["ingest", "other.h5"], "has no two-time matrices"),
    "truncated HDF5": (files, ["ingest", "cut.h5"], "truncated"),
    "two frames": (files, ["ingest", "short.npz"], "2 frames"),
    "nothing known": (files, ["ingest", "masked.npz"], "masked.npz holds no data"),
    "negative sigma": (files, ["ingest", "sigma.npz"], "sigma"),
    "sigma of 0": (None, ["ingest", "A_results.hdf", "--sigma", "0"], "sigma = [0.0] must be"),
    "sigma no number": (None, ["ingest", "A_results.hdf", "--sigma", "x"], "--sigma 'x'"),
    "other frame time": (None, ["ingest", "A_results.hdf", "--dt", "3"], "3 s but A_results.hdf"),
    "gap without unit at ingest": (None, ["ingest", "A_results.hdf", "--gap", "2"], "no unit"),
    "no store": (None, ["fit", "none.zarr", "--model", "static"], "none.zarr does not exist"),
    "a file for a store": (None, ["info", "A_results.hdf"], "is a file, not a store"),
    "other schema": (attribute("schema_version", 99), [*FIT], "schema version 99"),
    "incomplete store": (attribute("complete", False), [*FIT], "incomplete"),
    "no such ring": (None, [*FIT, "--q", "0.1"], "no ring within 2 % of q = 0.1 1/Å; there is"),
    "no such angle": (None, [*FIT, "--phi", "77"], "there are 3 bins"),
    "no such label": (None, [*FIT, "--label", "99"], "no bin is labelled 99"),
    "two frames selected": (None, [*FIT, "--frames", "0:2"], "fewer than 3 frames"),
    "all masked": (masked, [*FIT], "0 of 40 frames are in use"),
    "no model": (None, ["fit", "A_c2.zarr"], "--model is missing: give static, laminar_flow or another"),
    "unknown model": (None, ["fit", "A_c2.zarr", "--model", "statik"], "did you mean 'static'?"),
    "unknown convention": (None, [*FIT, "--convention", "physics"], "did you mean 'physical'?"),
    "unknown scaling": (None, [*FIT, "--scaling", "sharde"], "did you mean 'shared'?"),
    "unknown parameter": (None, [*FIT, "--fixed", "D_ofset=0"], "did you mean 'D_offset'?"),
    "unknown key": (files, ["fit", "bad.yaml"], "bad.yaml: unknown key 'scailing'; did you mean"),
    "unknown option": (None, [*FIT, "--modle", "x"], "no option --modle; did you mean '--model'?"),
    "unknown command": (None, ["fti"], "no command 'fti'; did you mean 'fit'?"),
    "unknown scenario": (None, ["simulate", "x.h5", "--scenario", "crep"], "'creep'?"),
    "unknown layout": (None, ["simulate", "x.h5", "--layout", "aps"], "layout 'aps' is unknown"),
    "no frames": (None, ["simulate", "x.h5", "--frames", "2"], "2 is not in the range"),
    "outside bounds": (None, [*FIT, "--initial", "D0=1e9"], "D0 = 1e+09 is outside its bounds"),
    "not a pair": (None, [*FIT, "--initial", "D0"], "--initial 'D0' is not NAME=VALUE"),
    "not a number": (None, [*FIT, "--min-lag", "x"], "--min-lag = 'x' cannot be used"),
    "no gap": (no_gap, ["fit", "N.zarr", "--model", "laminar_flow"], "needs the gap"),
    "gap without unit": (None, [*FIT, "--gap", "200"], "--gap '200' has no unit: write it as"),
    "output is a file": (files, [*FIT, "--output", "a_file"], "a_file is a file"),
    "target not writable": (None, [*FIT, "--output", "/proc/x"], "/proc/x: No such file"),
    "store not writable": (None, ["ingest", "A_results.hdf", "/proc/x"], "cannot be written"),
    "no folder": (None, ["simulate", "no/x.h5"], "cannot be written"),
    "scheduler unreachable": (
        None, [*FIT, "--scheduler", "tcp://127.0.0.1:1"], "no scheduler answers at tcp://127"
    ),
    "a key for jobs": (
        None, [*FIT, "--site", "generic", "--key", "k"], "a cluster of jobs makes its own"
    ),
    "a key beside a file": (
        None, [*FIT, "--scheduler-file", "s.json", "--key", "k"], "its own lies beside it"
    ),
    "a key for nothing": (None, [*FIT, "--key", "k"], "k would not be used: it is of --scheduler"),
    "nothing to resume": (None, [*FIT, "--resume"], "no checkpoint to resume from"),
    "no result": (None, ["show", "none"], "none cannot be read"),
    "an existing template": (lambda _: done("config"), ["config"], "fit.yaml exists"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(case, here, monkeypatch):
    monkeypatch.setattr(connecting, "CONNECT", 0.2)
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


def test_debug_shows_the_traceback_wherever_it_stands(here):
    for words in (("--debug", "show", "none"), ("show", "none", "--debug")):
        result = run(*words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr


def test_a_bug_is_called_one(here, monkeypatch):
    monkeypatch.setattr(plots, "save_all", lambda *_: 1 / 0)
    result = run(*FIT)
    assert result.exit_code == 1
    assert "a bug in homodyne-dask (ZeroDivisionError: division by zero)" in result.stderr


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
from homodyne_dask import sweep
from homodyne_dask.cli import main

quick = sweep.sweep_of

def slow(*given):
    made = quick(*given)

    def compute(*pass_):
        time.sleep(1.0)
        yield from made.compute(*pass_)

    return replace(made, compute=compute)

sweep.sweep_of = slow
main(sys.argv[1:])
"""


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
    assert "the checkpoint is A_fit/checkpoint.json; the same command with --resume" in rest
    assert "Traceback" not in rest
    assert Path("A_fit/checkpoint.json").exists()
