"""The kernels compiled for an H100, by JAX with CUDA and without a GPU: memory, and bytes that pass it.

`python -m tests.benchmarks "gpu compiled"`.
"""

import os
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.compiled import Kernel
from homodyne_dask.kernels.gpus import cuda_missing
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.sweep.plan import WORKING_BYTES, WORKING_BYTES_OF_PARAMETER, WORKSPACE
from tests.benchmarks.kernel import GAP, MIN_LAG, PHI, THETA, TIME, Q, T
from tests.benchmarks.passes import Row

H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3" device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000 device_memory_size: 84942979072 l2_cache_size: 52428800
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  driver_version: "13.0.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
  dnn_version: "9.10.0"
}
"""
"""What XLA asks of the processor that it compiles for."""
BYTES = {"f64": 8, "f32": 4, "s64": 8, "s32": 4, "pred": 1}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (.*?) ([\w\-]+)\((.*?)\)(?:,|$)")


class NotComputedError(Exception):
    """Raised in place of computing."""


def row() -> Row:
    """Memory of each kernel beside what a plan reserves, and bytes that pass the memory of the GPU."""
    if missing := cuda_missing():
        print(f"gpu compiled: {missing}")
        return {}
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # of a driver
    jax.config.update("jax_platforms", "cpu")
    of_user = hd.separable(relaxations, [hd.Parameter(f"rate{n}", "1/s") for n in range(9)])
    flow = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG)
    found: Row = {}
    for name, problem, theta in (
        ("laminar_flow", flow, THETA),
        ("laminar_flow, mixed", replace(flow, precision="mixed"), THETA),
        ("laminar_flow, cauchy", replace(flow, loss="cauchy"), THETA),
        ("static", replace(flow, model=STATIC), THETA[:3]),
        ("nine rates of a user", replace(flow, model=of_user), np.ones(9)),
    ):
        executable, pairs = compiled(problem, theta)
        took = executable.memory_analysis().temp_size_in_bytes
        reserved = pairs * (WORKING_BYTES + WORKING_BYTES_OF_PARAMETER * len(theta)) + WORKSPACE
        found |= {
            f"{name}: bytes a pair": took / pairs,
            f"{name}: of the plan's": took / reserved,
            f"{name}: bytes a pair that pass": traffic(executable.as_text()) / pairs,
        }
    return found


def relaxations(theta: Any, t1: Any, t2: Any, bin: Any) -> Any:
    return sum(jnp.exp(-theta[n] * (n + 1) * (t2 - t1) * bin.q) for n in range(len(theta)))


def compiled(problem: Problem, theta: np.ndarray) -> tuple[Any, int]:
    """Return the kernel of a pass, compiled for an H100, and the pairs of its block."""
    backend, bins = backend_of(problem.model), len(PHI)
    c2 = jax.device_put(np.ones((bins, T, T), np.float32), jax.local_devices(backend="cpu")[0])
    weights = np.ones((bins, T))
    block = Block(c2, weights, weights, np.full(bins, Q), PHI, 0, T)
    point = backend.point(problem, theta, TIME)
    called: list[tuple[Kernel, Any, Any]] = []

    def note(kernel: Kernel, *arguments: Any, **static: Any) -> None:
        called.append((kernel, arguments, static))
        raise NotComputedError

    with patch.object(Kernel, "__call__", note), suppress(NotComputedError):
        if problem.loss == "linear":
            backend.gram(point, block, None)
        else:
            backend.robust_gram(point, block, np.zeros((bins, 2)))
    [(kernel, arguments, static)] = called
    there = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    where = jax.sharding.SingleDeviceSharding(there.devices[0])
    with jax.enable_x64(True):
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x), sharding=where),
            arguments,
        )
        lowered = kernel.lowered_for_accelerator(shapes, static, ("cuda",))
        return lowered.compile(), bins * T * T


def traffic(text: str) -> int:
    """Return the bytes of the operands and the results of all instructions of a compiled program."""
    sizes: dict[str, int] = {}
    total = 0
    for line in text[text.index("ENTRY") :].splitlines():
        if found := _INSTRUCTION.match(line):
            name, result, kind, operands = found.groups()
            sizes[name] = size_of(result)
            if kind in ("fusion", "custom-call", "copy", "reduce"):
                read = re.findall(r"%([\w.\-]+)", operands)
                total += sizes[name] + sum(sizes.get(one, 0) for one in read)
    return total


def size_of(types: str) -> int:
    """Return the bytes of the arrays that XLA names so, without workspaces."""
    arrays = re.findall(r"(f64|f32|s64|s32|pred)\[([\d,]*)\]", types)
    return sum(
        BYTES[of] * int(np.prod([int(n) for n in shape.split(",") if n])) for of, shape in arrays
    )
