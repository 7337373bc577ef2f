"""Blocks of data on the devices of JAX in this process, and what GPUs it sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from homodyne_dask.errors import PlanError
from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.gpus import GPU, Gpus, cuda_missing
from homodyne_dask.kernels.jax_start import started


def jax_device(name: str) -> Any:
    """Return a device of this process by JAX's platform and its number there, as 'cuda:0'.

    Raises PlanError where there is none.
    """
    platform, _, number = name.partition(":")
    try:
        started()
        return jax.local_devices(backend=platform)[int(number)]
    except (RuntimeError, IndexError) as e:
        raise PlanError(f"this process has no device {name}: {_first_line(e)}") from e


def on_device(block: Block, device: str) -> Block:
    """Return a block with c2 on a device, which then computes.

    Raises PlanError where the memory of the device is used up.
    """
    there = jax_device(device)
    with enough_memory(there):
        return replace(block, c2=jax.device_put(block.c2, there).block_until_ready())


@contextmanager
def enough_memory(device: Any) -> Iterator[None]:
    """Turn JAX's error where the memory of a device is used up into a PlanError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            raise
        told = device.memory_stats() or {}
        used, limit = (told.get(name, 0) / 1e9 for name in ("bytes_in_use", "bytes_limit"))
        raise PlanError(
            f"the memory of {device.device_kind} is used up ({_first_line(e)}): this fit holds {used:.3g} GB "
            f"of the {limit:.3g} GB that JAX may take of it; end other programs there, or fit with "
            f"memory='stream' or device='cpu'"
        ) from e


def gpus_here() -> Gpus | str:
    """Return the GPUs that this process sees, or why there are none; JAX starts CUDA for it."""
    if missing := cuda_missing():
        return missing
    failures: list[str] = []
    try:
        failures = started().failures
        devices = jax.local_devices(backend=GPU.partition(":")[0])
    except RuntimeError as e:
        why = (failures[-1] if failures else _first_line(e)).partition(". ")[0]
        return f"JAX cannot use a GPU ({why}): nvidia-smi says whether there is one"
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in devices]
    return Gpus(len(devices), devices[0].device_kind, min(limits))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
