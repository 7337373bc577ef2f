"""homodyne-dask doctor: check the libraries, cores, memory and variables of this machine."""

import os
from collections.abc import Iterator
from importlib import metadata

import click
from packaging.requirements import Requirement

from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cluster import workers
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.surroundings import Check, examined

HARMFUL = ("FAST_MATH", "PREFER_VECTOR_WIDTH", "MAX_ISA=SSE", "OPTIMIZATION_LEVEL=0", "DISABLE")


@click.command()
@AS_JSON
def doctor(as_json: bool) -> None:
    """Check whether this machine and its environment are ready for fits.

    The command checks the versions of libraries, cores and memory, what workers need to start, and
    variables that slow JAX. Exit status: 0 nothing to do, 1 a line says what to do.
    """
    checks = [*_versions(), *_machine(), *examined(), *_variables()]
    ok = not any(check.advice for check in checks)
    if as_json:
        echo_json({"ok": ok, "lines": [f._asdict() | {"ok": not f.advice} for f in checks]})
    for name, value, advice in [] if as_json else checks:
        echo(f"{name:<20} {value:<58} {f'to do: {advice}' if advice else 'ok'}")
    click.get_current_context().exit(0 if ok else 1)


def _versions() -> Iterator[Check]:
    yield Check("homodyne-dask", metadata.version("homodyne-dask"))
    for need in map(Requirement, metadata.requires("homodyne-dask") or []):
        version = "" if "extra" in str(need.marker) else metadata.version(need.name)
        if version and not need.specifier.contains(version, prereleases=True):
            yield Check(need.name, version, f"pip install '{need.name}{need.specifier}'")


def _machine() -> Iterator[Check]:
    bound = cores() == 1 < (os.cpu_count() or 1)
    advice = "request more of the batch system (--cpus-per-task), or start without taskset" * bound
    yield Check("cores", f"{cores()} of {os.cpu_count()}", advice)
    free = workers.available_memory()
    advice = "workers need 2 GB: end other programs, or request more memory" * (free < 2e9)
    yield Check("memory", f"{free / 1e9:.1f} GB available", advice)


def _variables() -> Iterator[Check]:
    for name, value in os.environ.items():
        if name.startswith(("JAX_", "XLA_")) and value not in ("0", "false", "False", ""):
            slow = any(word in f"{name}={value}".upper() for word in HARMFUL)
            yield Check(name, value, "unset it: it slows fits or changes bits" * slow)
