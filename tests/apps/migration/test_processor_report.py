"""The device under homodyne's names."""

import os

import pytest

from homodyne_dask.apps.migration import processor_report as device
from homodyne_dask.kernels.gpus import Gpus


def test_the_status_says_what_computes(monkeypatch):
    monkeypatch.setattr(device, "gpus_of_machine", lambda: Gpus(2, "H100", 60 * 10**9))
    status = device.get_device_status()
    assert status["platform"] == "cpu"
    assert status["devices"]
    assert 1 <= status["cores"] <= (os.cpu_count() or 1)
    assert status["x64"] is True
    assert 0 < status["memory"]["available"] <= status["memory"]["total"]
    assert status["gpus"] == "2 H100"


@pytest.mark.parametrize(
    ("given", "threads"),
    [({"NPROC": "3"}, 3), ({"NPROC": "3", "PJRT_NPROC": "2"}, 2), ({"NPROC": "many"}, None)],
    ids=["NPROC", "PJRT_NPROC wins", "no number"],
)
def test_threads_are_what_the_environment_says_or_all_cores(monkeypatch, given, threads):
    for name in ("NPROC", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    status = device.get_device_status()
    assert status["threads"] == (threads or status["cores"])


def test_what_slows_a_fit_is_a_warning_with_a_recommendation(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_JIT", "1")
    found = device.configure_optimal_device()
    assert found["device_type"] == "cpu"
    assert not found["performance_ready"]
    assert any(
        "JAX_DISABLE_JIT" in text and "unset it" in text for text in found["recommendations"]
    )


@pytest.mark.long
def test_the_rate_is_that_of_the_kernel():
    assert device.benchmark_device_performance()["kernel_pairs_per_second"] > 0
