"""The caches of a process that computes: decoded blocks, in its memory or on its GPU, and their sums.

The least recently used are dropped first.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np
from zict import LRU

from homodyne_dask.kernels.problem import Block
from homodyne_dask.machine.allocator_and_threads import trim_memory
from homodyne_dask.store.chunk_reader import ByteRange, most_bytes, read_ahead
from homodyne_dask.store.scan import Chunk, open_selection
from homodyne_dask.sweep.blocks import BlockSource, Place, aligned_array, read_block
from homodyne_dask.sweep.layout import AHEAD, AHEAD_BYTES

_LARGE = 50_000_000
"""Bytes of a cache that a fit on threads of the user's own process does not leave there."""
_CACHES: list[LRU[Hashable, Any]] = []


def byte_cache[T](bytes_of: Callable[[T], int], budget: int = 0) -> LRU[Hashable, T]:
    """Return a cache of this process that drops the least recently used beyond a budget of bytes."""
    _CACHES.append(LRU(budget, {}, weight=lambda _, value: bytes_of(value)))
    return _CACHES[-1]


def keep[T](cache: LRU[Hashable, T], key: Hashable, value: T, budget: int) -> None:
    """Put a value into a cache, which from now on has a budget of so many bytes."""
    cache.n = budget
    cache[key] = value


class _Scratch(threading.local):
    """The buffer of a thread, which one block after another is read into."""

    data = np.empty((0, 0, 0), np.float32)


_SCRATCH = _Scratch()


BLOCKS: LRU[Hashable, Block] = byte_cache(lambda block: block.c2.nbytes)
SUMS: LRU[Hashable, np.ndarray] = byte_cache(lambda sums: sums.nbytes + 500, budget=_LARGE)
"""Sums of the data of blocks, which hold for every theta and after the block itself was dropped."""
CELLS: LRU[Hashable, np.ndarray] = byte_cache(lambda data: data.nbytes)
"""c2 and weights of cells of age and lag, of data that are means over such cells."""


def block(source: BlockSource, place: Place, budget: int) -> Block:
    """Return a block from this process's memory, or from the store; `budget` bytes are kept.

    With nothing to be kept the block lives in this thread's only buffer, until the next call:
    fresh memory for each block would cost a nanosecond per pair in page faults. On a device, which computes
    padded bins, too, there are few of them, but four numbers of bins at most, for which it compiles.
    """
    bins, share = source.padded_bins, -(-source.padded_bins // 4)
    if source.device:
        bins = min(-(-len(place.members) // share) * share, bins)
    if budget == 0:
        if _SCRATCH.data.shape != (bins, source.side, source.side):
            _SCRATCH.data = aligned_array(bins, source.side)
        return placed(read_block(source, place, _SCRATCH.data), source.device)
    found = BLOCKS.get((source, place))
    if found is None:
        found = read_block(source, place, aligned_array(bins, source.side))
        found = placed(found, source.device)
        keep(BLOCKS, (source, place), found, budget)
    return found


def placed(found: Block, device: str) -> Block:
    """Return a block with its data on a device; without one JAX is not loaded for it."""
    if not device:
        return found
    from homodyne_dask.kernels.devices import on_device

    return on_device(found, device)


@contextmanager
def prefetched(
    source: BlockSource, places: Sequence[Place], reads: Sequence[bool] | None = None
) -> Iterator[Iterator[Place]]:
    """Yield an iterator of the places of blocks, which fetches the chunks of the next ones.

    reads: for each place whether its block is read; by default all are. After the block nothing is left
    of what was fetched, however it ended.
    """
    with ExitStack() as after:
        after.callback(read_ahead, [], most_bytes(source.side))
        yield _fetching(source, places, reads)


def _fetching(
    source: BlockSource, places: Sequence[Place], reads: Sequence[bool] | None
) -> Iterator[Place]:
    to_read = iter([n for n in range(len(places)) if reads is None or reads[n]])
    most, scan = most_bytes(source.side), open_selection(source.selection)
    coming: dict[int, list[ByteRange]] = {}
    for n, place in enumerate(places):
        coming.pop(n - 1, None)
        for at in islice(to_read, 1 + AHEAD - len(coming)):
            members, tile = places[at]
            # none of a block that this process keeps
            to_fetch = () if (source, places[at]) in BLOCKS else members
            chunks = (Chunk(source.factor, scan.bins[member], *tile) for member in to_fetch)
            coming[at] = [scan.place_of(chunk) for chunk in chunks]
        read_ahead([*chain(*coming.values())][: AHEAD_BYTES // most], most)
        yield place


def forget(least: int = 0) -> None:
    """Drop what this process keeps of any data, or what takes more than `least` bytes of it."""
    for cache in _CACHES:
        if cache.total_weight > least:
            cache.clear()


def forget_large() -> None:
    """Return the memory of decoded data to the system."""
    forget(_LARGE)
    trim_memory()
