"""The GPUs of a client's workers, one of each, or why not all have one of their own."""

import ctypes
import socket
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from distributed import Client, Worker

from homodyne_dask.kernels.gpus import VISIBLE, Gpus, cuda_missing
from homodyne_dask.sweep.preflight import answered, compute_on_own_threads


class GpuOfWorker(NamedTuple):
    """What a worker says of the GPU that it computes on."""

    gpu: Gpus | str
    """Or why there is none."""
    where: tuple[str, str]
    """Host, and CUDA's identity of the GPU: two workers with the same would compute on one GPU."""


def gpus_of_each(workers: Mapping[str, GpuOfWorker]) -> Gpus | str:
    """Return the GPUs of workers, one of each, or why not all have one of their own."""
    if not workers:
        return "the last worker is gone"
    for worker, (gpu, _) in workers.items():
        if isinstance(gpu, str):
            return f"of the worker {worker}, {gpu}"
    for (host, _), number in Counter(of.where for of in workers.values()).items():
        if number > 1:
            return f"{number} workers on {host} would compute on one GPU: start each with its own {VISIBLE}"
    gpus = [of.gpu for of in workers.values() if isinstance(of.gpu, Gpus)]
    return Gpus(len(gpus), gpus[0].kind, min(gpu.memory for gpu in gpus))


def gpu_of_worker(dask_worker: Worker) -> GpuOfWorker:
    """Return the GPU that a worker, which this process is, computes on; without CUDA JAX is not loaded."""
    compute_on_own_threads(dask_worker)
    found = cuda_missing() or _gpu()
    identity = "" if isinstance(found, str) else first_gpu()
    return GpuOfWorker(found, (socket.gethostname(), identity))


def _gpu() -> Gpus | str:
    from homodyne_dask.kernels.devices import gpus_here

    found = gpus_here()
    return found if isinstance(found, str) else found._replace(number=1)


def first_gpu() -> str:
    """Return CUDA's identity of the GPU that is the first in this process, where JAX has started CUDA.

    Its number would not do: to each task of a job SLURM shows a GPU of its own as number 0.
    """
    cuda, device, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    return bytes(uuid).hex()


def gpus_of_workers(client: Client) -> Gpus | str:
    """Return the GPUs of a client's workers; raises ClusterError where they do not answer in time."""
    return gpus_of_each(answered(client, client.run, gpu_of_worker))
