"""The GPUs of this machine, as the driver tells them: JAX is not started for it.

JAX that has started CUDA keeps memory of a GPU until its process ends; the driver takes none.
"""

import ctypes
import os
import pkgutil
from importlib import metadata
from importlib.util import find_spec
from threading import Event
from typing import NamedTuple

from homodyne_dask.errors import OptionError

GPU = "cuda:0"
"""The GPU of a process: JAX's platform and the number of the device there. A worker sees only its own."""
NO_MEMORY_AHEAD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""What JAX reads as it starts: it takes memory of a GPU as it needs it."""
GPU_ENVIRONMENT = {"JAX_PLATFORMS": "cuda,cpu"} | NO_MEMORY_AHEAD
"""Variables that JAX reads as it starts, of a process that computes on a GPU."""
FIRST_ALONE = {"JAX_CUDA_VISIBLE_DEVICES": "0"}
"""The same, of a process that sees GPUs of others behind its own, as workers of dask-cuda do."""
PROCESSORS_ALONE = Event()
"""Set in a program of ours, where nobody else computes with JAX: it starts without CUDA."""
KERNELS_AT_ONCE = 2
"""Kernels that a worker has under way on its GPU: while one computes, the arguments of the next are sent."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY_SHARE = 0.75
MEMORY_SHARES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


class Gpus(NamedTuple):
    number: int
    kind: str
    memory: int
    """Bytes that JAX may take of each."""

    def __str__(self) -> str:
        return f"{self.number} {self.kind}"


def gpus_of_machine() -> Gpus | str:
    """Return the GPUs that processes started from this one would see, or why there are none."""
    if missing := cuda_missing():
        return missing
    try:
        return _gpus_of_driver()
    except (OSError, ValueError) as e:
        return f"no GPU can be used ({e}): nvidia-smi shows whether there is one"


def _gpus_of_driver() -> Gpus:
    _ask("cuInit", 0)
    cuda_of_jax = min(int(name.partition("cuda")[2]) for name in cuda_plugins())
    if (cuda_of_driver := _told("cuDriverGetVersion") // 1000) < cuda_of_jax:
        raise OSError(f"this JAX is for CUDA {cuda_of_jax}, the driver for CUDA {cuda_of_driver}")
    devices = [_told("cuDeviceGet", n) for n in range(_told("cuDeviceGetCount"))]
    least = min(_told("cuDeviceTotalMem_v2", device) for device in devices)
    kind = ctypes.create_string_buffer(100)
    _ask("cuDeviceGetName", kind, len(kind), devices[0])
    shares = [value for name in MEMORY_SHARES if (value := os.environ.get(name))]
    return Gpus(len(devices), kind.value.decode(), int(float([*shares, MEMORY_SHARE][0]) * least))


def first_gpu() -> str:
    """Return CUDA's identity of the first GPU here: by number, each task of a SLURM job has a GPU 0."""
    uuid = (ctypes.c_ubyte * 16)()
    _ask("cuDeviceGetUuid_v2", uuid, _told("cuDeviceGet", 0))
    return bytes(uuid).hex()


def _told(function: str, *arguments: int) -> int:
    value = ctypes.c_size_t()  # holds an int, too
    _ask(function, ctypes.byref(value), *arguments)
    return value.value


def _ask(function: str, *arguments: object) -> None:
    driver, why = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p()
    if status := getattr(driver, function)(*arguments):
        driver.cuGetErrorString(status, ctypes.byref(why))
        raise OSError(f"{function}: {(why.value or b'unknown error').decode()}")


def environments_of_gpus(number: int) -> list[dict[str, str]]:
    """Return for each of so many workers the variables with which it computes on a GPU of its own."""
    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if visible and number > len(visible):
        raise OptionError(
            f"gpus = {number}, but {VISIBLE}={os.environ[VISIBLE]} lists only {len(visible)}: "
            f"request fewer, or list more"
        )
    names = visible[:number] or [str(n) for n in range(number)]
    return [GPU_ENVIRONMENT | {VISIBLE: name} for name in names]


def cuda_plugins() -> list[str]:
    """Return the plugins by which JAX has CUDA, whose libraries it loads also where processors compute."""
    package = find_spec("jax_plugins")
    folders = None if package is None else package.submodule_search_locations
    names = (plugin.name for plugin in pkgutil.iter_modules(folders or []))
    return [name for name in names if "cuda" in name]


def cuda_missing() -> str:
    if not cuda_plugins():
        version = metadata.version("jax")
        return f"this JAX has no CUDA support: pip install 'jax[cuda13]=={version}' (or cuda12) adds it"
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if chosen and not {"cuda", "gpu"} & set(chosen.split(",")):
        return f"JAX_PLATFORMS={chosen} excludes GPUs: unset it, or start local_cluster(gpus=...)"
    return ""
