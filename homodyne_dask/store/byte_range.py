"""The bytes of a chunk: all of a file or object, or a range of one; read, and fetched ahead of their use."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from homodyne_dask.store import objects
from homodyne_dask.store.files import AnyPath, read_with_tail
from homodyne_dask.store.url_path import UrlPath

REQUESTS = 16
"""Requests to a store by URL that a process has under way at once."""


class ByteRange(NamedTuple):
    """The place of some bytes."""

    path: AnyPath
    span: tuple[int, int] | None = None
    """First byte and number of bytes; None for all of a file."""


class _Ahead(threading.local):
    """What a thread reads next: the requests under way, None for a file that the system reads."""

    requests: dict[ByteRange, Future[bytes | memoryview] | None] = {}  # noqa: RUF012 - replaced, never changed


_AHEAD = _Ahead()


def read_bytes(place: ByteRange, max_bytes: int, n_tail: int) -> tuple[bytes, bytes]:
    """Return the bytes but the last `n_tail`, and those.

    OSError where they are missing or more than `max_bytes`, ObjectStoreError where they cannot be fetched.
    """
    if not isinstance(place.path, UrlPath):
        return read_with_tail(place.path, max_bytes, n_tail, place.span)
    request = _AHEAD.requests.get(place)
    content = _fetched(place, max_bytes) if request is None else request.result()
    return bytes(content[:-n_tail]), bytes(content[-n_tail:])


def read_ahead(places: Sequence[ByteRange], max_bytes: int) -> None:
    """Begin to fetch what this thread reads next, and return at once.

    What it was to read before and is not among `places` any more is dropped.
    """
    before = _AHEAD.requests
    _AHEAD.requests = {
        place: before[place] if place in before else _begun(place, max_bytes) for place in places
    }
    for place in before.keys() - _AHEAD.requests.keys():
        if (request := before[place]) is not None:
            request.cancel()


def stored_size(place: ByteRange) -> int:
    """Return the number of bytes."""
    if place.span is not None:
        return place.span[1]
    if isinstance(place.path, UrlPath):
        return objects.object_size(place.path)
    return place.path.stat().st_size


def _begun(place: ByteRange, max_bytes: int) -> Future[bytes | memoryview] | None:
    if isinstance(place.path, UrlPath):
        return _requests().submit(_fetched, place, max_bytes)
    try:
        handle = os.open(place.path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None  # reported when it is read
    try:
        os.posix_fadvise(handle, *(place.span or (0, 0)), os.POSIX_FADV_WILLNEED)
    except OSError:
        return None  # a pipe, refused when it is read
    finally:
        os.close(handle)
    return None


def _fetched(place: ByteRange, max_bytes: int) -> bytes | memoryview:
    """Return the bytes of an object, or of a range of it."""
    assert isinstance(place.path, UrlPath)
    if place.span is None:
        return objects.read(place.path, max_bytes)
    if place.span[1] > max_bytes:
        raise OSError(f"it holds {place.span[1]} bytes where {max_bytes} are most")
    return objects.read_range(place.path, *place.span)


@lru_cache(maxsize=1)
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, "homodyne_dask requests")
