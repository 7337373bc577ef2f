"""What is examined of workers, the GPUs of some among it: workers, drivers and GPUs are stood in for."""

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
from homodyne_dask.sweep.preflight import Requirements, WorkerInfo, gpus_of_each, unmet
from tests.synthetic import FLOW, measured, store

GB = 10**9
REQUIRED = Requirements(
    {"jaxlib": "0.12.0"}, "/data/A_c2.zarr", "/data/A_c2.zarr/c2/c/0", "d" * 64, 2 * GB
)
WELL = WorkerInfo("worker 7", "n1", 4, 4 * GB, {"jaxlib": "0.12.0"}, 4, 8, 20 * GB, GB, "d" * 64)
worker = WELL._replace
"""A worker with 4 threads that meets all requirements but for these differences."""


def messages(*workers: WorkerInfo) -> list[str]:
    hosts = [[other for other in workers if other.host == worker.host] for worker in workers]
    pairs = zip(workers, hosts, strict=True)
    return [words for worker, on_host in pairs for words in unmet(worker, on_host, REQUIRED)]


def test_there_is_no_message_about_workers_that_meet_the_requirements():
    assert messages(worker(), worker(name="worker 8")) == []


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (worker(versions={"jaxlib": "0.11.0"}), "has jaxlib 0.11.0, but this program has 0.12.0: "),
        (worker(chunk="e" * 64), "on n1 cannot read the store /data/A_c2.zarr (it reads other"),
        (worker(chunk="Permission denied"), "on n1 cannot read the store /data/A_c2.zarr (Perm"),
        (worker(pool=64), "has 4 threads but computes on 64, more than the cores of n1 allow"),
        (worker(limit=GB), "may use 1 GB, but the plan needs 2 GB: give jobs more memory"),
        (worker(available=GB // 2), "needs 2 GB, but n1 with 1 worker has 1.5 GB for them: start"),
    ],
    ids=["version", "other data", "no data", "threads", "limit", "memory"],
)
def test_what_is_wrong_with_a_worker_is_one_sentence_with_its_name(one, words):
    (sentence,) = messages(one, worker(name="worker 8", host="n2"))
    assert sentence.startswith(f"worker 7 {words}")


def test_a_worker_alone_on_its_node_may_compute_on_more_threads_than_it_takes_tasks():
    assert messages(worker(pool=8)) == []
    assert len(messages(worker(pool=8), worker(name="worker 8"))) == 1


def test_workers_of_one_node_share_its_memory():
    beside = [worker(name=f"worker {n}", available=GB) for n in range(3)]
    assert len(messages(*beside)) == 3
    assert messages(*[one._replace(used=2 * GB) for one in beside]) == []


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
    monkeypatch.setattr(planning, "GPU_START_SECONDS", 0)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        coming = threading.Timer(0.5, cluster.scale, [1])
        coming.start()
        plan = hd.plan(data, hd.STATIC, client=client)
        coming.join()
    assert plan.workers.processes == 1
    assert "CUDA" in str(plan.device) or plan.device.gpus is not None


def test_a_worker_of_anybody_sees_its_first_gpu_alone(monkeypatch):
    """Those of dask-cuda see all GPUs of a machine, their own first."""
    environment = {"NPROC": "5"}
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(preflight.os, "environ", environment)
    worker = SimpleNamespace(address="tcp://host:1", state=SimpleNamespace(nthreads=3))
    preflight.compute_on_own_threads(worker)
    assert environment["JAX_CUDA_VISIBLE_DEVICES"] == "0"
    assert environment["NPROC"] == "5"
