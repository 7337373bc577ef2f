"""A lock file: one process at a time writes into a folder, or below a URL."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from homodyne_dask.errors import ObjectStoreError
from homodyne_dask.store import objects
from homodyne_dask.store.files import NOT_OFFERED, AnyPath, open_lock
from homodyne_dask.store.url_path import UrlPath

BEAT = 10.0
"""s between two writes of a lock."""
PATIENCE = 35.0
"""s without a write after which the holder of a lock is dead."""


class _Lease:
    """A lock as one process writes it, each time with its mark first."""

    def __init__(self, path: UrlPath) -> None:
        self.path, self.mark, self.ended = path, uuid4().bytes, threading.Event()

    def write(self, mode: dict[str, str] | str) -> bool:
        """Write the lock, each time with another content; return whether that was possible."""
        return objects.write(self.path, self.mark + uuid4().bytes, mode)

    def version(self) -> dict[str, str] | None:
        """Return the version of the lock, None where another process has taken it over."""
        version = objects.version(self.path)
        try:
            return version if objects.read(self.path, 1000).startswith(self.mark) else None
        except (FileNotFoundError, ValueError):  # gone, or far too large for a lock
            return None

    def taken(self) -> bool:
        """Return whether this process has the lock now: it was free, or its holder is dead."""
        if self.write("create"):
            return True
        version, deadline = objects.version(self.path), time.monotonic() + PATIENCE
        while version is not None and time.monotonic() < deadline:
            time.sleep(min(1.0, PATIENCE / 10))
            if objects.version(self.path) != version:
                return False
        return self.write("create" if version is None else version)

    def beat(self) -> None:
        """Write the lock anew until it is ended, or another's."""
        while not self.ended.wait(BEAT):
            # what the holder writes meets the same error, and says so
            with suppress(ObjectStoreError):
                if (version := self.version()) is None:
                    return
                self.write(version)


@contextmanager
def leased(path: UrlPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it."""
    lease = _Lease(path)
    if not lease.taken():
        yield False
        return
    beating = threading.Thread(target=lease.beat, daemon=True)
    beating.start()
    try:
        yield True
    finally:
        lease.ended.set()
        beating.join()
        if lease.version() is not None:
            objects.remove(path)


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it.

    The system releases it when its process ends, however that ended, on NFS too; the file is removed.
    On a file system without locks (Lustre mounted without flock) everybody gets it. A link is refused.
    By URL it is a lease (`leased`).
    """
    if isinstance(path, UrlPath):
        with leased(path) as held:
            yield held
        return
    with open_lock(path) as file:
        # the last holder may just have removed the file
        held = _lock(handle := file.fileno()) and path.exists()
        held = held and os.path.samestat(path.stat(), os.fstat(handle))
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
