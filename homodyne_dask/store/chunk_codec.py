"""How a chunk is stored: blosc of its little-endian values, then the crc32c of that.

`schema.py` names these codecs in the metadata, so any Zarr library reads and writes the same bytes.
Blosc called from a thread other than the main one holds no lock: two threads compress at once.
"""

import google_crc32c
import numpy as np
from jaxtyping import Float32
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue]

COMPRESSOR, LEVEL, SHUFFLE = "lz4", 5, "shuffle"
"""zstd gains 6 % on the noise of c2, for four times the time to decode; `make benchmark` compares."""
CHECKSUM_BYTES = 4
"""Bytes of the crc32c at the end of each chunk."""
MAX_OVERHEAD = 1 << 16
"""Bytes; values that cannot be compressed grow by less."""


def encode_chunk(values: np.ndarray) -> bytes:
    """Return the bytes of a chunk with these values."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    body = bytes(blosc.compress(values, COMPRESSOR.encode(), LEVEL, blosc.SHUFFLE))
    return body + google_crc32c.value(body).to_bytes(CHECKSUM_BYTES, "little")


def decode_chunk(body: bytes, checksum: bytes, into: Float32[np.ndarray, "T T"]) -> None:
    """Decode the bytes of a chunk, its checksum apart, into a contiguous array of its size.

    Raises ValueError or RuntimeError for bytes that are damaged or of another size.
    """
    if google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum is wrong")
    size = int.from_bytes(body[4:8], "little")  # in blosc's header
    if size != into.nbytes:
        raise ValueError(f"it holds {size} bytes where {into.nbytes} belong")
    blosc.decompress(body, into)
