"""Means of c2 of one bin: over square cells in a window of its matrix, and over cells of age or lag."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import SelectionError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, Cuts, Scan, coarse_use

MAX_CELLS = 320
"""Most cells along a side of a map: what a panel has pixels for."""
MAX_TILES = 32
"""Decoded chunks that are kept: at most 32 MiB."""
NODES = 3
"""Times along a side of a cell at which f is evaluated: exact for f of degree 5 in each time."""

Span = tuple[float, float]
"""Seconds."""
Tile = Float32[np.ndarray, "T T"]
ReadTile = Callable[[Chunk], Tile]


@dataclass(frozen=True)
class CellAxis:
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
        """Counted from the first frame of the store."""
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
    n, step = scan.n_frames, scan.attributes.frame_time
    beyond = np.where(frames < 0, frames, np.maximum(frames - (n - 1), 0)) * step
    return np.interp(frames, np.arange(n), scan.time) + beyond


def whole_span(scan: Scan) -> Span:
    begin, end = times_of(scan, np.array(scan.frames) - 0.5)
    return float(begin), float(end)


def used_span(scan: Scan) -> Span:
    """Return the times of the first and the last selected frame."""
    return scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]


def cell_axes(scan: Scan, x: Span, y: Span) -> tuple[CellAxis, CellAxis]:
    """Return the cells of a window (columns, rows): single pairs where at most `MAX_CELLS` a side are in it.

    Else squares of 2, 4, 8, ... frames, read from the coarsest level that has them.
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
    low, high = span
    edges = times_of(scan, np.arange(scan.frames[0], scan.frames[1] + 1) - 0.5)
    if high <= edges[0] or low >= edges[-1]:
        raise SelectionError(f"there are no frames from {low:.4g} to {high:.4g} s")
    first, last = np.searchsorted(edges, (low, high), side="right") - 1
    start, stop = scan.frames
    return max(start + int(first), start), min(start + int(last) + 1, stop)


def tile_reader(scan: Scan) -> ReadTile:
    """Return a function that reads chunks, one on the diagonal symmetric; the latest are kept decoded."""

    @lru_cache(MAX_TILES)
    def read(chunk: Chunk) -> Tile:
        tile = np.empty((schema.tile_side(scan.n_frames),) * 2, np.float32)
        scan.read_chunk(chunk, tile)
        if chunk.i == chunk.j:
            np.copyto(tile, tile.T, where=np.tri(len(tile), k=-1, dtype=bool))
        return tile

    return read


@dataclass(frozen=True)
class Window:
    rows: CellAxis
    columns: CellAxis
    c2: Float[np.ndarray, "rows columns"]
    """NaN where fewer than half of the pairs of a cell are known, and in the cells of the diagonal."""
    pairs: Int[np.ndarray, "rows columns"]
    """Known ones, which are averaged."""
    sigma: Float[np.ndarray, "rows columns"]
    """Of the mean, as if the pairs of a cell were independent."""

    @property
    def lags(self) -> Int[np.ndarray, "rows columns"]:
        """Frames between the two sides of each cell."""
        return np.abs(np.subtract.outer(self.rows.cells, self.columns.cells)) * self.rows.side


def read_window(scan: Scan, read: ReadTile, bin: int, rows: CellAxis, columns: CellAxis) -> Window:
    """Return the data in a window of one bin; only chunks that lie in it are read."""
    side, merged, level = schema.tile_side(scan.n_frames), rows.merged, rows.level
    use = np.pad(coarse_use(scan, level), (0, side)).astype(bool)  # the last tile is padded
    total, count = np.zeros((2, rows.number, columns.number))
    for i, here_i, there_i in _parts(rows, side):
        for j, here_j, there_j in _parts(columns, side):
            if i > j and rows == columns:
                continue  # the mirror image of another one
            tile = read(Chunk(level, scan.bins[bin], min(i, j), max(i, j)))
            cells = (tile if i <= j else tile.T)[here_i, here_j]
            usable = np.isfinite(cells) & np.outer(use[i * side :][here_i], use[j * side :][here_j])
            total[there_i, there_j] = _cell_sums(np.where(usable, cells, 0.0), merged)
            count[there_i, there_j] = _cell_sums(usable, merged)
    if rows == columns:
        lower = np.tri(rows.number, dtype=bool)
        total, count = (np.where(lower, cells.T, cells) for cells in (total, count))
    known_cells = (count >= merged**2 / 2) & (rows.cells[:, None] != columns.cells)
    c2 = np.where(known_cells, total / np.maximum(count, 1), np.nan)
    pairs = count.astype(int) * level**2
    ends = [_row_variance(scan, bin, axis) for axis in (rows, columns)]
    return Window(rows, columns, c2, pairs, np.sqrt(np.outer(*ends) / np.maximum(pairs, 1)))


def _parts(axis: CellAxis, side: int) -> list[tuple[int, slice, slice]]:
    """Return the tiles along an axis: their numbers, their rows in the window, and the cells of these."""
    merged, stop = axis.merged, axis.first + axis.number
    per_tile = side // merged  # both are powers of 2, but for a store of one tile
    tiles = []
    for tile in range(axis.first // per_tile, (stop - 1) // per_tile + 1):
        first, last = max(tile * per_tile, axis.first), min((tile + 1) * per_tile, stop)
        rows = slice(first * merged - tile * side, last * merged - tile * side)
        tiles.append((tile, rows, slice(first - axis.first, last - axis.first)))
    return tiles


def _cell_sums(cells: np.ndarray, merged: int) -> Float[np.ndarray, "r c"]:
    rows, columns = (length // merged for length in cells.shape)
    return cells.reshape(rows, merged, columns, merged).sum((1, 3), dtype=np.float64)


def _row_variance(scan: Scan, bin: int, axis: CellAxis) -> Float[np.ndarray, " n"]:
    """Return the mean of sigma_row² over the used frames of each cell; NaN where none is used."""
    frames = np.minimum((axis.cells * axis.side)[:, None] + np.arange(axis.side), scan.n_frames - 1)
    selected: Bool[np.ndarray, "n side"] = scan.use[frames]
    variance = np.where(selected, scan.sigma_row[bin][frames] ** 2, 0.0).sum(1)
    return np.where(selected.any(1), variance / np.maximum(selected.sum(1), 1), np.nan)


def quadrature(side: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return frames around the middle of a cell, and weights, of the mean over its `side` frames.

    Gauss's rule for sums (the zeros of a discrete Chebyshev polynomial): all frames of up to NODES.
    """
    k = np.arange(1, min(side, NODES))
    off_diagonal = np.sqrt(k**2 * (side**2 - k**2) / (4.0 * (4 * k**2 - 1)))
    nodes, vectors = np.linalg.eigh(np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
    return nodes, vectors[0] ** 2


AGES = (0.01, 0.06, 0.2, 0.5, 0.75)
"""Ages shown, as fractions of the selected time."""
MIN_LAGS = 4
CURVE_POINTS = 200


@dataclass(frozen=True)
class Cut:
    """One bin at one age: means over the pairs of cells."""

    t1: Float[np.ndarray, " l"]
    lag: Float[np.ndarray, " l"]
    """s."""
    c2: Float[np.ndarray, " l"]
    stderr: Float[np.ndarray, " l"]
    """Of the mean over the cell, as if its pairs were independent."""
    size: Int[np.ndarray, "3 l"]
    """Frames: the mean lag, the width in lag, and in age."""

    @property
    def line(self) -> tuple[Float[np.ndarray, " n"], ...]:
        """Lag, t1 and t2 of a smooth curve through the cells, whose mean t1 depends on the lag."""
        if len(self.lag) < 2:
            return (np.empty(0),) * 3
        lag = np.geomspace(self.lag[0], self.lag[-1], CURVE_POINTS)
        t1 = np.interp(lag, self.lag, self.t1)
        return lag, t1, t1 + lag


def ages(read: Cuts, bin: int, scan: Scan) -> list[int]:
    """Return the ages shown for a bin: spread over the selected time, each with enough lags."""
    counts = np.bincount(read.age[_known(read, bin)], minlength=len(read.age_edges))
    dense = np.flatnonzero(counts >= MIN_LAGS)
    if not len(dense):
        return []
    first, last = used_span(scan)
    begins = np.array([read.t1[(read.age == age) & _known(read, bin)][0] for age in dense]) - first
    nearest = [int(np.argmin(np.abs(begins - share * (last - first)))) for share in AGES]
    return [int(dense[n]) for n in dict.fromkeys(nearest)]


def cut_at_age(scan: Scan, read: Cuts, bin: int, age: int) -> Cut:
    cells = cells_of_age(read, age, _known(read, bin))
    t1, stderr = read.t1[cells], cell_errors(scan, read, cells)[bin]
    shortest, end = (read.lag_edges[read.lag[cells] + n] for n in range(2))
    lags = np.minimum(end, scan.frames[1] - read.age_edges[age]) - shortest  # up to the last frame
    ages = np.maximum(read.count[bin, cells] // lags, 1)
    size = np.stack([shortest + (lags - 1) // 2, lags, ages])
    return Cut(t1, read.t2[cells] - t1, read.c2[bin, cells], stderr, size)


def cells_of_age(
    read: Cuts, age: int, with_data: Bool[np.ndarray, " cell"] | bool = True
) -> Int[np.ndarray, " l"]:
    """Return the cells of one age in the order of their lags."""
    cells = np.flatnonzero((read.age == age) & with_data)
    return cells[np.argsort(read.lag[cells])]


def cell_errors(scan: Scan, read: Cuts, cells: Int[np.ndarray, " l"]) -> Float[np.ndarray, "bin l"]:
    """Return the standard errors of c2 of every bin in some cells, as if their pairs were independent."""
    i, j = (
        np.searchsorted(scan.time, t[cells]).clip(0, scan.n_frames - 1) for t in (read.t1, read.t2)
    )
    count = np.maximum(read.count[:, cells], 1)
    return scan.sigma_row[:, i] * scan.sigma_row[:, j] / np.sqrt(count)


def covariance_over_age(
    f: Float[np.ndarray, " d"],
    contrast: float,
    mean_counts: float,
    lag: int,
    lags: int = 1,
    f_later: Float[np.ndarray, " d"] | None = None,
) -> Float[np.ndarray, " d"]:
    """Return the covariance of ψ(t, t + lag) and ψ(t + d, t + d + lag) for each distance d from 0 up.

    f: at lags of 0, 1, 2 ... frames; the field correlation is its root. lags: ψ is averaged over so many
    around `lag`. f_later: f of frames around t + lag; None where dynamics are stationary. From the joint
    cumulants κ of x at the times 1 to 4 of both pairs,

    κ13 κ24 + κ14 κ23 + κ1234 - β f (κ123 + κ124 + κ134 + κ234) + β² f² (κ13 + κ24 + κ14 + κ23).
    """
    b, m, n = contrast, 1 / mean_counts, len(f)
    d = np.arange(n)
    f13, f14, f23 = (f[np.minimum(np.abs(d + shift), n - 1)] for shift in (0, lag, -lag))
    f24 = _over_lags(f13 if f_later is None else f_later, lags)
    g13, g24, g14, g23, g = (np.sqrt(values) for values in (f13, f24, f14, f23, f[lag]))
    equal, touching = (d == 0).astype(float), (d == lag).astype(float)  # 1 = 3, or 2 = 3
    F, later_equal = b * f[lag], _over_lags(equal, lags)  # the share of lags with 2 = 4
    k13, k14 = b * f13 + m * equal, b * f14
    k24, k23 = b * f24 + m * later_equal, b * f23 + m * touching
    of123, of124 = 2 * b**2 * g * g23 * g13, 2 * b**2 * g * g24 * g14  # of intensities alone
    k123, k124 = of123 + F * m * (equal + touching), of124 + F * m * later_equal
    k1234 = 2 * b**3 * (f[lag] * g23 * g14 + g13 * g24 * g23 * g14 + f[lag] * g13 * g24)
    k1234 += m * (later_equal * (of123 + F * m * equal) + (equal + touching) * of124)
    return k13 * k24 + k14 * k23 + k1234 - 2 * F * (k123 + k124) + F**2 * (k13 + k24 + k14 + k23)


def _over_lags(values: Float[np.ndarray, " d"], lags: int) -> Float[np.ndarray, " d"]:
    """Return the mean of values at distances that change with the lags of two pairs, over these lags."""
    n, both = len(values), np.concatenate([values[:0:-1], values, np.repeat(values[-1:], lags)])
    for _ in range(2 * (lags > 1)):
        total = np.cumsum(np.append(0.0, both))
        both = (total[lags:] - total[:-lags]) / lags
    return both[n - lags :][:n]


def _known(read: Cuts, bin: int) -> Bool[np.ndarray, " cell"]:
    return np.isfinite(read.c2[bin]) & (read.count[bin] > 0)
