"""The GPUs of this machine, looked for without JAX in this process.

JAX that has started CUDA keeps memory of a GPU until its process ends: they are looked for by one that
ends at once.
"""

import json
import os
import pkgutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from threading import Event
from typing import NamedTuple

from homodyne_dask.errors import OptionError
from homodyne_dask.store.processes import python_command

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
"""The variable that says which GPUs a process sees; without it all."""
START_TIMEOUT = 120.0
"""Seconds after which a process that looks for GPUs is killed."""


class Gpus(NamedTuple):
    """GPUs of one kind, each for one worker."""

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
    code = (
        "import json; from homodyne_dask.kernels.devices import gpus_here; "
        "print('GPUS', json.dumps(gpus_here()))"
    )
    try:
        done = subprocess.run(
            python_command("-c", code),
            env=os.environ | GPU_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"JAX did not start CUDA within {START_TIMEOUT:g} s"
    _, found, answer = done.stdout.rpartition("GPUS ")
    if not found:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return f"the process that looked for a GPU ended with status {done.returncode}: {last}"
    parsed = json.loads(answer)
    return parsed if isinstance(parsed, str) else Gpus(*parsed)


def environments_of_gpus(number: int) -> list[dict[str, str]]:
    """Return for each of so many workers the variables with which it computes on a GPU of its own.

    Raises OptionError for more than a user lets programs see.
    """
    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if visible and number > len(visible):
        raise OptionError(
            f"gpus = {number}, but {VISIBLE}={os.environ[VISIBLE]} lists only {len(visible)}: "
            f"request fewer, or list more"
        )
    names = visible[:number] or [str(n) for n in range(number)]
    return [GPU_ENVIRONMENT | {VISIBLE: name} for name in names]


def has_plugin() -> bool:
    """Return whether JAX has CUDA's libraries, which it loads also where it computes on processors alone."""
    package = find_spec("jax_plugins")
    folders = None if package is None else package.submodule_search_locations
    return any("cuda" in plugin.name for plugin in pkgutil.iter_modules(folders or []))


def cuda_missing() -> str:
    """Return why JAX cannot have CUDA, '' where it may."""
    if not has_plugin():
        version = metadata.version("jax")
        return f"this JAX has no CUDA support: pip install 'jax[cuda13]=={version}' (or cuda12) adds it"
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        return f"JAX_PLATFORMS={wanted} excludes GPUs: unset it, or start local_cluster(gpus=...)"
    return ""
