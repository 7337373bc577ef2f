"""A watched folder through a long night: killed again and again, and then left alone for many scans."""

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from homodyne_dask.cli.watch.state import STATE
from homodyne_dask.results.json_files import read_with_checksum
from tests.faults.programs import ENVIRONMENT, family, still_there
from tests.ingest_files import simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SCANS = int(os.environ.get("WATCHED_SCANS", "500"))
KILLED = 0.3
"""Share of the scans during which the watcher is killed, at random times."""
SLOPE = 200_000
"""Bytes that a scan may add to the memory of all processes: 500 scans add 100 MB to half a gigabyte."""
WORDS = ("watch", "in", "-o", "out", "--model", "static", "--no-pictures", "--interval", "0.2")
COMMAND = (sys.executable, "-m", "homodyne_dask.cli", *WORDS)


def start(folder: Path) -> subprocess.Popen:
    """Start a watcher, whose words go into a file: a pipe would be full after some hundred scans."""
    with (folder / "said").open("a") as said:
        return subprocess.Popen(COMMAND, cwd=folder, env=ENVIRONMENT, stderr=said)


def drop(folder: Path, base: Path, number: int) -> None:
    """Add a scan of another content, at once."""
    aside = folder / "aside"
    shutil.copy(base, aside)
    with h5py.File(aside, "a") as file:
        file.attrs["number"] = number
    aside.rename(folder / "in" / f"A{number:04d}_results.hdf")


def results(folder: Path) -> int:
    return sum(1 for _ in folder.glob("out/A*_fit/summary.json"))


def memory(process) -> int:
    """Bytes of a process and all that it has started, shared ones counted once."""
    total = 0
    for one in family(process):
        try:
            total += one.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return total


def test_500_scans_with_random_kills_leave_every_result_once_and_the_memory_flat(tmp_path):
    chance = random.Random(3)
    (tmp_path / "in").mkdir()
    base = simulated(tmp_path / "base.hdf", n=40)
    kills, known, used = 0, set(), []
    watcher = start(tmp_path)
    deadline = time.monotonic() + 7000
    for number in range(SCANS):
        drop(tmp_path, base, number)
        killing = number < KILLED * SCANS and number % 5 == 4
        if killing:
            time.sleep(chance.uniform(0, 12))
            processes = family(watcher)
            watcher.send_signal(signal.SIGKILL)
            watcher.wait()
            assert not still_there(processes, 60)
            kills += 1
            for file in tmp_path.glob("out/A*_fit/summary.json"):
                known.add((file, file.stat().st_mtime_ns))
            watcher = start(tmp_path)
        while results(tmp_path) <= number:
            assert watcher.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if number >= KILLED * SCANS:
            used.append(memory(watcher))
    while len((tmp_path / "out/scans.csv").read_text().splitlines()) < SCANS + 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    watcher.send_signal(signal.SIGTERM)
    watcher.wait(timeout=120)
    assert "the same command goes on" in (tmp_path / "said").read_text()
    with (tmp_path / "out/scans.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["CONVERGED"] * SCANS
    assert len({row["scan"] for row in rows}) == SCANS
    assert not [*tmp_path.glob("out/A*_fit.*")]
    changed = [file for file, when in known if file.stat().st_mtime_ns != when]
    assert not changed  # nothing that was written before a kill was written again
    state = read_with_checksum(tmp_path / "out" / STATE, "homodyne_dask watch", 1, "")
    assert all(content["fitted"] for content in state["contents"].values())
    warm = used[len(used) // 5 :]
    slope = np.polyfit(np.arange(len(warm)), warm, 1)[0]
    print(
        f"{SCANS} scans, {kills} kills; memory {warm[0] / 1e6:.0f} MB to {warm[-1] / 1e6:.0f} MB over the "
        f"last {len(warm)} scans, {slope / 1e3:.1f} kB per scan; state {len(str(state))} bytes"
    )
    assert slope < SLOPE
