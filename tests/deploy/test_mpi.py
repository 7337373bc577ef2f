"""The script of deploy/mpi under mpirun on this machine; `make test-deploy` installs what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from homodyne_dask.cluster.tls import make_key
from tests.deploy.small_fit import SCRIPT, here, written
from tests.result_bits import folder_bits

MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.timeout(240)


def test_two_workers_that_mpirun_starts_give_the_bits_of_a_fit_in_this_process(tmp_path):
    pytest.importorskip("dask_mpi", reason="make test-deploy installs it")
    config = written(tmp_path)
    make_key(tmp_path / "key")
    words = [sys.executable, SCRIPT, "mpi", tmp_path / "key", config, "--no-pictures"]
    ended = subprocess.run(
        [MPIRUN, "-n", "4", *words], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env=os.environ | {"HOMODYNE_DASK_INTERFACE": "lo"},
    )  # fmt: skip
    assert ended.returncode in (0, 3), ended.stderr
    assert "on 2 Dask workers" in ended.stderr, ended.stderr
    assert "distributed" not in ended.stderr, ended.stderr
    assert folder_bits(tmp_path / "result") == here(tmp_path)
