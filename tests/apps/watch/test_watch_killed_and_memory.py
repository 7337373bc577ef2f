"""A watcher that is killed goes on to the same results, and takes no more memory for scan after scan."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from tests.faults.killed_programs import Program, check_killed, moments, quiet
from tests.faults.processes import ENVIRONMENT, family, still_there
from tests.ingest_files import simulated
from tests.result_bits import folder_bits
from tests.run_command import csv_rows

__all__ = ["quiet"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
WATCH = ("watch", "in", "-o", "out", "--model", "static", "--no-pictures")


def files_to_watch(folder: Path) -> None:
    (folder / "in").mkdir()
    for n in range(4):
        simulated(folder / "in" / f"A{n}_results.hdf", n=30, bins=2, seed=n)


def left(folder: Path) -> tuple[Any, ...]:
    outcomes = {row["scan"]: row["outcome"] for row in csv_rows(folder / "out/scans.csv")}
    return outcomes, {path.name: folder_bits(path) for path in folder.glob("out/A*_fit*")}


PROGRAM = Program((*WATCH, "--once"), files_to_watch, "out", left)


@pytest.mark.parametrize(("name", "sent", "share"), moments("watch", 10))
def test_a_watcher_killed_at_any_moment_goes_on_to_the_same_results(
    quiet, tmp_path, name, sent, share
):
    check_killed(PROGRAM, quiet(PROGRAM), tmp_path, sent, share)


SCANS = int(os.environ.get("WATCHED_SCANS", "200"))
SLOPE = 400_000
"""Bytes that a scan may add to the memory of all processes, 600 MB: collections of garbage every 40 scans
move it up and down by 25 MB, so that 200 scans do not tell less."""


def allocated(process: psutil.Process) -> int:
    """Bytes that a process has allocated, those that it shares divided among its sharers."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return 1024 * sum(
        map(int, re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", rollup, re.MULTILINE))
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_watcher_is_flat_over_many_scans(tmp_path):
    base, used = simulated(tmp_path / "base.hdf", n=30, bins=2), []
    (tmp_path / "in").mkdir()
    with (tmp_path / "said").open("w") as said:  # a pipe would be full after some hundred scans
        command = [sys.executable, "-m", "homodyne_dask.cli", *WATCH, "--interval", "0.2"]
        watcher = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=said)
    try:
        for number in range(SCANS):
            aside = Path(shutil.copy(base, tmp_path / "aside"))
            with h5py.File(aside, "a") as file:
                file.attrs["number"] = number
            aside.rename(tmp_path / "in" / f"A{number:04d}_results.hdf")
            while not (tmp_path / f"out/A{number:04d}_results.hdf_fit/summary.json").exists():
                assert watcher.poll() is None, (tmp_path / "said").read_text()
                time.sleep(0.05)
            used.append(sum(map(allocated, family(watcher))))
    finally:
        started = family(watcher)
        watcher.terminate()
        watcher.wait(timeout=120)
    assert not still_there(started, 60)
    warm = np.array(used[SCANS // 4 :])
    (slope, _), covariance = np.polyfit(np.arange(len(warm)), warm, 1, cov=True)
    print(f"{slope / 1e3:.1f} ± {np.sqrt(covariance[0, 0]) / 1e3:.1f} kB a scan")
    assert slope < SLOPE
