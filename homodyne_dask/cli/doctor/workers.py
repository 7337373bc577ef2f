"""Does a cluster start on this machine, and how soon does it work."""

import time

from homodyne_dask.cli.doctor.line import Line
from homodyne_dask.cluster.local import FIRST_WORKER, local_cluster

SLOW = 20.0
"""Seconds to the first task that are too many."""


def line() -> Line:
    """Return the time from nothing to the result of the first task."""
    began = time.perf_counter()
    try:
        with local_cluster(dashboard=None) as client:
            threads = client.submit(_first).result(timeout=FIRST_WORKER)
            seconds = time.perf_counter() - began
    except (OSError, RuntimeError) as e:
        value = f"does not start: {type(e).__name__}: {' '.join(str(e).split())}"
        advice = "may this user start processes and listen on 127.0.0.1? (--debug shows the logs)"
        return Line("local cluster", value, advice)
    slow = "a slow disk for Python's files, or a busy machine: copy the environment to a local disk"
    value = f"first task after {seconds:.1f} s, {threads} threads for JAX"
    return Line("local cluster", value, "" if seconds < SLOW else slow)


def _first() -> int:
    import jax

    from homodyne_dask.cli.doctor.child import pool

    with jax.enable_x64(True):
        jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    return pool()
