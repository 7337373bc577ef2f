"""The command line as a process of its own, to be killed; and what its fit came to."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
PROGRAM = """
import sys
from homodyne_dask.cli import main
from homodyne_dask.results.views.figures import plots
plots.save_all = lambda *_: []  # what takes longest
main(sys.argv[1:])
"""

PROGRAM_ON_WORKERS = "from homodyne_dask.sweep import layout; layout.IN_PROCESS_PAIRS = 1" + PROGRAM


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


def wait_for_pass(process: subprocess.Popen, number: int) -> None:
    """Return when a fit says that it has done so many passes, or has ended."""
    assert process.stderr is not None
    for line in process.stderr:
        if passes([line])[-1:] >= [number]:
            return


def passes(lines: list[str] | str) -> list[int]:
    """Return the numbers of the passes a fit has said it did."""
    lines = lines.splitlines() if isinstance(lines, str) else lines
    return [int(found[1]) for line in lines if (found := re.match(r"pass +(\d+) ", line))]


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """Return a process and all that it has started."""
    whole = psutil.Process(process.pid)
    return [whole, *whole.children(recursive=True)]


def still_there(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return which of some processes are alive after waiting for their end."""
    until = time.monotonic() + seconds
    while (left := [p for p in processes if _alive(p)]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def bits(folder: Path) -> dict[str, Any]:
    """Return all of a result but the seconds it took."""
    read = json.loads((folder / "summary.json").read_text())
    passed = [
        {key: entry.get(key) for key in ("pass", "theta", "chisqr", "damping", "accepted", "level")}
        for entry in read["history"]
    ]
    kept = ("outcome", "parameters", "covariance", "covariance_naive", "scaling_per_bin", "chisqr")
    return {key: read[key] for key in (*kept, "passes", "ndata", "undetermined")} | {"all": passed}
