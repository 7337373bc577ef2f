"""Who reaches a cluster: on this machine its users, beyond it whoever holds its key."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.cluster import tls
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.cluster.slurm.persistent import connection_by
from homodyne_dask.errors import ClusterError
from tests.faults.local_workers import everything, shared_memory
from tests.faults.processes import dask, scheduler_at, still_there
from tests.run_command import run
from tests.synthetic import FLOW, angles, measured, store

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """A key as the command makes it."""
    folder = tmp_path_factory.mktemp("mine") / "key"
    said = run("key", str(folder)).output
    assert f"dask scheduler --protocol tls --tls-ca-file {folder}/certificate.pem" in said
    return folder


@pytest.fixture(scope="module")
def encrypted(key, tmp_path_factory) -> Iterator[str]:
    """The address of a scheduler, and a worker, started as the command says."""
    certificate, secret = key / tls.CERTIFICATE, key / tls.KEY
    files = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", secret]
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        _, address = stack.enter_context(scheduler_at(folder, "--protocol", "tls", *files))
        words = ["worker", address, "--host", "tls://127.0.0.1", "--nthreads", "1", *files]
        stack.enter_context(dask(folder, *words))
        yield address


def test_a_key_is_for_its_owner_alone(key):
    assert oct(key.stat().st_mode & 0o777) == "0o700"
    assert oct((key / tls.KEY).stat().st_mode & 0o777) == "0o600"


def test_a_key_is_not_written_over_another(key):
    again = CliRunner().invoke(main, ["key", str(key)], standalone_mode=False)
    assert again.exit_code == 2
    assert "is not empty" in again.output


@pytest.mark.long
@pytest.mark.cluster
def test_a_fit_with_the_key_is_the_fit_without_a_cluster(key, encrypted, tmp_path):
    scan = store(measured(FLOW, 120, angles(4)), tmp_path)
    start = dict(zip(hd.LAMINAR_FLOW.names, FLOW, strict=True))
    options = {"gap": "200 um", "initial": start}
    with hd.connect(encrypted, key) as client:
        there = hd.fit(scan, hd.LAMINAR_FLOW, client=client, **options)
    here = hd.fit(scan, hd.LAMINAR_FLOW, **options)
    assert there.parameters["value"].values.tobytes() == here.parameters["value"].values.tobytes()


@pytest.mark.cluster
def test_without_the_key_nobody_gets_in(key, encrypted, tmp_path):
    tls.make_key(tmp_path / "other")
    plain = encrypted.replace("tls://", "tcp://")
    for address, given, says in (
        (encrypted, None, "give the folder that contains the key with key"),
        (encrypted, "none", "give the folder that contains the key with key"),
        (encrypted, tmp_path / "other", "other is its key"),
        (encrypted, tmp_path / "none_here", "the key of the cluster cannot be read"),
        (plain, None, "no scheduler answers"),
    ):
        with pytest.raises(ClusterError, match=says), hd.connect(address, given):
            pass


def test_a_key_that_others_can_read_is_refused(tmp_path):
    tls.make_key(tmp_path / "key")
    (tmp_path / "key" / tls.KEY).chmod(0o640)
    with (
        pytest.raises(ClusterError, match="has mode 0640"),
        hd.connect("tls://x:1", tmp_path / "key"),
    ):
        pass


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:8786", "192.168.0.7:8786", "tcp://no.such:1"])
def test_an_address_beyond_this_machine_must_be_encrypted(address):
    with pytest.raises(ClusterError, match="over the network would not be encrypted"):  # noqa: SIM117
        with hd.connect(address):
            pass


DESCRIPTION = {
    "address": "tcp://192.0.2.1:8786", "dashboard": "http://127.0.0.1:1/status", "site": "local",
    "jobs": 1, "host": "there", "pid": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [({}, "over the network would not be encrypted"),
     ({"address": 1}, "is not the file of a persistent scheduler"),
     ({"pid": "x"}, "is not the file of a persistent scheduler"),
     ({"more": 1}, "is not the file of a persistent scheduler")],
)  # fmt: skip
def test_the_file_of_a_scheduler_leads_to_no_other_machine_without_encryption(
    tmp_path, changes, says
):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(DESCRIPTION | changes))
    with pytest.raises(ClusterError, match=says), connection_by(file):
        pass


def test_the_file_of_dasks_own_scheduler_is_refused_with_what_to_give_in_its_place(tmp_path):
    file = tmp_path / "scheduler.json"
    theirs = {
        "type": "Scheduler",
        "id": "Scheduler-1",
        "address": "tcp://127.0.0.1:1",
        "workers": {},
    }
    file.write_text(json.dumps(theirs))
    match = r"written by `dask scheduler`.*: give scheduler tcp://127\.0\.0\.1:1 and"
    with pytest.raises(ClusterError, match=match), connection_by(file):
        pass


@pytest.mark.cluster
def test_a_local_cluster_is_for_this_machine_alone_and_leaves_nothing_behind():
    with local_cluster(processes=2, threads=1) as client:
        client.wait_for_workers(2, timeout=120)
        started, shared = everything(client), shared_memory(client)
        whole = [psutil.Process(), *started]
        ports = [c for p in whole for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert len(ports) >= 4  # scheduler, dashboard, workers
    assert {port.laddr.ip for port in ports} == {"127.0.0.1"}
    assert not still_there(started, 20)
    assert shared
    assert not [path for path in shared if path.exists()]
