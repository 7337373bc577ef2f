"""Where and in which precision all is computed: in float64 on the CPU, whatever JAX is set to.

A block of data that was put on a device is computed there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Semaphore

import jax
import numpy as np

from homodyne_dask.kernels.devices import enough_memory
from homodyne_dask.kernels.gpus import KERNELS_AT_ONCE
from homodyne_dask.kernels.jax_start import first_cpu

_UNDER_WAY = Semaphore(KERNELS_AT_ONCE)
"""Held while a device computes a block: its fields there take more memory than the block."""


@contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Place what JAX compiles and computes in this context on the CPU, with float64.

    A JAX that has a GPU would take it for everything, however small. Only this thread is affected.
    """
    with jax.enable_x64(True), on_cpu():
        yield


@contextmanager
def float64_beside(data: np.ndarray | jax.Array) -> Iterator[None]:
    """Place what JAX compiles and computes in this context where data are, with float64.

    Arrays of NumPy are on the CPU; one of JAX is on one device.
    """
    if isinstance(data, np.ndarray):
        with float64_on_cpu():
            yield
        return
    (device,) = data.devices()
    with _UNDER_WAY, enough_memory(device), jax.enable_x64(True), jax.default_device(device):
        yield


@contextmanager
def on_cpu() -> Iterator[None]:
    """Place what JAX compiles and computes in this context on the CPU."""
    with jax.default_device(first_cpu()):
        yield
