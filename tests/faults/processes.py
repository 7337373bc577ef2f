"""Programs, schedulers and workers as people start them: processes of their own, and what they left."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from homodyne_dask.cluster.workers import worker_environment


def first_import_folder() -> tuple[str, int]:
    """The folder from which this process imports first, and the permissions of the one it is in."""
    found = Path(sys.path[0])
    own = next(folder for folder in found.parents if folder.name.startswith("homodyne-dask-"))
    return str(own), own.stat().st_mode & 0o777


ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
PROGRAM = """
import sys
from homodyne_dask.cli import main
from homodyne_dask.results.views import fit_figures as plots
from tests.synthetic import started_as_given
plots.save_all = lambda *_: []  # what takes longest
with started_as_given():  # poor initial values take many passes
    main(sys.argv[1:])
"""


def start(*words: str | Path | int, folder: Path, program: str = PROGRAM) -> subprocess.Popen:
    """Start homodyne-dask, or another Python program, in a folder; its lines come from stderr."""
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen, seconds: float = 120) -> str:
    """Wait for the end of a process and return what it still wrote to stderr."""
    _, rest = process.communicate(timeout=seconds)
    return rest


def ended(*words: str | Path, folder: Path, program: str = PROGRAM) -> str:
    """Run homodyne-dask to its end, which must be one of a whole fit, and return its stderr."""
    process = start(*words, folder=folder, program=program)
    said = finish(process)
    assert process.returncode in (0, 3), said
    return said


def passes(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^pass +(\d+) ", text, re.MULTILINE)]


def family(process: subprocess.Popen) -> list[psutil.Process]:
    whole = psutil.Process(process.pid)
    return [whole, *whole.children(recursive=True)]


def still_there(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return which of some processes are alive after waiting for their end."""
    until = time.monotonic() + seconds
    while (left := [p for p in processes if _alive(p)]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def dask(folder: Path, *words: str | Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A scheduler or a worker, ended with all that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, words)], cwd=folder, stderr=subprocess.DEVNULL,
        env=ENVIRONMENT | worker_environment(1) | environment,
    )  # fmt: skip
    whole = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for descendant in whole.children(recursive=True) if whole.is_running() else ():
            with suppress(psutil.NoSuchProcess):
                descendant.kill()
        process.kill()
        process.wait()


@contextmanager
def scheduler_at(
    folder: Path, *words: str | Path, **environment: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler without workers on the loopback address, and its address."""
    file = folder / "scheduler.json"
    with dask(
        folder, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--dashboard-address", "127.0.0.1:0", "--scheduler-file", file, *words,
        **environment,
    ) as process:  # fmt: skip
        until = time.monotonic() + 120
        while not file.exists() or not file.read_text().endswith("}"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process, json.loads(file.read_text())["address"]


def another(version: str, folder: Path) -> str:
    """A search path on which a package has another version, and is the same."""
    metadata = folder / "other" / f"jaxlib-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jaxlib\nVersion: {version}\n")
    return os.pathsep.join([str(metadata.parent), str(ROOT)])
