"""What surrounds this process and may keep it from working: limits, shared memory, variables of others.

Nothing but Python is imported: whatever else is broken, this can say why.
"""

import os
import re
import resource
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

from homodyne_dask.errors import one_line, shown
from homodyne_dask.plugins import broken_packages
from homodyne_dask.store.processes import cgroups, jax_threads, system_text

SHARED_MEMORY = Path("/dev/shm")
_METADATA = str(Path("importlib", "metadata"))
_NAME = re.compile(r"\b[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+\b")
_CAUSE = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|F\d{4} ")
"""The last line of a traceback, or what XLA says before it ends a process."""
_OF_XLA = re.compile(r"^F\d{4} .*?\] ")
_OF_LIBRARIES = (
    *("JAX_", "XLA_", "DASK_", "PJRT_", "OMP_", "OPENBLAS_", "MKL_", "ZARR_", "BLOSC_"),
    *("MPL", "SOURCE_DATE_EPOCH", "HDF5_"),
)
"""Beginnings of variables that libraries read."""


class Finding(NamedTuple):
    """One check: its name, its result, and the remedy where something is wrong."""

    what: str
    value: str
    advice: str = ""
    """Empty where nothing has to be done."""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        text = f"{self.what:<20} {self.value:<58} {'ok' if self.ok else 'to do:'}"
        return f"{text} {self.advice}".rstrip()


def examined() -> Iterator[Finding]:
    """Yield what every process of a fit needs of its surroundings."""
    yield from hidden_packages()
    yield from (Finding("packages", one, "repair or remove it") for one in broken_packages())
    yield shared_memory()
    yield loopback()
    yield room_for_threads()
    yield room_for_files()


def in_words(findings: Iterable[Finding]) -> str:
    """Return those that are wrong, with the remedies, as a phrase; '' for none."""
    return "; ".join(f"{one.what}: {one.value}, {one.advice}" for one in findings if not one.ok)


def hidden_packages() -> Iterator[Finding]:
    """Yield the packages of this environment that others, which come before them, hide."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = {entry: "PYTHONPATH" for entry in sys.path if entry in filter(None, given)}
    user = getattr(sys.modules.get("site"), "USER_SITE", None)
    if user in sys.path and sys.prefix not in user:
        folders[user] = "the user's packages"
    rest = [entry for entry in sys.path if entry not in folders]
    needed = {*sys.stdlib_module_names, "jaxlib"}
    with suppress(PackageNotFoundError):
        names = (re.split(r"[^\w-]", text)[0] for text in requires("homodyne-dask") or [])
        needed |= {name.replace("-", "_") for name in names}
    for folder, what in folders.items():
        found = {module.name for module in iter_modules([folder])} & needed
        if hidden := sorted(name for name in found if PathFinder.find_spec(name, rest)):
            remedy = "unset it" if what == "PYTHONPATH" else "set PYTHONNOUSERSITE=1"
            some = ", ".join(hidden[:3]) + " and others" * (len(hidden) > 3)
            yield Finding(what, f"{folder} hides {some} of {sys.prefix}", remedy)


def shared_memory() -> Finding:
    """Return whether there can be semaphores, with which Dask starts the processes of workers."""
    try:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY):
            return Finding("shared memory", str(SHARED_MEMORY))
    except OSError as e:
        advice = (
            "mount it writable (of a container: `--shm-size` or a volume); workers do not start"
        )
        return Finding("shared memory", f"{SHARED_MEMORY}: {e.strerror or e}", advice)


def loopback() -> Finding:
    """Return whether processes of this machine can reach each other."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=1.0),
        ):
            return Finding("loopback", "127.0.0.1")
    except OSError as e:
        advice = "workers do not start: ip link set lo up"
        return Finding("loopback", f"127.0.0.1: {e.strerror or e}", advice)


def room_for_threads(least: int = 40) -> Finding:
    """Return how many processes and threads this user may still start; least: needed beside those of JAX."""
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = []
    if most != resource.RLIM_INFINITY and os.geteuid():  # it does not bind root
        limits.append((most - _threads_of_user(), most, "ulimit -u"))
    for folder, _ in cgroups("pids"):
        most, now = (system_text(folder / name).strip() for name in ("pids.max", "pids.current"))
        if most.isdigit() and now.isdigit():
            limits.append((int(most) - int(now), int(most), "the limit of the container or job"))
    if not limits:
        return Finding("threads", "no limit")
    left, most, what = min(limits)
    needed = least + 8 * jax_threads()
    advice = f"{needed} are needed: raise {what}, or set NPROC=1 OPENBLAS_NUM_THREADS=1"
    return Finding("threads", f"{max(left, 0)} of {most} left", advice * (left < needed))


def room_for_files(least: int = 256) -> Finding:
    """Return how many files a process may open; least: what libraries, chunks and workers need."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding("open files", f"at most {most}", "raise ulimit -n" * (most < least))


def _threads_of_user() -> int:
    user, total = os.getuid(), 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == user:
                total += sum(1 for _ in (process / "task").iterdir())
    return total


def last_words(said: str) -> str:
    """Return the first cause in what a process has written before it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line for line in said.splitlines() if _CAUSE.match(line)]
    return _OF_XLA.sub("", (causes or lines[-1:] or ["it ended without a word"])[0])


def blamed(error: BaseException) -> str:
    """Return what outside the program an error comes from, and the remedy, as a phrase; '' for nothing.

    It names a variable, or quotes the value of one that libraries read; or packages hide those of this
    environment; or a library could not read what other packages offer.
    """
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    text = one_line(" ".join(map(str, chain)))
    names = {*_NAME.findall(text.upper())}  # JAX calls its flags as the variables, in small letters
    for name, value in os.environ.items():
        quoted = name.startswith(_OF_LIBRARIES) and value and repr(value) in text
        if quoted or name in names:
            return f"the environment sets {name}={shown(value)}: correct or unset it"
    for one in chain:
        if isinstance(one, KeyError) and _NAME.fullmatch(str(one.args and one.args[0])):
            return f"a setting names the variable {one.args[0]}, which is not set: set it"
    if any(isinstance(one, ImportError | AttributeError | SyntaxError) for one in chain):
        return in_words(hidden_packages())
    frames = (frame for one in chain for frame in traceback.extract_tb(one.__traceback__))
    if any(_METADATA in frame.filename for frame in frames):
        return ": repair or remove it; ".join([*broken_packages(), ""]).removesuffix("; ")
    return ""
