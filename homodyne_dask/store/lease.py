"""A lock in a store by URL: an object that its holder writes anew again and again, for as long as it lives.

Nobody releases the lock of a process that was killed. So a process that finds one waits until it is
written anew, by a holder that lives, or for `PATIENCE`, and then takes it over. Both steps are conditional
writes, of which the store grants one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from homodyne_dask.errors import ObjectStoreError
from homodyne_dask.store import objects
from homodyne_dask.store.url_path import UrlPath

BEAT = 10.0
"""s between two writes of a lock."""
PATIENCE = 35.0
"""s without a write after which the holder of a lock is dead."""


@contextmanager
def leased(path: UrlPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it."""
    if not (objects.create(path, _content()) or _taken_over(path)):
        yield False
        return
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, ended), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        ended.set()
        beating.join()
        objects.remove(path)


def _content() -> bytes:
    """Return the content of a lock, each time another."""
    return uuid4().bytes


def _beat(path: UrlPath, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        try:
            held = objects.version(path)
            if held is not None:
                objects.exchange(path, _content(), held)
        except ObjectStoreError:
            continue  # what the holder writes meets the same, and says so


def _taken_over(path: UrlPath) -> bool:
    """Return whether this process has the lock now, whose holder did not write it for some time."""
    found, deadline = objects.version(path), time.monotonic() + PATIENCE
    while found is not None and time.monotonic() < deadline:
        time.sleep(min(1.0, PATIENCE / 10))
        if objects.version(path) != found:
            return False
    if found is None:
        return objects.create(path, _content())
    return objects.exchange(path, _content(), found)
