"""Scheduler, driver and workers as the tasks of one srun, by the script of deploy/mpi."""

import pytest

from tests.deploy.small_fit import fit_on_tasks

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.mark.usefixtures("slurm")
def test_two_workers_of_one_srun_give_the_bits_of_a_fit_in_this_process(tmp_path):
    fit_on_tasks(["srun", "--ntasks=4", "--mem-per-cpu=2000"], "srun", tmp_path)
