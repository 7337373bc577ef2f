"""What surrounds this process and may keep it from working: limits, shared memory, variables of others."""

import os
import re
import resource
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from homodyne_dask.machine.cores_and_cgroup_limits import cgroups, jax_threads, system_text
from homodyne_dask.plugins import broken_packages

SHARED_MEMORY = Path("/dev/shm")
_CAUSE = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|F\d{4} ")
"""The last line of a traceback, or what XLA says before it ends a process."""


class Finding(NamedTuple):
    """One check: its name, its result, and the remedy, empty where nothing has to be done."""

    what: str
    value: str
    advice: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        text = f"{self.what:<20} {self.value:<58} {'ok' if self.ok else 'to do:'}"
        return f"{text} {self.advice}".rstrip()


def examined() -> Iterator[Finding]:
    """Yield what every process of a fit needs of its surroundings."""
    yield from (Finding("packages", name, "repair or remove it") for name in broken_packages())
    yield shared_memory()
    yield loopback()
    yield room_for_threads()


def in_words(findings: Iterable[Finding]) -> str:
    """Return those that are wrong, with the remedies, as a phrase; '' for none."""
    return "; ".join(f"{f.what}: {f.value}, {f.advice}" for f in findings if not f.ok)


def shared_memory() -> Finding:
    """Return whether there can be semaphores, with which Dask starts the processes of workers."""
    advice = "mount it writable (of a container: `--shm-size` or a volume); workers do not start"
    try:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY):
            return Finding("shared memory", str(SHARED_MEMORY))
    except OSError as e:
        return Finding("shared memory", f"{SHARED_MEMORY}: {e.strerror or e}", advice)


def loopback() -> Finding:
    """Return whether processes of this machine can reach each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=1.0).close()
            return Finding("loopback", "127.0.0.1")
    except OSError as e:
        advice = "workers do not start: ip link set lo up"
        return Finding("loopback", f"127.0.0.1: {e.strerror or e}", advice)


def room_for_threads(least: int = 40) -> Finding:
    """Return how many threads there may be; least: needed beside those of JAX."""
    user, _ = resource.getrlimit(resource.RLIMIT_NPROC)  # it does not bind root
    limits = [(user, "ulimit -u")] * (user != resource.RLIM_INFINITY and os.geteuid() != 0)
    files = (system_text(folder / "pids.max").strip() for folder, _ in cgroups("pids"))
    limits += [(int(most), "the limit of the container or job") for most in files if most.isdigit()]
    most, what = min(limits, default=(sys.maxsize, ""))
    needed = least + 8 * jax_threads()
    advice = f"{needed} are needed: raise {what}, or set NPROC=1 OPENBLAS_NUM_THREADS=1"
    return Finding("threads", f"at most {most}" if limits else "no limit", advice * (most < needed))


def last_words(said: str) -> str:
    """Return the first cause in what a process has written before it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line for line in said.splitlines() if _CAUSE.match(line)]
    return re.sub(r"^F\d{4} .*?\] ", "", (causes or lines[-1:] or ["it ended without a word"])[0])
