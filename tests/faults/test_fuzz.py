"""Damaged files, a hundred thousand of them: no hang, no crash, no traceback."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from homodyne_dask.errors import SourceError
from ingest.look import look
from tests.faults.fuzz import KINDS
from tests.faults.programs import ENVIRONMENT

PATIENCE = 20.0
"""Seconds that reading one file may take."""
LONG = {"aps-u": 15_000, "legacy": 15_000, "nexus": 30_000, "zarr": 20_000, "config": 20_000}
EVERY = [
    *[(kind, 60, 1) for kind in KINDS],
    *[pytest.param(kind, number, 2, marks=pytest.mark.slow) for kind, number in LONG.items()],
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "number", "seed"), EVERY)
def test_reading_a_damaged_file_ends_with_data_or_a_sentence(tmp_path, kind, number, seed):
    """Where the HDF5 library itself hangs or crashes, the first look of the command says so."""
    done, found = tmp_path / "done", tmp_path / "found"
    done.touch()
    while (left := number - done.stat().st_size) > 0.1 * number:  # Hypothesis repeats itself
        program = start(kind, left, seed, folder=tmp_path)
        said = watched(program, done)
        if program.returncode != 0:
            assert "Traceback" not in said, said[-3000:]
            with pytest.raises(SourceError, match=r"finds no end|crashes HDF5"):
                look(tmp_path / "current.hdf", patience=PATIENCE)
            print(f"{kind}: {done.stat().st_size} read, then {program.returncode}")
        seed += 1000
    assert not found.exists(), found.read_text()[:5000]


def start(kind: str, number: int, seed: int, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.faults.fuzz", kind, str(number), str(seed)]
    with (folder / "said").open("w") as said:
        return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=said)


def watched(program: subprocess.Popen, done: Path) -> str:
    """Return what a program said until its end, which comes when it reads one file for too long."""
    size, since = -1, time.monotonic()
    while program.poll() is None and time.monotonic() - since < PATIENCE:
        if (now := done.stat().st_size) != size:
            size, since = now, time.monotonic()
        time.sleep(0.05)
    program.kill()
    program.wait()
    return (done.parent / "said").read_text()
