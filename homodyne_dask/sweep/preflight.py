"""Checks before the first pass: whether every worker can do its part of a fit, with the same numbers.

All failures are reported at once, one sentence for each, instead of by jobs that fail one by one. Workers of
other code that join while a fit runs are removed before their first task.
"""

import asyncio
import hashlib
import os
import platform
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import psutil
from distributed import Client, Worker, WorkerPlugin, secede

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster.connect import failures_logged, with_timeout
from homodyne_dask.cluster.local import (
    ANSWER_TIMEOUT,
    answered,
    cluster_errors,
    job_cluster,
    known_workers,
    require_client,
)
from homodyne_dask.cluster.workers import worker_environment
from homodyne_dask.errors import ClusterError, HomodyneDaskError, why_unreadable
from homodyne_dask.kernels.gpus import FIRST_ALONE, VISIBLE, Gpus, cuda_missing, first_gpu
from homodyne_dask.machine.allocator_and_threads import worker_address
from homodyne_dask.machine.cores_and_cgroup_limits import cores, jax_threads
from homodyne_dask.machine.running_code import OUR_CODE, code_digest, version_of
from homodyne_dask.store import schema
from homodyne_dask.store.chunks import CHECKSUM_BYTES, ByteRange, most_bytes, read_bytes
from homodyne_dask.store.object_stores import is_url
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.blocks import chunks_of
from homodyne_dask.sweep.plan import Plan
from homodyne_dask.text import counted, size

PACKAGES = "homodyne-dask", "jax", "jaxlib", "numpy", "numcodecs", "dask", "distributed", "msgpack"
"""Other versions of these give other bits, or cannot communicate."""
_SET_IN_WORKERS = ("NPROC", "JAX_CPU_ENABLE_ASYNC_DISPATCH", *FIRST_ALONE)
"""What JAX reads as it starts, set in workers that were started without it."""


class Requirements(NamedTuple):
    versions: dict[str, str]
    store: str = ""
    chunk: ByteRange | None = None
    """The first chunk that a fit may read, which it must read; None where its code alone matters."""
    digest: str = ""
    """SHA-256 of its content, or the error of reading it here."""
    memory: int = 0


class WorkerInfo(NamedTuple):
    """What matters to a fit about a worker, as it reports it; memory in bytes."""

    name: str
    host: str
    threads: int
    limit: int
    """What it may use, 0 for no limit."""
    versions: dict[str, str]
    pool: int
    """Threads on which JAX computes."""
    cores: int
    available: int
    """Free on the machine."""
    used: int
    chunk: str
    """SHA-256 of a chunk of the store, or the error of reading it."""


def inspect(required: Requirements, dask_worker: Worker) -> WorkerInfo:
    compute_on_own_threads(dask_worker)
    return WorkerInfo(
        name=f"worker {dask_worker.name}",
        host=socket.gethostname(),
        threads=dask_worker.state.nthreads,
        limit=dask_worker.memory_manager.memory_limit or 0,
        versions=package_versions(),
        pool=0 if required.chunk is None else jax_threads(),
        cores=cores(),
        available=psutil.virtual_memory().available,
        used=psutil.Process().memory_info().rss,
        chunk=_digest(required.chunk),
    )


def compute_on_own_threads(worker: Worker) -> None:
    """Let JAX compute on as many threads as a worker has, unless it has started, is told, or is inproc."""
    if "jax" not in sys.modules and not worker.address.startswith("inproc://"):
        settings = worker_environment(worker.state.nthreads) | FIRST_ALONE
        for name in _SET_IN_WORKERS:
            os.environ.setdefault(name, settings[name])


def package_versions() -> dict[str, str]:
    """Return the versions of the packages, and the code, that must be the same in all processes."""
    python = ".".join(platform.python_version_tuple()[:2])
    versions = {name: version_of(name) for name in PACKAGES}
    return {"python": python} | versions | {OUR_CODE: code_digest()}


def preflight(client: Client, scan: Scan | None = None, plan: Plan | None = None) -> None:
    """Raise ClusterError, one sentence for each failure, where workers cannot do what the plan needs."""
    if sentences := list(_failures(client, scan, plan)):
        raise ClusterError("\n".join(sentences))


def _failures(client: Client, scan: Scan | None, plan: Plan | None) -> Iterator[str]:
    try:  # plugins of ours run there
        theirs = answered(client, client.run_on_scheduler, package_versions)
    except (ImportError, AttributeError) as e:
        yield f"the scheduler cannot load homodyne_dask ({e}): start it again, in this environment"
    else:
        yield from other_versions("the scheduler", theirs, "the scheduler", package_versions())
    required = requirements(scan, plan)
    answers = answered(client, client.run, inspect, required, on_error="return")
    workers = answered(client, known_workers, client)
    hosts: defaultdict[str, list[WorkerInfo]] = defaultdict(list)
    for address, answer in answers.items():
        if address not in workers:  # it has left: another comes
            continue
        if isinstance(answer, WorkerInfo):
            hosts[answer.host].append(answer)
        elif not isinstance(answer, OSError):  # it is leaving
            yield (
                f"worker {workers[address]['name']} cannot load homodyne_dask ({type(answer).__name__}: "
                f"{answer}): install it in the worker's environment"
            )
    for on_host in hosts.values():
        for worker in on_host:
            yield from unmet(worker, on_host, required)
    jobs = job_cluster(client)
    if plan is not None and jobs is not None and plan.longest_task > jobs.task:
        # the lifetimes of jobs were chosen for shorter ones
        yield (
            f"a task of this plan may take {plan.longest_task:.2g} s, but the workers allow tasks of "
            f"{jobs.task:.2g} s: start the cluster with task={plan.longest_task:.2g} or without task"
        )


def requirements(scan: Scan | None = None, plan: Plan | None = None) -> Requirements:
    """Return what every worker of a plan must fulfil; without one the same versions and code."""
    if scan is None or plan is None:
        return Requirements(package_versions())
    chunks = chunks_of(scan, plan.layout)
    chunk = scan.place_of(next(chunk for chunk in chunks if chunk not in scan.excluded))
    of_store = str(scan.path), chunk, _digest(chunk)
    return Requirements(package_versions(), *of_store, plan.memory_per_worker)


def other_versions(
    who: str, theirs: dict[str, str], processes: str, ours: dict[str, str]
) -> Iterator[str]:
    for package, our_version in ours.items():
        if (version := theirs.get(package, "unknown")) != our_version:
            yield (
                f"{who} has {package} {version}, but this program has {our_version}: start {processes}, or "
                f"this program, again from the same environment"
            )


def unmet(
    worker: WorkerInfo, on_host: Sequence[WorkerInfo], required: Requirements
) -> Iterator[str]:
    """Yield a sentence for each requirement that a worker does not meet; on_host: all workers of its host."""
    name, host, needed = worker.name, worker.host, required.memory
    yield from other_versions(name, worker.versions, "the workers", required.versions)
    if worker.chunk != required.digest:
        reason = "it reads other data" if len(worker.chunk) == 64 else worker.chunk
        remedy = "put it on a file system that all nodes share, and check its permissions"
        if is_url(required.store):
            remedy = "set its credentials in the environment of the workers"
        yield f"{name} on {host} cannot read the store {required.store} ({reason}): {remedy}"
    if worker.pool > worker.threads and sum(other.pool for other in on_host) > worker.cores:
        yield (
            f"{name} has {counted(worker.threads, 'thread')} but computes on {worker.pool}, more than the "
            f"cores of {host} allow: start it with NPROC={worker.threads} in its environment"
        )
    memory = worker.available + sum(other.used for other in on_host)
    if worker.limit and worker.limit < needed:
        yield (
            f"{name} may use {size(worker.limit)}, but the plan needs {size(needed)}: give jobs more "
            f"memory or fewer processes"
        )
    elif memory < len(on_host) * needed:
        yield (
            f"{name} needs {size(needed)}, but {host} with {counted(len(on_host), 'worker')} has "
            f"{size(memory)} for them: start fewer workers there"
        )


def _digest(chunk: ByteRange | None) -> str:
    if chunk is None:
        return ""
    try:
        body, tail = read_bytes(chunk, most_bytes(schema.MAX_SIDE), CHECKSUM_BYTES)
    except (OSError, ValueError, HomodyneDaskError) as e:
        return why_unreadable(e)
    return hashlib.sha256(body + tail).hexdigest()


def gpus_of_each(workers: Mapping[str, tuple[Gpus | str, tuple[str, str]]]) -> Gpus | str:
    """Return the GPUs of workers, one of each, or why not all have one of their own; as `gpu_of_worker`."""
    gpus = []
    for worker, (gpu, _) in workers.items():
        if isinstance(gpu, str):
            return f"worker {worker} has no GPU: {gpu}"
        gpus.append(gpu)
    if not gpus:
        return "no workers are left"
    for (host, _), number in Counter(where for _, where in workers.values()).items():
        if number > 1:
            return f"{number} workers on {host} would compute on one GPU: start each with its own {VISIBLE}"
    return Gpus(len(gpus), gpus[0].kind, min(gpu.memory for gpu in gpus))


def gpu_of_worker(dask_worker: Worker) -> tuple[Gpus | str, tuple[str, str]]:
    compute_on_own_threads(dask_worker)
    if missing := cuda_missing():
        return missing, (socket.gethostname(), "")
    from homodyne_dask.kernels.devices import gpus_here  # lazy: it loads JAX

    gpu = gpus_here()
    return gpu, (socket.gethostname(), "" if isinstance(gpu, str) else first_gpu())


def gpus_of_workers(client: Client) -> Gpus | str:
    return gpus_of_each(answered(client, client.run, gpu_of_worker))


class WorkerCheck(WorkerPlugin):
    """Refuses a worker that joins with other versions or code, which would give other bits."""

    def __init__(self, name: str) -> None:
        self.name, self.versions = name, package_versions()

    async def setup(self, worker: Worker) -> None:
        compute_on_own_threads(worker)
        theirs = await asyncio.to_thread(package_versions)
        who = f"worker {worker.name}"
        if failures := [*other_versions(who, theirs, "the workers", self.versions)]:
            await internals.refuse_worker(worker, self.name, "\n".join(failures))


@contextmanager
def checked_workers(
    client: Client, scan: Scan | None = None, plan: Plan | None = None
) -> Iterator[list[str]]:
    """Check the workers, and those that join inside the `with`; yields messages about refused ones."""
    require_client(client)
    if worker_address():  # a task itself, which waits for others that the worker may compute
        with suppress(KeyError):  # its thread was given up before
            secede()
    refused: list[str] = []
    name = f"homodyne_dask-check-{os.urandom(3).hex()}"
    try:
        with internals.lost_connections_not_logged():
            with cluster_errors(client):
                client.subscribe_topic(name, lambda event: refused.append(event[1]))
            preflight(client, scan, plan)
            # kept for workers that join, even if one that leaves does not answer
            with failures_logged("not all workers have taken the check of those that join"):
                with_timeout(ANSWER_TIMEOUT, client.register_plugin, WorkerCheck(name), name)
            yield refused
    except ClusterError as e:
        if not refused:
            raise
        raise ClusterError("\n".join([str(e), *refused])) from e
    finally:
        if client.status == "running":
            failed = f"the check of workers {name} was not removed"
            with failures_logged(failed), suppress(ValueError):
                with_timeout(ANSWER_TIMEOUT, client.unregister_worker_plugin, name)
