"""What is wrong with a worker is said before the first pass, and which worker it is; what it imports."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.slurm import adaptive as healing
from homodyne_dask.cluster.slurm.cluster import slurm_cluster
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting.events import on_progress
from tests.cluster.slurm.disturbed_fits import fit_on, jobs_at_work
from tests.cluster.slurm.loopback import ROOT
from tests.faults.processes import another, first_import_folder
from tests.result_bits import result_bits
from tests.run_command import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
BLIND = "setpriv --bounding-set=-dac_override,-dac_read_search"
"""Root, but without the right to read what nobody may read."""


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0, reason="a user may not have workers that see less than he does"
)
def test_a_worker_of_another_version_that_does_not_see_the_store_is_named(slurm, small, tmp_path):
    path = another("0.0.1", tmp_path)
    odd = f'[ $SLURMD_NODENAME = n2 ] && export PYTHONPATH={path} BLIND="{BLIND}"'
    settings = {
        "cores": 2,  # a node each
        "python": f"exec $BLIND {shutil.which('python')}",
        "job_script_prologue": [f"export PYTHONPATH={ROOT}", odd, "true"],
    }
    Path(small.path).chmod(0)
    try:
        with jobs_at_work(2, **settings) as (_, client):
            where = client.run(lambda: os.environ["SLURMD_NODENAME"])
            names = client.scheduler_info(n_workers=-1)["workers"]
            (ill,) = (names[at]["name"] for at, node in where.items() if node == "n2")
            (well,) = (names[at]["name"] for at, node in where.items() if node == "n1")
            with pytest.raises(ClusterError) as said:
                hd.fit(small, hd.LAMINAR_FLOW, gap="200 um", client=client)
    finally:
        Path(small.path).chmod(stat.S_IRWXU)
    version, invisible = str(said.value).splitlines()
    assert version.startswith(f"worker {ill} has jaxlib 0.0.1, but this program has ")
    assert invisible.startswith(f"worker {ill} on ")
    assert "cannot read the store" in invisible
    assert "Permission denied" in invisible
    assert well not in str(said.value)


@pytest.mark.slow
def test_jobs_of_another_version_that_replace_one_in_mid_pass_are_refused_and_named(
    slurm, scan, quiet, tmp_path, monkeypatch
):
    monkeypatch.setattr(healing, "MAX_FAILED_JOBS", 3)  # the one that is replaced may count too
    changed, path = tmp_path / "changed", another("0.0.1", tmp_path)
    said = []
    odd = f"[ -e {changed} ] && export PYTHONPATH={path}"
    prologue = [f"export PYTHONPATH={ROOT}", odd, "true"]
    with jobs_at_work(2, job_script_prologue=prologue) as (cluster, client):

        def replace_one() -> None:
            changed.touch()
            slurm.call("scancel", "--signal=KILL", slurm.running()[0])
            slurm.wait_for(lambda: cluster.given_up, 120)

        result = fit_on(client, scan, replace_one, callbacks=[on_progress(said.append)])
        assert result_bits(result) == result_bits(quiet)
        assert cluster.given_up
    refused = said[-1].refused
    assert len(refused) >= 2
    assert all("has jaxlib 0.0.1, but this program has" in words for words in refused)


@pytest.mark.slow
def test_tasks_longer_than_what_the_workers_live_for_are_said_before_the_first_pass(slurm, small):
    with (
        slurm_cluster("loopback", task=1e-3) as cluster,
        cluster.get_client() as client,
        pytest.raises(
            ClusterError, match=r"may take 0.27 s, but the workers allow tasks of 0.001 s"
        ),
    ):
        hd.fit(small, hd.LAMINAR_FLOW, gap="200 um", client=client)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("python", [None, f"exec {sys.executable}"], ids=["ours", "the site's"])
def test_a_job_imports_nothing_of_the_folder_it_is_submitted_from(slurm, hostile_folder, python):
    spilt = slurm.folder / "spill"
    before = set(spilt.iterdir()) if spilt.exists() else set()  # jobs that were killed leave some
    with jobs_at_work(1, python=python) as (_, client):
        assert [*client.run(lambda: sys.flags.safe_path).values()] == [True]
        ((folder, permissions),) = client.run(first_import_folder).values()
        assert (Path(folder).parent, permissions) == (slurm.folder / "spill", 0o700)
    slurm.assert_empty()
    assert set(spilt.iterdir()) <= before


def test_a_site_is_examined_without_sending_a_job(slurm, small):
    ended = run("preflight", "--site", "loopback", small.path)
    assert ended.exit_code == 0, ended.output
    assert "#SBATCH --export=NONE" in ended.output
    assert "export NPROC=1" in ended.output
    assert "to start at" in ended.output  # sbatch --test-only
    assert "writable" in ended.output
    assert "tiles" in ended.output


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"queue": "nix"}, "invalid partition"),
        ({"memory": "100GB"}, "configuration is not available"),
        ({"cores": 64}, "configuration is not available"),
    ],
    ids=["partition", "memory", "cores"],
)
def test_what_sbatch_refuses_is_told_at_once_in_its_words(slurm, settings, said):
    with pytest.raises(ClusterError, match=said), slurm_cluster("loopback", **settings):
        pass
    assert not list((slurm.folder / "shared").rglob("key.pem"))


def test_a_refused_job_ends_the_command_line_with_2(slurm, small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(slurm.section, "queue", "nix")
    words = ["fit", small.path, "--model", "laminar_flow", "--site", "loopback", "--gap", "200 um"]
    ended = run(*words)
    assert ended.exit_code == 2
    assert "error: sbatch rejected the job" in ended.stderr
    assert "invalid partition" in ended.stderr
