"""Damaged files, a hundred thousand of them: no hang, no crash, no traceback."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ingest
from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers.detect import check_opens
from tests.faults.fuzz import KINDS, small_nexus
from tests.faults.processes import ENVIRONMENT

PATIENCE = 10.0
"""Seconds that reading one file may take: thousands of times what it does."""
LONG = {"nexus": 10_000, "aps-u": 35_000, "legacy": 35_000, "config": 20_000}
"""One in some hundred NeXus files makes HDF5 hang, which takes the patience twice."""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """The first look at a file takes no longer than that."""
    monkeypatch.setattr("ingest.readers.detect.DESCRIPTION_TIMEOUT", PATIENCE / 2)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("kind", KINDS)
def test_reading_a_damaged_file_ends_with_data_or_a_sentence(tmp_path, kind):
    assert all_read(kind, 60, 1, tmp_path) >= 60


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reading_a_hundred_thousand_damaged_files_ends_with_data_or_sentences(tmp_path):
    for kind in LONG:
        (tmp_path / kind).mkdir()
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda kind: all_read(kind, LONG[kind], 2, tmp_path / kind), LONG)
    read = dict(zip(LONG, done, strict=True))
    print(f"{sum(read.values())} read in {time.monotonic() - began:.0f} s: {read}")
    assert sum(read.values()) >= 100_000


def all_read(kind: str, number: int, seed: int, folder: Path) -> int:
    """Return how many damaged files were read, at least so many, each to an end.

    Where the HDF5 library itself hangs or crashes, the first look of an ingest says so.
    """
    done, found = folder / "done", folder / "found"
    done.touch()
    while (left := number - done.stat().st_size) > 0:  # Hypothesis may end before the number
        command = [sys.executable, "-m", "tests.faults.fuzz", kind, str(left), str(seed)]
        with (folder / "said").open("w") as said:
            program = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=said)
        said = watched(program, done)
        if program.returncode != 0:
            assert "Traceback" not in said, said[-3000:]
            with pytest.raises(
                SourceError, match=r"did not finish reading|crashed on its metadata"
            ):
                check_opens([folder / "current.hdf"], IngestOptions())
            print(f"{kind}: {done.stat().st_size} read, then {program.returncode}")
        seed += 1000
    assert not found.exists(), found.read_text()[:5000]
    return done.stat().st_size


def watched(program: subprocess.Popen, done: Path) -> str:
    """Return what a program said until its end, which comes when it reads one file for too long."""
    size, since = -1, time.monotonic()
    longest = 60.0  # the first takes as long as the program needs to start
    while program.poll() is None and time.monotonic() - since < longest:
        if (now := done.stat().st_size) != size:
            longest = PATIENCE if size >= 0 else longest
            size, since = now, time.monotonic()
        time.sleep(0.05)
    program.kill()
    program.wait()
    return (done.parent / "said").read_text()


@pytest.mark.long
def test_a_file_that_makes_hdf5_hang_is_said_by_an_ingest_from_python(tmp_path, monkeypatch):
    """The strings of its attributes lie in a heap, whose first entry now says that it is empty."""
    monkeypatch.setattr("ingest.readers.detect.DESCRIPTION_TIMEOUT", 3.0)
    path = small_nexus(tmp_path / "A.hdf")
    held = bytearray(path.read_bytes())
    first = held.index(b"GCOL") + 16
    held[first : first + 16] = bytes(16)
    path.write_bytes(held)
    with pytest.raises(SourceError, match=r"A\.hdf cannot be read: HDF5 did not finish reading"):
        ingest.ingest(path)
