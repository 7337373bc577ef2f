"""What surrounds this process and may keep it from working."""

import os
import re
import resource
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from homodyne_dask.machine.cores_and_cgroup_limits import cgroups, jax_threads, system_text
from homodyne_dask.plugins import broken_packages

SHARED_MEMORY = Path("/dev/shm")


class Check(NamedTuple):
    """One check: its name, its result, and the remedy, empty where nothing has to be done."""

    what: str
    value: str
    advice: str = ""


def examined() -> list[Check]:
    packages = [Check("packages", name, "repair or remove it") for name in broken_packages()]
    return [*packages, shared_memory(), loopback(), room_for_threads()]


def in_words(checks: Iterable[Check]) -> str:
    """Return those that are wrong, with the remedies, as a phrase; '' for none."""
    return "; ".join(f"{f.what}: {f.value}, {f.advice}" for f in checks if f.advice)


def shared_memory() -> Check:
    """Return whether there can be semaphores, with which Dask starts the processes of workers."""
    advice = "mount it writable (of a container: `--shm-size` or a volume); workers do not start"
    try:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY):
            return Check("shared memory", str(SHARED_MEMORY))
    except OSError as e:
        return Check("shared memory", f"{SHARED_MEMORY}: {e.strerror or e}", advice)


def loopback() -> Check:
    advice = "workers do not start: ip link set lo up"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=1.0).close()
            return Check("loopback", "127.0.0.1")
    except OSError as e:
        return Check("loopback", f"127.0.0.1: {e.strerror or e}", advice)


def room_for_threads(least: int = 40) -> Check:
    """Return how many threads there may be; least: needed beside those of JAX."""
    user, _ = resource.getrlimit(resource.RLIMIT_NPROC)  # it does not bind root
    limits = [(user, "ulimit -u")] * (user != resource.RLIM_INFINITY and os.geteuid() != 0)
    files = (system_text(folder / "pids.max").strip() for folder, _ in cgroups("pids"))
    limits += [(int(text), "the limit of the container or job") for text in files if text.isdigit()]
    limit, source = min(limits, default=(sys.maxsize, ""))
    needed = least + 8 * jax_threads()
    advice = f"{needed} are needed: raise {source}, or set NPROC=1 OPENBLAS_NUM_THREADS=1"
    return Check("threads", f"at most {limit}" if limits else "no limit", advice * (limit < needed))


def last_words(output: str) -> str:
    """Return the first cause in what a process wrote: the end of a traceback, or what XLA says."""
    causes = re.findall(r"^(?:[\w.]*(?:Error|Exception|Interrupt)\b|F\d{4} ).*", output, re.M)
    causes += [*output.strip().splitlines()[-1:], "it ended without a word"]
    return re.sub(r"^F\d{4} .*?\] ", "", causes[0].strip())
