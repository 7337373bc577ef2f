"""Versions, processors, memory and folders of this machine."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import dask.config
import psutil
from packaging.requirements import Requirement

from homodyne_dask.apps.doctor import Finding
from homodyne_dask.cluster.memory import available_memory
from homodyne_dask.kernels.cache_folder import FOLDER, entries, user_cache_folder
from homodyne_dask.kernels.gpus import gpus_of_machine
from homodyne_dask.store.processes import code_digest, cores
from homodyne_dask.text import size

PACKAGES = ("jax", "jaxlib", "dask", "distributed", "zarr", "numcodecs", "numpy")
MIN_MEMORY = 2e9
"""Bytes that a worker process needs for blocks, kernel and libraries."""
MIN_FREE_SPACE = 1e9
"""Free bytes that results and spilled data need."""


def machine_findings() -> Iterator[Finding]:
    """Yield what is found of versions, cores, memory, GPUs and folders."""
    yield from library_versions()
    yield processors()
    yield memory()
    yield Finding("GPUs", str(gpus_of_machine()))
    yield from writable_folders()
    yield compiled_kernels()


def library_versions() -> Iterator[Finding]:
    """Yield the versions of the libraries, each compared with what homodyne_dask requires."""
    requirements = [Requirement(text) for text in metadata.requires("homodyne-dask") or []]
    specifiers = {requirement.name: requirement.specifier for requirement in requirements}
    yield Finding("python", platform.python_version())
    yield Finding(
        "homodyne-dask", f"{metadata.version('homodyne-dask')}, digest of the code {code_digest()}"
    )
    for name in PACKAGES:
        version, specifier = metadata.version(name), specifiers[name]
        fits = specifier.contains(version, prereleases=True)
        yield Finding(name, version, "" if fits else f"pip install '{name}{specifier}'")


def processors() -> Finding:
    """Return how many of the machine's processors this process may use."""
    usable, all_ = cores(), os.cpu_count() or 1
    quota = _quota()
    value, advice = f"{usable} of {all_}" + (f", a quota of {quota:g}" if quota else ""), ""
    if usable == 1 < all_:
        advice = (
            "this process is bound to one core: request more from the batch system "
            "(--cpus-per-task), or start without taskset"
        )
    elif quota and quota < usable:
        advice = (
            f"fits start a thread for each core, but the container may use only {quota:g} cores: "
            f"bind the container to cores (taskset, --cpuset-cpus), or raise its quota"
        )
    return Finding("cores", value, advice)


def _quota() -> float | None:
    """Return the processors a container may use on average, None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def memory() -> Finding:
    """Return the memory available for workers."""
    free, total = available_memory(), psutil.virtual_memory().total
    value = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
    advice = f"workers need {MIN_MEMORY / 1e9:g} GB: end other programs, or request more memory"
    return Finding("memory", value, advice if free < MIN_MEMORY else "")


def writable_folders() -> Iterator[Finding]:
    """Yield whether the working folder and the folders of temporary files can be written to."""
    yield writable_folder("working folder", Path.cwd())
    yield writable_folder("temporary folder", Path(tempfile.gettempdir()))
    if configured := dask.config.get("temporary-directory", None):
        yield writable_folder("folder of workers", Path(configured))


def compiled_kernels() -> Finding:
    """Return where compiled kernels are kept for the next process."""
    folder = user_cache_folder()
    if folder is None:
        return Finding("compiled kernels", f"not kept: {FOLDER} is off, or there is no home folder")
    try:
        sizes = [bytes_ for _, bytes_, _ in entries(folder)]
    except OSError as e:
        advice = f"every process spends seconds compiling: set {FOLDER} to a new private folder"
        why = f"not kept in {folder}: {e.strerror or e}"
        return Finding("compiled kernels", why, advice)
    return Finding("compiled kernels", f"{len(sizes)} in {folder}, {size(sum(sizes))}")


def writable_folder(what: str, path: Path) -> Finding:
    """Return whether a folder can be written to and has space left."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as e:
        advice = f"{e.strerror or e}: use a writable folder, or set TMPDIR"
        return Finding(what, str(path), advice)
    full = "too full: delete files there, or use another folder"
    value = f"{path}, {free / 1e9:.1f} GB free"
    return Finding(what, value, "" if free >= MIN_FREE_SPACE else full)
