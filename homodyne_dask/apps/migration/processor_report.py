"""The processor under homodyne's function names: what it is and how fast it is.

Nothing is configured here: each worker process is set up when it starts (`cluster.local`).
"""

import os
from typing import TypedDict

from homodyne_dask.apps.doctor import environment, machine
from homodyne_dask.apps.doctor.kernel_process import (
    KernelProcess,
    KernelProcessError,
    first_sentence,
)
from homodyne_dask.apps.doctor.machine import get_device_status
from homodyne_dask.apps.doctor.measured_speed import decoding_rate, kernel_rate
from homodyne_dask.errors import PlanError


class DeviceReport(TypedDict):
    """The device in use, and what slows fits on this machine."""

    device_type: str
    configuration_successful: bool
    performance_ready: bool
    recommendations: list[str]
    warnings: list[str]
    device_info: machine.DeviceStatus


class DeviceRates(TypedDict):
    """Rates of one thread."""

    device_type: str
    kernel_pairs_per_second: float
    kernel_error: float
    read_bytes_per_second: float


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
    """Return the rates of the kernel and of reading chunks, each on one thread.

    kernel_pairs_per_second: pairs of frames times bins, for the Gram with all derivatives;
    read_bytes_per_second: decoded bytes from a store in the temporary folder; kernel_error: relative
    difference from plain NumPy. Takes three seconds. Raises PlanError where the kernel cannot run.
    """
    with KernelProcess(os.environ | {"NPROC": "1"}) as process:
        try:
            first = process.answer()
            rate = kernel_rate(process, first["pairs"])
        except KernelProcessError as e:
            raise PlanError(
                f"the kernel does not run here ({first_sentence(str(e))}): see `homodyne-dask doctor`"
            ) from e
    return {
        "device_type": "cpu",
        "kernel_pairs_per_second": 1e6 * rate,
        "kernel_error": first["error"],
        "read_bytes_per_second": 1e9 * decoding_rate(),
    }
