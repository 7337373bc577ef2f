"""Jobs that come and go while a fit runs: each costs its tasks, none of them a bit."""

import subprocess
import sys
import time
from collections.abc import Callable

import dask.config
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.slurm import adaptive as healing
from homodyne_dask.cluster.slurm import cluster as clusters
from homodyne_dask.cluster.slurm.cluster import slurm_cluster
from homodyne_dask.errors import ClusterError
from tests.cluster.slurm.disturbed_fits import fit_on, jobs_at_work
from tests.result_bits import result_bits

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]
slow = pytest.mark.slow


def fitted(scan, jobs, disturb: Callable, seconds: float = 120, **settings):
    """Fit on jobs of their own while they are disturbed; all are back within some seconds."""
    workers = jobs * settings.get("processes", 1)
    with jobs_at_work(jobs, workers, **settings) as (cluster, client):
        assert len(cluster.plan) == workers
        result = fit_on(client, scan, lambda: disturb(cluster, client))
        client.wait_for_workers(workers, timeout=seconds)
    return result


@slow
def test_a_node_that_goes_down_changes_no_bit(slurm, scan, quiet):
    def disturb(cluster, client):
        slurm.call("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")

    try:
        result = fitted(scan, 3, disturb)
        assert result_bits(result) == result_bits(quiet)
    finally:
        assert slurm.wait_for(lambda: "down" not in slurm.call("sinfo", "-h", "-o", "%T"), 120)


@slow
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


@slow
@pytest.mark.parametrize("what", CANCELLED)
def test_what_is_cancelled_in_mid_pass_is_sent_again_and_changes_no_bit(slurm, scan, quiet, what):
    jobs, lost, settings = CANCELLED[what]

    def disturb(cluster, client):
        slurm.call("scancel", "--signal=KILL", *slurm.running()[lost])

    assert result_bits(fitted(scan, jobs, disturb, **settings)) == result_bits(quiet)


@slow
def test_a_job_cancelled_before_it_starts_is_replaced(slurm):
    with slurm_cluster("loopback", jobs=1) as first:
        first.wait_for_workers(1, timeout=120)
        # a job that needs more cores than are free waits
        with slurm_cluster("loopback", jobs=3, cores=2) as cluster:
            assert slurm.wait_for(slurm.pending, 30)
            lost = slurm.pending()[0]
            slurm.call("scancel", lost)
            assert slurm.wait_for(lambda: slurm.pending() not in ([], [lost]), 30)
            assert not cluster.given_up


@slow
def test_jobs_that_end_before_their_workers_come_end_the_fit_and_say_where_to_look(
    slurm, scan, monkeypatch
):
    monkeypatch.setattr(healing, "MAX_FAILED_JOBS", 2)
    with (
        slurm_cluster("loopback", jobs=1, python="exec /no/such/python") as cluster,
        cluster.get_client() as client,
        pytest.raises(ClusterError, match=r"2 jobs in a row ended .* logs are in") as said,
    ):
        fit_on(client, scan)
    assert "the cluster has no workers" in str(said.value)
    assert "No such file" in slurm.logs()


@slow
def test_jobs_come_with_the_work_and_go_without_it(slurm, scan, quiet, monkeypatch):
    monkeypatch.setattr(clusters, "IDLE_SECONDS", 5)
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


@slow
@pytest.mark.timeout(400)
def test_workers_that_reach_the_end_of_their_lives_change_no_bit(slurm, scan, quiet):
    """A walltime of 3 minutes is a lifetime of 80 to 117 s; SLURM kills nobody."""
    task = hd.plan(scan, hd.LAMINAR_FLOW).longest_task
    with jobs_at_work(2, walltime="00:03:00", task=task) as (_, client):
        first = set(slurm.running())
        until = time.monotonic() + 240
        while first & set(slurm.running()) and time.monotonic() < until:
            assert result_bits(fit_on(client, scan)) == result_bits(quiet)
        assert not first & set(slurm.running())
        client.wait_for_workers(2, timeout=120)
    assert "TIME LIMIT" not in slurm.logs()
    assert "worker-lifetime-reached" in slurm.logs()


@slow
def test_jobs_that_slurm_ends_at_their_walltime_change_no_bit(slurm, scan, quiet):
    """Lifetimes off: what happens where they are set wrong. SLURM's shortest walltime is a minute."""
    with jobs_at_work(2, worker_extra_args=["--lifetime", "1h"]) as (_, client):
        first = set(slurm.running())
        for number in first:
            slurm.call("scontrol", "update", f"JobId={number}", "TimeLimit=1")
        until = time.monotonic() + 200
        while first & set(slurm.running()) and time.monotonic() < until:
            assert result_bits(fit_on(client, scan)) == result_bits(quiet)
        assert not first & set(slurm.running())
        client.wait_for_workers(2, timeout=120)
        assert result_bits(fit_on(client, scan)) == result_bits(quiet)
    assert "TIME LIMIT" in slurm.logs()
