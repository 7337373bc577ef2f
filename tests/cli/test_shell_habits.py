"""Options that commands share, completion, JSON for programs, progress, colours, closed pipes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import homodyne_dask as hd
import ingest
from homodyne_dask.cli import main, progress_bar
from homodyne_dask.cli.commands.simulate import Simulation
from homodyne_dask.cli.printing import echo
from tests.applications import application
from tests.example_progress import ENDED, RUNNING
from tests.run_command import FIT, done, run

LOADED = """
import sys
from homodyne_dask.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code
slow = ("numpy", "jax", "dask", "xarray", "pandas", "scipy", "h5py", "matplotlib")
print([name for name in slow if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("homodyne-dask pos", ["posterior"]),
        ("homodyne-dask show --c", ["--ci"]),
        ("homodyne-dask fit A --model co", ["couette"]),
        ("homodyne-dask simulate A --scenario st", ["static", "step"]),
        ("homodyne-dask submit --site a", ["alcf"]),
        ("homodyne-dask explain clu", ["clusters"]),
    ],
)
def test_commands_and_options_are_completed(words, completions):
    if needed := {"submit": "slurm", "explain": "guide"}.get(words.split()[1]):
        application(needed)
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = CliRunner(env=asked | {"_HOMODYNE_DASK_COMPLETE": "bash_complete"}).invoke(
        main, prog_name="homodyne-dask"
    )
    assert result.output.splitlines() == [f"plain,{word}" for word in completions]


@pytest.mark.parametrize(("words", "loaded"), [("fit --help", []), ("info A_c2.zarr", ["numpy"])])
def test_a_command_loads_only_the_libraries_that_it_needs(here, words, loaded):
    program = [sys.executable, "-c", LOADED, *words.split()]
    ran = subprocess.run(program, capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1] == str(loaded)


def test_frames_that_a_store_does_not_have_are_said(here):
    said = run("fit", "A_c2.zarr", "--model", "brownian", "--frames", "0:5000", "--no-pictures")
    assert "A_c2.zarr has only 40 frames: 0 to 39 are used" in said.stderr
    planned = run("plan", "A_c2.zarr", "--model", "static", "--frames", "0:40")
    assert "are used" not in planned.stderr


def test_data_are_described_as_json(here):
    assert set(Simulation.options()["scenario"].choices) == set(ingest.SCENARIOS)
    size = ("--angles", "3", "--frames", "40")
    made = json.loads(done("simulate", "N.hdf", "--scenario", "static", *size, "--json"))
    assert made["parameters"]["D0"] > 0
    assert (made["file"], made["frames"], made["q_per_angstrom"]) == ("N.hdf", 40, 0.0054)
    again = json.loads(done("ingest", "A_results.hdf", "--json"))
    assert again.pop("already_complete")
    assert again.pop("pairs") == 3 * 40 * 39 // 2
    assert again == json.loads(done("info", "A_c2.zarr", "--json"))


def test_a_fit_prints_json_alone_to_stdout(here, no_pictures):
    ended = run("fit", "A_c2.zarr", "--model", "static", "--fixed", "alpha=0", "--json")
    told = json.loads(ended.stdout)
    assert told.pop("folder") == "A_fit"
    assert told == json.loads(done("show", "A_fit", "--json"))
    assert "A_fit/ written:" in ended.stderr


def test_a_plan_without_data_is_that_of_data_of_this_size(here):
    scan = hd.open_dataset("A_c2.zarr")
    size = ["--bins", str(len(scan.bins)), "--frames", str(scan.n_frames)]
    (known,) = json.loads(done("plan", "A_c2.zarr", "--model", "static", "--json")).values()
    (planned,) = json.loads(done("plan", *size, "--model", "static", "--json")).values()
    assert planned == known
    twice = done("plan", *size, "--model", "static", "--repeats", "2", "--json")
    assert next(iter(json.loads(twice).values()))["pairs"] == 2 * known["pairs"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bins 23", "--bins 23 --frames 3000"),
        ("--bins 23 --frames 0:3000", "--bins 23 --frames 3000"),
        ("--bins 23 --frames 3000 --q 0.1", "q selects from a store"),
        ("--bins 23 --frames 3000 --repeats 10000", "plan for fewer"),
        ("A_c2.zarr --bins 23", "leave out SOURCE"),
    ],
)
def test_a_plan_of_no_size_or_of_a_size_and_a_store_is_refused(here, words, said):
    ended = run("plan", *words.split(), "--model", "static")
    assert ended.exit_code == 2
    assert said in ended.stderr


@pytest.fixture
def closed(monkeypatch):
    """Standard output is a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield


def test_printing_to_a_closed_pipe_goes_on_without_a_word(closed):
    for _ in range(2):
        echo("a line")


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "stores", [["A_c2.zarr"], ["A_c2.zarr", "F_c2.zarr"]], ids=["one", "several"]
)
def test_results_are_saved_and_the_status_is_that_of_the_fit_where_nobody_reads(
    stores, here, no_pictures, closed, capfd
):
    words = ["fit", *stores, "--model", "static", "--fixed", "D_offset=0"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, 3)
    assert Path("A_fit/summary.json").exists()
    assert not Path("A_fit/checkpoint.json").exists()
    assert "error" not in capfd.readouterr().err
    if len(stores) > 1:
        assert "FAILED" not in Path("scans.csv").read_text()


BEGUN = replace(RUNNING, now=None, done=(), at=1001.0, page="http://127.0.0.1:8787/fit")


def lines(states, terminal=False):
    """What is printed for a sequence of states of a fit."""
    written = StringIO()
    look = {"width": 150, "soft_wrap": True, "highlight": False}
    console = Console(file=written, force_terminal=terminal, **look)
    with progress_bar.progress_on(console) as show:
        for state in states:
            show(state)
    return written.getvalue()


def test_tiles_rate_time_left_and_chisqr_are_in_one_line():
    state = "12/45 tiles  15 M pairs/s  6 s left  reduced χ² 1.01"
    assert progress_bar.pass_state(RUNNING) == state
    assert progress_bar.pass_state(replace(RUNNING, now=None)) == "reduced χ² 1.01"
    assert progress_bar.pass_state(BEGUN) == ""


def test_without_a_terminal_a_long_pass_says_that_it_goes_on_every_half_minute():
    at = [1010.0 + seconds for seconds in (0, 10, 20, 31, 40, 62)]
    now = RUNNING.now
    assert now is not None
    states = [replace(RUNNING, at=t, now=replace(now, last=t)) for t in at]
    printed = lines([replace(RUNNING, now=replace(now, done=0)), *states])
    assert printed.count("pass 2 over all data: 12/45 tiles") == 2


def test_a_terminal_shows_a_bar_that_is_gone_when_the_fit_has_ended():
    printed = lines([BEGUN, RUNNING, ENDED], terminal=True)
    assert "12/45 tiles  15 M pairs/s" in printed
    assert "live: http" not in lines([RUNNING], terminal=True)
    assert printed.rstrip().endswith("\x1b[2K")


BROWNIAN = ("--model", "brownian", "--no-pictures")


@pytest.mark.parametrize("command", ["", *main.commands])
def test_h_is_help(command):
    words = [command] if command else []
    assert done(*words, "-h") == done(*words, "--help")
    assert "Usage: " in done(*words, "-h")


def test_a_quiet_fit_prints_its_report_alone_and_a_verbose_one_logs(here, caplog):
    fitted, again = run(*FIT, "--no-pictures"), (*FIT, "--no-pictures", "--overwrite")
    assert "pass   1" in fitted.stderr
    quiet = run(*again, "-q")
    assert quiet.stderr == ""
    assert quiet.stdout.splitlines()[:3] == fitted.stdout.splitlines()[:3]
    with caplog.at_level("INFO", "homodyne_dask"):
        assert run(*again, "-v").exit_code == 0
    assert any("pass   1" in record.message for record in caplog.records)


def test_info_and_plan_as_json_have_what_they_print_as_values(here):
    info = json.loads(done("info", "A_c2.zarr", "--json"))
    assert info["frames"] == 40
    assert [row["label"] for row in info["bins"]] == [3, 4, 5]
    assert f"{info['bins'][0]['sigma']:.4g}" in done("info", "A_c2.zarr")
    (plan,) = json.loads(done("plan", "A_c2.zarr", "--model", "static", "--json")).values()
    assert (plan["model"], plan["bins"], plan["pairs"]) == ("static", 3, 3 * 40 * 39 // 2)
    assert plan["pass_s"] == plan["pairs"] / 150e6 / plan["worker_threads"]
    told = json.loads(done("preflight", "A_c2.zarr", "--model", "static", "--json"))
    assert told == {"stores": {"A_c2.zarr": plan | {"workers_examined": False}}}


@pytest.mark.long
def test_show_prints_json_and_intervals(here):
    assert run("fit", "F_c2.zarr", *BROWNIAN).exit_code in (0, 3)
    shown = json.loads(done("show", "F_fit", "--json"))
    assert shown["model"] == "brownian"
    saved = json.loads((here / "F_fit/summary.json").read_text())
    assert shown == {key: value for key, value in saved.items() if key != "sha256"}
    assert "95 % confidence intervals" in done("show", "F_fit", "--ci", "95")
    assert run("show", "F_fit", "--ci", "100").exit_code == 2
    done("fit", "A_c2.zarr", *BROWNIAN, "--over", "age", "--windows", "2")
    assert len(json.loads(done("show", "A_fit_age", "--json"))["fits"]) == 2
    assert done("show", "A_fit_age", "--ci", "68").count("68 % confidence intervals") == 2


@pytest.mark.long
def test_times_before_0_are_not_fitted_with_powers_of_time(here):
    done("ingest", "A_results.hdf", "N_c2.zarr", "--time-offset", "-0.5")
    wrong = run("fit", "N_c2.zarr", "--model", "static")
    assert wrong.exit_code == 2
    assert "the selected times begin at -0.5 s" in wrong.stderr
    words = ["fit", "N_c2.zarr", "--model", "static", "--time", "0:9", "--no-pictures"]
    assert run(*words).exit_code in (0, 3)


def test_only_a_verbose_command_shows_logs_with_their_levels_on_stderr():
    code = (
        "import logging\n"
        "from homodyne_dask.cli.exit_status import messages\n"
        "for verbose in (False, True):\n"
        "    with messages(False, verbose):\n"
        "        logging.getLogger('homodyne_dask.x').warning('verbose: %s', verbose)\n"
        "        logging.getLogger('homodyne_dask.x').info('verbose: %s', verbose)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line.partition(" homodyne_dask.x ")[2] for line in ran.stderr.splitlines()]
    assert lines == ["WARNING: verbose: True", "INFO: verbose: True"]
    assert not ran.stdout


def test_no_backend_of_pictures_that_the_shell_of_a_notebook_names_is_needed(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://of_another_environment")
    CliRunner().invoke(main, ["--version"])
    assert os.environ["MPLBACKEND"] == "agg"


def test_workers_of_a_scheduler_are_described_as_json(monkeypatch, tmp_path):
    application("slurm")
    from homodyne_dask.apps.slurm import cluster_command

    worker = {"name": 0, "nthreads": 2, "metrics": {"memory": 100, "executing": ["a"]}}

    class Scheduler:
        def identity(self, n_workers):
            return {"workers": {"tcp://127.0.0.1:1": worker}}

    class Connected:
        scheduler = Scheduler()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def sync(self, asked, **more):
            return asked(**more)

    monkeypatch.setattr(cluster_command, "connect_by_file", lambda *_: Connected())
    file = Path(tmp_path / "scheduler.json")
    file.write_text('{"address": "a"}')
    told = json.loads(done("cluster", "status", "--scheduler-file", str(file), "--json"))
    assert told["workers"] == [
        {"name": "0", "address": "tcp://127.0.0.1:1", "threads": 2, "memory_bytes": 100, "tasks_running": 1}
    ]  # fmt: skip
    assert told["address"] == "a"


@pytest.mark.parametrize("unwanted", [True, False])
def test_there_is_no_colour_where_no_color_is_set(unwanted, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if unwanted:
        monkeypatch.setenv("NO_COLOR", "1")
    written = lines([RUNNING], terminal=True)
    coloured = "\x1b[3" in written or "\x1b[38" in written
    assert coloured != unwanted
