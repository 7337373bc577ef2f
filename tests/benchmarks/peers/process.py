"""Runs a command in a process of its own and measures its time and memory, up to a time limit."""

import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

INTERVAL = 0.03
"""Seconds between measurements of the memory."""


class Run(NamedTuple):
    """Measurements of a process."""

    seconds: float
    """From the start of the process to its end, with imports, reading and start-up."""
    cpu_seconds: float
    """User and system time of the process and its descendants: other work on the machine hardly enters."""
    peak: int
    """Peak memory in bytes, PSS summed over the process and all its descendants."""
    code: int | None
    """Its exit status; None where it was stopped."""
    output: str
    """The end of what it printed."""


def descendants_seconds() -> float:
    """CPU seconds of all processes that descended from this one and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str], limit: float, log: Path) -> Run:
    """Run a command to its end, or for `limit` seconds."""
    began, cpu, peak, stopped = time.perf_counter(), descendants_seconds(), 0, False
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        while child.poll() is None:
            peak = max(peak, sum(_pss(p) for p in _family(child.pid)))
            if time.perf_counter() - began > limit:
                stopped = True
                _stop(child)
            time.sleep(INTERVAL)
    seconds = time.perf_counter() - began
    output = log.read_text(errors="replace")[-2000:]
    code = None if stopped else child.returncode
    return Run(seconds, descendants_seconds() - cpu, peak, code, output)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:  # it has just ended
        return 0


def _stop(child: subprocess.Popen) -> None:
    """Kill a process, its session, and descendants in sessions of their own."""
    family = _family(child.pid)
    os.killpg(child.pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()
