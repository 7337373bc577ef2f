"""Who reaches a cluster: on this machine its users, beyond it whoever holds its key."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dask.config
import psutil
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster.connect import connect_by_file
from homodyne_dask.cluster.local import scratch_folder, script_lines
from homodyne_dask.errors import ClusterError
from homodyne_dask.kernels import devices as cache_folder
from tests.faults.local_workers import everything, shared_memory, workers
from tests.faults.processes import dask as dask_command
from tests.faults.processes import scheduler_at, still_there
from tests.run_command import run
from tests.synthetic import FLOW, angles, measured, store

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
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
        stack.enter_context(dask_command(folder, *words))
        yield address


def test_a_key_is_for_its_owner_alone_and_each_is_another(key, tmp_path):
    assert tls.make_key(tmp_path / "other").require_encryption
    assert key.stat().st_mode & 0o777 == 0o700
    for name in (tls.CERTIFICATE, tls.KEY):
        assert (key / name).stat().st_mode & 0o777 == 0o600
        assert (key / name).read_text() != (tmp_path / "other" / name).read_text()


def test_a_key_is_put_neither_over_another_nor_where_others_may_go_whose_rights_stay(key, tmp_path):
    again = run("key", str(key))
    assert (again.exit_code, "is not empty" in again.output) == (2, True)
    tmp_path.chmod(0o755)
    with pytest.raises(ClusterError, match="others can access"):
        tls.make_key(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


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
        (encrypted, tmp_path / "none_here", "cannot be read .*: only the user who started the"),
        (plain, None, "no scheduler answers"),
    ):
        with pytest.raises(ClusterError, match=says), hd.connect(address, given):
            pass


def test_a_key_that_others_can_read_is_refused(tmp_path):
    key = tmp_path / "key"
    tls.make_key(key)
    (key / tls.KEY).chmod(0o640)
    with pytest.raises(ClusterError, match="has mode 0640"), hd.connect("tls://x:1", key):
        pass


PLAIN = "over the network would not be encrypted"


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:8786", "192.168.0.7:8786", "tcp://no.such:1"])
def test_an_address_beyond_this_machine_must_be_encrypted(address):
    with pytest.raises(ClusterError, match=PLAIN), hd.connect(address):
        pass


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"type": "Scheduler", "address": "tcp://192.0.2.1:8786"}, PLAIN),
        ({"address": 1}, "is not the file of a scheduler"),
        ([1], "is not the file of a scheduler"),
    ],
)
def test_the_file_of_a_scheduler_leads_to_no_other_machine_without_encryption(
    tmp_path, content, says
):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ClusterError, match=says), connect_by_file(file):
        pass


@pytest.mark.long
@pytest.mark.cluster
def test_a_local_cluster_is_for_this_machine_alone_and_leaves_nothing_behind():
    with workers(2) as client:
        started, shared = everything(client), shared_memory(client)
        whole = [psutil.Process(), *started]
        ports = [c for p in whole for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert len(ports) >= 4  # scheduler, dashboard, workers
    assert {port.laddr.ip for port in ports} == {"127.0.0.1"}
    assert not still_there(started, 20)
    assert shared
    assert not [path for path in shared if path.exists()]


def test_what_decides_what_runs_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        tls.make_key(tmp_path / "keys" / "mine")
        cache_folder.entries(tmp_path / ".cache" / "ours")
        subprocess.run(["bash", "-c", script_lines(f"{tmp_path}/node/dask")[0]], check=True)
        with (
            dask.config.set({"temporary-directory": tmp_path / "a" / "b"}),
            scratch_folder() as scratch,
        ):
            modes = {path: path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    assert len(modes) == 11
    assert scratch in modes
    assert not any(modes.values()), modes
