"""The workers of GPUs: one for each, known by its identity; drivers and GPUs are stood in for."""

import sys
import threading
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.gpus import Gpus, environments_of_gpus
from homodyne_dask.sweep import plan as planning
from homodyne_dask.sweep import preflight
from homodyne_dask.sweep.preflight import (
    Requirements,
    WorkerInfo,
    first_gpu,
    gpus_of_each,
    unmet,
)
from tests.synthetic import FLOW, measured, store


def test_each_worker_gets_one_gpu_and_takes_memory_as_it_needs_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5ad1")
    environments = environments_of_gpus(2)
    assert [of["CUDA_VISIBLE_DEVICES"] for of in environments] == ["2", "GPU-5ad1"]
    for of in environments:
        assert of["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        assert of["JAX_PLATFORMS"] == "cuda,cpu"
    assert environments_of_gpus(0) == []
    with pytest.raises(
        OptionError, match="gpus = 3, but CUDA_VISIBLE_DEVICES=2,GPU-5ad1 lists only 2"
    ):
        environments_of_gpus(3)


def test_a_gpu_is_known_by_its_identity_and_not_by_its_number(monkeypatch):
    """Of the CUDA driver, which is stood in for."""

    def device_get(device, number):
        device._obj.value = 7 + number

    def device_get_uuid(uuid, device):
        uuid[:] = [device.value, *range(15)]

    cuda = SimpleNamespace(cuDeviceGet=device_get, cuDeviceGetUuid_v2=device_get_uuid)
    monkeypatch.setattr(preflight.ctypes, "CDLL", {"libcuda.so.1": cuda}.get)
    assert first_gpu() == "07" + bytes(range(15)).hex()


ONE, OTHER = (Gpus(1, "A", 5), ("a", "0")), (Gpus(1, "A", 4), ("a", "1"))
WORKERS = {
    "one each": ([ONE, OTHER], Gpus(2, "A", 4)),
    "two on one": ([ONE, ONE], "2 workers on a would compute on one GPU"),
    "none left": ([], "no workers are left"),
    "one without": ([ONE, ("no CUDA", ("b", ""))], "worker 1 has no GPU: no CUDA"),
}


@pytest.mark.parametrize("word", WORKERS)
def test_the_gpus_of_a_clients_workers(word):
    told, wanted = WORKERS[word]
    found = gpus_of_each({str(n): one for n, one in enumerate(told)})
    assert found == wanted if isinstance(wanted, Gpus) else wanted in found


def test_a_plan_waits_for_the_first_worker_before_it_asks_for_gpus(tmp_path, monkeypatch):
    data = store(measured(FLOW, 24, [0.0]), tmp_path)
    monkeypatch.setattr(planning, "AUTO_PAIRS", 1)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        coming = threading.Timer(0.5, cluster.scale, [1])
        coming.start()
        plan = hd.plan(data, hd.STATIC, client=client)
        coming.join()
    assert plan.workers.processes == 1
    assert "CUDA" in str(plan.device) or plan.device.gpus is not None


def test_a_worker_that_joins_without_a_gpu_is_refused():
    info = WorkerInfo("worker 3", "host", 1, 0, {}, 1, 1, 10**10, 0, "digest", no_gpu="no CUDA")
    required = Requirements({}, "store", "chunk", "digest", 10**9, gpu=True)
    said = list(unmet(info, [info], required))
    assert said == ["worker 3 on host has no GPU, but this fit is computed on GPUs: no CUDA"]


def test_a_worker_of_anybody_sees_its_first_gpu_alone(monkeypatch):
    """Those of dask-cuda see all GPUs of a machine, their own first."""
    environment = {"NPROC": "5"}
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(preflight.os, "environ", environment)
    worker = SimpleNamespace(address="tcp://host:1", state=SimpleNamespace(nthreads=3))
    preflight.compute_on_own_threads(worker)
    assert environment["JAX_CUDA_VISIBLE_DEVICES"] == "0"
    assert environment["NPROC"] == "5"
