"""Schedulers and workers as people start them: processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from homodyne_dask.cluster.settings import worker_environment
from tests.faults.programs import ENVIRONMENT, ROOT


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
        for one in (*(whole.children(recursive=True) if whole.is_running() else ()), whole):
            if one.is_running():
                one.kill()
        process.wait()


@contextmanager
def scheduler_at(folder: Path, *words: str | Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler without workers on the loopback address, and its address."""
    file = folder / "scheduler.json"
    with dask(
        folder, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--dashboard-address", "127.0.0.1:0", "--scheduler-file", file, *words,
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
