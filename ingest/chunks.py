"""Chunks, compressed straight into place: the very files zarr writes, without its event loop.

A chunk is blosc of little-endian values, then the crc32c of that (`schema.py`); any array tool
opens them through zarr. Blosc called from a thread that is not the main one keeps no lock, so two
bins compress at once.
"""

import uuid
from pathlib import Path

import google_crc32c
import numpy as np
from jaxtyping import Float32
from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue]

COMPRESSOR, LEVEL, SHUFFLE = "lz4", 5, "shuffle"
"""The noise of c2 leaves zstd 6 % to gain, for four times the time to decode; `make benchmark` compares."""


def write_chunk(array: Path, key: tuple[int, ...], chunk: np.ndarray) -> None:
    """Write one whole chunk, at `key` in the grid of the array in that folder; whole or not there."""
    chunk = np.ascontiguousarray(chunk, chunk.dtype.newbyteorder("<"))
    body = blosc.compress(chunk, COMPRESSOR.encode(), LEVEL, blosc.SHUFFLE)
    path = array.joinpath("c", *map(str, key))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    with partial.open("wb") as file:
        file.write(body)
        file.write(google_crc32c.value(body).to_bytes(4, "little"))
    partial.replace(path)


def padded(part: Float32[np.ndarray, "rows cols"], side: int) -> Float32[np.ndarray, "T T"]:
    """Return the part as a chunk of full size, NaN past the edges of the array."""
    if part.shape == (side, side):
        return np.ascontiguousarray(part)
    tile = np.full((side, side), np.nan, dtype=np.float32)
    tile[: part.shape[0], : part.shape[1]] = part
    return tile
