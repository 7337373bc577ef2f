"""What the tests ask of the SLURM on the loopback address, and do to it."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from homodyne_dask.apps.slurm.jobs import slurm_cluster
from tests.faults.local_workers import POOR, disturbed, when_busy

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Slurm:
    state: Path
    folder: Path
    """Of the site loopback: shared/, logs/, spill/."""
    section: dict[str, Any]
    """The site's settings in Dask's configuration."""

    def jobs(self) -> dict[str, str]:
        listed = self.call("squeue", "--noheader", "--format=%A %T").splitlines()
        return dict(line.split() for line in listed)

    def running(self) -> list[str]:
        return [number for number, state in self.jobs().items() if state == "RUNNING"]

    def pending(self) -> list[str]:
        return [number for number, state in self.jobs().items() if state == "PENDING"]

    def call(self, *words: str) -> str:
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._of_a_job(process)]

    def _of_a_job(self, process: psutil.Process) -> bool:
        try:
            environment = process.environ()
            dead = process.status() == psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
        conf = environment.get("SLURM_CONF") == str(self.state / "slurm.conf")
        return conf and "SLURM_JOB_ID" in environment and not dead

    @staticmethod
    def wait_for(what: Callable[[], object], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not what():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def assert_empty(self) -> None:
        self.wait_for(lambda: not self.jobs() and not self.processes(), 30)
        assert not self.jobs()
        assert self.processes() == []

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted((self.folder / "logs").glob("*")))


OPTIONS: dict[str, Any] = {"gap": "200 um", "initial": POOR}


@contextmanager
def jobs_at_work(
    jobs: int | tuple[int, int], workers: int | None = None, **settings: Any
) -> Iterator[tuple[Any, Client]]:
    """A cluster of jobs and its client, when its workers are there: as many as jobs unless said otherwise."""
    with (
        slurm_cluster("loopback", jobs=jobs, **settings) as cluster,
        cluster.get_client() as client,
    ):
        client.wait_for_workers(workers or jobs, timeout=120)
        yield cluster, client


def fit_on(client, scan, disturb: Callable[[], None] | None = None, **more):
    """Fit; `disturb` is called while a worker computes the second pass. more: other options of `fit`."""
    called = []

    def act(number: int) -> None:
        if disturb is not None and number == 1:
            when_busy(client, 10)
            disturb()
            called.append(number)

    result = disturbed(scan, client, act, **more)
    assert len(called) == (disturb is not None)
    return result
