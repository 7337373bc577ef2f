"""A second of the kernel, and of decoding chunks: is this machine as fast as it should be."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from homodyne_dask.cli.doctor.child import Child, ChildError, brief
from homodyne_dask.cli.doctor.line import Line
from homodyne_dask.store.chunk_codec import encode_chunk
from homodyne_dask.store.chunk_reader import chunk_path, read_chunk
from homodyne_dask.sweep.plan import SLOWEST

SIDE = 512
KERNEL = SLOWEST / 1e6
"""M pairs/s: a core with AVX2 of the last ten years does more."""
DECODE = 0.2
"""GB/s."""
TOLERANCE = 1e-9
SECONDS = 1.0
_MEND = "unset XLA_FLAGS and JAX_* variables, or install jax and jaxlib anew"


def lines() -> Iterator[Line]:
    """Yield whether the kernel is right and how fast, and how fast chunks are decoded."""
    yield from kernel()
    yield decoding()


def kernel() -> Iterator[Line]:
    """Yield whether float64 holds, and the rate of one thread, in a process with NPROC=1."""
    with Child(os.environ | {"NPROC": "1"}) as child:
        try:
            told = child.answer()
            rate = kernel_rate(child, told["pairs"])
        except ChildError as e:
            yield Line("kernel", f"does not run: {brief(str(e))}", _MEND)
            return
    apart = told["wrong"]
    value = f"the kernel is {apart:.0e} from plain NumPy"
    yield Line("float64", value, "" if apart < TOLERANCE else f"results would be wrong: {_MEND}")
    value = f"{rate:.0f} M pairs/s on one thread, {told['first']:.1f} s to compile"
    slow = "other programs use this core, or the environment slows the kernel (--flags)"
    yield Line("kernel", value, "" if rate >= KERNEL else slow)


def kernel_rate(child: Child, pairs: int) -> float:
    """Return the rate of the faster half of a second, on one thread [M pairs/s]."""
    seconds, began = [], time.perf_counter()
    while not seconds or time.perf_counter() - began < SECONDS:
        seconds.append(child.seconds(threads=1, passes=1))
    return pairs / float(np.median(sorted(seconds)[: len(seconds) // 2 + 1])) / 1e6


def decoding() -> Line:
    """Return the line on how fast chunks come out of a store."""
    try:
        rate = decoding_rate()
    except OSError as e:
        return Line("decoding", f"not measured ({e.strerror or e})", "set TMPDIR to another folder")
    slow = "other programs use this core, or numcodecs was built without vector instructions"
    return Line("decoding", f"{rate:.1f} GB/s on one thread", "" if rate >= DECODE else slow)


def decoding_rate() -> float:
    """Return the rate at which chunks come out of a store in the temporary folder [GB/s]."""
    into = np.empty((SIDE, SIDE), np.float32)
    with tempfile.TemporaryDirectory(prefix="homodyne_dask_doctor_") as folder:
        _write(Path(folder))
        chunks, began = 0, time.perf_counter()
        while chunks < 3 or time.perf_counter() - began < 0.3 * SECONDS:
            read_chunk(folder, 1, 0, 0, (0, 0), into)
            chunks += 1
        return chunks * into.nbytes / (time.perf_counter() - began) / 1e9


def _write(store: Path) -> None:
    """Write one chunk of c2."""
    c2 = 1.1 + 0.3 * np.random.default_rng(0).random((SIDE, SIDE)).astype(np.float32)
    path = chunk_path(str(store), 1, 0, (0, 0))
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_chunk(c2))
