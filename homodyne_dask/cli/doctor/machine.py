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

from homodyne_dask.cli.doctor.line import Line
from homodyne_dask.cluster.local import cores

PACKAGES = ("jax", "jaxlib", "dask", "distributed", "zarr", "numcodecs", "numpy")
MEMORY = 2e9
"""Bytes below which workers of one process have no room for blocks, kernel and libraries."""
ROOM = 1e9
"""Bytes of a folder that are too few for results and spilled data."""


def lines() -> Iterator[Line]:
    """Yield what this machine is."""
    yield from versions()
    yield processors()
    yield memory()
    yield instructions(_cpu_flags())
    yield from folders()


def versions() -> Iterator[Line]:
    """Yield the versions of what computes, beside what homodyne_dask asks for."""
    asked = [Requirement(text) for text in metadata.requires("homodyne-dask") or []]
    specifiers = {requirement.name: requirement.specifier for requirement in asked}
    yield Line("python", platform.python_version())
    for name in PACKAGES:
        version, specifier = metadata.version(name), specifiers[name]
        fits = specifier.contains(version, prereleases=True)
        yield Line(name, version, "" if fits else f"pip install '{name}{specifier}'")
    if metadata.version("jax") != metadata.version("jaxlib"):
        yield Line(
            "jax and jaxlib",
            f"{metadata.version('jax')} and {metadata.version('jaxlib')}",
            "two releases in one environment: pip install --upgrade jax jaxlib",
        )


def processors() -> Line:
    """Return the processors this process may use of those there are."""
    mine, all_ = cores(), os.cpu_count() or 1
    quota = _quota()
    value = f"{mine} of {all_}" + (f", a quota of {quota:g}" if quota else "")
    if mine == 1 < all_:
        return Line(
            "cores",
            value,
            "this process is bound to one core: ask the batch system for more "
            "(--cpus-per-task), or start without taskset",
        )
    if quota and quota < mine:
        return Line(
            "cores",
            value,
            f"fits take a thread for each core and the container slows them to {quota:g}: "
            f"bind it to cores (taskset, --cpuset-cpus), or raise its quota",
        )
    return Line("cores", value)


def _quota() -> float | None:
    """Return the processors' time a container may use, None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def memory() -> Line:
    """Return the memory there is for workers."""
    now = psutil.virtual_memory()
    value = f"{now.available / 1e9:.1f} of {now.total / 1e9:.1f} GB available"
    if now.available < MEMORY:
        advice = f"workers want {MEMORY / 1e9:g} GB: end other programs, or ask for more"
        return Line("memory", value, advice)
    return Line("memory", value)


def instructions(found: set[str]) -> Line:
    """Return which vector instructions the processor has."""
    has = [name for name, flag in (("AVX2", "avx2"), ("AVX-512", "avx512f")) if flag in found]
    if not found or platform.machine() not in ("x86_64", "AMD64"):
        return Line("instructions", platform.machine())
    if not has:
        return Line("instructions", "no AVX2", "the kernel is several times slower without AVX2")
    return Line("instructions", ", ".join(has))


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def folders() -> Iterator[Line]:
    """Yield whether the working folder and the folders for temporary files can be written."""
    yield folder("working folder", Path.cwd())
    yield folder("temporary folder", Path(tempfile.gettempdir()))
    if given := dask.config.get("temporary-directory", None):
        yield folder("folder of workers", Path(given))


def folder(what: str, path: Path) -> Line:
    """Return whether a folder can be written and has room."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as e:
        return Line(
            what, str(path), f"{e.strerror or e}: go to a folder you may write, or set TMPDIR"
        )
    value = f"{path}, {free / 1e9:.1f} GB free"
    return Line(what, value, "" if free >= ROOM else "too full: remove something, or use another")
