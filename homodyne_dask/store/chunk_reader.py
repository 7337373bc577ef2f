"""Read chunks of c2, or ranges of bytes of files and objects, some fetched ahead of their use.

A chunk is one file, `c2/c/bin/i/j`, or a range of a shard, in the encoding of `chunk_codec.py`. Read
without zarr's event loop between the file and the array of the caller, it costs half the processor time.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from homodyne_dask.store import objects
from homodyne_dask.store.chunk_codec import CHECKSUM_BYTES, MAX_OVERHEAD, decode_chunk
from homodyne_dask.store.files import AnyPath, open_without_waiting, read_with_tail, twice
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

    FileNotFoundError where they are missing, ValueError where they are more than `max_bytes`;
    FileReadError or ObjectStoreError where they cannot be read.
    """
    if not isinstance(place.path, UrlPath):
        return read_with_tail(place.path, max_bytes, n_tail, place.span)
    request = _AHEAD.requests.pop(place, None)
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


def _begun(place: ByteRange, max_bytes: int) -> Future[bytes | memoryview] | None:
    if isinstance(place.path, UrlPath):
        return _requests().submit(_fetched, place, max_bytes)
    # a missing file or a pipe is reported when it is read
    with suppress(OSError), open(place.path, "rb", 0, opener=open_without_waiting) as file:
        os.posix_fadvise(file.fileno(), *(place.span or (0, 0)), os.POSIX_FADV_WILLNEED)
    return None


def _fetched(place: ByteRange, max_bytes: int) -> bytes | memoryview:
    """Return the bytes of an object, or of a range of it."""
    assert isinstance(place.path, UrlPath)
    if place.span is None:
        return objects.read(place.path, max_bytes)
    if place.span[1] > max_bytes:
        raise ValueError(f"it has {place.span[1]:,} bytes, but at most {max_bytes:,} are allowed")
    return objects.read_range(place.path, *place.span)


@lru_cache(maxsize=1)
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, "homodyne_dask requests")


def most_bytes(side: int) -> int:
    """Return the most bytes that a chunk of that side is stored in."""
    return 4 * side**2 + MAX_OVERHEAD


def read_decoded(place: ByteRange, into: np.ndarray, checksum: int | None = None) -> None:
    """Read and decode a chunk into an array of its size; raises one of DAMAGED where it is wrong twice."""

    def read() -> None:
        body, tail = read_bytes(place, into.nbytes + MAX_OVERHEAD, CHECKSUM_BYTES)
        decode_chunk(body, tail, into, checksum)

    twice(read)
