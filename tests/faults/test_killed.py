"""Programs that are killed at any moment leave, once they are run again, what they leave undisturbed."""

import csv
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from homodyne_dask.errors import StoreError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.store.scan import open_dataset
from ingest import store_writer
from tests.faults.processes import (
    ended,
    family,
    finish,
    passes,
    start,
    still_there,
)
from tests.ingest_files import files_of_store, simulated
from tests.result_bits import folder_bits
from tests.synthetic import FLOW, angles, measured, store

pytestmark = pytest.mark.timeout(240)

TRUTH = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
POOR = dict(zip(LAMINAR_FLOW.names, [30000, 0.0, 50, 1e-3, 0, 2e-5, 12], strict=True))
INITIAL = [word for name, value in POOR.items() for word in ("--initial", f"{name}={value}")]
FIT = ("fit", "scan.zarr", "--model", "laminar_flow", "--gap", "200 um", *INITIAL)
WATCH = ("watch", "in", "-o", "out", "--model", "static", "--no-pictures", "--once")


class Program(NamedTuple):
    """A command, what it is given, and what must be the same afterwards."""

    words: tuple[str, ...]
    given: Callable[[Path], Any]
    """Writes the data into the working folder."""
    makes: str
    """What is there as soon as it has begun to work."""
    left: Callable[[Path], Any]


def files_to_watch(folder: Path) -> None:
    (folder / "in").mkdir()
    for n in range(4):
        simulated(folder / "in" / f"A{n}_results.hdf", n=30, bins=2, seed=n)


def of_watch(folder: Path) -> tuple[Any, ...]:
    """How each scan ended, and its one result."""
    with (folder / "out/scans.csv").open() as file:
        outcomes = {row["scan"]: row["outcome"] for row in csv.DictReader(file)}
    return outcomes, {path.name: folder_bits(path) for path in folder.glob("out/A*_fit*")}


PROGRAMS = {
    "fit": Program(
        FIT, lambda at: store(measured(TRUTH, 60, angles(5), contrast=0.3), at), "scan_fit",
        lambda at: folder_bits(at / "scan_fit"),
    ),
    "fit on threads": Program(
        FIT, lambda at: store(measured(FLOW, 600, angles(9), dt=0.2), at), "scan_fit",
        lambda at: folder_bits(at / "scan_fit"),
    ),
    "fit on workers": Program(
        (*FIT, "--workers", "1"), lambda at: store(measured(FLOW, 600, angles(9), dt=0.2), at),
        "scan_fit", lambda at: folder_bits(at / "scan_fit"),
    ),
    "ingest": Program(
        ("ingest", "A.hdf"), lambda at: simulated(at / "A.hdf", n=900, bins=6), "A_c2.zarr",
        lambda at: files_of_store(at / "A_c2.zarr"),
    ),
    "watch": Program(WATCH, files_to_watch, "out", of_watch),
}  # fmt: skip


def begun(program: Program, folder: Path) -> subprocess.Popen:
    process = start(*program.words, folder=folder)
    while not (folder / program.makes).exists() and process.poll() is None:
        time.sleep(0.001)
    return process


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> Callable[[str], tuple[Path, Any, float]]:
    """The data of a program, what it leaves undisturbed, and the seconds of its work."""

    @cache
    def made(name: str) -> tuple[Path, Any, float]:
        program, data = PROGRAMS[name], tmp_path_factory.mktemp("data")
        program.given(data)
        folder = Path(shutil.copytree(data, tmp_path_factory.mktemp("quiet") / "here"))
        process, began = begun(program, folder), time.perf_counter()
        said = finish(process)
        assert process.returncode in (0, 3), said
        return data, program.left(folder), time.perf_counter() - began

    return made


def moments(seed: int, each: int) -> list[tuple[str, signal.Signals, float]]:
    """Random moments: which program, which signal, and at what share of its work."""
    rng = random.Random(seed)
    kinds = [signal.SIGKILL, signal.SIGTERM]
    return [(name, rng.choice(kinds), rng.random()) for name in PROGRAMS for _ in range(each)]


QUICK = [("fit", signal.SIGKILL, 0.5)]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("name", "sent", "share"),
    [*QUICK, *(pytest.param(*moment, marks=pytest.mark.slow) for moment in moments(5, 10))],
)
def test_a_program_killed_at_any_moment_goes_on_to_what_it_leaves_undisturbed(
    quiet, tmp_path, name, sent, share
):
    program, (data, wanted, seconds) = PROGRAMS[name], quiet(name)
    folder = Path(shutil.copytree(data, tmp_path / "here"))
    process = begun(program, folder)
    time.sleep(share * seconds)
    started = family(process)
    process.send_signal(sent)
    said = finish(process)
    assert process.returncode in (0, 3, -sent, 130), said
    assert not still_there(started, 15)
    resume = list(folder.glob("*_fit/checkpoint.json*"))
    if name == "ingest" and not store_writer.root_attributes(folder / "A_c2.zarr").get("complete"):
        with pytest.raises(StoreError, match=r"incomplete|not a Zarr store"):
            open_dataset(folder / "A_c2.zarr")
    if resume or not (folder / "scan_fit/summary.json").exists():
        again = ended(*program.words, *["--resume"] * bool(resume), folder=folder)
        if resume:  # at most the pass that was being made is made again
            assert passes(again)[0] >= max(passes(said), default=0)
    assert program.left(folder) == wanted
    assert not list(folder.glob("*_fit/*checkpoint*"))


CLUSTER = """
import sys, time
import dask.config
from homodyne_dask.cluster.local import local_cluster
with dask.config.set({"temporary-directory": sys.argv[1]}), local_cluster(processes=2, threads=1):
    time.sleep(60)
"""


@pytest.mark.long(whole=True)
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
