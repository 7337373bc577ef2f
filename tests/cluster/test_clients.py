"""Clients that others made: what can be used from where it is given, and what is refused at once."""

import asyncio
import builtins
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from types import ModuleType

import dask.config
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, get_client

import homodyne_dask as hd
from homodyne_dask.cluster import connect, local
from homodyne_dask.errors import ClusterError, OptionError, PlanError
from homodyne_dask.machine.allocator_and_threads import in_thread
from tests.documents import ROOT, blocks
from tests.run_command import run
from tests.synthetic import fit_here

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
EXAMPLES = blocks("python3", ROOT / "docs" / "clients.md")
SETTINGS = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The working folder, with a store of 3 bins and 60 frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("own"))
        run("simulate", "A0123.h5", "--scenario", "static", "--angles", "3", "--frames", "60")
        run("ingest", "A0123.h5", "A0123_c2.zarr")
        yield folder


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(**SETTINGS, memory_limit="1.5GB") as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster.scheduler_address) as client:
        yield client
    cluster.adapt(minimum=1, maximum=1)
    while len(cluster.scheduler.workers) != 1:  # a restart would wait for one that is being removed
        time.sleep(0.1)


def refused(call, error, words):
    began = time.monotonic()
    with pytest.raises(error, match=words):
        call()
    assert time.monotonic() - began < 5  # one on a machine with nothing else to do


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("n", range(1, len(EXAMPLES)))
def test_an_example_of_the_page_runs(n, cluster, client, folder, monkeypatch, capsys):
    for name, made in (("dask_gateway", "Gateway"), ("dask_kubernetes.operator", "KubeCluster")):
        (module := ModuleType(name)).__dict__[made] = lambda **_: Site(cluster)
        monkeypatch.setitem(sys.modules, name, module)
    if "__main__" in EXAMPLES[n]:
        (folder / "script.py").write_text(EXAMPLES[n])
        said = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True).stdout
    else:
        names = {"__name__": "__main__", "cluster": cluster, "client": client}
        exec(EXAMPLES[0], names)
        exec(EXAMPLES[n], names)
        said = capsys.readouterr().out
    assert re.search(r"\bCONVERGED\b", said)


class Site:
    """What stands for a gateway, or for a cluster on Kubernetes: another cluster, which it leaves running."""

    def __init__(self, cluster):
        self.cluster = cluster

    def new_cluster(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        return getattr(self.cluster, name)


def test_a_client_whose_event_loop_is_here_is_refused(client):
    async def fit_in_the_loop():
        async with Client(client.scheduler.address, asynchronous=True) as mine:
            hd.fit("A0123_c2.zarr", "static", client=mine)

    refused(lambda: asyncio.run(fit_in_the_loop()), OptionError, r"asyncio\.to_thread")


def test_a_client_that_is_closed_or_whose_event_loop_has_ended_is_refused(
    cluster, client, monkeypatch
):
    with Client(cluster) as closed:
        pass
    refused(lambda: hd.fit("A0123_c2.zarr", "static", client=closed), OptionError, "closed")
    monkeypatch.setattr(client.loop.asyncio_loop, "is_closed", lambda: True)
    refused(lambda: hd.fit("A0123_c2.zarr", "static", client=client), OptionError, "loop .* ended")


def test_a_time_of_the_configuration_that_is_none_is_named(client):
    with dask.config.set({"homodyne-dask.first-worker": "10 parsecs"}):
        refused(
            lambda: hd.plan("A0123_c2.zarr", "static", client=client), OptionError, "10 parsecs"
        )


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request"])
def test_what_is_no_scheduler_is_not_waited_for(greeting, monkeypatch):
    def greet():
        with server.accept()[0] as taken:
            taken.sendall(greeting)
            while taken.recv(1000):
                pass

    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, done = "tcp://{}:{}".format(*server.getsockname()), in_thread(greet)
        words = "another program" if greeting else "nothing was said in time"
        refused(hd.connect(address).__enter__, ClusterError, f"no scheduler answers at .*{words}")
        done.result(10)


def test_tasks_that_no_worker_will_take_are_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(local, "known_workers", lambda _: {})
    with dask.config.set({"homodyne-dask.no-progress": "400ms"}):
        waiting = [client.submit(int, resources={"none has it": 1})]
        refused(lambda: local.gathered(client, waiting), ClusterError, "no task finished within")


def two_fits(store):
    return [str(hd.fit(store, "static", client=get_client()).outcome) for _ in range(2)]


@pytest.mark.long
def test_tasks_fit_twice_on_their_worker_of_one_thread(client, folder):
    tasks = client.map(two_fits, [folder / "A0123_c2.zarr"] * 2, pure=False)
    assert str(client.gather(tasks)).count("CONVERGED") == 4


def occupy(bytes_in_all):
    left = bytes_in_all - psutil.Process().memory_info().rss
    builtins.occupied = np.ones(int(left) // 8)  # type: ignore[attr-defined]


@pytest.mark.long
def test_paused_workers_are_named_and_a_restart_helps(client):
    client.submit(occupy, 0.87 * 1.5e9).result()
    with pytest.raises(
        ClusterError, match=r"all workers are paused, .* of 1.5 GB.*client\.restart"
    ):
        hd.fit("A0123_c2.zarr", "static", client=client)
    refused(
        lambda: hd.fit("A0123_c2.zarr", "static", client=client), ClusterError, "workers are paused"
    )
    client.restart()
    assert hd.fit("A0123_c2.zarr", "static", client=client).outcome.name == "CONVERGED"


def tried(what, given=None):
    """Return the words of the error of a fit in a forked child."""
    try:
        hd.fit(what, "static", client=given)
    except (PlanError, OptionError) as e:
        return str(e)


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning"
)
def test_forked_children_refuse_jax_and_clients_of_before(client):
    fit_here(hd.open_dataset("A0123_c2.zarr"), hd.STATIC)
    read, write = os.pipe()
    if not (child := os.fork()):
        words = [tried("A0123_c2.zarr"), tried("A0123_c2.zarr", client)]
        os.write(write, " ".join(map(str, words)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 10_000).decode()
    assert "in which JAX had started" in said
    assert "the client belongs to the process" in said
    assert said.count(multiprocessing.get_context("spawn").get_start_method()) == 2


@pytest.mark.long
def test_a_child_forked_before_this_package_was_loaded_is_recognised():
    code = """if True:
        import os, jax
        jax.devices()
        if not os.fork():
            from homodyne_dask.kernels.devices import float64_on_cpu
            try:
                with float64_on_cpu():
                    jax.numpy.ones(3)
            except Exception as e:
                print(e, flush=True)
            os._exit(0)
        os.wait()
        from homodyne_dask.kernels.devices import float64_on_cpu
        with float64_on_cpu():
            print(float(jax.numpy.ones(3).sum()))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said, whole = ran.stdout.splitlines()
    assert said.startswith("this process was forked from one in which JAX had started")
    assert whole == "3.0"
