"""What a shell expects of a command: completion, quick help, JSON for programs, colours, closed pipes."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import ingest
from homodyne_dask.cli import main, progress_bar
from homodyne_dask.cli.commands.simulate import Simulation
from homodyne_dask.cli.printing import echo
from tests.apps.dashboard.example_progress import RUNNING
from tests.run_command import done, run

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
        ("homodyne-dask explain cl", ["clusters"]),
    ],
)
def test_commands_and_options_are_completed(words, completions):
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


def test_every_scenario_is_completed():
    assert set(Simulation.options()["scenario"].choices) == set(ingest.SCENARIOS)


def test_frames_that_a_store_does_not_have_are_said(here):
    said = run("fit", "A_c2.zarr", "--model", "brownian", "--frames", "0:5000", "--no-pictures")
    assert "A_c2.zarr has only 40 frames: 0 to 39 are used" in said.stderr
    assert (
        "are used" not in run("plan", "A_c2.zarr", "--model", "static", "--frames", "0:40").stderr
    )


def test_data_are_described_as_json(here):
    size = ("--angles", "3", "--frames", "40")
    made = json.loads(done("simulate", "N.hdf", "--scenario", "static", *size, "--json"))
    assert made["parameters"]["D0"] > 0
    assert (made["file"], made["frames"], made["q_per_angstrom"]) == ("N.hdf", 40, 0.0054)
    again = json.loads(done("ingest", "A_results.hdf", "--json"))
    assert again.pop("already_complete")
    assert again.pop("pairs") == 3 * 40 * 39 // 2
    assert again == json.loads(done("info", "A_c2.zarr", "--json"))


def test_workers_of_a_scheduler_are_described_as_json(monkeypatch, tmp_path):
    from homodyne_dask.cluster.slurm import persistent

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

    monkeypatch.setattr(persistent, "connection_by", lambda *_: Connected())
    file = Path(tmp_path / "scheduler.json")
    file.write_text('{"address": "a", "dashboard": "http://d", "site": "s", "jobs": [1, 2], '
                    '"host": "h", "pid": 7}')  # fmt: skip
    told = json.loads(done("cluster", "status", "--scheduler-file", str(file), "--json"))
    assert told["workers"] == [
        {"name": "0", "address": "tcp://127.0.0.1:1", "threads": 2, "memory_bytes": 100, "tasks_running": 1}
    ]  # fmt: skip
    assert (told["address"], told["jobs"]) == ("a", [1, 2])


@pytest.mark.parametrize("unwanted", [True, False])
def test_there_is_no_colour_where_no_color_is_set(unwanted, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if unwanted:
        monkeypatch.setenv("NO_COLOR", "1")
    written = StringIO()
    with progress_bar.progress_on(Console(file=written, force_terminal=True, width=150)) as show:
        show(RUNNING)
    coloured = "\x1b[3" in written.getvalue() or "\x1b[38" in written.getvalue()
    assert coloured != unwanted


def test_a_fit_prints_json_alone_to_stdout(here, no_pictures):
    ended = run("fit", "A_c2.zarr", "--model", "static", "--fixed", "alpha=0", "--json")
    told = json.loads(ended.stdout)
    assert told.pop("folder") == "A_fit"
    assert told == json.loads(done("show", "A_fit", "--json"))
    assert "A_fit/ written:" in ended.stderr


def test_what_is_examined_before_a_fit_is_described_as_json(here):
    told = json.loads(done("preflight", "A_c2.zarr", "--model", "static", "--json"))
    plan = json.loads(done("plan", "A_c2.zarr", "--model", "static", "--json"))
    assert told == {"stores": {"A_c2.zarr": plan["A_c2.zarr"] | {"workers_examined": False}}}


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
