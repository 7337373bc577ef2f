"""Blocks of data: read from the store, and kept in a worker's memory as a hint."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache

import numpy as np
import zarr
from jaxtyping import Float, Float32
from zarr.core.buffer import default_buffer_prototype

from homodyne_dask.dataset import Scan, Selection, opened
from homodyne_dask.errors import StoreError
from homodyne_dask.kernel import Block
from homodyne_dask.planning import Layout

ALIGNMENT = 64
"""Bytes; XLA copies arrays that are not aligned so."""


@lru_cache(maxsize=4)
def _c2(selection: Selection) -> zarr.Array:
    zarr.config.set(
        {"array.read_missing_chunks": False, "async.concurrency": 4, "threading.max_workers": 2}
    )
    return zarr.open_array(selection.path, path="c2", mode="r", zarr_format=3)


def read_block(selection: Selection, layout: Layout, group: int, tile: tuple[int, int]) -> Block:
    """Return one block, decoded; raises StoreError naming the bin and tile that cannot be read."""
    scan = opened(selection)
    members = layout.groups[group]
    c2 = np.asarray(scan.bins)[list(members)]
    data = _aligned(layout.slots, layout.side)
    i, j = (at * layout.side for at in tile)
    rows = min(layout.side, scan.n_frames - i)
    columns = min(layout.side, scan.n_frames - j)
    array = _c2(selection)
    slot = 0
    for run in np.split(c2, np.flatnonzero(np.diff(c2) != 1) + 1):
        where = (slice(run[0], run[-1] + 1), slice(i, i + rows), slice(j, j + columns))
        _read(scan, array, where, data[slot : slot + len(run), :rows, :columns], tile)
        slot += len(run)
    use = np.zeros((2, layout.side), bool)
    use[0, :rows], use[1, :columns] = scan.use[i : i + rows], scan.use[j : j + columns]
    data[:slot, ~use[0], :] = np.nan
    data[:slot, :, ~use[1]] = np.nan
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


def _aligned(slots: int, side: int) -> Float32[np.ndarray, "slot T T"]:
    """Return an aligned array of NaN."""
    count = slots * side * side
    raw = np.empty(count * 4 + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    data = raw[first : first + count * 4].view(np.float32).reshape(slots, side, side)
    data.fill(np.nan)
    return data


def _read(
    scan: Scan,
    array: zarr.Array,
    where: tuple[slice, slice, slice],
    into: Float32[np.ndarray, "run rows columns"],
    tile: tuple[int, int],
) -> None:
    try:
        out = default_buffer_prototype().nd_buffer.from_numpy_array(into)
        array.get_basic_selection(where, out=out)
    except Exception as e:
        bins = where[0]
        if bins.stop - bins.start > 1:  # read one by one to name the bin
            for b in range(bins.start, bins.stop):
                at = b - bins.start
                _read(scan, array, (slice(b, b + 1), *where[1:]), into[at : at + 1], tile)
            return
        label = scan.all_bins["label"][bins.start]
        raise StoreError(
            f"{scan.path}: chunk ({tile[0]}, {tile[1]}) of the bin labelled {label} cannot be read "
            f"({type(e).__name__}: {e}); ingest the source again"
        ) from e


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


BLOCKS = Kept[Block](lambda block: block.c2.nbytes)
SUMS = Kept[np.ndarray](lambda sums: sums.nbytes + 500, budget=50_000_000)
"""What the data of a block give whatever theta is: as good after the block itself is gone."""


def block(
    selection: Selection, layout: Layout, group: int, tile: tuple[int, int], budget: int
) -> Block:
    """Return a block from this process's memory, or from the store; `budget` bytes are kept."""
    key = (selection, layout.side, layout.groups[group], layout.slots, tile)
    found = BLOCKS.get(key)
    if found is None:
        found = read_block(selection, layout, group, tile)
        BLOCKS.put(key, found, budget)
    return found


def forget() -> None:
    """Drop all that this process keeps of any data."""
    BLOCKS.clear()
    SUMS.clear()
