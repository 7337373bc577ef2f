"""Programs that are killed at any moment, and what they leave once they are run again."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.processes import ended, family, finish, passes, start, still_there


class Program(NamedTuple):
    """A command, what it is given, and what must be the same afterwards."""

    words: tuple[str, ...]
    given: Callable[[Path], Any]
    """Writes the data into the working folder."""
    makes: str
    """What is there as soon as it has begun to work."""
    left: Callable[[Path], Any]


class Quiet(NamedTuple):
    data: Path
    left: Any
    seconds: float
    """Of its work."""


def begun(program: Program, folder: Path) -> subprocess.Popen:
    process = start(*program.words, folder=folder)
    while not (folder / program.makes).exists() and process.poll() is None:
        time.sleep(0.001)
    return process


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> Callable[[Program], Quiet]:
    @cache
    def made(program: Program) -> Quiet:
        data = tmp_path_factory.mktemp("data")
        program.given(data)
        folder = Path(shutil.copytree(data, tmp_path_factory.mktemp("quiet") / "here"))
        process, began = begun(program, folder), time.perf_counter()
        said = finish(process)
        assert process.returncode in (0, 3), said
        return Quiet(data, program.left(folder), time.perf_counter() - began)

    return made


def moments(name: str, number: int) -> list[tuple[str, signal.Signals, float]]:
    """Random moments: which program, which signal, and at what share of its work."""
    rng = random.Random(name)
    signals = [signal.SIGKILL, signal.SIGTERM]
    return [(name, rng.choice(signals), rng.random()) for _ in range(number)]


def check_killed(
    program: Program,
    quiet: Quiet,
    here: Path,
    sent: signal.Signals,
    share: float,
    between: Callable[[Path], None] = lambda _: None,
) -> None:
    """Kill a program at a share of its work and run it again: it leaves what it leaves undisturbed.

    between: a check of what lies there in between.
    """
    folder = Path(shutil.copytree(quiet.data, here / "here"))
    process = begun(program, folder)
    time.sleep(share * quiet.seconds)
    started = family(process)
    process.send_signal(sent)
    said = finish(process)
    assert process.returncode in (0, 3, -sent, 130), said
    assert not still_there(started, 15)
    between(folder)
    resume = list(folder.glob("*_fit/checkpoint.json*"))
    if resume or not (folder / "scan_fit/summary.json").exists():
        again = ended(*program.words, *["--resume"] * bool(resume), folder=folder)
        if resume:  # at most the pass that was being made is made again
            assert passes(again)[0] >= max(passes(said), default=0)
    assert program.left(folder) == quiet.left
    assert not list(folder.glob("*_fit/*checkpoint*"))
