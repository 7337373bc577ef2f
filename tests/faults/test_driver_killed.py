"""A fit whose program is killed at any moment goes on to the bits of one that was left alone."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.solver.checkpoint import previous
from tests.faults.processes import (
    PROGRAM,
    PROGRAM_ON_WORKERS,
    ended,
    family,
    finish,
    passes,
    start,
    still_there,
    wait_for_pass,
)
from tests.result_bits import folder_bits
from tests.synthetic import FLOW, angles, measured, store

pytestmark = pytest.mark.timeout(240)

TRUTH = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
POOR = dict(zip(LAMINAR_FLOW.names, [30000, 0.0, 50, 1e-3, 0, 2e-5, 12], strict=True))
INITIAL = [word for name, value in POOR.items() for word in ("--initial", f"{name}={value}")]
ALONE, ON_WORKERS = "here", "on workers"
PROGRAMS = {ALONE: PROGRAM, ON_WORKERS: PROGRAM_ON_WORKERS}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a scan and of its result, for a fit in the program's own process or on workers."""
    folder = tmp_path_factory.mktemp("quiet")

    @cache
    def fitted(name: str) -> Path:
        if name == ALONE:
            store(measured(TRUTH, 60, angles(5), contrast=0.3), folder, name)
        else:
            store(measured(FLOW, 600, angles(9), dt=0.2), folder, name)
        said = ended(*words(name), folder=folder, program=PROGRAMS[name])
        assert len(passes(said)) >= 10
        return folder

    return fitted


def words(name: str) -> list[str]:
    return ["fit", f"{name}.zarr", "--model", "laminar_flow", "--gap", "200 um", *INITIAL]


def moments(seed: int, number: int) -> list[tuple[str, signal.Signals, int, float]]:
    """Random moments: which fit, which signal, after which pass, and how many seconds after it."""
    rng = random.Random(seed)
    return [
        ((ALONE, ON_WORKERS)[n % 2], rng.choice([signal.SIGKILL, signal.SIGTERM]),
         rng.randint(0, 9), rng.uniform(0, 0.06))
        for n in range(number)
    ]  # fmt: skip


QUICK = [(ALONE, signal.SIGKILL, 6, 0.02)]


@pytest.mark.parametrize(
    ("name", "sent", "after", "seconds"),
    QUICK
    + [
        pytest.param(*moment, marks=pytest.mark.slow)
        for moment in [(ALONE, signal.SIGTERM, 4, 0.01), *moments(5, 20)]
    ],
)
def test_a_fit_killed_at_any_moment_resumes_to_the_same_bits(
    quiet, tmp_path, name, sent, after, seconds
):
    shutil.copytree(quiet(name) / f"{name}.zarr", tmp_path / f"{name}.zarr")
    process = start(*words(name), folder=tmp_path, program=PROGRAMS[name])
    if after:
        wait_for_pass(process, after)
    else:
        time.sleep(20 * seconds)  # while it starts
    time.sleep(seconds)
    started = family(process)
    process.send_signal(sent)
    said = passes(finish(process))
    assert process.returncode in (-sent, 130)
    assert not still_there(started, 15)
    done = max(said, default=after)
    folder = tmp_path / f"{name}_fit"
    saved = folder / "checkpoint.json"
    begun = saved.exists() or previous(saved).exists()  # the signal may come between two renames
    again = ended(*words(name), *["--resume"] * begun, folder=tmp_path, program=PROGRAMS[name])
    assert folder_bits(folder) == folder_bits(quiet(name) / f"{name}_fit")
    assert begun or done == 0
    if begun:
        assert passes(again)[0] >= done  # at most the pass that was being made is made again
    assert not list(folder.glob("*checkpoint*"))


CLUSTER = """
import sys, time
import dask.config
from homodyne_dask.cluster.local import local_cluster
with dask.config.set({"temporary-directory": sys.argv[1]}), local_cluster(processes=2, threads=1):
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "seconds", [0.2, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 4, 8))]
)
def test_workers_end_soon_after_a_driver_that_is_killed_while_they_start(tmp_path, seconds):
    process = start(tmp_path / "temporary", folder=tmp_path, program=CLUSTER)
    while len(family(process)) < 3:
        time.sleep(0.02)
    time.sleep(seconds)
    started = family(process)
    process.kill()
    finish(process)
    assert not still_there(started, 15)
    assert not list((tmp_path / "temporary").iterdir())


SAVED_UNTIL = """
import os, signal, sys
from pathlib import Path
from homodyne_dask.solver import checkpoint
from homodyne_dask.cli import main
from tests.synthetic import started_as_given

step, renamed, synced, saves = int(sys.argv.pop(1)), Path.replace, os.fsync, 0

def reached(what):
    if what == step and saves == 3:
        os.kill(os.getpid(), signal.SIGKILL)

def save(path, held, saved=checkpoint.save):
    global saves
    saves += 1
    saved(path, held)

def replace(path, target):
    reached(1 if str(target).endswith("previous") else 3)
    renamed(path, target)
    reached(2 if str(target).endswith("previous") else 4)

def fsync(handle):
    reached(0)
    synced(handle)

checkpoint.save, Path.replace, os.fsync = save, replace, fsync
with started_as_given():
    main(sys.argv[1:])
"""
STEPS = ("before it is synced", "synced", "the old one renamed", "before the last", "all done")


@pytest.mark.slow
@pytest.mark.parametrize("step", range(5), ids=STEPS)
def test_a_fit_killed_at_any_step_of_saving_resumes_to_the_same_bits(quiet, tmp_path, step):
    """The third checkpoint is being written: two passes at least stand on disk."""
    shutil.copytree(quiet(ALONE) / f"{ALONE}.zarr", tmp_path / f"{ALONE}.zarr")
    killed = start(step, *words(ALONE), folder=tmp_path, program=SAVED_UNTIL)
    finish(killed)
    assert killed.returncode == -signal.SIGKILL
    again = ended(*words(ALONE), "--resume", folder=tmp_path)
    assert passes(again)[0] == (3 if step == 4 else 2)
    assert folder_bits(tmp_path / f"{ALONE}_fit") == folder_bits(quiet(ALONE) / f"{ALONE}_fit")
