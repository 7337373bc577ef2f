"""The processor under the names homodyne's users know: what it is, and what it does in a second.

Nothing is set here: each process of workers is set up when it starts (`cluster`).
"""

import os
from typing import Any

import psutil

from homodyne_dask.cli.doctor import environment, machine
from homodyne_dask.cli.doctor.child import Child, ChildError, brief
from homodyne_dask.cli.doctor.rates import decoding_rate, kernel_rate
from homodyne_dask.cluster.local import cores, jax_threads
from homodyne_dask.errors import PlanError


def get_device_status() -> dict[str, Any]:
    """Return what computes here.

    platform: 'cpu'; devices: JAX's names of them; cores: processors this process may use; threads:
    threads JAX computes on; x64: whether fits are in float64; memory: total and available, bytes.
    """
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        x64 = jnp.zeros(1).dtype == jnp.float64
    now = psutil.virtual_memory()
    return {
        "platform": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "cores": cores(),
        "threads": jax_threads(),
        "x64": bool(x64),
        "memory": {"total": now.total, "available": now.available},
    }


def configure_optimal_device() -> dict[str, Any]:
    """Return the device in use, with homodyne's keys; there is nothing to configure.

    device_type, configuration_successful, performance_ready, device_info (`get_device_status`);
    warnings: what of this machine and its environment slows fits, recommendations: what to do.
    """
    found = [machine.processors(), machine.memory(), *environment.lines()]
    wrong = [line for line in found if not line.ok]
    status = get_device_status()
    return {
        "device_type": status["platform"],
        "configuration_successful": True,
        "performance_ready": not wrong,
        "recommendations": [f"{line.what}: {line.advice}" for line in wrong],
        "warnings": [f"{line.what}: {line.value}" for line in wrong],
        "device_info": status,
    }


def benchmark_device_performance() -> dict[str, Any]:
    """Return how fast the kernel of fits and the reading of chunks are here, each on one thread.

    kernel_pairs_per_second: pairs of frames times bins, the whole Gram with its derivatives;
    read_bytes_per_second: decoded bytes from a store in the temporary folder; kernel_error: how far
    the kernel is from plain NumPy. Takes three seconds. Raises PlanError where the kernel cannot run.
    """
    with Child(os.environ | {"NPROC": "1"}) as child:
        try:
            told = child.answer()
            rate = kernel_rate(child, told["pairs"])
        except ChildError as e:
            raise PlanError(
                f"the kernel does not run here ({brief(str(e))}): `homodyne-dask doctor` says more"
            ) from e
    return {
        "device_type": "cpu",
        "kernel_pairs_per_second": 1e6 * rate,
        "kernel_error": told["wrong"],
        "read_bytes_per_second": 1e9 * decoding_rate(),
    }
