"""Read chunks of c2, decoded straight into the array of the caller.

A chunk is one file, `c2/c/bin/i/j`, in the encoding of `chunk_codec.py`. Read without zarr's event
loop between the file and the buffer, it costs half the processor time.
"""

import os
from errno import ENOMEM
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.chunk_codec import CHECKSUM_BYTES, MAX_OVERHEAD, decode_chunk
from homodyne_dask.store.files import read_with_tail


def chunk_path(store: str, factor: int, index: int, tile: tuple[int, int]) -> Path:
    """Return the file of a chunk, of c2 itself (factor 1) or of one of its levels."""
    return Path(store, schema.matrix_name(factor), "c", str(index), *map(str, tile))


def read_ahead(path: Path) -> None:
    """Ask the operating system to read a file into its cache, and return at once."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return  # reported when it is read
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # a pipe, refused when it is read
    finally:
        os.close(handle)


def read_chunk(
    store: str,
    factor: int,
    label: int,
    index: int,
    tile: tuple[int, int],
    checksum: int,
    into: Float32[np.ndarray, "T T"],
) -> None:
    """Decode one chunk of the bin at position `index` into a contiguous array of the same side.

    checksum: the crc32c that the manifest lists for it.
    Raises StoreError, naming the bin's label and the tile, for a chunk that is missing, damaged, of
    another size, or not the one that was ingested there.
    """
    path = chunk_path(store, factor, index, tile)
    try:
        body, tail = read_with_tail(path, into.nbytes + MAX_OVERHEAD, CHECKSUM_BYTES)
        decode_chunk(body, tail, into, checksum)
    except (OSError, ValueError, RuntimeError) as e:
        if isinstance(e, OSError) and e.errno == ENOMEM:
            raise
        level = "" if factor == 1 else f" of level{factor}"
        reason = "it is missing" if isinstance(e, FileNotFoundError) else str(e)
        raise StoreError(
            f"{store}: chunk {tile}{level} of the bin labelled {label} cannot be read ({reason}): "
            f"ingest the source again with --overwrite, or start again if the store was replaced"
        ) from e
