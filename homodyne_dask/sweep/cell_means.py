"""Passes over data that were averaged over cells of age and lag before ingest.

A cell lies in many tiles, so a task takes all tiles of its bins: it adds f and its derivatives up by cell
and returns the Gram of the means. c2 is read once, to see which cells are known.
"""

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Block, Problem
from homodyne_dask.kernels.cell_grams import cell_means
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.store.cells import Cells
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep.blocks import (
    CELLS,
    BlockSource,
    Cost,
    Place,
    aligned_array,
    block,
    keep,
    prefetched,
)
from homodyne_dask.sweep.layout import Run


def cells_of(source: BlockSource) -> Cells | None:
    """Return the cells of data whose pairs hold means; None for block means and other data."""
    return open_selection(source.selection).cells if source.factor == 1 else None


def means_over_cells(
    source: BlockSource, problem: Problem, budget: int, run: Run,
    thetas: Sequence[Float[np.ndarray, " p"]] | Float[np.ndarray, "point p"],
) -> tuple[list[CellMeans], Cost]:  # fmt: skip
    """Return means of f and its derivatives over the cells of a run at every theta; budget: bytes to keep."""
    scan, backend = open_selection(source.selection), backend_of(problem.model)
    cells = scan.cells
    assert cells is not None
    y, weight, reading = _data(source, cells, run, problem.min_lag, budget)
    means, cost, members = [], Cost(reading=reading), list(run.members)
    for theta in thetas:
        point = backend.point(problem, theta, scan.time, 1, scan.frames)
        sums = np.zeros((len(run.members), cells.number + 1, len(theta) + 1))
        for tile in run.tiles:
            # a block of one shape with any other, of whose frames only the times are known
            i, j = (number * source.side for number in tile)
            data = aligned_array(len(members), source.side)
            weights = np.zeros((len(members), source.side))
            place = Block(data, weights, weights, scan.q_or_one[members], scan.phi[members], i, j)
            cut = point.sub_blocks(place.q[0], place.i0, place.j0, source.side)
            if cut.n_active:
                cell = cells.of_tile(place.i0, place.j0, source.side)
                sums = backend.cell_sums(point, place, cell, sums)
            is_needed = cut.n_active > 0 or reading > 0
            cost = cost.plus(Cost(cut.n_active, cut.n_total, int(is_needed), 1))
        means.append(cell_means(sums[:, :-1], cells.pairs, y, weight))
    return means, cost


def _data(
    source: BlockSource, cells: Cells, run: Run, min_lag: int, budget: int
) -> tuple[Float[np.ndarray, "bin cell"], Float[np.ndarray, "bin cell"], float]:
    key, began = (source, run.members, run.tiles, min_lag), time.perf_counter()
    data = CELLS.get(key)
    if data is not None:
        return *data, 0.0
    data = _read(source, cells, run, min_lag)
    keep(CELLS, key, data, budget)
    return *data, time.perf_counter() - began


def _read(
    source: BlockSource, cells: Cells, run: Run, min_lag: int
) -> Float[np.ndarray, "2 bin cell"]:
    """Return c2 - 1 of every cell, and Σ 1/sigma² over its pairs if all of them are selected and known."""
    sums = np.zeros((3, len(run.members), cells.number + 1))
    frame = np.arange(source.side)
    with prefetched(source, [Place(run.members, tile) for tile in run.tiles]) as turns:
        for place in turns:
            data = block(source, place, 0)
            lag = data.j0 + frame[None, :] - data.i0 - frame[:, None]
            cell = cells.of_tile(data.i0, data.j0, source.side)
            for b in range(len(run.members)):
                measured = np.isfinite(data.c2[b]) & (lag >= min_lag)
                weight = np.outer(data.weight_rows[b], data.weight_columns[b])[measured]
                values = data.c2[b][measured].astype(float) - 1
                for n, term in enumerate((values, weight, None)):
                    sums[n, b] += np.bincount(cell[measured], term, cells.number + 1)
    total, weight, count = sums[..., :-1]
    whole = (count == cells.pairs) & (count > 0)
    return np.stack([total / np.maximum(count, 1), np.where(whole, weight, 0.0)])
