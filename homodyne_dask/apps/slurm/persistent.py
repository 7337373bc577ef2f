"""A scheduler that serves several fits: a separate process, found through a file beside its key."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from homodyne_dask.apps.slurm.cluster import slurm_cluster
from homodyne_dask.cluster import tls
from homodyne_dask.cluster.connect import closing_logged, connect, dashboard_of
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.errors import ClusterError, printable, why_unreadable
from homodyne_dask.store.files import read_regular_file, write_atomic
from homodyne_dask.store.private_folder import make_private
from homodyne_dask.store.processes import code_digest, python_command

LOCAL = "local"
"""The name of the site for workers on this machine."""
MAX_FILE_BYTES = 1_000_000
"""Bytes of the largest file of a scheduler."""
START_TIMEOUT = 60.0
"""Seconds a persistent scheduler may take to start."""
STOP_TIMEOUT = 60.0
"""Seconds it may take to end, with its jobs."""
END_KEY = "homodyne-dask is to end"
"""Key in the metadata of a scheduler that asks it to end."""


@dataclass(frozen=True)
class PersistentScheduler:
    """A persistent scheduler, as its file describes it."""

    address: str
    dashboard: str
    site: str
    jobs: int | tuple[int, int]
    host: str
    pid: int


def read_scheduler_file(file: Path) -> PersistentScheduler:
    """Return the scheduler that a file describes; raises ClusterError for another file."""
    try:
        written = json.loads(read_regular_file(file, MAX_FILE_BYTES))
        if isinstance(written, dict) and written.get("type") == "Scheduler":
            raise ClusterError(
                f"{file} was written by `dask scheduler` and names no key: give --scheduler "
                f"{printable(str(written.get('address')))} and, for tls://, the folder of its key with --key"
            )
        read = PersistentScheduler(**written)
        texts = (read.address, read.dashboard, read.site, read.host)
        if not (all(isinstance(text, str) for text in texts) and isinstance(read.pid, int)):
            raise TypeError("address, dashboard, site and host are strings, pid is a number")
        return read
    except OSError as e:
        raise ClusterError(
            f"{file} cannot be read ({why_unreadable(e)}): check that the scheduler is running; "
            f"`homodyne-dask cluster start` starts one"
        ) from e
    except (ValueError, TypeError, RecursionError) as e:
        raise ClusterError(
            f"{file} is not the file of a persistent scheduler: {why_unreadable(e)}"
        ) from e


@contextmanager
def connection_by(file: Path, key: str | None = None) -> Iterator[Client]:
    """Connect to the scheduler of a file, with the key beside it, for the length of a `with`.

    key: 'none' allows an unencrypted scheduler on another machine. Raises ClusterError as `connect`.
    """
    running = read_scheduler_file(file)
    encrypted = running.address.startswith("tls:")
    with connect(running.address, file.parent if encrypted else key) as client:
        yield client


def serve(
    site: str, jobs: int | tuple[int, int], file: Path, ready: Callable[[PersistentScheduler], None]
) -> None:
    """Run a persistent scheduler until it is stopped; `file` exists while it can be used."""
    refuse_second(file)
    code_digest()  # of what is loaded now: fits of other code are refused later
    try:
        with _cluster(site, jobs, file.parent) as client:
            cluster: Any = client.cluster
            place = cluster.scheduler_address, dashboard_of(client)
            running = PersistentScheduler(*place, site, jobs, socket.gethostname(), os.getpid())
            write_atomic(file, json.dumps(asdict(running)) + "\n")
            ready(running)
            while not client.get_metadata(END_KEY, False):
                time.sleep(0.2)
    finally:  # last, when its jobs have ended
        file.unlink(missing_ok=True)


@contextmanager
def _cluster(site: str, jobs: int | tuple[int, int], folder: Path) -> Iterator[Client]:
    with ExitStack() as stack:
        if site == LOCAL:
            security = stack.enter_context(tls.new_key(folder))
            yield stack.enter_context(local_cluster(security=security))
        else:
            cluster = stack.enter_context(slurm_cluster(site, jobs, folder=folder))
            yield stack.enter_context(closing_logged(cluster.get_client()))


def refuse_second(file: Path) -> None:
    """Raise ClusterError where the file belongs to a persistent scheduler already."""
    if file.exists():
        other = read_scheduler_file(file)
        if other.host == socket.gethostname() and not psutil.pid_exists(other.pid):
            file.unlink()  # it was killed
            return
        raise ClusterError(
            f"{file} belongs to a scheduler on {other.host} (process {other.pid}): run `homodyne-dask "
            f"cluster stop --scheduler-file {file}`, or, if that machine is no longer running, remove the "
            "file"
        )


def start_scheduler(site: str, jobs: str, file: Path) -> PersistentScheduler:
    """Start a persistent scheduler as a separate process on this machine; return when it is ready.

    Raises ClusterError with the last line of its log if it ends.
    """
    refuse_second(file)
    make_private(file.parent)
    log = file.with_suffix(".log")
    words = ["cluster", "start", "--foreground", "--site", site, "--scheduler-file", str(file)]
    command = python_command("-m", "homodyne_dask.cli", *words, *(["--jobs", jobs] if jobs else []))
    log.unlink(missing_ok=True)
    with log.open("x") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process = subprocess.Popen(command, **streams, start_new_session=True)
    if not _wait(lambda: file.exists() or process.poll() is not None, START_TIMEOUT):
        process.terminate()
        raise ClusterError(f"the scheduler did not start within {START_TIMEOUT:g} s: see {log}")
    if not file.exists():
        last = (log.read_text().strip().splitlines() or ["it wrote nothing"])[-1]
        raise ClusterError(last.removeprefix("error: "))
    return read_scheduler_file(file)


def stop_scheduler(file: Path, key: str | None = None) -> None:
    """End a persistent scheduler and its jobs; raises ClusterError if it does not end in time.

    key: as in `connection_by`.
    """
    with connection_by(file, key) as client:
        client.set_metadata(END_KEY, True)
    if not _wait(lambda: not file.exists(), STOP_TIMEOUT):
        raise ClusterError(f"the scheduler of {file} did not stop within {STOP_TIMEOUT:g} s")


def _wait(reached: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not (is_reached := reached()) and time.monotonic() < until:
        time.sleep(0.05)
    return is_reached
