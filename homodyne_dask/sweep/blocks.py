"""Blocks of data: read from the store, and cached in a worker's memory."""

import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32
from zict import LRU

from homodyne_dask.kernels.block import Block
from homodyne_dask.store import chunk_reader as chunks
from homodyne_dask.store.chunk_reader import chunk_path, read_chunk
from homodyne_dask.store.scan import (
    Scan,
    Selection,
    coarse_use,
    coarse_weights,
    known_q,
    open_selection,
)

ALIGNMENT = 64
"""Bytes; XLA copies arrays that are not aligned so."""


class BlockSource(NamedTuple):
    """Where blocks come from: a selection, and how it is cut at one level."""

    selection: Selection
    side: int
    padded_bins: int
    factor: int
    """Frames averaged into one, 1 at full resolution."""


class Place(NamedTuple):
    """One block of a source."""

    members: tuple[int, ...]
    """Indices into the selection's bins."""
    tile: tuple[int, int]


def read_block(source: BlockSource, place: Place, data: Float32[np.ndarray, "padded T T"]) -> Block:
    """Return one block, decoded into `data`; raises StoreError naming what cannot be read."""
    scan = open_selection(source.selection)
    members = list(place.members)
    excluded = _excluded(source, scan, place)
    for row, member in enumerate(members):
        if row in excluded:
            data[row] = np.nan
            continue
        read_chunk(
            scan.path, source.factor, int(scan.label[member]), scan.bins[member], place.tile,
            data[row],
        )  # fmt: skip
    data[len(members) :] = np.nan
    i, j = (at * source.side for at in place.tile)
    use = coarse_use(scan, source.factor)
    for axis, first in ((1, i), (2, j)):
        unused = np.flatnonzero(~use[first : first + source.side])
        data[(slice(len(members)), *[slice(None)] * (axis - 1), unused)] = np.nan
    weights = coarse_weights(scan, source.factor, members)
    return Block(
        c2=data,
        weight_rows=_weights(weights, source, i),
        weight_columns=_weights(weights, source, j),
        q=known_q(scan)[members],
        phi=scan.phi[members],
        i0=i,
        j0=j,
    )


def stored_sums(
    source: BlockSource, place: Place, min_lag: int
) -> Float[np.ndarray, "padded 4"] | None:
    """Return Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs of a block as ingest found them.

    None unless the selection takes every pair of the block that ingest took.
    """
    scan = open_selection(source.selection)
    if source.factor != 1 or scan.chunk_sums is None:
        return None
    i, j = place.tile
    first, stop = scan.frames
    whole = first <= i * source.side and min((j + 1) * source.side, scan.n_frames) <= stop
    nearest = max((j - i - 1) * source.side + 1, 1)
    if not whole or min_lag > nearest:
        return None
    sums = np.zeros((source.padded_bins, 4))
    sums[: len(place.members)] = scan.chunk_sums[list(place.members), i, j]
    sums[_excluded(source, scan, place)] = 0.0
    return sums


def _excluded(source: BlockSource, scan: Scan, place: Place) -> list[int]:
    """Return the padded_bins of a block whose chunks are damaged and excluded."""
    if not scan.excluded:
        return []
    return [
        row
        for row, member in enumerate(place.members)
        if (source.factor, scan.bins[member], *place.tile) in scan.excluded
    ]


def prefetch(source: BlockSource, place: Place) -> None:
    """Let the operating system fetch a block's chunks while another is computed."""
    if (source, place) in BLOCKS:
        return
    scan = open_selection(source.selection)
    for member in place.members:
        chunks.read_ahead(chunk_path(scan.path, source.factor, scan.bins[member], place.tile))


def aligned_array(padded_bins: int, side: int) -> Float32[np.ndarray, "padded T T"]:
    """Return an aligned array, not yet filled."""
    count = padded_bins * side * side
    raw = np.empty(count * 4 + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + count * 4].view(np.float32).reshape(padded_bins, side, side)


def _weights(
    weights: Float[np.ndarray, "bin t"], source: BlockSource, first: int
) -> Float[np.ndarray, "padded T"]:
    part = weights[:, first : first + source.side]
    padded = np.zeros((source.padded_bins, source.side))
    padded[: len(part), : part.shape[1]] = part
    return padded


def byte_cache[T](bytes_of: Callable[[T], int], budget: int = 0) -> LRU[Hashable, T]:
    """Return a cache of this process that drops the least recently used beyond a budget of bytes."""
    return LRU(budget, {}, weight=lambda _, value: bytes_of(value))


def keep[T](cache: LRU[Hashable, T], key: Hashable, value: T, budget: int) -> None:
    """Put a value into a cache, which from now on has a budget of so many bytes."""
    cache.n = budget
    cache[key] = value


class _Scratch(threading.local):
    """The buffer of a thread, which one block after another is read into."""

    data = np.empty((0, 0, 0), np.float32)


_SCRATCH = _Scratch()


def _scratch(source: BlockSource) -> Float32[np.ndarray, "padded T T"]:
    """Return the buffer of this thread, made anew for another shape."""
    if _SCRATCH.data.shape != (source.padded_bins, source.side, source.side):
        _SCRATCH.data = aligned_array(source.padded_bins, source.side)
    return _SCRATCH.data


BLOCKS: LRU[Hashable, Block] = byte_cache(lambda block: block.c2.nbytes)
SUMS: LRU[Hashable, np.ndarray] = byte_cache(lambda sums: sums.nbytes + 500, budget=50_000_000)
"""Sums of the data of blocks, which hold for every theta and after the block itself was dropped."""


def block(source: BlockSource, place: Place, budget: int) -> Block:
    """Return a block from this process's memory, or from the store; `budget` bytes are kept.

    With nothing to be kept the block lives in this thread's only buffer, until the next call:
    fresh memory for each block would cost a nanosecond per pair in page faults.
    """
    if budget == 0:
        return read_block(source, place, _scratch(source))
    found = BLOCKS.get((source, place))
    if found is None:
        found = read_block(source, place, aligned_array(source.padded_bins, source.side))
        keep(BLOCKS, (source, place), found, budget)
    return found


def forget() -> None:
    """Drop all that this process keeps of any data."""
    BLOCKS.clear()
    SUMS.clear()
