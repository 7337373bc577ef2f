"""The part of a matrix that a page shows: square cells of pairs, and the means of c2 over them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import SelectionError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, Scan, coarse_use

MAX_CELLS = 320
"""Most cells along a side of a map: what a panel has pixels for."""

Span = tuple[float, float]
"""Seconds."""
Tile = Float32[np.ndarray, "T T"]
ReadTile = Callable[[Chunk], Tile]


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

    def edges(self, scan: Scan) -> Float[np.ndarray, " edge"]:
        """Return the times between the cells, with the beginning of the first and the end of the last."""
        return times_of(scan, np.append(self.cells, self.first + self.number) * self.side - 0.5)


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
    columns, rows = (_frames_in(scan, span) for span in (x, y))
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


def _frames_in(scan: Scan, span: Span) -> tuple[int, int]:
    """Return the first selected frame of a span and the one after the last."""
    low, high = span
    edges = times_of(scan, np.arange(scan.frames[0], scan.frames[1] + 1) - 0.5)
    if high <= edges[0] or low >= edges[-1]:
        raise SelectionError(f"there are no frames from {low:.4g} to {high:.4g} s")
    first, last = np.searchsorted(edges, (low, high), side="right") - 1
    start, stop = scan.frames
    return max(start + int(first), start), min(start + int(last) + 1, stop)


def read_tile(scan: Scan, chunk: Chunk) -> Tile:
    """Return a chunk on or above the diagonal, the one on it symmetric; NaN where a pair is unknown.

    Raises StoreError for a chunk that is damaged.
    """
    tile = np.empty((schema.tile_side(scan.n_frames),) * 2, np.float32)
    scan.read_chunk(chunk, tile)
    if chunk.i == chunk.j:
        np.copyto(tile, tile.T, where=np.tri(len(tile), k=-1, dtype=bool))
    return tile


def window_means(
    scan: Scan, read: ReadTile, bin: int, rows: CellAxis, columns: CellAxis
) -> tuple[Float[np.ndarray, "rows columns"], Int[np.ndarray, "rows columns"]]:
    """Return the means of c2 over the cells of a window of one bin, and the numbers of pairs averaged.

    NaN where fewer than half of the pairs of a cell are known, and in the cells of the diagonal. Only chunks
    that lie in the window are read.
    """
    side, merged, level = schema.tile_side(scan.n_frames), rows.merged, rows.level
    use = np.pad(coarse_use(scan, level), (0, side)).astype(bool)  # the last tile is padded
    total, count = np.zeros((2, rows.number, columns.number))
    for i, here_i, there_i in _parts(rows, side):
        for j, here_j, there_j in _parts(columns, side):
            tile = read(Chunk(level, scan.bins[bin], min(i, j), max(i, j)))
            part = (tile if i <= j else tile.T)[here_i, here_j]
            known = np.isfinite(part) & np.outer(use[i * side :][here_i], use[j * side :][here_j])
            total[there_i, there_j] = _cell_sums(np.where(known, part, 0.0), merged)
            count[there_i, there_j] = _cell_sums(known, merged)
    there = (count >= merged**2 / 2) & (rows.cells[:, None] != columns.cells)
    means = np.where(there, total / np.maximum(count, 1), np.nan)
    return means, count.astype(int) * level**2


def _parts(axis: CellAxis, side: int) -> list[tuple[int, slice, slice]]:
    """Return the tiles along an axis: their numbers, their rows in the window, and the cells of these."""
    merged, stop = axis.merged, axis.first + axis.number
    per_tile = side // merged  # both are powers of 2, but for a store of one tile
    parts = []
    for tile in range(axis.first // per_tile, (stop - 1) // per_tile + 1):
        first, last = max(tile * per_tile, axis.first), min((tile + 1) * per_tile, stop)
        rows = slice(first * merged - tile * side, last * merged - tile * side)
        parts.append((tile, rows, slice(first - axis.first, last - axis.first)))
    return parts


def _cell_sums(part: np.ndarray, merged: int) -> Float[np.ndarray, "r c"]:
    rows, columns = (length // merged for length in part.shape)
    return part.reshape(rows, merged, columns, merged).sum((1, 3), dtype=np.float64)


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
