"""Results of ESRF's correlators: ttcf(roi, age, lag), c2 averaged over cells of age and lag.

age = (t1 + t2)/2 and lag = t2 - t1, in seconds, are the centres of the cells. The store holds c2 of pairs of
frames, so every pair takes the value of its cell, and a fit compares it with the mean of the model there.
"""

from functools import partial
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import IngestOptions, converted
from homodyne_dask.store.cells import Cells
from homodyne_dask.store.schema import CellEdges, tile_side
from ingest.readers import hdf5
from ingest.readers.source import Source, place, source_of

DECADES = range(5)
"""Powers of 10 from which on cells of lag may be logarithmic."""


def cells_of_centres(
    age: Float[np.ndarray, " a"], lag: Float[np.ndarray, " l"]
) -> Cells | Literal["age", "lag"]:
    """Return the cells with these centres, in frames, or which centres are not those of the correlator."""
    ages = _age_edges(age)
    if ages is None:
        return "age"
    n = int(np.floor(ages[-1])) + 1
    lags = _lag_edges(lag, n)
    if lags is None:
        return "lag"
    return Cells(first_at(0.5 * np.arange(2 * n - 1), ages), first_at(np.arange(n), lags), n)


def _age_edges(centres: Float[np.ndarray, " c"]) -> Float[np.ndarray, " e"] | None:
    """Return the edges of the cells of age with these centres, in frames; None if the centres do not fit.

    Cells are even from 0 to the last frame, or each age is a cell: ages are half a frame apart.
    """
    number = len(centres)
    step = (centres[-1] - centres[0]) / (number - 1)
    if _are_close(centres, step * (np.arange(number) + 0.5)):
        span = step * number
        return np.linspace(0, round(span) if abs(span - round(span)) < 1e-3 else span, number + 1)
    single = 0.5 * np.arange(number + 1) - 0.25
    return single if _are_close(centres, single[:-1] + 0.25) else None


def _lag_edges(centres: Float[np.ndarray, " c"], n_frames: int) -> Float[np.ndarray, " e"] | None:
    """Return the edges of the cells of lag with these centres, in frames; None if the centres do not fit.

    Below a power of 10 every lag is a cell; from there to the last lag, cells are even in the logarithm.
    """
    number = len(centres)
    single = np.arange(number + 1) - 0.5
    if _are_close(centres, single[:-1] + 0.5):
        return single
    for decade in DECADES:
        first = 10**decade
        if not first < min(number, n_frames - 1):
            return None
        beyond = np.logspace(decade, np.log10(n_frames - 1), number - first + 1)
        beyond[-1] = n_frames - 1
        edges = np.concatenate([single[:first], beyond])
        low, high = edges[:-1], edges[1:]
        middle = np.where(np.arange(number) < first, (low + high) / 2, np.sqrt(np.abs(low) * high))
        if _are_close(centres, middle):
            return edges
    return None


def _are_close(first: Float[np.ndarray, " c"], second: Float[np.ndarray, " c"]) -> bool:
    return np.allclose(first, second, rtol=1e-6, atol=1e-3)


def first_at(
    values: Float[np.ndarray, " v"], edges: Float[np.ndarray, " e"]
) -> Int[np.ndarray, " e"]:
    """Return where each cell begins among the values, and where the last one ends, which has both edges."""
    return np.append(
        np.searchsorted(values, edges[:-1]), np.searchsorted(values, edges[-1], side="right")
    )


MAX_FRAMES = 20_000
"""A matrix of this many frames takes 1.6 GB."""
MIN_DIFFERENCES = 10
"""Differences below which their median is no measure of the noise."""
LAYOUTS = {
    "/entry_0000/correlations": "twotime",
    "/entry_0000/dynamix/correlations/directions": "2times_correlation",
}
"""Groups of analyses in two versions of the files, and the group of each that has the correlations."""


def analyses_in(file: h5py.File) -> list[tuple[str, str]]:
    """Return the group of each analysis with correlations in age and lag, and the group of these."""
    return [
        (f"{analyses}/{name}", f"{analyses}/{name}/{twotime}")
        for analyses, twotime in LAYOUTS.items()
        for name in hdf5.members(file, analyses)
        if hdf5.dataset_at(file, f"{analyses}/{name}/{twotime}/ttcf") is not None
    ]


def open_esrf(path: Path, options: IngestOptions) -> Source:
    """Return the regions of the first analysis of a result in age and lag; φ must be given."""
    with hdf5.open_hdf5(path) as file:
        analyses = analyses_in(file)
        analysis, where = analyses[0]
        ttcf, cells, dt = _averages(file, where, options.frame_time)
        notes, q, q_name = list[str](), None, f"{analysis}/parameters/q"
        if hdf5.dataset_at(file, q_name) is not None:
            q = hdf5.quantity(file, q_name, "q", notes, "1/nm", len(ttcf))
            if hdf5.unit(file, q_name) is None:  # the sentence says of the conversion, too
                notes = [f"{q_name} has no unit: q is assumed to be in 1/nm"]
        pixels, masks = 0, hdf5.optional(file, f"{analysis}/roi_masks")
        if masks is not None and masks.ndim == 3 and len(masks) == len(ttcf):
            pixels = np.count_nonzero(masks, axis=(1, 2))
    pairs = cells.pairs_in((0, cells.n_frames), 1)
    notes.append(note_on_pairs(pairs))
    sigma = None
    if options.sigma is None:
        sigma = [scatter_of_cells(path, averages, pairs) for averages in ttcf]
        notes.append("sigma is estimated from the scatter of the cells")
    if len(analyses) > 1:
        name, *unread = (Path(group).name for group, _ in analyses)
        notes.append(f"analysis {name} was read; the file also contains {', '.join(unread)}")
    edges = CellEdges(age=cells.age_edges.tolist(), lag=cells.lag_edges.tolist())
    return source_of(
        path,
        "esrf",
        options,
        partial(read_esrf, frame_time=dt),
        [f"{where}[{roi}]" for roi in range(len(ttcf))],
        cells.n_frames,
        q=q,
        pixels=pixels,
        frame_time=dt,
        sigma=sigma,
        cells=edges if pairs.max() > 1 else None,
        notes=notes,
    )


def read_esrf(path: Path, where: str, frame_time: float) -> np.ndarray:
    """Return the upper half of one region's matrix; each pair has the value of its cell."""
    group, roi = place(where)
    with hdf5.open_hdf5(path) as file:
        ttcf, cells, _ = _averages(file, group, frame_time)
    return matrix_of_cells(ttcf[roi].ravel(), cells)


def note_on_pairs(pairs: Int[np.ndarray, " cell"]) -> str:
    filled = pairs[pairs > 0]
    return (
        f"c2 is averaged over {filled.size} cells of age and lag, of {filled.min()} to {filled.max()} pairs "
        f"each"
    )


def matrix_of_cells(means: Float[np.ndarray, " cell"], cells: Cells) -> Float[np.ndarray, "t t"]:
    """Return the upper half of a matrix in which each pair has the value of its cell."""
    # pairs in no cell have the number past the last one: there stands NaN
    values = np.append(means.astype(np.float32), np.float32(np.nan))
    n, side = cells.n_frames, tile_side(cells.n_frames)
    c2 = np.full((n, n), np.nan, dtype=np.float32)
    for i in range(0, n, side):
        for j in range(i, n, side):
            tile = c2[i : i + side, j : j + side]
            tile[...] = values[cells.of_tile(i, j, side)[: tile.shape[0], : tile.shape[1]]]
    return c2


def _averages(
    file: h5py.File, where: str, frame_time: float | None
) -> tuple[Float[np.ndarray, "roi age lag"], Cells, float]:
    """Return the averages, the cells they are over, and the time of a frame in s.

    Unused ages and lags are NaN in the file. An age or a lag at which every region is 0 was not computed, and
    is NaN here.
    """
    stored, times = hdf5.array(file, f"{where}/ttcf"), list[np.ndarray]()
    older = where.endswith("/2times_correlation") and "timeshift" in hdf5.members(file, where)
    for name in (f"{where}/age", f"{where}/{'timeshift' if older else 'lag'}"):
        values, unit = hdf5.array(file, name).ravel().astype(float), hdf5.unit(file, name)
        times.append(converted("time", values, unit, f"{name} of {hdf5.file_name(file)}", []))
    age, lag = times
    if stored.ndim != 3 or stored.shape[1:] != (len(age), len(lag)):
        form = f"it must be (roi, age, lag) with {len(age)} ages and {len(lag)} lags"
        raise hdf5.wrong(file, f"{where}/ttcf", f"has shape {stored.shape}: {form}")
    use_age, use_lag = np.isfinite(age), np.isfinite(lag)
    cells, dt = _cells(file, where, age[use_age], lag[use_lag], frame_time)
    ttcf = stored[:, use_age][:, :, use_lag].astype(float)
    filled = np.isfinite(ttcf) & (ttcf != 0)
    ttcf[:, ~filled.any(axis=(0, 2))] = np.nan
    ttcf[:, :, ~filled.any(axis=(0, 1))] = np.nan
    return ttcf, cells, dt


def _cells(
    file: h5py.File, where: str, age: np.ndarray, lag: np.ndarray, frame_time: float | None
) -> tuple[Cells, float]:
    for what, values in (("age", age), ("lag", lag)):
        if len(values) < 2 or (np.diff(values) <= 0).any() or values[0] < 0:
            raise SourceError(
                f"{what} of {where} in {hdf5.file_name(file)} must be two or more increasing "
                f"times in seconds, none negative, not {values[:4]}"
            )
    # the first cell of lag is lag 0 alone: from -1/2 to 1/2, or up to 1 where all others are logarithmic
    dt = frame_time or float(f"{lag[1] if lag[0] == 0 else 4 * lag[0]:.12g}")
    n = int(np.floor(age[-1] / dt + max(0.5 * (age[1] - age[0]) / dt, 0.5) + 1e-3)) + 1
    if n > MAX_FRAMES:
        raise SourceError(
            f"{hdf5.file_name(file)} has ages up to {age[-1]:g} s in frames of {dt:g} s: {n:,} frames "
            f"make a matrix of {4e-9 * n**2:.3g} GB for each region, but the limit is "
            f"{MAX_FRAMES:,} frames; average frames before correlating"
        )
    cells = cells_of_centres(age / dt, lag / dt)
    if isinstance(cells, str):
        raise SourceError(
            f"{cells} of {where} in {hdf5.file_name(file)} does not match ESRF's correlator for frames of "
            f"{dt:g} s (even ages; single lags, then logarithmic ones up to the last frame), so the "
            f"averaged pairs are unknown: correlate without cells, in t1 and t2"
        )
    return cells, dt


def scatter_of_cells(
    path: Path, ttcf: Float[np.ndarray, "age lag"], pairs: Int[np.ndarray, " cell"]
) -> float:
    """Return σ of one pair from second differences of the averages along the ages.

    The variance of an average of n pairs is σ²/n, that of a second difference
    σ²(1/n₋ + 4/n + 1/n₊); 1.4826·MAD is a standard deviation robust to outliers.
    """
    pairs = pairs.reshape(ttcf.shape)
    value = np.where(pairs > 0, ttcf, np.nan)
    share = 1 / np.maximum(pairs, 1)
    second = value[2:] - 2 * value[1:-1] + value[:-2]
    second /= np.sqrt(share[2:] + 4 * share[1:-1] + share[:-2])
    differences = second[np.isfinite(second)]
    enough = len(differences) >= MIN_DIFFERENCES
    sigma = 1.4826 * np.median(np.abs(differences - np.median(differences))) if enough else 0.0
    if not sigma > 0:
        raise SourceError(
            f"{path.name} has too few ages, or c2 without scatter, to measure the noise: give --sigma"
        )
    return float(sigma)
