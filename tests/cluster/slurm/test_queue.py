"""What sbatch prints, a site's own lines included."""

import pytest

from homodyne_dask.cluster.slurm.queue import job_number
from homodyne_dask.errors import ClusterError

BANNER = "--> Verifying login1...OK\n--> Checking allocation (80% used)...OK\n"


@pytest.mark.parametrize("said", ["12", "12;cluster", "Submitted batch job 12", f"{BANNER}12\n",
                                  f"{BANNER}Submitted batch job 12 on cluster a\n"])  # fmt: skip
def test_the_number_of_a_job_is_in_the_last_line(said):
    assert job_number(None, said) == "12"


@pytest.mark.parametrize("said", ["", BANNER, "job12", "12 jobs are waiting"])
def test_a_banner_is_no_number(said):
    with pytest.raises(ClusterError, match="printed no number"):
        job_number(None, said)
