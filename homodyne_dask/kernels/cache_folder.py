"""The folder of the user in which JAX keeps what it compiles, for the processes that follow.

JAX knows an entry by the text of its program, by the options and by the version of XLA. Neither the number
of threads nor all of the processor is in that, so each has a folder of its own, and so has each set of
versions: what is loaded has the bits of a new compilation.

An entry is machine code, and JAX runs whatever lies there. So the folder is used only where it, all that is
in it and the folders above it can be changed by nobody else. An entry that cannot be read costs a compilation
and a warning of JAX, until it is among the oldest, which are removed.
"""

import hashlib
import logging
import os
import stat
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from homodyne_dask.store.private_folder import make_private
from homodyne_dask.store.processes import jax_threads, processor

FOLDER = "HOMODYNE_DASK_CACHE"
"""Environment variable: the folder, or `off`."""
MAX_BYTES = 200_000_000
"""Most bytes of all entries when a process begins: the oldest are removed."""
VERSIONS = (sys.version, *map(version, ("jax", "jaxlib", "numpy")))
"""Of all that compiles."""
LOG = logging.getLogger(__name__)


class _Loads(threading.local):
    """How many programs JAX has loaded for this thread."""

    count = 0


LOADS = _Loads()


def user_cache_folder() -> Path | None:
    """Return the folder that would be used: of the variable FOLDER, or below that of the user."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return None if given in ("", "off", "0") else Path(given)
    around = os.environ.get("XDG_CACHE_HOME", "")
    if Path(around).is_absolute():
        return Path(around) / "homodyne-dask"
    with suppress(RuntimeError):  # nobody's home is known
        return Path.home() / ".cache" / "homodyne-dask"
    return None


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Return when each file of the folder was written, its bytes and its path; makes a missing folder.

    Raises OSError where this process cannot write there, or others could change what lies there.
    """
    make_private(folder)
    mode, found = _mode_of_own(folder), []
    if not stat.S_ISDIR(mode) or mode & 0o077:
        raise PermissionError(0, "it is not a folder that this user alone can access")
    if not os.access(folder, os.W_OK):
        raise PermissionError(0, "it cannot be written to")
    for parent in folder.resolve().parents:
        above = parent.stat()
        shared = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if shared or above.st_uid not in (0, os.geteuid()):
            raise PermissionError(0, f"others can rename what lies in {parent}")
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process removed it
            if stat.S_ISREG(_mode_of_own(path)):
                found.append((path.lstat().st_mtime, path.lstat().st_size, path))
    return sorted(found)


def _mode_of_own(path: Path) -> int:
    status = path.lstat()
    if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
        raise PermissionError(0, f"{path} belongs to another user, or is a link: remove it")
    return status.st_mode


@cache
def keep_compiled_programs() -> Path | None:
    """Let JAX keep what this process compiles, and load what others did; return the folder.

    None where that is not possible, or where JAX has a folder already.
    """
    jax.monitoring.register_event_listener(_count_loads)
    around, sort = user_cache_folder(), processor()
    if jax.config.jax_compilation_cache_dir or around is None or sort is None:
        return None
    of = hashlib.sha256(repr((sort, jax_threads(), VERSIONS)).encode()).hexdigest()[:16]
    try:
        known = entries(around)
        left = sum(size for _, size, _ in known)
        for _, size, file in known:
            if left > MAX_BYTES:
                file.unlink(missing_ok=True)
                left -= size
        folder = around.resolve() / of
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        LOG.info("compiled programs are not kept in %s: %s", around, e.strerror or e)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


def _count_loads(event: str, **_: Any) -> None:
    LOADS.count += event == "/jax/compilation_cache/cache_hits"
