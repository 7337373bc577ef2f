"""homodyne-dask doctor: check the libraries, cores, memory and variables of this machine, and its workers."""

import os
from collections.abc import Iterator
from importlib import metadata

import click
from packaging.requirements import Requirement

from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.surroundings import Finding, examined

MIN_MEMORY = 2e9
"""Bytes that a worker process needs for blocks, kernel and libraries."""
HARMFUL = ("FAST_MATH", "PREFER_VECTOR_WIDTH", "MAX_ISA=SSE", "OPTIMIZATION_LEVEL=0", "DISABLE")
"""Parts of XLA_FLAGS and of variables of JAX that slow the kernel, or change the last bits of results."""


@click.command()
@AS_JSON
def doctor(as_json: bool) -> None:
    """Check whether this machine and its environment are ready for fits.

    The command checks the versions of libraries, cores and memory, what workers need to start, and
    variables that slow JAX. Exit status: 0 nothing to do, 1 a line says what to do.
    """
    findings = [*versions(), *machine(), *examined(), *variables()]
    if as_json:
        lines = [finding._asdict() | {"ok": finding.ok} for finding in findings]
        echo_json({"ok": all(finding.ok for finding in findings), "lines": lines})
    else:
        echo("\n".join(map(str, findings)))
    click.get_current_context().exit(0 if all(finding.ok for finding in findings) else 1)


def versions() -> Iterator[Finding]:
    """Yield each library of another version than required."""
    yield Finding("homodyne-dask", metadata.version("homodyne-dask"))
    for need in map(Requirement, metadata.requires("homodyne-dask") or []):
        if (
            "extra" not in str(need.marker)
            and (version := metadata.version(need.name))
            and not (need.specifier.contains(version, prereleases=True))
        ):
            advice = f"pip install '{need.name}{need.specifier}'"
            yield Finding(need.name, version, advice)


def machine() -> Iterator[Finding]:
    """Yield the processors and the memory that this process may use."""
    from homodyne_dask.cluster.workers import available_memory

    bound = cores() == 1 < (os.cpu_count() or 1)
    advice = "request more of the batch system (--cpus-per-task), or start without taskset" * bound
    yield Finding("cores", f"{cores()} of {os.cpu_count()}", advice)
    free = available_memory()
    advice = f"workers need {MIN_MEMORY / 1e9:g} GB: end other programs, or request more memory"
    yield Finding("memory", f"{free / 1e9:.1f} GB available", advice * (free < MIN_MEMORY))


def variables() -> Iterator[Finding]:
    """Yield each variable that JAX reads, and whether it slows fits."""
    for name, value in os.environ.items():
        if name.startswith(("JAX_", "XLA_")) and value not in ("0", "false", "False", ""):
            slow = any(word in f"{name}={value}".upper() for word in HARMFUL)
            yield Finding(name, value, "unset it: it slows fits or changes bits" * slow)
