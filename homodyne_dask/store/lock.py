"""A lock file: one process at a time writes into a folder, or below a URL."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from socket import gethostname
from uuid import uuid4

from homodyne_dask.errors import in_line
from homodyne_dask.store import objects
from homodyne_dask.store.files import AnyPath, read_regular_file
from homodyne_dask.store.url_path import UrlPath

NOT_OFFERED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""With which a file system answers that it has no locks."""
_MAX_BYTES = 1000


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it.

    The system releases it when its process ends, however that ended, on NFS too; the file is removed.
    On a file system without locks (Lustre mounted without flock) everybody gets it. A link is refused.
    By URL it is an object that one process alone can create; that of a killed process stays, as
    `how_to_unlock` says.
    """
    if isinstance(path, UrlPath):
        with _locked_object(path) as held:
            yield held
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    with os.fdopen(handle, "r+b", buffering=0):
        # the last holder may just have removed the file
        held = _lock(handle) and path.exists() and os.path.samestat(path.stat(), os.fstat(handle))
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
        if e.errno not in NOT_OFFERED:
            raise
    return True


@contextmanager
def _locked_object(path: UrlPath) -> Iterator[bool]:
    holder = f"process {os.getpid()} of {gethostname()}, begun {datetime.now():%F %T}\n{uuid4()}"
    # a request whose answer was lost is repeated, and then meets the object that it has made
    held = objects.write(path, holder.encode(), "create") or _content(path) == holder
    try:
        yield held
    finally:
        if held:
            objects.remove(path)


def _content(path: AnyPath) -> str:
    return read_regular_file(path, _MAX_BYTES).decode(errors="replace")


def how_to_unlock(path: AnyPath) -> str:
    """Return what to do where another process holds a lock, in words."""
    if isinstance(path, Path):
        return "wait until it ends"
    try:
        holder = in_line(_content(path).partition("\n")[0])
    except (FileNotFoundError, ValueError):  # it was just released, or is another's
        holder = "unknown"
    return (
        f"wait until it ends ({holder}), or, if it was killed, remove {path} with the tool of the provider, "
        f"such as `aws s3 rm`"
    )
