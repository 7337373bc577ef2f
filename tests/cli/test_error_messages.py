"""An error is one sentence that says what to do, and an exit status."""

from pathlib import Path

import pytest

from homodyne_dask.cluster import connect
from homodyne_dask.results.views.figures import fit_figures as plots
from tests.run_command import FIT, done, run


def files(here: Path) -> None:
    Path("foreign.h5").write_text("hello")
    Path("a_file").write_text("")


BAD = {
    "foreign file": (files, ["ingest", "foreign.h5"], "foreign.h5 is neither HDF5 nor"),
    "sigma of 0": (None, ["ingest", "A_results.hdf", "--sigma", "0"], "should be greater than 0"),
    "other frame time": (None, ["ingest", "A_results.hdf", "--dt", "3"], "3 s, but A_results.hdf"),
    "no store": (None, ["fit", "none.zarr", "--model", "static"], "none.zarr does not exist"),
    "no such ring": (None, [*FIT, "--q", "0.1"], "no ring within 2 % of q = 0.1 1/Å; choose from"),
    "unknown model": (None, ["fit", "A_c2.zarr", "--model", "statik"], "did you mean 'static'?"),
    "unknown option": (None, [*FIT, "--modle", "x"], "no such option"),
    "unknown command": (None, ["fti"], "no such command 'fti'"),
    "no frames": (None, ["simulate", "x.h5", "--frames", "2"], "give a whole number of at least 3"),
    "not a pair": (None, [*FIT, "--bounds", "D0"], "give two numbers for each parameter, such as D0=1:1e7"),
    "not a number of a name": (None, [*FIT, "--initial", "D0=x"], "--initial D0 = 'x' cannot be used"),
    "output is a file": (files, [*FIT, "--output", "a_file"], "a_file is a file"),
    "target not writable": (None, [*FIT, "--output", "/proc/x"], "/proc/x: No such file"),
    "store not writable": (None, ["ingest", "A_results.hdf", "/proc/x"], "cannot be written"),
    "no folder": (None, ["simulate", "A_results.hdf/x.h5"], "cannot be written"),
    "scheduler unreachable": (
        None, [*FIT, "--scheduler", "tcp://127.0.0.1:1"], "no scheduler answers at tcp://127"
    ),
    "a key for jobs": (
        None, [*FIT, "--site", "generic", "--key", "k"], "jobs of a site have their own key"
    ),
    "a key beside a file": (
        None, [*FIT, "--scheduler-file", "s.json", "--key", "k"], "the key is in the folder"
    ),
    "a key for nothing": (None, [*FIT, "--key", "k"], "k would not be used: --key applies to --scheduler"),
    "no result": (None, ["show", "none"], "none cannot be read"),
    "an existing template": (lambda _: done("config"), ["config"], "fit.yaml exists"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(case, here, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 0.2)
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


def test_debug_shows_the_traceback_before_and_after_the_command(here):
    for words in (("--debug", "show", "none"), ("show", "none", "--debug")):
        result = run(*words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr


def test_a_bug_is_reported_as_a_bug(here, monkeypatch):
    monkeypatch.setattr(plots, "save_all", lambda *_: 1 / 0)
    result = run(*FIT)
    assert result.exit_code == 1
    assert "a bug in homodyne-dask (ZeroDivisionError: division by zero)" in result.stderr
