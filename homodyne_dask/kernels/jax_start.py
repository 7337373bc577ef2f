"""The start of JAX in this process: with processors, and without what it takes of GPUs by default.

JAX starts all of its platforms for the first number that it computes, wherever that is computed. With CUDA
it then takes three quarters of the memory of every GPU that it sees.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax

from homodyne_dask.errors import PlanError
from homodyne_dask.kernels._jax_internals import failures_of_plugins
from homodyne_dask.kernels.gpus import NO_MEMORY_AHEAD, PROCESSORS_ALONE


@cache
def first_cpu() -> Any:
    """Return the device on which all is computed that is not placed elsewhere.

    Raises PlanError where JAX does not start, or was started before without processors.
    """
    try:
        return started().cpu
    except RuntimeError as e:
        why = str(e).partition("\n")[0]
        raise PlanError(
            f"JAX has no processors here ({why}): unset JAX_PLATFORMS, or let it name cpu alone"
        ) from e


class Started(NamedTuple):
    """JAX, started."""

    cpu: Any
    """Its first CPU."""
    failures: list[str]
    """Why it has none of its other platforms."""


@cache
def started() -> Started:
    """Start JAX, unless it has started; raises RuntimeError where it cannot.

    What goes wrong with its other platforms is not logged: only fits on a GPU need to know.
    """
    platforms = jax.config.jax_platforms
    if not platforms and PROCESSORS_ALONE.is_set():
        jax.config.update("jax_platforms", "cpu")
    elif platforms and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")
    with _set_in_environment(NO_MEMORY_AHEAD), failures_of_plugins() as failures:
        return Started(jax.local_devices(backend="cpu")[0], failures)


@contextmanager
def _set_in_environment(variables: dict[str, str]) -> Iterator[None]:
    """Set those variables of this process that are not set, for the length of a `with`."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
