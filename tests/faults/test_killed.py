"""Programs that are killed at any moment leave, once they are run again, what they leave undisturbed."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.errors import StoreError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.store.scan import open_dataset
from ingest import store_writer
from tests.faults.killed_programs import Program, check_killed, moments, quiet
from tests.faults.processes import family, finish, start, still_there
from tests.ingest_files import files_of_store, simulated
from tests.result_bits import folder_bits
from tests.synthetic import FLOW, angles, measured, store

__all__ = ["quiet"]
pytestmark = [pytest.mark.timeout(240), pytest.mark.long(whole=True)]

TRUTH = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
POOR = dict(zip(LAMINAR_FLOW.names, [30000, 0.0, 50, 1e-3, 0, 2e-5, 12], strict=True))
INITIAL = [word for name, value in POOR.items() for word in ("--initial", f"{name}={value}")]
FIT = ("fit", "scan.zarr", "--model", "laminar_flow", "--gap", "200 um", *INITIAL)


def of_fit(folder: Path) -> dict:
    return folder_bits(folder / "scan_fit")


def large_scan(folder: Path) -> None:
    store(measured(FLOW, 600, angles(9), dt=0.2), folder)


PROGRAMS = {
    "fit": Program(
        FIT, lambda at: store(measured(TRUTH, 60, angles(5), contrast=0.3), at), "scan_fit", of_fit
    ),
    "fit on threads": Program(FIT, large_scan, "scan_fit", of_fit),
    "fit on workers": Program((*FIT, "--workers", "1"), large_scan, "scan_fit", of_fit),
    "ingest": Program(
        ("ingest", "A.hdf"), lambda at: simulated(at / "A.hdf", n=900, bins=6), "A_c2.zarr",
        lambda at: files_of_store(at / "A_c2.zarr"),
    ),
}  # fmt: skip


def unfinished_stores_are_refused(folder: Path) -> None:
    store = folder / "A_c2.zarr"
    if store.exists() and not store_writer.root_attributes(store).get("complete"):
        with pytest.raises(StoreError, match=r"incomplete|not a Zarr store"):
            open_dataset(store)


SLOW = [moment for name in PROGRAMS for moment in moments(name, 10)]


@pytest.mark.parametrize(
    ("name", "sent", "share"),
    [("fit", signal.SIGKILL, 0.5), *(pytest.param(*m, marks=pytest.mark.slow) for m in SLOW)],
)
def test_a_program_killed_at_any_moment_goes_on_to_what_it_leaves_undisturbed(
    quiet, tmp_path, name, sent, share
):
    program = PROGRAMS[name]
    check_killed(program, quiet(program), tmp_path, sent, share, unfinished_stores_are_refused)


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
