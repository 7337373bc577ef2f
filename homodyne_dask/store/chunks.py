"""Chunks: how they are stored, blosc of little-endian values and the crc32c of that, and how they are read.

`schema.py` names these codecs in the metadata, so any Zarr library reads and writes the same bytes. Blosc
called from a thread other than the main one holds no lock: two threads compress at once. A chunk is one file,
`c2/c/bin/i/j`, or a range of a shard. Read without zarr's event loop, it costs half the processor time.
"""

import os
import struct
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import google_crc32c
import numpy as np
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue]

from homodyne_dask.store import object_stores as objects
from homodyne_dask.store.files import AnyPath, open_without_waiting, read_with_tail, twice
from homodyne_dask.store.object_stores import UrlPath

COMPRESSOR, LEVEL, SHUFFLE = "lz4", 5, "shuffle"
"""zstd gains 6 % on the noise of c2, for four times the time to decode; `make benchmark` compares."""
CHECKSUM_BYTES = 4
MAX_OVERHEAD = 1 << 16
"""Bytes; values that cannot be compressed grow by less."""
_HEADER = struct.Struct("<4B3I")
"""Of blosc: versions of the format and of the compressor, flags, bytes per value; bytes decoded, bytes in
a block, bytes of all."""
_BLOSC_FORMAT, _LZ4_FORMAT, _LZ4 = 2, 1, 1
"""Versions of the two formats, and the number of lz4 in the three highest bits of the flags."""


class EncodedChunk(NamedTuple):
    content: bytes
    """With the checksum at its end."""
    checksum: int
    """crc32c of the bytes before it."""


def encode_chunk(values: np.ndarray) -> EncodedChunk:
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    _require_memory(2 * values.nbytes)
    body = bytes(blosc.compress(values, COMPRESSOR.encode(), LEVEL, blosc.SHUFFLE))
    checksum = google_crc32c.value(body)
    return EncodedChunk(body + checksum.to_bytes(CHECKSUM_BYTES, "little"), checksum)


def shard_content(
    chunks: Mapping[tuple[int, int, int], bytes], shape: tuple[int, int, int]
) -> bytes:
    """Return the bytes of a shard: its chunks, by bin, row and column, and the index that Zarr reads."""
    index = np.full((*shape, 2), np.iinfo(np.uint64).max, "<u8")
    first = 0
    for tile, content in chunks.items():
        index[tile], first = (first, len(content)), first + len(content)
    body = index.tobytes()
    checksum = google_crc32c.value(body).to_bytes(CHECKSUM_BYTES, "little")
    return b"".join([*chunks.values(), body, checksum])


def decode_chunk(
    body: bytes, checksum: bytes, into: np.ndarray, expected: int | None = None
) -> None:
    """Decode the bytes of a chunk, its checksum apart, into a contiguous array; expected: its crc32c."""
    if len(body) < _HEADER.size:
        raise ValueError(f"it has {len(body)} bytes, fewer than a header")
    actual = google_crc32c.value(body)
    if actual != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum is wrong")
    if expected is not None and actual != expected:
        raise ValueError("it is not the chunk that was ingested there: it was swapped or replaced")
    _check_header(body, into)
    _require_memory(2 * into.nbytes)
    blosc.decompress(body, into)


def _require_memory(count: int) -> None:
    """Raise MemoryError where so many bytes cannot be allocated: blosc would crash for lack of its own."""
    np.empty(count + MAX_OVERHEAD, np.uint8)


def _check_header(body: bytes, into: np.ndarray) -> None:
    """Raise ValueError for a header that ingest does not write: blosc believes it, and reads beyond."""
    version, lz4_version, flags, itemsize, size, block, encoded = _HEADER.unpack_from(body)
    if size != into.nbytes:
        raise ValueError(f"it has {size:,} bytes instead of {into.nbytes:,}")
    if encoded != len(body):
        raise ValueError(f"its header gives {encoded:,} bytes, but it has {len(body):,}")
    if (version, lz4_version, flags >> 5) != (_BLOSC_FORMAT, _LZ4_FORMAT, _LZ4):
        raise ValueError("it is not in the format that ingest writes")
    if itemsize != into.itemsize or not 0 < block <= size:
        raise ValueError(f"its header has values of {itemsize} bytes in blocks of {block:,}")


REQUESTS = 16
"""Requests to a store by URL that a process has under way at once."""


class ByteRange(NamedTuple):
    path: AnyPath
    span: tuple[int, int] | None = None
    """First byte and number of bytes; None for all of a file."""


class _Ahead(threading.local):
    """What a thread reads next: the requests under way, None for a file that the system reads."""

    requests: dict[ByteRange, Future[bytes | memoryview] | None] = {}  # noqa: RUF012 - replaced, never changed


_AHEAD = _Ahead()


def read_bytes(place: ByteRange, max_bytes: int, n_tail: int) -> tuple[bytes, bytes]:
    """Return the bytes but the last `n_tail`, and those."""
    if not isinstance(place.path, UrlPath):
        return read_with_tail(place.path, max_bytes, n_tail, place.span)
    request = _AHEAD.requests.pop(place, None)
    content = _fetched(place, max_bytes) if request is None else request.result()
    return bytes(content[:-n_tail]), bytes(content[-n_tail:])


def read_ahead(places: Sequence[ByteRange], max_bytes: int) -> None:
    """Begin to fetch what this thread reads next, and return at once."""
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
    return 4 * side**2 + MAX_OVERHEAD


def read_decoded(place: ByteRange, into: np.ndarray, checksum: int | None = None) -> None:
    """Read and decode a chunk into an array of its size; raises one of DAMAGED where it is wrong twice."""

    def read() -> None:
        body, tail = read_bytes(place, into.nbytes + MAX_OVERHEAD, CHECKSUM_BYTES)
        decode_chunk(body, tail, into, checksum)

    twice(read)
