"""The kernel with theta as a traced argument compared with theta, q and gap compiled in.

`python -m tests.benchmarks.static_arguments` prints the rows as JSON.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import jax
import numpy as np

from homodyne_dask.apps.doctor.workload import GAP, THETA, Q, Workload
from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.kernels.compiled import Kernel, known_options
from homodyne_dask.kernels.transport_backend import gram_arguments, gram_static_arguments
from homodyne_dask.kernels.transport_evaluation import transport_point
from homodyne_dask.kernels.transport_kernels import gram_kernel

THETAS = 5
CALLS = 7


def rows(work: Workload) -> list[dict[str, object]]:
    """Return compilations and times per call over some thetas, for both ways."""
    block, problem = work.blocks[1], work.problem
    nothing = np.zeros(len(block.q))
    plain = gram_kernel.function
    kernel = Kernel(plain, gram_kernel.static)  # it has compiled nothing
    # compiler options belong to the outermost function
    inner = jax.jit(plain, static_argnames=tuple(gram_static_arguments(problem)))

    def traced(theta: tuple[float, ...]) -> jax.Array:
        given = gram_arguments(
            transport_point(problem, np.array(theta), work.time), block, work.sums[1]
        )
        return kernel(*given, **gram_static_arguments(problem))[0]

    @partial(jax.jit, static_argnames=("theta", "q", "gap"), compiler_options=known_options())
    def compiled_in(c2, sums, *, theta: tuple[float, ...], q: float, gap: float) -> jax.Array:
        fixed = replace(block, q=nothing + q)
        at = transport_point(replace(problem, gap=gap), np.array(theta), work.time)
        measured, *given = gram_arguments(at, fixed, sums)
        return inner(measured._replace(c2=c2), *given, **gram_static_arguments(problem))[0]

    def static(theta: tuple[float, ...]) -> jax.Array:
        return compiled_in(block.c2, work.sums[1], theta=theta, q=Q, gap=GAP)

    thetas = [tuple((THETA * (1 + 0.01 * n)).tolist()) for n in range(THETAS)]
    ways = {
        "traced arguments, as a fit calls it": (traced, kernel.compilations),
        "static Python constants": (static, compiled_in._cache_size),
    }
    with jax.enable_x64(True), patch.dict(os.environ, {FOLDER: "off"}):
        _ = work.sums
        jax.clear_caches()
        found = [_first(name, call, count, thetas) for name, (call, count) in ways.items()]
        again: list[list[float]] = [[] for _ in found]
        for theta in thetas * CALLS:
            for seconds, (call, _) in zip(again, ways.values(), strict=True):
                seconds.append(_seconds(call, theta))
        same = [np.array_equal(traced(theta), static(theta)) for theta in thetas]
        apart = max(_apart(traced(theta), static(theta)) for theta in thetas)
    for row, seconds in zip(found, again, strict=True):
        row["again s"] = statistics.median(seconds)
        row["bits"] = "same" if all(same) or row is found[0] else f"{apart:.0e}"
    return found


def _first(
    name: str,
    call: Callable[[tuple[float, ...]], jax.Array],
    count: Callable[[], int | None],
    thetas: list[tuple[float, ...]],
) -> dict[str, object]:
    before = count()
    first = [_seconds(call, theta) for theta in thetas]
    after = count()
    return {
        "setting": name,
        "thetas": len(thetas),
        "compilations": None if before is None or after is None else after - before,
        "first s": statistics.fmean(first),
    }


def _seconds(call: Callable[[tuple[float, ...]], jax.Array], theta: tuple[float, ...]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call(theta))
    return time.perf_counter() - began


def _apart(ours: jax.Array, theirs: jax.Array) -> float:
    a, b = np.asarray(ours), np.asarray(theirs)
    size = np.sqrt(np.einsum("bii->bi", a))
    return float((np.abs(a - b) / (size[:, :, None] * size[:, None, :])).max())


if __name__ == "__main__":
    print(json.dumps(rows(Workload())))
