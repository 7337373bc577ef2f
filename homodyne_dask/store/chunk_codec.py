"""How a chunk is stored: blosc of its little-endian values, then the crc32c of that.

`schema.py` names these codecs in the metadata, so any Zarr library reads and writes the same bytes.
Blosc called from a thread other than the main one holds no lock: two threads compress at once.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import google_crc32c
import numpy as np
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue]

COMPRESSOR, LEVEL, SHUFFLE = "lz4", 5, "shuffle"
"""zstd gains 6 % on the noise of c2, for four times the time to decode; `make benchmark` compares."""
CHECKSUM_BYTES = 4
"""Bytes of the crc32c at the end of each chunk."""
MAX_OVERHEAD = 1 << 16
"""Bytes; values that cannot be compressed grow by less."""
_HEADER = struct.Struct("<4B3I")
"""Of blosc: versions of the format and of the compressor, flags, bytes per value; bytes decoded, bytes in
a block, bytes of all."""
_BLOSC_FORMAT, _LZ4_FORMAT, _LZ4 = 2, 1, 1
"""Versions of the two formats, and the number of lz4 in the three highest bits of the flags."""


class EncodedChunk(NamedTuple):
    """The bytes of a chunk."""

    content: bytes
    """With the checksum at its end."""
    checksum: int
    """crc32c of the bytes before it."""


def encode_chunk(values: np.ndarray) -> EncodedChunk:
    """Return the bytes of a chunk with these values."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    _require_memory(2 * values.nbytes)
    body = bytes(blosc.compress(values, COMPRESSOR.encode(), LEVEL, blosc.SHUFFLE))
    checksum = google_crc32c.value(body)
    return EncodedChunk(body + checksum.to_bytes(CHECKSUM_BYTES, "little"), checksum)


def shard_content(chunks: Mapping[tuple[int, int], bytes], rows: int, columns: int) -> bytes:
    """Return the bytes of a shard: its chunks one after the other, then the index by which Zarr finds them.

    chunks: by row and column in the shard, which has so many rows and columns.
    """
    index = np.full((rows, columns, 2), np.iinfo(np.uint64).max, "<u8")
    first = 0
    for tile, content in chunks.items():
        index[tile], first = (first, len(content)), first + len(content)
    body = index.tobytes()
    checksum = google_crc32c.value(body).to_bytes(CHECKSUM_BYTES, "little")
    return b"".join([*chunks.values(), body, checksum])


def decode_chunk(
    body: bytes, checksum: bytes, into: np.ndarray, expected: int | None = None
) -> None:
    """Decode the bytes of a chunk, its checksum apart, into a contiguous array of its size.

    expected: crc32c of the chunk that belongs there, where it is known.
    Raises ValueError or RuntimeError for bytes that are damaged, of another size or another chunk,
    MemoryError where there is no memory to decode.
    """
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
    """Raise ValueError for sizes or a format that `encode_chunk` does not write.

    Blosc believes its header: of bytes shorter than it says, it reads what lies behind them in memory.
    """
    version, lz4_version, flags, itemsize, size, block, encoded = _HEADER.unpack_from(body)
    if size != into.nbytes:
        raise ValueError(f"it has {size:,} bytes instead of {into.nbytes:,}")
    if encoded != len(body):
        raise ValueError(f"its header gives {encoded:,} bytes, but it has {len(body):,}")
    if (version, lz4_version, flags >> 5) != (_BLOSC_FORMAT, _LZ4_FORMAT, _LZ4):
        raise ValueError("it is not in the format that ingest writes")
    if itemsize != into.itemsize or not 0 < block <= size:
        raise ValueError(f"its header has values of {itemsize} bytes in blocks of {block:,}")
