"""Commands, run in this process; view in one of its own."""

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homodyne_dask.cli import main
from homodyne_dask.fitting.events import on_pass
from tests.documents import PROMISED

MISSING = "the command '.+' needs the application .+ not installed"
FIT = ("fit", "A_c2.zarr", "--model", "static")


def run(*words: str) -> Result:
    """Run a command in this process; skips the test where its application was taken out."""
    ran = CliRunner().invoke(main, words)
    if words[0] in PROMISED - set(main.commands) or re.search(MISSING, ran.output):
        pytest.skip(ran.output)
    return ran


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def csv_rows(*path: str | Path) -> list[dict[str, str]]:
    with Path(*path).open() as file:
        return list(csv.DictReader(file))


@contextmanager
def viewing(*what: str | Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command view while it serves these, and the address that it prints."""
    words = [sys.executable, "-m", "homodyne_dask.cli", "view", *map(str, what), "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        yield program, program.stdout.readline().strip()
        program.kill()


@contextmanager
def interrupting():
    """Progress during which Ctrl-C is pressed after the second pass."""

    def interrupt(event):
        if event.number == 2:
            raise KeyboardInterrupt

    yield on_pass(interrupt)
