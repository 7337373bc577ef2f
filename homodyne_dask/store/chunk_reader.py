"""Read chunks of c2, decoded straight into the array of the caller.

A chunk is one file, `c2/c/bin/i/j`, or a range of a shard, in the encoding of `chunk_codec.py`. Read
without zarr's event loop between the file and the buffer, it costs half the processor time.
"""

from errno import ENOMEM

import numpy as np
from jaxtyping import Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.byte_range import ByteRange, read_bytes
from homodyne_dask.store.chunk_codec import CHECKSUM_BYTES, MAX_OVERHEAD, decode_chunk
from homodyne_dask.store.files import AnyPath, inside


def chunk_path(store: str, factor: int, index: int, tile: tuple[int, int]) -> AnyPath:
    """Return the file of a chunk, of c2 itself (factor 1) or of one of its levels.

    In a store with shards: the file of a shard, tile being its position among them.
    """
    return inside(store, schema.matrix_name(factor), "c", str(index), *map(str, tile))


def most_bytes(side: int) -> int:
    """Return the most bytes that a chunk of that side is stored in."""
    return 4 * side**2 + MAX_OVERHEAD


def read_chunk(
    place: ByteRange, name: str, checksum: int, into: Float32[np.ndarray, "T T"]
) -> None:
    """Decode a chunk into a contiguous array of the same side.

    name: what the chunk is, for messages. checksum: the crc32c that the manifest lists for it.
    Raises StoreError for a chunk that is missing, damaged, of another size, or not the one that was
    ingested there; ObjectStoreError where it cannot be fetched.
    """
    try:
        body, tail = read_bytes(place, into.nbytes + MAX_OVERHEAD, CHECKSUM_BYTES)
        decode_chunk(body, tail, into, checksum)
    except (OSError, ValueError, RuntimeError) as e:
        if isinstance(e, OSError) and e.errno == ENOMEM:
            raise
        reason = "it is missing" if isinstance(e, FileNotFoundError) else str(e)
        raise StoreError(
            f"{name} cannot be read ({reason}): "
            f"ingest the source again with --overwrite, or start again if the store was replaced"
        ) from e
