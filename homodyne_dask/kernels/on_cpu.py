"""Where and in which precision all is computed: on the CPU, in float64, whatever JAX is set to."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Place what JAX compiles and computes in this context on the CPU, with float64.

    A JAX that has a GPU would take it: kernels are written for the cache of a core, their compiler options
    are the CPU's, and float64 is slow on most GPUs. Only this thread is affected.
    """
    with jax.enable_x64(True), on_cpu():
        yield


@contextmanager
def on_cpu() -> Iterator[None]:
    """Place what JAX compiles and computes in this context on the CPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield
