"""The folder of the user in which JAX's persistent compilation cache keeps compiled kernels.

JAX knows an entry by the text of its program, by the options and by the version of XLA. Neither the number
of threads nor all of the processor is in that, so each has a folder of its own, and so has each set of
versions: what is loaded has the bits of a new compilation.

An entry is machine code, and JAX runs whatever lies there: the folder must be closed to others.
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

from homodyne_dask.machine.cores_and_cgroup_limits import jax_threads, processor
from homodyne_dask.store.private_folder import make_private

FOLDER = "HOMODYNE_DASK_CACHE"
"""Environment variable: the folder, or `off`."""
MAX_BYTES = 200_000_000
"""Most bytes of all entries when a process begins: the oldest are removed, by JAX only with filelock."""
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
    with suppress(RuntimeError):  # nobody's home is known
        around = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (around if around.is_absolute() else Path.home() / ".cache") / "homodyne-dask"
    return None


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Return when each file of the folder was written, its bytes and its path; makes a missing folder.

    Raises OSError where this process cannot write there, or others can.
    """
    make_private(folder)
    status = folder.lstat()
    closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not closed or status.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder that this user alone can access")
    if not os.access(folder, os.W_OK):
        raise PermissionError(0, "it cannot be written to")
    files = []
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):  # another process removed it
            files.append((path.lstat().st_mtime, path.lstat().st_size, path))
    return sorted(files)


@cache
def keep_compiled_programs() -> Path | None:
    """Let JAX keep what this process compiles, and load what others did; return the folder.

    None where that is not possible, or where JAX has a folder already.
    """
    jax.monitoring.register_event_listener(_count_loads)
    folder, sort = user_cache_folder(), processor()
    if jax.config.jax_compilation_cache_dir or folder is None or sort is None:
        return None
    digest = hashlib.sha256(repr((sort, jax_threads(), VERSIONS)).encode()).hexdigest()[:16]
    try:
        files = entries(folder)
        left = sum(size for _, size, _ in files)
        for _, size, file in files:
            if left > MAX_BYTES:
                file.unlink(missing_ok=True)
                left -= size
        folder = folder.resolve() / digest
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        LOG.info("compiled programs are not kept in %s: %s", folder, e.strerror or e)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


def _count_loads(event: str, **_: Any) -> None:
    LOADS.count += event == "/jax/compilation_cache/cache_hits"
