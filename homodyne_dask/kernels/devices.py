"""Devices of JAX: how it starts, where blocks of data are, where and in which precision all is computed.

That is float64 on the CPU, whatever JAX is set to; a block that was put on a GPU is computed there. JAX
starts all of its platforms for the first number that it computes, wherever that is computed. With CUDA it
then takes three quarters of the memory of every GPU that it sees: here it takes what it needs.

JAX's persistent cache keeps compiled kernels in a folder of the user, closed to others, for JAX runs whatever
lies there. It knows an entry by its program, options and XLA's version. Threads and processor are not in
that, so each has a folder of its own, and so has each set of versions: what is loaded has the bits of a new
compilation.
"""

import hashlib
import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Semaphore
from typing import Any

import jax
import numpy as np

from homodyne_dask.errors import PlanError
from homodyne_dask.kernels._jax_internals import failures_of_plugins, require_not_forked
from homodyne_dask.kernels.backend_interface import Block
from homodyne_dask.kernels.gpus import (
    GPU,
    KERNELS_AT_ONCE,
    NO_MEMORY_AHEAD,
    PROCESSORS_ALONE,
    Gpus,
    cuda_missing,
)
from homodyne_dask.machine.cores_and_cgroup_limits import jax_threads, processor
from homodyne_dask.machine.private_folder import make_private

FOLDER = "HOMODYNE_DASK_CACHE"
"""Environment variable: the folder, or `off`."""
MAX_BYTES = 200_000_000
"""Most bytes of all entries when a process begins: the oldest are removed, by JAX only with filelock."""
VERSIONS = (sys.version, *map(version, ("jax", "jaxlib", "numpy")))
LOG = logging.getLogger(__name__)


class _Loads(threading.local):
    count = 0


LOADS = _Loads()


def user_cache_folder() -> Path | None:
    chosen = os.environ.get(FOLDER)
    if chosen is not None:
        return None if chosen in ("", "off", "0") else Path(chosen)
    with suppress(RuntimeError):  # nobody's home is known
        around = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (around if around.is_absolute() else Path.home() / ".cache") / "homodyne-dask"
    return None


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Return time, bytes and path of each file of a folder, made if missing; OSError unless private."""
    make_private(folder)
    status = folder.lstat()
    closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not closed or status.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder that this user alone can access")
    if not os.access(folder, os.W_OK):
        raise PermissionError(0, "it cannot be written to")
    files = []
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):  # another process removed it
            files.append((path.lstat().st_mtime, path.lstat().st_size, path))
    return sorted(files)


@cache
def keep_compiled_programs() -> Path | None:
    """Let JAX keep what this process compiles; return the folder, None without one, or where JAX has one."""
    jax.monitoring.register_event_listener(_count_loads)
    folder, sort = user_cache_folder(), processor()
    if jax.config.jax_compilation_cache_dir or folder is None or sort is None:
        return None
    digest = hashlib.sha256(repr((sort, jax_threads(), VERSIONS)).encode()).hexdigest()[:16]
    try:
        files = entries(folder)
        total = sum(size for _, size, _ in files)
        for _, size, file in files:
            if total > MAX_BYTES:
                file.unlink(missing_ok=True)
                total -= size
        folder = folder.resolve() / digest
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        LOG.info("compiled programs are not kept in %s: %s", folder, e.strerror or e)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


def _count_loads(event: str, **_: Any) -> None:
    LOADS.count += event == "/jax/compilation_cache/cache_hits"


_UNDER_WAY = Semaphore(KERNELS_AT_ONCE)
"""Held while a device computes a block: its fields there take more memory than the block."""


@cache
def first_cpu() -> Any:
    """Return where all is computed that is not placed elsewhere; raises PlanError without a processor."""
    try:
        started()
        return jax.local_devices(backend="cpu")[0]
    except (RuntimeError, AssertionError) as e:  # the latter of platforms that are all missing
        raise PlanError(
            f"JAX found no processor ({_first_line(e)}): unset JAX_PLATFORMS, or let it name cpu"
        ) from e


@cache
def started() -> list[str]:
    """Start JAX, or raise RuntimeError, unless it has started; return what failed of other platforms."""
    keep_compiled_programs()
    if not jax.config.jax_platforms and PROCESSORS_ALONE.is_set():
        # in a program of ours alone: CUDA would keep memory of every GPU until it ends
        jax.config.update("jax_platforms", "cpu")
    pool = {"NPROC": str(jax_threads())}  # JAX looks at its affinity alone
    with _set_in_environment(NO_MEMORY_AHEAD | pool), failures_of_plugins() as failures:
        jax.local_devices(backend="cpu")
        return failures


@contextmanager
def _set_in_environment(variables: dict[str, str]) -> Iterator[None]:
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def jax_device(name: str) -> Any:
    """Return a device of this process by JAX's platform and its number there, as 'cuda:0'."""
    platform, _, number = name.partition(":")
    return _devices_of(platform)[int(number)]


def _devices_of(platform: str) -> list[Any]:
    failures: list[str] = []
    try:
        failures = started()
        return jax.local_devices(backend=platform)
    except RuntimeError as e:
        why = (failures[-1] if failures else _first_line(e)).partition(". ")[0]
        raise PlanError(
            f"JAX cannot use a GPU ({why}): nvidia-smi shows whether there is one, device='cpu' needs none"
        ) from e


def on_device(block: Block, device: str) -> Block:
    target = jax_device(device)
    with enough_memory(target), _as_kernels_need():
        data = block.c2, block.weight_rows, block.weight_columns
        # of a buffer that is read into again
        parts = jax.block_until_ready(jax.device_put(data, target, may_alias=False))
        return replace(block, c2=parts[0], weight_rows=parts[1], weight_columns=parts[2])


@contextmanager
def enough_memory(device: Any) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            raise
        stats = device.memory_stats() or {}
        used, limit = (stats.get(name, 0) / 1e9 for name in ("bytes_in_use", "bytes_limit"))
        raise PlanError(
            f"the memory of {device.device_kind} is used up ({_first_line(e)}): this fit uses {used:.3g} GB "
            f"of the {limit:.3g} GB that JAX may use; end other programs that use it, or fit with "
            f"memory='stream' or device='cpu'"
        ) from e


def gpus_here() -> Gpus | str:
    """Return the GPUs that this process sees, or why there are none; JAX starts CUDA for it."""
    if missing := cuda_missing():
        return missing
    try:
        devices = _devices_of(GPU.partition(":")[0])
    except PlanError as e:
        return str(e)
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in devices]
    return Gpus(len(devices), devices[0].device_kind, min(limits))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def _as_kernels_need() -> Iterator[None]:
    """Compute in float64, compiled, with transfers and broadcasting, whatever a user has set."""
    with (
        jax.enable_x64(True),
        jax.disable_jit(False),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
    ):
        yield


@contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Place what this thread computes with JAX on the CPU, in float64; else a GPU would take all of it."""
    require_not_forked()
    with _as_kernels_need(), jax.default_device(first_cpu()):
        yield


@contextmanager
def float64_beside(data: jax.Array) -> Iterator[None]:
    """Place what JAX compiles and computes in this context where data are, on one device, in float64."""
    (device,) = data.devices()
    with _UNDER_WAY, enough_memory(device), _as_kernels_need(), jax.default_device(device):
        yield


def computed(kernel: Any, *arguments: Any, **static: Any) -> list[np.ndarray]:
    with float64_on_cpu():
        return [np.asarray(value) for value in jax.tree.leaves(kernel(*arguments, **static))]
