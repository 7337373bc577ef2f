"""A fit on jobs of a real SLURM has the bits of the local fit, whatever happens to the jobs."""

import os
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
from distributed import Client

from homodyne_dask.apps.slurm.jobs import slurm_cluster
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster.connect import UNENCRYPTED, connect
from homodyne_dask.errors import ClusterError
from tests.apps.slurm.disturbed_fits import fit_on
from tests.result_bits import result_bits

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
JOBS = 2


@pytest.fixture(scope="module")
def cluster(slurm) -> Iterator:
    """Two jobs as workers, for several tests."""
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


def test_the_dashboard_answers_where_a_tunnel_would_end(cluster, client):
    assert cluster.dashboard_link.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(cluster.dashboard_link, timeout=30) as page:
        assert page.status == 200


def test_the_prologue_sets_a_workers_environment_and_nothing_else_does(client, monkeypatch):
    told = client.run(lambda: dict(os.environ)).values()
    for environment in told:
        assert environment["NPROC"] == "1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["JAX_ENABLE_X64"] == "1"
        assert environment["MALLOC_TRIM_THRESHOLD_"] == "65536"
        assert "DASK_CONFIG" not in environment  # the submitter's, under --export=NONE
