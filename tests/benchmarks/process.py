"""Processes whose time and memory are measured."""

import os
import resource
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil


class Memory:
    """Peak of the summed PSS [bytes] of a process and all that it starts, and what that was on entry."""

    def __init__(self, pid: int) -> None:
        self.pid, self.over = pid, threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _now(self) -> int:
        total = 0
        for process in family(self.pid):
            with suppress(psutil.Error):  # it has just ended
                total += process.memory_full_info().pss
        return total

    def _watch(self) -> None:
        while not self.over.wait(0.03):
            self.peak = max(self.peak, self._now())

    def __enter__(self) -> Self:
        self.base = self.peak = self._now()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Run(NamedTuple):
    seconds: float
    """From the start of the process to its end, with imports, reading and start-up."""
    cpu_seconds: float
    """User and system time of the process and its descendants: other work on the machine hardly enters."""
    peak: int
    """Peak of the memory [bytes]."""
    code: int | None
    """Its exit status; None where it was stopped."""
    output: str
    """The end of what it printed."""


def descendants_seconds() -> float:
    """CPU seconds of all processes that descended from this one and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str], limit: float, log: Path) -> Run:
    """Run a command to its end, or for `limit` seconds; then it and its descendants are killed."""
    began, cpu = time.perf_counter(), descendants_seconds()
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        with Memory(child.pid) as memory:
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                code, started = None, family(child.pid)
                os.killpg(child.pid, signal.SIGKILL)
                for process in started:  # some have sessions of their own
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                child.wait()
    seconds = time.perf_counter() - began
    output = log.read_text(errors="replace")[-2000:]
    return Run(seconds, descendants_seconds() - cpu, memory.peak, code, output)
