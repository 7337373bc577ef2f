"""Scheduler, driver and workers as the tasks of one srun, by the script of deploy/mpi."""

import subprocess
import sys

import pytest

from homodyne_dask.cluster.tls import make_key
from tests.deploy.small_fit import SCRIPT, here, written
from tests.result_bits import folder_bits

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(280)]


def test_two_workers_of_one_srun_give_the_bits_of_a_fit_in_this_process(
    slurm, tmp_path, monkeypatch
):
    config = written(tmp_path)
    make_key(tmp_path / "key")
    monkeypatch.setenv("HOMODYNE_DASK_INTERFACE", "lo")
    words = [sys.executable, SCRIPT, "srun", tmp_path / "key", config, "--no-pictures"]
    ended = subprocess.run(
        ["srun", "--ntasks=4", "--mem-per-cpu=2000", *words], cwd=tmp_path, capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode in (0, 3), ended.stderr
    assert "on 2 Dask workers" in ended.stderr, ended.stderr
    assert folder_bits(tmp_path / "result") == here(tmp_path)
