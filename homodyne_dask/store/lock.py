"""A lock file: one process at a time writes into a folder, or below a URL."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from homodyne_dask.store.files import AnyPath, open_lock
from homodyne_dask.store.lease import leased
from homodyne_dask.store.url_path import UrlPath


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it.

    The system releases it when its process ends, however that ended, on NFS too; the file is removed.
    On a file system without locks (Lustre mounted without flock) everybody gets it. A link is refused.
    By URL it is a lease (`lease.py`).
    """
    if isinstance(path, UrlPath):
        with leased(path) as held:
            yield held
        return
    with open_lock(path) as file:
        held = _lock(file.fileno()) and _is_still(path, file.fileno())
        try:
            yield held
        finally:
            if held:
                path.unlink(missing_ok=True)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in (ENOLCK, ENOSYS, EOPNOTSUPP):
            raise
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Return whether a path still names an open file; its last holder may just have removed it."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(handle))
