"""The part of a matrix that a page shows: square cells of pairs, and the means of c2 over them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from zict import LRU

from homodyne_dask.errors import SelectionError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, Scan, coarse_use

MAX_CELLS = 320
"""Most cells along a side of a map: what a panel has pixels for."""
MAX_TILES = 32
"""Decoded chunks that are kept: at most 32 MiB."""

Span = tuple[float, float]
"""Seconds."""
Tile = Float32[np.ndarray, "T T"]


@dataclass(frozen=True)
class CellAxis:
    """The cells along one side of a map."""

    level: int
    """Frames in one row of the array that is read; 1 is c2 itself."""
    merged: int
    """Rows of it in one cell."""
    first: int
    """Cell, counted from the first frame of the store."""
    number: int

    @property
    def side(self) -> int:
        """Frames along one side of a cell."""
        return self.level * self.merged

    @property
    def cells(self) -> Int[np.ndarray, " n"]:
        """Numbers of the cells, counted from the first frame of the store."""
        return np.arange(self.first, self.first + self.number)

    @property
    def middles(self) -> Float[np.ndarray, " n"]:
        """Frames in the middle of the cells, perhaps between two."""
        return self.cells * self.side + (self.side - 1) / 2

    def ends(self, scan: Scan) -> Span:
        """Return where the first cell begins and the last one ends."""
        frames = np.array([self.first, self.first + self.number]) * self.side - 0.5
        begin, end = times_of(scan, frames)
        return float(begin), float(end)


def times_of(scan: Scan, frames: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the times of frames, of halves of frames, and of those before the first or after the last."""
    n, step = scan.n_frames, scan.attrs["frame_time"]
    beyond = np.where(frames < 0, frames, np.maximum(frames - (n - 1), 0)) * step
    return np.interp(frames, np.arange(n), scan.time) + beyond


def whole_span(scan: Scan) -> Span:
    """Return the times between which the selected frames lie."""
    begin, end = times_of(scan, np.array(scan.frames) - 0.5)
    return float(begin), float(end)


def cell_axes(scan: Scan, x: Span, y: Span) -> tuple[CellAxis, CellAxis]:
    """Return the cells of a window (columns, rows): single pairs where at most `MAX_CELLS` a side are in it.

    Else squares of 2, 4, 8, ... frames, read from the coarsest level that has them.
    Raises SelectionError where no selected frame is in it.
    """
    columns, rows = (frames_in(scan, span) for span in (x, y))
    widest = max(stop - start for start, stop in (columns, rows))
    side = 1
    while side * MAX_CELLS < widest:
        side *= 2
    level = max(n for n in scan.manifest.checksums if n <= side)
    limit = -(-(scan.n_frames // level) // (side // level))

    def axis(start: int, stop: int) -> CellAxis:
        first = min(start // side, limit - 1)
        return CellAxis(level, side // level, first, max(min(-(-stop // side), limit) - first, 1))

    return axis(*columns), axis(*rows)


def frames_in(scan: Scan, span: Span) -> tuple[int, int]:
    """Return the first selected frame of a span and the one after the last."""
    low, high = sorted(span)
    edges = times_of(scan, np.arange(scan.frames[0], scan.frames[1] + 1) - 0.5)
    if high <= edges[0] or low >= edges[-1]:
        raise SelectionError(f"there are no frames from {low:.4g} to {high:.4g} s")
    first, last = np.searchsorted(edges, (low, high), side="right") - 1
    start, stop = scan.frames
    return max(start + int(first), start), min(start + int(last) + 1, stop)


class Tiles:
    """The chunks of all scans of a page, the latest of them kept decoded."""

    def __init__(self) -> None:
        self._kept: LRU[tuple[str, Chunk], Tile] = LRU(MAX_TILES, {})
        self._lock = threading.Lock()

    def read(self, scan: Scan, level: int, bin: int, i: int, j: int) -> Tile:
        """Return one tile of the whole symmetric matrix of a selected bin; NaN on the diagonal.

        Raises StoreError for a chunk that is damaged.
        """
        chunk = Chunk(level, scan.bins[bin], min(i, j), max(i, j))
        with self._lock:
            kept = self._kept.get((scan.digest, chunk))
        if kept is None:
            side = schema.tile_side(scan.n_frames)
            kept = np.empty((side, side), np.float32)
            scan.read_chunk(chunk, kept)
            if i == j:
                np.copyto(kept, kept.T, where=np.tri(side, k=-1, dtype=bool))
            with self._lock:
                self._kept[scan.digest, chunk] = kept
        return kept if i <= j else kept.T


@dataclass(frozen=True)
class Means:
    """Means of c2 over the cells of a window."""

    c2: Float[np.ndarray, "rows columns"]
    """NaN where fewer than half of the pairs of a cell are known, and in the cells of the diagonal."""
    pairs: Int[np.ndarray, "rows columns"]
    """Pairs averaged."""


def window_means(
    scan: Scan, tiles: Tiles, bin: int, rows: CellAxis, columns: CellAxis, check: Callable[[], None]
) -> Means:
    """Return the means over the cells of a window of one bin; only chunks that lie in it are read.

    check: called before each chunk, to raise where nobody waits for the means any more.
    """
    side, merged, level = schema.tile_side(scan.n_frames), rows.merged, rows.level
    use = coarse_use(scan, level)
    total = np.zeros((rows.number, columns.number))
    count = np.zeros(total.shape, np.int32)
    for i, i_rows in _parts(rows, side, len(use)):
        for j, j_columns in _parts(columns, side, len(use)):
            check()
            tile = tiles.read(scan, level, bin, i, j)
            part = tile[i_rows - i * side][:, j_columns - j * side]
            known = np.isfinite(part) & use[i_rows, None] & use[j_columns]
            into = np.ix_(
                np.unique(i_rows // merged) - rows.first,
                np.unique(j_columns // merged) - columns.first,
            )
            total[into] += _summed(np.where(known, part, 0.0), i_rows, j_columns, merged)
            count[into] += _summed(known.astype(np.int32), i_rows, j_columns, merged)
    there = count >= merged**2 / 2
    there &= rows.cells[:, None] != columns.cells
    return Means(np.where(there, total / np.maximum(count, 1), np.nan), count * level**2)


def _parts(axis: CellAxis, side: int, length: int) -> list[tuple[int, Int[np.ndarray, " row"]]]:
    """Return the tiles along an axis, each with the rows of the array that are in it."""
    first = axis.first * axis.merged
    rows = np.arange(first, min(first + axis.number * axis.merged, length))
    return [(int(tile), rows[rows // side == tile]) for tile in np.unique(rows // side)]


def _summed(
    part: np.ndarray,
    rows: Int[np.ndarray, " row"],
    columns: Int[np.ndarray, " column"],
    merged: int,
) -> np.ndarray:
    """Return the sums over cells of a part of the array."""
    for axis, numbers in enumerate((rows, columns)):
        begins = np.unique(numbers // merged, return_index=True)[1]
        part = part if merged == 1 else np.add.reduceat(part, begins, axis=axis)
    return part


def mean_sigma(
    scan: Scan, bin: int, rows: CellAxis, columns: CellAxis, pairs: Int[np.ndarray, "rows columns"]
) -> Float[np.ndarray, "rows columns"]:
    """Return σ of the mean over the pairs of each cell, as if they were independent."""
    ends = [_row_variance(scan, bin, axis) for axis in (rows, columns)]
    return np.sqrt(np.outer(*ends) / np.maximum(pairs, 1))


def _row_variance(scan: Scan, bin: int, axis: CellAxis) -> Float[np.ndarray, " n"]:
    """Return the mean of sigma_row² over the used frames of each cell; NaN where none is used."""
    frames = np.minimum((axis.cells * axis.side)[:, None] + np.arange(axis.side), scan.n_frames - 1)
    used: Bool[np.ndarray, "n side"] = scan.use[frames]
    variance = np.where(used, scan.sigma_row[bin][frames] ** 2, 0.0).sum(1)
    return np.where(used.any(1), variance / np.maximum(used.sum(1), 1), np.nan)
