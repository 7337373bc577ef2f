"""A real SLURM on the loopback address for the tests of this folder, and a site that uses it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest
import yaml

import homodyne_dask as hd
from tests.apps.slurm.loopback import HERE, OPTIONS, ROOT, Slurm
from tests.free_ports import free_ports
from tests.synthetic import FLOW, angles, fit_here, measured, store

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
NODES = 3
OF_BLAS = [name for name in os.environ if name.startswith("OPENBLAS_")]


def pytest_collection_modifyitems(items):
    """Without SLURM the tests that need it are skipped, and say so."""
    missing = [name for name in NEEDED if shutil.which(name, path=SBIN) is None]
    for item in items:
        if missing and "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(f"SLURM is not installed: no {missing[0]}"))


@pytest.fixture(scope="session")
def daemons() -> Iterator[Path]:
    """Three nodes of SLURM; all that it started is gone afterwards, also where this process is killed."""
    state = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    state.chmod(0o755)  # as munge wants the folder of its socket
    port = str(free_ports(NODES + 1))
    size = ["-n", str(NODES), "-c", "2", "-m", "6000", "-p", port, "-k"]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            [HERE / "held.sh", state, *size], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=said, start_new_session=True, text=True,
        ) as held,
    ):  # fmt: skip
        assert held.stdin
        assert held.stdout
        up = held.stdout.readline() == "up\n"
        if up:
            yield state
        held.stdin.close()
        status = held.wait(120)
        said.seek(0)
        words = said.read().strip()
    if not up:
        pytest.skip(f"SLURM is installed and does not start: {words}")
    assert status == 0, words


@pytest.fixture(scope="session")
def slurm(daemons, tmp_path_factory) -> Iterator[Slurm]:
    """SLURM with a site named loopback in Dask's configuration; afterwards no job is left."""
    folder = tmp_path_factory.mktemp("site")
    section = {
        "batch": "slurm",
        "cores": 1,
        "processes": 1,
        "memory": "1500MB",
        "walltime": "00:10:00",
        "interface": "lo",
        "local-directory": str(folder / "spill"),
        "shared-temp-directory": str(folder / "shared"),
        "log-directory": str(folder / "logs"),
        "death-timeout": 20,
        "patience": "120s",
        # jobs that prove something get nothing of the submitter's environment but the kernels of its BLAS
        "job-extra-directives": [f"--export={','.join(OF_BLAS) or 'NONE'}"],
        "job-script-prologue": [f"export PYTHONPATH={ROOT}"],
        "driver": {"cores": 1, "memory": "1500MB", "walltime": "00:10:00", "notice": 60},
    }
    (folder / "dask").mkdir()
    (folder / "dask" / "sites.yaml").write_text(yaml.safe_dump({"jobqueue": {"loopback": section}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(daemons / "slurm.conf"))
        patch.setenv("DASK_CONFIG", str(folder / "dask"))
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), SBIN]))
        patch.setenv("PYTHONPATH", str(ROOT))
        with dask.config.set({"jobqueue.loopback": section}):
            yield Slurm(daemons, folder, section)


@pytest.fixture(autouse=True)
def _nothing_left(request) -> Iterator[None]:
    """After each test with jobs of its own the queue is empty and no process of a job is left."""
    yield
    if "slurm" in request.fixturenames and "cluster" not in request.fixturenames:
        request.getfixturevalue("slurm").assert_empty()


@pytest.fixture(scope="session")
def scan(tmp_path_factory):
    """23 angles of 1320 frames: 20 million pairs, in a folder that may be read by all."""
    return store(measured(FLOW, 1320, angles(23), dt=0.1), tmp_path_factory.mktemp("scan"))


@pytest.fixture(scope="session")
def quiet(scan):
    return fit_here(scan, hd.LAMINAR_FLOW, **OPTIONS)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """4 angles of 1100 frames: 2.4 million pairs."""
    return store(measured(FLOW, 1100, angles(4), dt=0.1), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_quiet(small):
    return fit_here(small, hd.LAMINAR_FLOW, **OPTIONS)
