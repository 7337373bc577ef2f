"""Means of data and model over blocks of pairs, for maps of a few hundred pixels."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.store import schema
from homodyne_dask.store.scan import Chunk, Scan, coarse_use

MAX_BLOCKS_PER_SIDE = 256
"""Most blocks along one side of a map."""
SAMPLES = 8
"""Times along one side of a block at which the model is averaged: all of them in blocks of up to 8
frames. A single time at the centre is wrong for decays about as long as a block."""

if TYPE_CHECKING:
    from homodyne_dask.results.data.fit_view import FittedModel, FitView

Tile = Float32[np.ndarray, "T T"]


@dataclass(frozen=True)
class BlockGrid:
    """The frames of each block, and the level from which their means are read."""

    level: int
    """Frames of the store in one row of the level; 1 is c2 itself."""
    first: int
    """First row of the blocks in the array."""
    merged: int
    """Rows of the array in one block."""
    blocks: int

    @property
    def side(self) -> int:
        """Frames of the store along one side of a block."""
        return self.level * self.merged

    @property
    def frames(self) -> Int[np.ndarray, "block side"]:
        """Frames of the store in each block."""
        return self.first * self.level + np.arange(self.blocks * self.side).reshape(
            self.blocks, self.side
        )


@dataclass(frozen=True)
class BinMap:
    """Maps of one bin: symmetric, NaN where fewer than half of the pairs of a block are known."""

    bin: int
    """Position in the selection."""
    grid: BlockGrid
    edges: Float[np.ndarray, " edge"]
    """Edges of the blocks [s]."""
    data: Float[np.ndarray, "n n"]
    model: Float[np.ndarray, "n n"]
    residual: Float[np.ndarray, "n n"]
    """(data - model)/σ of the mean."""

    @property
    def upper(self) -> tuple[np.ndarray, np.ndarray]:
        """Lags [s] and residuals of each known block once."""
        i, j = np.triu_indices(len(self.data), 1)
        known = np.isfinite(self.residual[i, j])
        middle = 0.5 * (self.edges[1:] + self.edges[:-1])
        return (middle[j] - middle[i])[known], self.residual[i, j][known]


def block_grid(scan: Scan) -> BlockGrid:
    """Return the blocks of a scan: at most `MAX_BLOCKS_PER_SIDE` per side, of equal size.

    They are read from the coarsest level with at least twice as many rows as the map, else from c2.
    """
    start, stop = scan.frames
    levels = sorted(scan.manifest.checksums, reverse=True)
    level = next((n for n in levels if (stop - start) // n >= 2 * MAX_BLOCKS_PER_SIDE), 1)
    first, last = -(-start // level), stop // level
    merged = -(-(last - first) // MAX_BLOCKS_PER_SIDE)
    return BlockGrid(level, first, merged, (last - first) // merged)


def as_fitted(scan: Scan, result: FitResult) -> Scan:
    """Return a scan with the damaged chunks excluded that a fit of it excluded."""
    excluded = result.provenance.inputs["chunks_left_out"]
    return replace(scan, excluded=tuple(Chunk(*chunk) for chunk in excluded))


def bin_map(view: "FitView", bin: int) -> BinMap:
    """Return the maps of one bin; at most one strip of tiles is in memory at a time."""
    grid, result, scan = block_grid(view.scan), view.result, as_fitted(view.scan, view.result)
    use = coarse_use(scan, grid.level)
    into = np.empty((schema.tile_side(scan.n_frames),) * 2, np.float32)

    def read(i: int, j: int) -> Tile:
        scan.read_chunk(Chunk(grid.level, scan.bins[bin], i, j), into)
        return into

    mean, count = block_means(read, len(into), grid, use)
    lag = np.subtract.outer(np.arange(grid.blocks), np.arange(grid.blocks)) * -grid.side
    mean[lag < result.config["min_lag"]] = np.nan
    contrast, offset = (float(result.scaling[name].values[bin]) for name in ("contrast", "offset"))
    f = model_means(scan, view.model, grid, bin)
    predicted = np.where(np.eye(grid.blocks, dtype=bool), np.nan, offset + contrast * f)
    # of the mean of independent pairs
    variance = np.where(scan.use, scan.sigma_row[bin] ** 2, np.nan)[grid.frames]
    used = np.isfinite(variance)
    typical = np.where(used, variance, 0).sum(1) / np.maximum(used.sum(1), 1)
    sigma = np.sqrt(np.outer(typical, typical) / np.maximum(count * grid.level**2, 1))
    residual = (mean - predicted) / sigma
    edges = np.append(scan.time[grid.frames[:, 0]], scan.time[grid.frames[-1, -1]])
    edges[-1] += scan.attrs["frame_time"]
    return BinMap(bin, grid, edges, _mirrored(mean), predicted, _mirrored(residual))


def block_means(
    read: Callable[[int, int], Tile], side: int, grid: BlockGrid, use: Bool[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "n n"], Int[np.ndarray, "n n"]]:
    """Return the mean and the number of the known entries of each block of one matrix's upper half.

    NaN where fewer than half are known. read: returns a tile on or above the diagonal, of that side.
    """
    total = np.zeros((grid.blocks, grid.blocks))
    count = np.zeros((grid.blocks, grid.blocks), int)
    stop = grid.first + grid.blocks * grid.merged
    for start in range(grid.first // side * side, stop, side):
        begin, end = max(start, grid.first), min(start + side, stop)
        part = np.full((end - begin, stop - begin), np.nan)
        for left in range(start, stop, side):
            first, last = max(left, begin), min(left + side, stop)
            tile = read(start // side, left // side)
            part[:, first - begin : last - begin] = tile[
                begin - start : end - start, first - left : last - left
            ]
        known = np.isfinite(part) & use[begin:end, None] & use[None, begin:stop]
        at = (begin - grid.first) // grid.merged
        sums = _summed(np.where(known, part, 0.0), begin - grid.first, grid.merged)
        into = np.s_[at : at + len(sums), at:]
        total[into] += sums
        count[into] += _summed(known.astype(int), begin - grid.first, grid.merged)
    enough = count >= grid.merged**2 / 2
    return np.where(enough, total / np.maximum(count, 1), np.nan), count


def _summed(part: np.ndarray, first: int, side: int) -> np.ndarray:
    """Return sums over blocks; rows and columns both begin at `first`, perhaps inside a block."""
    for axis in (0, 1):
        block = (first + np.arange(part.shape[axis])) // side
        part = np.add.reduceat(part, np.unique(block, return_index=True)[1], axis=axis)
    return part


def model_means(
    scan: Scan, model: "FittedModel", grid: BlockGrid, bin: int
) -> Float[np.ndarray, "n n"]:
    """Return the mean of f over each block, from `SAMPLES` times along its sides."""
    samples = min(grid.side, SAMPLES)
    inside = (np.arange(samples) + 0.5) / samples * grid.side - 0.5
    frames = (grid.frames[:, :1] + inside).ravel()
    times = np.interp(frames, np.arange(scan.n_frames), scan.time)
    f = model.shape(np.array([bin]), times[:, None], times[None, :])[0]
    return f.reshape(grid.blocks, samples, grid.blocks, samples).mean(axis=(1, 3))


def _mirrored(upper: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    return np.where(np.isfinite(upper), upper, upper.T)


def representative(result: FitResult, scan: Scan, most: int = 4) -> Int[np.ndarray, " b"]:
    """Return positions of bins to show: along the flow, across, between; without flow spread evenly."""
    there = np.flatnonzero(result.scaling["ndata"].values > 0)
    there = there if len(there) else np.arange(len(scan.bins))
    if len(there) <= most:
        return there
    names = list(result.parameters["param"].values)
    if "phi0" not in names:
        ordered = there[np.lexsort((scan.phi[there], scan.q[there]))]
        return ordered[np.linspace(0, len(ordered) - 1, most).round().astype(int)]
    phi0 = float(np.nan_to_num(result.parameters["value"].values[names.index("phi0")]))
    rings = scan.q[there]
    from_middle = np.abs(np.log(rings / np.median(rings)))
    chosen = []
    for angle in (0, 30, 60, 90)[:most]:
        away = np.abs((scan.phi[there] - phi0 - angle + 90) % 180 - 90)
        chosen.append(there[np.lexsort((from_middle, away.round(3)))[0]])
    return np.array(list(dict.fromkeys(chosen)))
