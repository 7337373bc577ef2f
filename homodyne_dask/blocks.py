"""Blocks of data: read from the store, and kept in a worker's memory as a hint."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.chunks import read_chunk
from homodyne_dask.dataset import Scan, Selection, opened
from homodyne_dask.kernel import Block
from homodyne_dask.planning import Layout

ALIGNMENT = 64
"""Bytes; XLA copies arrays that are not aligned so."""


def read_block(
    selection: Selection,
    layout: Layout,
    group: int,
    tile: tuple[int, int],
    data: Float32[np.ndarray, "slot T T"],
) -> Block:
    """Return one block, decoded into `data`; raises StoreError naming what cannot be read."""
    scan = opened(selection)
    members = layout.groups[group]
    for slot, member in enumerate(members):
        read_chunk(scan.path, int(scan.label[member]), scan.bins[member], tile, data[slot])
    data[len(members) :] = np.nan
    i, j = (at * layout.side for at in tile)
    for axis, first in ((1, i), (2, j)):
        use = scan.use[first : first + layout.side]
        left_out = np.flatnonzero(~use)
        data[(slice(len(members)), *[slice(None)] * (axis - 1), left_out)] = np.nan
    return Block(
        c2=data,
        weight_rows=_weights(scan, members, layout, i),
        weight_columns=_weights(scan, members, layout, j),
        q=known_q(scan)[list(members)],
        phi=scan.phi[list(members)],
        i0=i,
        j0=j,
    )


def known_q(scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return q in 1/Å; where it is unknown 1, so that q²·D takes the place of D."""
    return np.where(np.isfinite(scan.q), scan.q, 1.0)


def aligned(slots: int, side: int) -> Float32[np.ndarray, "slot T T"]:
    """Return an aligned array, not yet filled."""
    count = slots * side * side
    raw = np.empty(count * 4 + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + count * 4].view(np.float32).reshape(slots, side, side)


def _weights(
    scan: Scan, members: tuple[int, ...], layout: Layout, first: int
) -> Float[np.ndarray, "slot T"]:
    sigma = scan.sigma_row[list(members), first : first + layout.side]
    weights = np.zeros((layout.slots, layout.side))
    weights[: len(sigma), : sigma.shape[1]] = 1 / sigma**2
    return weights


class Kept[T]:
    """Values this process has made, the least recently used dropped beyond a budget of bytes."""

    def __init__(self, bytes_of: Callable[[T], int], budget: int = 0) -> None:
        self.values: OrderedDict[Hashable, T] = OrderedDict()
        self.bytes_of = bytes_of
        self.budget = budget
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return the value kept under a key, if it still is."""
        with self.lock:
            if key not in self.values:
                return None
            self.values.move_to_end(key)
            return self.values[key]

    def put(self, key: Hashable, value: T, budget: int | None = None) -> None:
        """Keep a value, within the budget given now or at first."""
        budget = self.budget if budget is None else budget
        with self.lock:
            if key not in self.values:
                self.values[key] = value
                self.bytes += self.bytes_of(value)
            while self.bytes > budget and self.values:
                self.bytes -= self.bytes_of(self.values.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop everything."""
        with self.lock:
            self.values.clear()
            self.bytes = 0


_OF_THREAD = threading.local()


def _scratch(layout: Layout) -> Float32[np.ndarray, "slot T T"]:
    """Return the buffer of this thread, made anew when another shape is asked for."""
    shape = layout.slots, layout.side, layout.side
    if getattr(_OF_THREAD, "shape", None) != shape:
        _OF_THREAD.data, _OF_THREAD.shape = aligned(layout.slots, layout.side), shape
    return _OF_THREAD.data


BLOCKS = Kept[Block](lambda block: block.c2.nbytes)
SUMS = Kept[np.ndarray](lambda sums: sums.nbytes + 500, budget=50_000_000)
"""What the data of a block give whatever theta is: as good after the block itself is gone."""


def block(
    selection: Selection, layout: Layout, group: int, tile: tuple[int, int], budget: int
) -> Block:
    """Return a block from this process's memory, or from the store; `budget` bytes are kept.

    With nothing to be kept the block lives in this thread's only buffer, until the next call:
    fresh memory for each block would cost a nanosecond per pair in page faults.
    """
    if budget == 0:
        return read_block(selection, layout, group, tile, _scratch(layout))
    key = (selection, layout.side, layout.groups[group], layout.slots, tile)
    found = BLOCKS.get(key)
    if found is None:
        found = read_block(selection, layout, group, tile, aligned(layout.slots, layout.side))
        BLOCKS.put(key, found, budget)
    return found


def forget() -> None:
    """Drop all that this process keeps of any data."""
    BLOCKS.clear()
    SUMS.clear()
