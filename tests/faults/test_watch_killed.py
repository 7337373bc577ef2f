"""A watched folder through a long night: killed again and again, and then left alone for many scans."""

import csv
import os
import random
import re
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

from homodyne_dask.apps.watch.folder_state import STATE
from homodyne_dask.results.files.json_files import read_with_checksum
from tests.faults.processes import ENVIRONMENT, family, still_there
from tests.ingest_files import simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SCANS = int(os.environ.get("WATCHED_SCANS", "500"))
KILLED = 0.2
"""Share of the scans during which the watcher is killed, at random times."""
TOGETHER = 12
"""Most scans that come at the same time."""
SLOPE = 100_000
"""Bytes that a scan may add to the memory of all processes: 500 scans add 50 MB to half a gigabyte."""
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


def own_memory(process: psutil.Process) -> int:
    """Return the bytes that a process has allocated; what it shares with others is divided among them.

    Pages of libraries are left out: they are those of the file, shared with whoever runs the same
    library at that moment, and the system takes them back whenever it needs memory.
    """
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    kinds = re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", rollup, re.MULTILINE)
    assert len(kinds) == 2
    return 1024 * sum(map(int, kinds))


def memory(process: subprocess.Popen) -> list[int]:
    """Return the bytes of a watcher and of all that it has started."""
    own, *others = (own_memory(one) for one in family(process))
    return [own, sum(others)]


def slope(used: np.ndarray, scans: np.ndarray) -> tuple[float, float]:
    """Return the bytes that a scan adds, and the standard error of them."""
    (found, _), covariance = np.polyfit(scans, used, 1, cov=True)
    return found, np.sqrt(covariance[0, 0])


def killed(watcher: subprocess.Popen) -> None:
    """Kill a watcher and return when nothing of it is left."""
    processes = family(watcher)
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    assert not still_there(processes, 60)


class Night:
    """A folder into which scans come, and the watcher of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "in").mkdir()
        self.folder = folder
        self.base = simulated(folder / "base.hdf", n=30, bins=2)
        self.dropped = 0
        self.deadline = time.monotonic() + 7000
        self.watcher = start(folder)

    def __enter__(self) -> "Night":
        return self

    def __exit__(self, *_: object) -> None:
        if self.watcher.poll() is None:
            killed(self.watcher)

    def drop(self, count: int) -> None:
        """Let scans of new contents appear."""
        for _ in range(min(count, SCANS - self.dropped)):
            drop(self.folder, self.base, self.dropped)
            self.dropped += 1

    def wait_for(self, count: int) -> None:
        """Return when so many results are there."""
        while results(self.folder) < count:
            said = (self.folder / "said").read_text()
            assert self.watcher.poll() is None, said
            assert "a bug in homodyne-dask" not in said, said
            assert time.monotonic() < self.deadline
            time.sleep(0.05)

    def kill(self) -> dict[Path, int]:
        """Kill the watcher and start the next; return when each result was written by then."""
        killed(self.watcher)
        written = {
            file: file.stat().st_mtime_ns for file in self.folder.glob("out/A*_fit/summary.json")
        }
        self.watcher = start(self.folder)
        return written

    def end(self) -> None:
        """End the watcher when all scans are in the table."""
        table = self.folder / "out/scans.csv"
        while len(table.read_text().splitlines()) < SCANS + 1:
            assert time.monotonic() < self.deadline
            time.sleep(0.2)
        self.watcher.send_signal(signal.SIGTERM)
        self.watcher.wait(timeout=120)
        assert "the same command continues" in (self.folder / "said").read_text()


def test_500_scans_with_random_kills_leave_every_result_once_and_the_memory_flat(tmp_path):
    chance, kills = random.Random(3), 0
    known: list[dict[Path, int]] = []
    used: list[list[int]] = []
    scans: list[int] = []
    with Night(tmp_path) as night:
        while night.dropped < KILLED * SCANS:
            night.drop(chance.randint(1, TOGETHER))
            night.wait_for(min(results(tmp_path) + chance.randint(0, TOGETHER), night.dropped))
            time.sleep(chance.uniform(0, 4))
            known.append(night.kill())
            kills += 1
        while night.dropped < SCANS:
            night.drop(chance.randint(1, TOGETHER))
            night.wait_for(night.dropped)
            used.append(memory(night.watcher))
            scans.append(night.dropped)
            print(night.dropped, *used[-1], flush=True)
        night.end()
    with (tmp_path / "out/scans.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["CONVERGED"] * SCANS
    assert {row["scan"] for row in rows} == {
        f"A{number:04d}_results.hdf" for number in range(SCANS)
    }
    assert sorted(int(row["number"]) for row in rows) == list(range(1, SCANS + 1))
    assert not [*tmp_path.glob("out/A*_fit.*")]
    changed = [file for of in known for file, when in of.items() if file.stat().st_mtime_ns != when]
    assert not changed  # nothing that was written before a kill was written again
    state = read_with_checksum(tmp_path / "out" / STATE, "homodyne_dask watch", 1, "")
    assert all(record["done"] for record in state["files"].values())
    warm, at = np.array(used[len(used) // 5 :]).T, np.array(scans[len(used) // 5 :])
    for name, of in {"watcher": warm[0], "workers": warm[1], "all": warm.sum(0)}.items():
        grown, error = slope(of, at)
        print(
            f"{SCANS} scans, {kills} kills; {name}: {of[0] / 1e6:.0f} MB to {of[-1] / 1e6:.0f} MB over the "
            f"last {at[-1] - at[0]} scans, {grown / 1e3:.1f} ± {error / 1e3:.1f} kB per scan"
        )
    assert slope(warm.sum(0), at)[0] < SLOPE
