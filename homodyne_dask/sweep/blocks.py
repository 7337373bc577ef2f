"""Blocks of data, read from the store, the cost of a pass over them, and chunks that cannot be read.

These are found before a fit that may exclude them, so that they depend on the store alone. Some fits never
read a chunk in which f has decayed to zero; if it were excluded when it is read, such a chunk would count at
one theta and not at another.

Decoded blocks, in memory or on a GPU, and their sums are cached; the least recently used are dropped first.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import batched, chain, islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32
from zict import LRU

from homodyne_dask.errors import StoreError
from homodyne_dask.kernels.backend_interface import Block
from homodyne_dask.machine.allocator_and_threads import trim_memory
from homodyne_dask.store.chunks import ByteRange, most_bytes, read_ahead
from homodyne_dask.store.scan import (
    Chunk,
    Scan,
    Selection,
    coarse_use,
    coarse_weights,
    open_selection,
)
from homodyne_dask.sweep.layout import AHEAD, AHEAD_BYTES, Layout, tiles_at_once

if TYPE_CHECKING:
    from distributed import Client


ALIGNMENT = 64
"""Bytes; XLA copies arrays that are not aligned so."""


class BlockSource(NamedTuple):
    selection: Selection
    side: int
    padded_bins: int
    factor: int
    """Frames averaged into one."""
    device: str = ""
    """Where blocks are kept and computed: a device of JAX as 'cuda:0', '' for processors."""
    several_q: bool = False
    """The bins of a block may differ in q."""

    @property
    def tiles_at_once(self) -> int:
        return tiles_at_once(4 * self.padded_bins * self.side**2)


class Place(NamedTuple):
    members: tuple[int, ...]
    """Indices into the selection's bins."""
    tile: tuple[int, int]


def read_block(source: BlockSource, place: Place, data: Float32[np.ndarray, "padded T T"]) -> Block:
    """Return one block, decoded into `data`: of all padded bins, or of those that there are."""
    scan = open_selection(source.selection)
    members = list(place.members)
    for row, member in enumerate(members):
        scan.read_chunk(Chunk(source.factor, scan.bins[member], *place.tile), data[row])
    # the buffer may hold what was read before
    data[len(members) :] = np.nan
    i, j = (number * source.side for number in place.tile)
    use = coarse_use(scan, source.factor)
    for axis, first in ((1, i), (2, j)):
        unused = np.flatnonzero(~use[first : first + source.side])
        data[(slice(len(members)), *[slice(None)] * (axis - 1), unused)] = np.nan
    weights = coarse_weights(scan, source.factor, members)
    c2 = data.astype(dtype_of(scan), copy=False)
    if scan.is_table and i == 0:  # the numbers of the table, not rounded
        numbers = scan.table[members, j : j + source.side]
        c2[: len(members), 0, : numbers.shape[1]] = numbers
    return Block(
        c2=c2,
        weight_rows=_weights(weights, len(data), source.side, i),
        weight_columns=_weights(weights, len(data), source.side, j),
        q=scan.q_or_one[members],
        phi=scan.phi[members],
        i0=i,
        j0=j,
        several_q=source.several_q,
    )


def dtype_of(scan: Scan) -> type[np.floating]:
    return np.float64 if scan.is_table else np.float32


def stored_sums(
    source: BlockSource, place: Place, min_lag: int
) -> Float[np.ndarray, "padded 4"] | None:
    """Return Σ w, Σ w(y - 1), Σ w(y - 1)², pairs of a block as stored; None unless all its pairs count."""
    scan = open_selection(source.selection)
    if source.factor != 1 or scan.is_table:
        return None
    i, j = place.tile
    first = i * source.side, j * source.side
    complete = all(scan.selected_frames[n : n + source.side].all() for n in first)
    nearest = max((j - i - 1) * source.side + 1, 1)
    if not complete or min_lag > nearest:
        return None
    sums = np.zeros((source.padded_bins, 4))
    sums[: len(place.members)] = scan.chunk_sums[list(place.members), i, j]
    for row, member in enumerate(place.members if scan.excluded else ()):
        if (source.factor, scan.bins[member], i, j) in scan.excluded:
            sums[row] = 0.0
    return sums


def aligned_array(padded_bins: int, side: int) -> Float32[np.ndarray, "padded T T"]:
    count = padded_bins * side * side
    raw = np.empty(count * 4 + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + count * 4].view(np.float32).reshape(padded_bins, side, side)


def _weights(
    weights: Float[np.ndarray, "bin t"], bins: int, side: int, first: int
) -> Float[np.ndarray, "padded T"]:
    inside = weights[:, first : first + side]
    padded = np.zeros((bins, side))
    padded[: len(inside), : inside.shape[1]] = inside
    return padded


class Cost(NamedTuple):
    """The work of a pass or of a part of it; blocks where f has decayed to zero cost nothing."""

    computed: int = 0
    """Sub-blocks computed, of all bins together."""
    sub_blocks: int = 0
    read: int = 0
    blocks: int = 0
    reading: float = 0.0
    """Seconds of a thread to read and decode the data of its blocks."""

    def plus(self, other: "Cost") -> "Cost":
        return self._make(a + b for a, b in zip(self, other, strict=True))


NO_COST = Cost()


CHUNKS_PER_TASK = 64


def chunks_of(scan: Scan, layout: Layout) -> Iterator[Chunk]:
    for member, tile in product(chain(*layout.groups), layout.tiles):
        yield Chunk(layout.factor, scan.bins[member], *tile)


def without_unreadable(scan: Scan, layouts: Sequence[Layout], client: "Client | None") -> Scan:
    """Return the scan with every chunk excluded that cannot be read at any of its resolutions."""
    chunks = [chunk for layout in layouts for chunk in chunks_of(scan, layout)]
    shares = list(batched(chunks, CHUNKS_PER_TASK))
    task = partial(unreadable_chunks, scan.selection, layouts[0].side)
    if client is None:
        unreadable: Any = map(task, shares)
    else:
        from homodyne_dask.cluster.local import cluster_errors, gathered  # lazy: it loads Dask

        with cluster_errors(client):
            tasks = client.map(task, shares, pure=False)
        unreadable = gathered(client, tasks)
    excluded = tuple(sorted(chunk for share in unreadable for chunk in share))
    if set(excluded) >= {chunk for chunk in chunks if chunk.factor == 1}:
        raise StoreError(f"{scan.path}: no chunk of c2 can be read; ingest the source again")
    return replace(scan, excluded=excluded)


def unreadable_chunks(selection: Selection, side: int, chunks: Iterable[Chunk]) -> list[Chunk]:
    scan = open_selection(selection)
    into, unreadable = np.empty((side, side), np.float32), []
    for chunk in chunks:
        try:
            scan.read_chunk(chunk, into)
        except StoreError:
            unreadable.append(chunk)
    return unreadable


_LARGE = 50_000_000
"""Bytes of a cache that a fit on threads of the user's own process does not leave there."""
_CACHES: list[LRU[Hashable, Any]] = []


def byte_cache[T](bytes_of: Callable[[T], int], budget: int = 0) -> LRU[Hashable, T]:
    _CACHES.append(LRU(budget, {}, weight=lambda _, value: bytes_of(value)))
    return _CACHES[-1]


def keep[T](cache: LRU[Hashable, T], key: Hashable, value: T, budget: int) -> None:
    cache.n = budget
    cache[key] = value


_SCRATCH = threading.local()
"""Of each thread a buffer, which one block after another is read into."""
BLOCKS: LRU[Hashable, Block] = byte_cache(lambda block: block.c2.nbytes)
SUMS: LRU[Hashable, np.ndarray] = byte_cache(lambda sums: sums.nbytes + 500, budget=_LARGE)
"""Sums of the data of blocks, which hold for every theta and after the block itself was dropped."""
CELLS: LRU[Hashable, np.ndarray] = byte_cache(lambda data: data.nbytes)
"""c2 and weights of cells of age and lag, of data that are means over such cells."""


def block(source: BlockSource, place: Place, budget: int) -> Block:
    """Return a block from this process's memory, or from the store; `budget` bytes are kept.

    With nothing to be kept the block lives in this thread's only buffer, until the next call:
    fresh memory for each block would cost a nanosecond per pair in page faults. A device computes padded
    bins, too, and compiles for each number of bins: it is rounded up to a quarter of the padded bins.
    """
    bins, share = source.padded_bins, -(-source.padded_bins // 4)
    if source.device:
        bins = min(-(-len(place.members) // share) * share, bins)
    if budget == 0:
        data = getattr(_SCRATCH, "data", None)
        if data is None or data.shape != (bins, source.side, source.side):
            data = _SCRATCH.data = aligned_array(bins, source.side)
        return placed(read_block(source, place, data), source.device)
    cached = BLOCKS.get((source, place))
    if cached is None:
        cached = placed(read_block(source, place, aligned_array(bins, source.side)), source.device)
        keep(BLOCKS, (source, place), cached, budget)
    return cached


def placed(block: Block, device: str) -> Block:
    """Return a block with its data on a device; without one JAX is not loaded for it."""
    if not device:
        return block
    from homodyne_dask.kernels.devices import on_device  # lazy: it loads JAX

    return on_device(block, device)


@contextmanager
def prefetched(
    source: BlockSource, places: Sequence[Place], reads: Sequence[bool] | None = None
) -> Iterator[Iterator[Place]]:
    """Yield an iterator of the places of blocks, which fetches the chunks of the next ones that are read."""
    most, scan = most_bytes(source.side), open_selection(source.selection)

    def fetching() -> Iterator[Place]:
        to_read = iter([n for n in range(len(places)) if reads is None or reads[n]])
        coming: dict[int, list[ByteRange]] = {}
        for n, place in enumerate(places):
            coming.pop(n - 1, None)
            for later in islice(to_read, 1 + AHEAD - len(coming)):
                members, tile = places[later]
                # none of a block that this process keeps
                to_fetch = () if (source, places[later]) in BLOCKS else members
                chunks = (Chunk(source.factor, scan.bins[member], *tile) for member in to_fetch)
                coming[later] = [scan.place_of(chunk) for chunk in chunks]
            read_ahead([*chain(*coming.values())][: AHEAD_BYTES // most], most)
            yield place

    try:
        yield fetching()
    finally:
        read_ahead([], most)


def forget(least: int = 0) -> None:
    """Drop what this process keeps of any data, or what takes more than `least` bytes of it."""
    for cache in _CACHES:
        if cache.total_weight > least:
            cache.clear()


def forget_large() -> None:
    forget(_LARGE)
    trim_memory()
