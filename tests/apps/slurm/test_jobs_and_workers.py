"""Jobs that come and go while a fit runs cost no bit; what is wrong with a worker is said before."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask.config
import psutil
import pytest
from distributed import Client

import homodyne_dask as hd
from homodyne_dask.apps.slurm import jobs as job_clusters
from homodyne_dask.apps.slurm.jobs import slurm_cluster
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster.connect import UNENCRYPTED, connect
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting.events import on_progress
from tests.apps.slurm.loopback import ROOT, fit_on, jobs_at_work
from tests.faults.processes import another, first_import_folder
from tests.result_bits import result_bits
from tests.run_command import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]


def fitted(scan, jobs, disturb: Callable, seconds: float = 120, **settings):
    """Fit on jobs of their own while they are disturbed; all are back within some seconds."""
    workers = jobs * settings.get("processes", 1)
    with jobs_at_work(jobs, workers, **settings) as (cluster, client):
        assert len(cluster.plan) == workers
        result = fit_on(client, scan, lambda: disturb(cluster, client))
        client.wait_for_workers(workers, timeout=seconds)
    return result


@pytest.mark.slow
def test_a_node_that_goes_down_changes_no_bit(slurm, scan, quiet):
    def disturb(cluster, client):
        slurm.call("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")

    try:
        result = fitted(scan, 3, disturb)
        assert result_bits(result) == result_bits(quiet)
    finally:
        assert slurm.wait_for(lambda: "down" not in slurm.call("sinfo", "-h", "-o", "%T"), 120)


@pytest.mark.slow
def test_a_job_that_takes_too_much_memory_is_killed_and_changes_no_bit(slurm, scan, quiet):
    def disturb(cluster, client):
        first = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        client.run(take_memory, workers=[first])
        assert slurm.wait_for(lambda: len(cluster.observed) < 2, 120)

    assert result_bits(fitted(scan, 2, disturb)) == result_bits(quiet)


def take_memory() -> None:
    """Take what is a job's, beside the worker: its nanny does not see that, but SLURM does."""
    taken = "held = bytearray(b'x') * 1_500_000_000; import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", taken])


CANCELLED = {
    "all jobs": (3, slice(None), {}),
    "a job of several workers": (2, slice(1), {"cores": 2, "processes": 2, "memory": "2600MB"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CANCELLED)
def test_what_is_cancelled_in_mid_pass_is_sent_again_and_changes_no_bit(slurm, scan, quiet, what):
    jobs, lost, settings = CANCELLED[what]

    def disturb(cluster, client):
        slurm.call("scancel", "--signal=KILL", *slurm.running()[lost])

    assert result_bits(fitted(scan, jobs, disturb, **settings)) == result_bits(quiet)


@pytest.mark.slow
def test_without_workers_the_fit_ends_and_says_where_to_look(slurm, scan):
    with (
        slurm_cluster("loopback", python="exec /no/such/python", patience="15s") as cluster,
        cluster.get_client() as client,
        pytest.raises(
            ClusterError, match=r"1 of 1 workers are missing: .* logs of jobs in"
        ) as said,
    ):
        fit_on(client, scan)
    assert "the cluster has no workers" in str(said.value)
    assert "No such file" in slurm.logs()


@pytest.mark.slow
def test_jobs_come_with_the_work_and_go_without_it(slurm, scan, quiet, monkeypatch):
    monkeypatch.setattr(job_clusters, "IDLE_SECONDS", 5)
    most = 0
    with (
        dask.config.set({"distributed.adaptive.target-duration": "10ms"}),
        jobs_at_work((1, 3), 1) as (cluster, client),
    ):
        assert len(slurm.jobs()) == 1
        until = time.monotonic() + 90
        while most < 3 and time.monotonic() < until:
            assert result_bits(fit_on(client, scan)) == result_bits(quiet)
            most = len(cluster.observed)
        assert most == 3
        assert slurm.wait_for(lambda: len(slurm.jobs()) == 1, 120)
        assert result_bits(fit_on(client, scan)) == result_bits(quiet)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_reach_the_end_of_their_lives_change_no_bit(slurm, scan, quiet):
    """A walltime of 3 minutes is a lifetime of 80 to 117 s; SLURM kills nobody."""
    task = hd.plan(scan, hd.LAMINAR_FLOW).longest_task
    until = time.monotonic() + 240
    with jobs_at_work(2, walltime="00:03:00", task=task) as (_, client):
        first = set(slurm.running())
        while first & set(slurm.running()) and time.monotonic() < until:
            assert result_bits(fit_on(client, scan)) == result_bits(quiet)
        assert not first & set(slurm.running())
        client.wait_for_workers(2, timeout=120)
    assert "TIME LIMIT" not in slurm.logs()
    assert "worker-lifetime-reached" in slurm.logs()


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
def test_a_job_of_another_version_that_replaces_one_in_mid_pass_is_refused_and_named(
    slurm, scan, quiet, tmp_path
):
    changed, path = tmp_path / "changed", another("0.0.1", tmp_path)
    said = []
    odd = f"[ -e {changed} ] && export PYTHONPATH={path}"
    prologue = [f"export PYTHONPATH={ROOT}", odd, "true"]
    with jobs_at_work(2, job_script_prologue=prologue) as (_, client):

        def replace_one() -> None:
            changed.touch()
            slurm.call("scancel", "--signal=KILL", lost := slurm.running()[0])
            assert slurm.wait_for(lambda: {*slurm.running()} - {*first}, 120), lost
            time.sleep(10)

        first = slurm.running()
        result = fit_on(client, scan, replace_one, callbacks=[on_progress(said.append)])
        assert result_bits(result) == result_bits(quiet)
    assert said[-1].refused
    assert all("has jaxlib 0.0.1, but this program has" in words for words in said[-1].refused)


@pytest.mark.slow
def test_tasks_longer_than_what_the_workers_live_for_are_said_before_the_first_pass(slurm, small):
    with (
        slurm_cluster("loopback", task=1e-3) as cluster,
        cluster.get_client() as client,
        pytest.raises(ClusterError, match=r"may take 0.27 s, but the workers allow tasks of 0.001"),
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
    assert "#SBATCH --export=" in ended.output
    assert "export NPROC=1" in ended.output
    assert "to start at" in ended.output  # sbatch --test-only
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


JOBS = 2


@pytest.fixture(scope="module")
def cluster(slurm) -> Iterator:
    with slurm_cluster("loopback", jobs=JOBS) as cluster:
        yield cluster
    slurm.assert_empty()


@pytest.fixture
def client(cluster) -> Iterator[Client]:
    with cluster.get_client() as client:
        client.wait_for_workers(JOBS, timeout=120)
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("words", ["scancel --signal=KILL", "scontrol requeue"])
def test_a_job_that_ends_in_mid_pass_changes_no_bit_and_is_replaced(
    scan, quiet, client, slurm, words
):
    lost = slurm.running()[0]
    result = fit_on(client, scan, lambda: slurm.call(*words.split(), lost))
    assert result_bits(result) == result_bits(quiet)
    assert slurm.wait_for(lambda: lost not in slurm.running() and len(slurm.running()) == JOBS, 120)
    client.wait_for_workers(JOBS, timeout=120)


def test_without_the_key_nobody_connects(cluster, client, slurm, tmp_path):
    address = cluster.scheduler_address
    assert address.startswith("tls://")
    tls.make_key(tmp_path / "other")
    for key in (None, UNENCRYPTED, tmp_path / "other"):
        with pytest.raises(ClusterError), connect(address, key):
            pass
    (key,) = (slurm.folder / "shared").iterdir()
    with connect(address, key) as same:
        assert same.submit(sum, [1, 2]).result(timeout=30) == 3


def test_nothing_listens_but_on_the_interface_of_the_cluster(client, slurm):
    listening = [
        found
        for process in [psutil.Process(os.getpid()), *slurm.processes()]
        for found in process.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2 * JOBS
    assert {found.laddr.ip for found in listening} == {"127.0.0.1"}


def test_the_prologue_sets_a_workers_environment_and_nothing_else_does(client, monkeypatch):
    told = client.run(lambda: dict(os.environ)).values()
    for environment in told:
        assert environment["NPROC"] == "1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["JAX_ENABLE_X64"] == "1"
        assert environment["MALLOC_TRIM_THRESHOLD_"] == "65536"
        assert "DASK_CONFIG" not in environment  # the submitter's, under --export=NONE
