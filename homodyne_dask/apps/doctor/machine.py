"""Versions, processors, memory and folders of this machine, and the rate of the kernel on it."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import dask.config
import numpy as np
import psutil
from packaging.requirements import Requirement

import homodyne_dask as hd
from homodyne_dask.apps.doctor import Finding
from homodyne_dask.cluster.memory import available_memory
from homodyne_dask.cluster.workers import SLOWEST_PAIRS_PER_SECOND
from homodyne_dask.kernels.cache_folder import FOLDER, entries, user_cache_folder
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from homodyne_dask.store.processes import code_digest, cores, jax_threads
from homodyne_dask.sweep.blocks import aligned_array
from homodyne_dask.text import counted, size

PACKAGES = ("jax", "jaxlib", "dask", "distributed", "zarr", "numcodecs", "numpy")
MIN_MEMORY = 2e9
"""Bytes that a worker process needs for blocks, kernel and libraries."""
MIN_FREE_SPACE = 1e9
"""Free bytes that results and spilled data need."""
BINS, SIDE = 8, 512
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
MEASUREMENT_SECONDS = 1.0
"""For which the kernel is measured."""


def machine_findings() -> Iterator[Finding]:
    """Yield what is found of versions, cores, memory, GPUs and folders."""
    yield from library_versions()
    yield processors()
    free, total = available_memory(), psutil.virtual_memory().total
    advice = f"workers need {MIN_MEMORY / 1e9:g} GB: end other programs, or request more memory"
    amount = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
    yield Finding("memory", amount, advice if free < MIN_MEMORY else "")
    yield Finding("GPUs", str(gpus_of_machine()))
    yield writable_folder("working folder", Path.cwd())
    yield writable_folder("temporary folder", Path(tempfile.gettempdir()))
    if configured := dask.config.get("temporary-directory", None):
        yield writable_folder("folder of workers", Path(configured))
    yield compiled_kernels()


def library_versions() -> Iterator[Finding]:
    """Yield the versions of the libraries, each compared with what homodyne_dask requires."""
    requirements = [Requirement(text) for text in metadata.requires("homodyne-dask") or []]
    specifiers = {requirement.name: requirement.specifier for requirement in requirements}
    yield Finding("python", platform.python_version())
    ours = f"{metadata.version('homodyne-dask')}, digest of the code {code_digest()}"
    yield Finding("homodyne-dask", ours)
    for name in PACKAGES:
        version, specifier = metadata.version(name), specifiers[name]
        fits = specifier.contains(version, prereleases=True)
        yield Finding(name, version, "" if fits else f"pip install '{name}{specifier}'")


def processors() -> Finding:
    """Return how many of the machine's processors this process may use."""
    usable, total, quota, advice = cores(), os.cpu_count() or 1, _quota(), ""
    if usable == 1 < total:
        advice = (
            "this process is bound to one core: request more from the batch system "
            "(--cpus-per-task), or start without taskset"
        )
    elif quota and quota < usable:
        advice = (
            f"fits start a thread for each core, but the container may use only {quota:g} cores: "
            f"bind the container to cores (taskset, --cpuset-cpus), or raise its quota"
        )
    of_quota = f", a quota of {quota:g}" if quota else ""
    return Finding("cores", f"{usable} of {total}{of_quota}", advice)


def _quota() -> float | None:
    """Return the processors a container may use on average, None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def compiled_kernels() -> Finding:
    """Return where compiled kernels are kept for the next process."""
    folder = user_cache_folder()
    if folder is None:
        return Finding("compiled kernels", f"not kept: {FOLDER} is off, or there is no home folder")
    try:
        sizes = [bytes_ for _, bytes_, _ in entries(folder)]
    except OSError as e:
        advice = f"every process spends seconds compiling: set {FOLDER} to a new private folder"
        return Finding("compiled kernels", f"not kept in {folder}: {e.strerror or e}", advice)
    return Finding("compiled kernels", f"{len(sizes)} in {folder}, {size(sum(sizes))}")


def writable_folder(what: str, path: Path) -> Finding:
    """Return whether a folder can be written to and has space left."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as e:
        return Finding(what, str(path), f"{e.strerror or e}: use a writable folder, or set TMPDIR")
    full = "too full: delete files there, or use another folder"
    value = f"{path}, {free / 1e9:.1f} GB free"
    return Finding(what, value, "" if free >= MIN_FREE_SPACE else full)


def kernel_rate() -> Finding:
    """Return the pairs per second of the Gram of `laminar_flow`, with all derivatives, in this process."""
    c2 = aligned_array(BINS, SIDE)
    c2[...] = 1.1 + 0.3 * np.random.default_rng(0).random(c2.shape)
    weight = np.full((BINS, SIDE), 100.0)
    # 1/Å, degree, Å; a block off the diagonal
    q, phi, gap = np.full(BINS, 0.0054), np.linspace(-86.0, 86.0, BINS), 2e6
    block = Block(c2, weight, weight, q, phi, 0, SIDE)
    at = transport_point(Problem(hd.LAMINAR_FLOW, gap=gap), THETA, 0.1 * np.arange(2 * SIDE))
    gram, sums = transport_gram(at, block)
    seconds, start = [], time.perf_counter()
    while not seconds or time.perf_counter() - start < MEASUREMENT_SECONDS:
        began = time.perf_counter()
        transport_gram(at, block, sums)
        seconds.append(time.perf_counter() - began)
    rate = float(gram.pairs.sum() / np.median(seconds))
    slow = "other programs are using the cores, or XLA_FLAGS or JAX_* variables slow the kernel"
    value = f"{rate / 1e6:.0f} M pairs/s on {counted(jax_threads(), 'thread')}"
    return Finding("kernel", value, "" if rate >= SLOWEST_PAIRS_PER_SECOND else slow)
