"""Archives of NumPy with means of c2 over cells of age and lag, of any correlator.

age = (t1 + t2)/2 and lag = t2 - t1 in s. `age_edges` and `lag_edges` bound the intervals of the means, as
those of a histogram; `age` and `lag` in their place are single ones: whole numbers of half frames, and of
frames.
"""

from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store.cells import Cells
from homodyne_dask.store.schema import CellEdges
from ingest.readers.esrf import (
    MAX_FRAMES,
    first_at,
    matrix_of_cells,
    note_on_pairs,
    scatter_of_cells,
)
from ingest.readers.source import Source, place, source_of

STEPS = {"age": 0.5, "lag": 1.0}
"""Frames from one single age or lag to the next."""
ROUNDING = 1e-4
"""Frames by which a time may differ from that of a frame."""


def has_cells(keys: list[str]) -> bool:
    return all({what, f"{what}_edges"} & {*keys} for what in STEPS)


def open_cells(path: Path, options: IngestOptions, arrays: dict[str, np.ndarray]) -> Source:
    """Return the bins of an archive with c2 (bin, age, lag), its ages and lags, dt, and frames if known."""
    c2, dt = np.atleast_3d(arrays["c2"].T).T.astype(float), _frame_time(path, arrays, options)
    ages, places_of_age = _edges(path, arrays, "age", dt)
    lags, places_of_lag = _edges(path, arrays, "lag", dt)
    if c2.ndim != 3 or c2.shape[1:] != (len(places_of_age), len(places_of_lag)):
        raise SourceError(
            f"c2 of {path.name} has shape {arrays['c2'].shape}: it must be (bin, age, lag) or (age, lag), of "
            f"{len(places_of_age)} ages and {len(places_of_lag)} lags, or one less than edges"
        )
    n = _number_of_frames(path, arrays, ages, dt)
    cells = Cells(first_at(0.5 * np.arange(2 * n - 1), ages), first_at(np.arange(n), lags), n)
    values = np.full((len(c2), cells.ages, cells.lags), np.nan)
    values[:, places_of_age[:, None], places_of_lag] = c2
    pairs = cells.pairs_in((0, n), 1)
    if not pairs.any():
        raise SourceError(
            f"{path.name} has no pair of {n:,} frames of {dt:g} s in its cells: correct dt"
        )
    empty = cells.pairs_in((0, n), 0) == 0
    if (np.isfinite(values).any(axis=0).reshape(empty.shape) & empty).any():
        raise SourceError(
            f"{path.name} has c2 in cells without a pair of its {n:,} frames: correct frames, or count ages "
            f"from the first frame (--time-offset says when it was)"
        )
    sigma = arrays.get("sigma")
    if sigma is None and options.sigma is None and pairs.max() > 1:
        sigma = [scatter_of_cells(path, bin, pairs) for bin in values]
    edges = CellEdges(age=cells.age_edges.tolist(), lag=cells.lag_edges.tolist())
    return source_of(
        path, "cells", options, partial(_read, values=values.reshape(len(c2), -1), cells=cells),
        [f"c2[{bin}]" for bin in range(len(c2))], n, q=arrays.get("q"), phi=arrays.get("phi"),
        pixels=arrays.get("pixels", 0), frame_time=dt, sigma=sigma,
        cells=edges if pairs.max() > 1 else None, notes=[note_on_pairs(pairs)],
    )  # fmt: skip


def _frame_time(path: Path, arrays: dict[str, np.ndarray], options: IngestOptions) -> float:
    dt = arrays.get("dt", options.frame_time)
    if dt is None or np.size(dt) != 1 or not np.all(np.asarray(dt) > 0):
        raise SourceError(
            f"{path.name} has cells of age and lag, but no time of a frame: give --dt"
        )
    return float(np.ravel(dt)[0])


def _number_of_frames(
    path: Path, arrays: dict[str, np.ndarray], ages: Float[np.ndarray, " edge"], dt: float
) -> int:
    if "frames" not in arrays and {"age_edges", "lag_edges"} & {*arrays}:
        raise SourceError(
            f"{path.name} has edges of cells, but not the number of frames, which says which pairs were "
            f"averaged: add frames=N to it"
        )
    n = int(arrays["frames"]) if "frames" in arrays else int(ages[-1] + ROUNDING) + 1
    if not 2 < n <= MAX_FRAMES:
        raise SourceError(
            f"{path.name} has {n:,} frames of {dt:g} s, but may have 3 to {MAX_FRAMES:,}"
        )
    return n


def _edges(
    path: Path, arrays: dict[str, np.ndarray], what: str, dt: float
) -> tuple[Float[np.ndarray, " edge"], Int[np.ndarray, " cell"]]:
    """Return edges in frames of cells without gaps, and which of these cells have values."""
    step, name = STEPS[what], f"{what}_edges" if f"{what}_edges" in arrays else what
    times = np.asarray(arrays[name], float).ravel() / dt
    if len(times) < 2 or not (np.diff(times) > 0).all() or not times[0] > -1:
        raise SourceError(
            f"{name} of {path.name} must be two or more increasing times in s from 0 on"
        )
    if name != what:  # an edge at a pair is that of the cell after it
        return np.round(times / step, 4) * step, np.arange(len(times) - 1)
    single = np.round(times / step)
    if (np.abs(times / step - single) > ROUNDING).any():
        raise SourceError(
            f"{what} of {path.name} is not that of single pairs of frames of {dt:g} s, so the averaged pairs "
            f"are unknown: give {what}_edges, in s, between which c2 is averaged"
        )
    number = (single - single[0]).astype(int)
    return (single[0] + np.arange(number[-1] + 2) - 0.5) * step, number


def _read(path: Path, where: str, values: np.ndarray, cells: Cells) -> np.ndarray:
    return matrix_of_cells(values[place(where)[1]], cells)
