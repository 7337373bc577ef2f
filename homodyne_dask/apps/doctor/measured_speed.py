"""Measured on this machine: the kernel, the decoding of chunks, and the start of a local cluster."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import homodyne_dask as hd
from homodyne_dask.apps.doctor import Finding
from homodyne_dask.apps.doctor.kernel_process import (
    KernelProcess,
    KernelProcessError,
    first_sentence,
    jax_pool_threads,
)
from homodyne_dask.cluster.workers import SLOWEST_PAIRS_PER_SECOND
from homodyne_dask.errors import PlanError
from homodyne_dask.store.chunk_codec import encode_chunk
from homodyne_dask.store.chunk_reader import ByteRange, read_chunk

SIDE = 512
SLOW_KERNEL = SLOWEST_PAIRS_PER_SECOND / 1e6
"""M pairs/s: a core with AVX2 of the last ten years does more."""
SLOW_DECODING = 0.2
"""GB/s."""
SLOW_START = 20.0
"""Seconds from starting a local cluster to the result of its first task."""
START_TIMEOUT = 60.0
"""Seconds after which a local cluster does not start."""
MAX_KERNEL_DIFFERENCE = 1e-9
"""Largest relative difference between the kernel and plain NumPy."""
MEASUREMENT_SECONDS = 1.0
"""For which the kernel is measured."""
_REPAIR = "unset XLA_FLAGS and JAX_* variables, or reinstall jax and jaxlib"


def kernel_findings() -> Iterator[Finding]:
    """Yield whether float64 is in use, the rate of one thread, and compiler options that XLA refuses."""
    with KernelProcess(os.environ | {"NPROC": "1"}) as process:
        try:
            first = process.answer()
            rate = kernel_rate(process, first["pairs"])
        except KernelProcessError as e:
            yield Finding("kernel", f"does not run: {first_sentence(str(e))}", _REPAIR)
            return
    error, wrong = first["error"], f"results would be wrong: {_REPAIR}"
    value = f"the kernel differs from plain NumPy by {error:.0e}"
    yield Finding("float64", value, "" if error < MAX_KERNEL_DIFFERENCE else wrong)
    value = f"{rate:.0f} M pairs/s on one thread, ready after {first['first']:.1f} s"
    slow = "other programs are using this core, or XLA_FLAGS or JAX_* variables slow the kernel"
    yield Finding("kernel", value, "" if rate >= SLOW_KERNEL else slow)
    for option, reason in first["unknown_options"].items():
        advice = "the kernel is compiled without it and may be slower: install another jaxlib"
        yield Finding("compiler option", f"{option} is refused by XLA: {reason}", advice)


def kernel_rate(process: KernelProcess, pairs: int) -> float:
    """Return the rate of one thread, from the faster half of the passes of a second [M pairs/s]."""
    seconds, start = [], time.perf_counter()
    while not seconds or time.perf_counter() - start < MEASUREMENT_SECONDS:
        seconds.append(process.seconds(threads=1, passes=1))
    return pairs / float(np.median(sorted(seconds)[: len(seconds) // 2 + 1])) / 1e6


def decoding() -> Finding:
    """Return how fast chunks of a store are read and decoded."""
    try:
        rate = decoding_rate()
    except OSError as e:
        why = f"not measured ({e.strerror or e})"
        return Finding("decoding", why, "set TMPDIR to another folder")
    slow = "other programs are using this core, or numcodecs was built without vector instructions"
    value = f"{rate:.1f} GB/s on one thread"
    return Finding("decoding", value, "" if rate >= SLOW_DECODING else slow)


def decoding_rate() -> float:
    """Return the rate at which chunks of a store in the temporary folder are read [GB/s]."""
    into = np.empty((SIDE, SIDE), np.float32)
    with tempfile.TemporaryDirectory(prefix="homodyne_dask_doctor_") as folder:
        file = Path(folder, "chunk")
        c2 = 1.1 + 0.3 * np.random.default_rng(0).random((SIDE, SIDE)).astype(np.float32)
        chunk = encode_chunk(c2)
        file.write_bytes(chunk.content)
        chunks, start = 0, time.perf_counter()
        while chunks < 3 or time.perf_counter() - start < 0.3 * MEASUREMENT_SECONDS:
            read_chunk(ByteRange(file), str(file), chunk.checksum, into)
            chunks += 1
        return chunks * into.nbytes / (time.perf_counter() - start) / 1e9


def local_cluster_start() -> Finding:
    """Return the time from starting a local cluster to the result of its first task."""
    start = time.perf_counter()
    try:
        with hd.local_cluster(dashboard=None) as client:
            threads = client.submit(_compute_something).result(timeout=START_TIMEOUT)
            seconds = time.perf_counter() - start
    except PlanError as e:
        return Finding("local cluster", "does not start", str(e))
    except (OSError, RuntimeError) as e:
        value = f"does not start: {type(e).__name__}: {' '.join(str(e).split())}"
        advice = "check that this user may start processes and listen on 127.0.0.1 (--debug shows the logs)"
        return Finding("local cluster", value, advice)
    slow = (
        "the disk with the Python environment is slow, or the machine is busy: copy the "
        "environment to a local disk"
    )
    value = f"first task after {seconds:.1f} s, {threads} threads for JAX"
    return Finding("local cluster", value, "" if seconds < SLOW_START else slow)


def _compute_something() -> int:
    import jax

    from homodyne_dask.kernels.devices import float64_on_cpu

    with float64_on_cpu():
        jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    return jax_pool_threads()
