"""The processor under homodyne's function names: what it is and how fast it is.

Nothing is configured here: each worker process is set up when it starts (`cluster.local`).
"""

from typing import TypedDict

import jax
import jax.numpy as jnp
import psutil

from homodyne_dask.apps.doctor import environment, machine
from homodyne_dask.apps.doctor.measured_speed import kernel_rate
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.store.processes import cores, jax_threads


class DeviceStatus(TypedDict):
    """The processor, and how JAX uses it in this process: see `get_device_status`."""

    platform: str
    devices: list[str]
    cores: int
    threads: int
    x64: bool
    memory: dict[str, int]
    gpus: str


def get_device_status() -> DeviceStatus:
    """Return the processor and the settings of JAX.

    platform: 'cpu'; devices: JAX's names of them; cores: processors this process may use; threads:
    threads JAX computes on; x64: whether float64 is available; memory: total and available, bytes; gpus:
    those that fits may take, or why there are none.
    """
    with float64_on_cpu():
        x64 = jnp.zeros(1).dtype == jnp.float64
    memory = psutil.virtual_memory()
    return {
        "platform": "cpu",  # also where JAX has a GPU: this process computes on processors
        "devices": [str(device) for device in jax.devices("cpu")],
        "cores": cores(),
        "threads": jax_threads(),
        "x64": bool(x64),
        "memory": {"total": memory.total, "available": memory.available},
        "gpus": str(gpus_of_machine()),
    }


class DeviceReport(TypedDict):
    """The device in use, and what slows fits on this machine."""

    device_type: str
    configuration_successful: bool
    performance_ready: bool
    recommendations: list[str]
    warnings: list[str]
    device_info: DeviceStatus


class DeviceRates(TypedDict):
    """Rates of this process."""

    device_type: str
    kernel_pairs_per_second: float


def configure_optimal_device() -> DeviceReport:
    """Return the device in use under homodyne's keys; nothing is configured.

    device_type, configuration_successful, performance_ready, device_info (`get_device_status`);
    warnings: what slows fits on this machine; recommendations: what to do about it.
    """
    findings = [machine.processors(), machine.memory(), *environment.environment_findings()]
    problems = [finding for finding in findings if not finding.ok]
    status = get_device_status()
    return {
        "device_type": status["platform"],
        "configuration_successful": True,
        "performance_ready": not problems,
        "recommendations": [f"{finding.what}: {finding.advice}" for finding in problems],
        "warnings": [f"{finding.what}: {finding.value}" for finding in problems],
        "device_info": status,
    }


def benchmark_device_performance() -> DeviceRates:
    """Return the rate of the kernel, measured in this process within a few seconds.

    kernel_pairs_per_second: pairs of frames times bins, for the Gram with all derivatives.
    """
    return {"device_type": "cpu", "kernel_pairs_per_second": kernel_rate()}
