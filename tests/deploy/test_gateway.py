"""Clusters of a dask-gateway server on this machine; `make test-deploy` installs it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import homodyne_dask as hd
from tests.deploy.small_fit import DEPLOY, GIVEN, here, written
from tests.free_ports import free_ports
from tests.result_bits import folder_bits

pytestmark = pytest.mark.timeout(240)
LOCAL = """
load_subconfig({ours!r})
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{inner}"
c.Proxy.address = "127.0.0.1:{outer}"
c.LocalBackend.clusters_directory = {folder!r}
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "2 G"
"""
"""The lines of deploy/gateway, and clusters as processes of this machine."""


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    pytest.importorskip("dask_gateway_server", reason="make test-deploy installs it")
    outer = free_ports(2)
    (tmp_path / "clusters").mkdir()
    ours, clusters = str(DEPLOY / "gateway/dask_gateway_config.py"), str(tmp_path / "clusters")
    lines = LOCAL.format(ours=ours, outer=outer, inner=outer + 1, folder=clusters)
    (tmp_path / "config.py").write_text(lines)
    command = Path(sys.executable).with_name("dask-gateway-server")
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    words, environment = [command, "--config", tmp_path / "config.py"], os.environ | {"PATH": path}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            address, until = f"http://127.0.0.1:{outer}", time.monotonic() + 60
            while not serves(address):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def serves(address: str) -> bool:
    """Whether the server is behind its proxy, which listens earlier and answers 404 until then."""
    try:
        with urlopen(f"{address}/api/health") as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_cluster_of_a_gateway_gives_the_bits_of_a_fit_in_this_process(server, tmp_path):
    from dask_gateway import Gateway

    written(tmp_path)
    with Gateway(server) as gateway, gateway.new_cluster() as cluster:
        cluster.scale(2)
        with cluster.get_client() as client:
            client.wait_for_workers(2, timeout=120)
            result = hd.fit(tmp_path / "scan.zarr", hd.STATIC, **GIVEN, client=client)
    (tmp_path / "result").mkdir()
    result.to_json(tmp_path / "result/summary.json")
    assert folder_bits(tmp_path / "result") == here(tmp_path)
