"""Jobs run nothing of the folder that they are submitted from."""

import sys
from pathlib import Path

import pytest

from homodyne_dask.cluster.slurm.cluster import slurm_cluster
from tests.faults.processes import first_import_folder

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("python", [None, f"exec {sys.executable}"], ids=["ours", "the site's"])
def test_a_job_imports_nothing_of_the_folder_it_is_submitted_from(slurm, hostile_folder, python):
    spilt = slurm.folder / "spill"
    before = set(spilt.iterdir()) if spilt.exists() else set()  # jobs that were killed leave some
    with (
        slurm_cluster("loopback", jobs=1, python=python) as cluster,
        cluster.get_client() as client,
    ):
        client.wait_for_workers(1, timeout=300)
        assert [*client.run(lambda: sys.flags.safe_path).values()] == [True]
        ((folder, permissions),) = client.run(first_import_folder).values()
        assert (Path(folder).parent, permissions) == (slurm.folder / "spill", 0o700)
    slurm.assert_empty()
    assert set(spilt.iterdir()) <= before
