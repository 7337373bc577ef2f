"""The script of deploy/mpi under mpirun on this machine; `make test-deploy` installs what it needs."""

import sys
from pathlib import Path

import pytest

from tests.deploy.small_fit import fit_on_tasks

MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.timeout(280)


def test_two_workers_that_mpirun_starts_give_the_bits_of_a_fit_in_this_process(tmp_path):
    pytest.importorskip("dask_mpi", reason="make test-deploy installs it")
    assert "distributed" not in fit_on_tasks([MPIRUN, "-n", "4"], "mpi", tmp_path)
