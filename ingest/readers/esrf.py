"""Results of ESRF's correlators: ttcf(roi, age, lag), c2 averaged over cells of age and lag.

age = (t1 + t2)/2 and lag = t2 - t1, in seconds. The store holds c2 of pairs of frames, so every pair
takes the value of its cell: a cell then weighs as many pairs as it averages. The fit of pairs also
minimizes the spread of f inside a cell, which a fit of the means would not: that biases it (`BIAS`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.store.schema import MEANS_OF_CELLS
from ingest.readers import hdf5
from ingest.readers.source import (
    IngestOptions,
    Source,
    check_frames,
    check_seconds,
    inverse_angstrom,
    per_bin,
)

MAX_FRAMES = 20_000
"""A matrix of as many frames takes 1.6 GB."""
MIN_DIFFERENCES = 10
"""Fewest second differences from which the scatter is estimated."""


BIAS = (
    (200, 1.05, "less than 0.1 % in D0 and 0.001 in alpha"),
    (50, 1.1, "about 0.2 % in D0 and 0.001 in alpha"),
    (25, 1.5, "up to 1.5 % in D0 and 0.005 in alpha"),
)
"""Ages at least, ratio of lags at most, and the bias seen with so many: fits of exact means over cells of 300
frames with alpha = -0.2, decaying in 2.6 and in 40 frames."""
COARSE_BIAS = "2 to 10 % in D0, up to 40 % if it decays within the first cells, and 0.03 in alpha"


class EsrfLayout(NamedTuple):
    """The names of groups and datasets in one version of the files."""

    analyses: str
    twotime: str
    lags: tuple[str, ...]
    """Names of the lags, the first that is there."""


LAYOUTS = (
    EsrfLayout("/entry_0000/correlations", "twotime", ("lag",)),
    EsrfLayout(
        "/entry_0000/dynamix/correlations/directions", "2times_correlation", ("timeshift", "lag")
    ),
)


class Cells(NamedTuple):
    """Which cell of age and lag each pair of frames belongs to."""

    frame_time: float
    """s."""
    n_frames: int
    age_of: Int[np.ndarray, " half"]
    """Cell of the age of frames i and j at i + j; one past the last where there is none."""
    lag_of: Int[np.ndarray, " n"]
    """Cell of the lag j - i."""
    pairs: Int[np.ndarray, "age lag"]
    """Pairs of different frames in each cell."""


def has_ages(file: h5py.File) -> bool:
    """Return whether the file holds correlations in age and lag."""
    return any(True for _ in _analyses(file))


def _analyses(file: h5py.File) -> Iterator[tuple[EsrfLayout, str]]:
    """Yield the layout and the name of each analysis with two-time correlations."""
    for layout in LAYOUTS:
        for name in hdf5.members(file, layout.analyses):
            where = f"{layout.analyses}/{name}/{layout.twotime}/ttcf"
            if hdf5.dataset(file, where) is not None:
                yield layout, name


def open_esrf(path: Path, options: IngestOptions) -> Source:
    """Return the regions of the first analysis of a result in age and lag; φ must be given."""
    with hdf5.open_hdf5(path) as file:
        (layout, name), *others = _analyses(file)
        analysis = f"{layout.analyses}/{name}"
        where = f"{analysis}/{layout.twotime}"
        ttcf, cells = _ttcf(file, where, layout, options.frame_time)
        q, notes = _q(file, analysis, len(ttcf), options)
        pixels = _pixels(file, f"{analysis}/roi_masks", len(ttcf))
    if options.phi is None:
        raise OptionError(
            f"{path.name} does not say phi: give --phi in degrees, one number or one per bin"
        )
    given = options.sigma is not None
    notes += [_note_on_cells(cells), *([] if given else ["sigma is from the scatter of the cells"])]
    if others:
        left = ", ".join(other for _, other in others)
        notes.append(f"analysis {name} was read; the file has {left} too")
    n_bins, n_frames = len(ttcf), cells.n_frames
    return Source(
        path=path,
        format="esrf",
        reader=read_esrf,
        matrices=tuple(f"{where}[{roi}]@{cells.frame_time!r}" for roi in range(n_bins)),
        label=np.arange(1, n_bins + 1),
        q=q,
        phi=per_bin("phi", options.phi, n_bins),
        n_pixels=pixels,
        n_frames=n_frames,
        frame_time=cells.frame_time,
        time=np.arange(n_frames) * cells.frame_time,
        sigma=None if given else np.array([_scatter(path, one, cells) for one in ttcf]),
        notes=tuple(notes),
    )


def _note_on_cells(cells: Cells) -> str:
    there = cells.pairs[cells.pairs > 0]
    held = f"{there.size} cells of age and lag, of {there.min()} to {there.max()} pairs"
    if there.max() == 1:
        return f"c2 is that of {held}"
    ages = int((cells.pairs.sum(1) > 0).sum())
    ratio = _last_lags_ratio(cells)
    bias = next((b for least, most, b in BIAS if ages >= least and ratio <= most), COARSE_BIAS)
    return (
        f"{MEANS_OF_CELLS}, {held}: each pair takes the mean of its cell as if c2 were constant there, "
        f"which biases a fit. With {ages} ages and lags that grow by {ratio:.2g} from cell to cell expect "
        f"{bias}; correlate with finer cells to make it smaller"
    )


def _last_lags_ratio(cells: Cells) -> float:
    """Return the ratio of the mean lags of the last cell and the one before it, that all lags fill."""
    lags = np.arange(cells.n_frames)
    used = np.unique(cells.lag_of[1:])
    means = np.array([lags[1:][cells.lag_of[1:] == cell].mean() for cell in used])
    return float(np.median(means[-4:][1:] / means[-4:][:-1])) if len(means) > 1 else 1.0


def read_esrf(path: Path, where: str) -> np.ndarray:
    """Return the upper half of one region's matrix; each pair has the value of its cell."""
    group, _, rest = where.partition("[")
    roi, _, frame_time = rest.partition("]@")
    with hdf5.open_hdf5(path) as file:
        layout = next(one for one in LAYOUTS if group.startswith(one.analyses))
        ttcf, cells = _ttcf(file, group, layout, float(frame_time))
    padded = np.pad(ttcf[int(roi)].astype(np.float32), ((0, 1), (0, 1)), constant_values=np.nan)
    n = cells.n_frames
    c2 = np.full((n, n), np.nan, dtype=np.float32)
    for i in range(n - 1):
        c2[i, i + 1 :] = padded[cells.age_of[2 * i + 1 : i + n], cells.lag_of[1 : n - i]]
    return c2


def _ttcf(
    file: h5py.File, where: str, layout: EsrfLayout, frame_time: float | None
) -> tuple[Float[np.ndarray, "roi age lag"], Cells]:
    """Return the averages and the cells they are over; unused ages and lags are NaN in the file.

    An age or a lag at which every region is 0 was not computed, and is NaN here.
    """
    held = hdf5.array(file, f"{where}/ttcf")
    there = hdf5.members(file, where)
    lag_name = next((name for name in layout.lags if name in there), layout.lags[-1])
    for name in ("age", lag_name):
        check_seconds(
            hdf5.unit(file, f"{where}/{name}"), f"{where}/{name} of {hdf5.file_name(file)}"
        )
    age, lag = (hdf5.array(file, f"{where}/{n}").ravel().astype(float) for n in ("age", lag_name))
    if held.ndim != 3 or held.shape[1:] != (len(age), len(lag)):
        raise SourceError(
            f"{where}/ttcf of {hdf5.file_name(file)} has shape {held.shape}: it must be (roi, age, "
            f"lag) with {len(age)} ages and {len(lag)} lags"
        )
    use_age, use_lag = np.isfinite(age), np.isfinite(lag)
    cells = _cells(file, where, age[use_age], lag[use_lag], frame_time)
    found = held[:, use_age][:, :, use_lag].astype(float)
    filled = np.isfinite(found) & (found != 0)
    found[:, ~filled.any(axis=(0, 2))] = np.nan
    found[:, :, ~filled.any(axis=(0, 1))] = np.nan
    return found, cells


def _cells(
    file: h5py.File, where: str, age: np.ndarray, lag: np.ndarray, frame_time: float | None
) -> Cells:
    for what, values in (("age", age), ("lag", lag)):
        if len(values) < 2 or (np.diff(values) <= 0).any() or values[0] < 0:
            raise SourceError(
                f"{what} of {where} in {hdf5.file_name(file)} must be two or more increasing "
                f"times from 0 on, in seconds: {values[:4]}"
            )
    dt = frame_time or float(f"{lag[lag > 0][0]:.12g}")
    ages, lags = _edges(age / dt), _edges(lag / dt)
    n = int(np.floor(ages[-1] + 1e-6)) + 1
    if n > MAX_FRAMES:
        raise SourceError(
            f"{hdf5.file_name(file)} has ages up to {age[-1]:g} s in frames of {dt:g} s: {n} frames "
            f"make a matrix of {4e-9 * n**2:.3g} GB for each region; the most is {MAX_FRAMES} "
            f"frames, correlate with frames averaged"
        )
    check_frames(n, Path(hdf5.file_name(file)))
    age_of = _index(ages, 0.5 * np.arange(2 * n - 1))
    lag_of = _index(lags, np.arange(n))
    pairs = np.zeros((len(age) + 1, len(lag) + 1), dtype=np.int64)
    for step in range(1, n):
        inside = age_of[step : 2 * n - 1 - step : 2]
        pairs[:, lag_of[step]] += np.bincount(inside, minlength=len(pairs))
    return Cells(dt, n, age_of, lag_of, pairs[:-1, :-1])


def _edges(centres: Float[np.ndarray, " c"]) -> Float[np.ndarray, " e"]:
    """Return the edges of cells: midway between even centres, else midway in their logarithm."""
    step = np.diff(centres)
    even = np.isclose(step, step[0], rtol=1e-3)
    low, high = centres[:-1], centres[1:]
    inner = np.where(even, 0.5 * (low + high), np.sqrt(low * high))
    first = centres[0] - 0.5 * step[0]
    last = (centres[-1] + 0.5 * step[-1]) if even[-1] else centres[-1] ** 2 / inner[-1]
    return np.concatenate([[first], inner, [last]])


def _index(
    edges: Float[np.ndarray, " e"], values: Float[np.ndarray, " v"]
) -> Int[np.ndarray, " v"]:
    """Return the cell of each value, one past the last where it is in none."""
    cells = len(edges) - 1
    found = np.searchsorted(edges, values + 1e-9, side="right") - 1
    found = np.where(np.isclose(values, edges[-1]), cells - 1, found)
    return np.where((found < 0) | (found >= cells), cells, found)


def _scatter(path: Path, ttcf: Float[np.ndarray, "age lag"], cells: Cells) -> float:
    """Return σ of one pair from second differences of the averages along the ages.

    The variance of an average of n pairs is σ²/n, that of a second difference
    σ²(1/n₋ + 4/n + 1/n₊); 1.4826·MAD is a standard deviation robust to outliers.
    """
    value = np.where(cells.pairs > 0, ttcf, np.nan)
    share = 1 / np.maximum(cells.pairs, 1)
    second = value[2:] - 2 * value[1:-1] + value[:-2]
    second /= np.sqrt(share[2:] + 4 * share[1:-1] + share[:-2])
    known = second[np.isfinite(second)]
    found = (
        1.4826 * np.median(np.abs(known - np.median(known)))
        if len(known) >= MIN_DIFFERENCES
        else 0.0
    )
    if not found > 0:
        raise SourceError(
            f"{path.name} has too few ages to measure the noise of c2, or none at all: give --sigma"
        )
    return float(found)


def _q(
    file: h5py.File, analysis: str, n_bins: int, options: IngestOptions
) -> tuple[Float[np.ndarray, " bin"], list[str]]:
    """Return q of the regions; without a unit it is in 1/nm, as these files have it."""
    name = f"{analysis}/parameters/q"
    if hdf5.dataset(file, name) is None:
        if options.q is None:
            raise OptionError(
                f"{hdf5.file_name(file)} has no {name}: give --q in 1/Å, one number or one per bin"
            )
        return per_bin("q", options.q, n_bins), []
    if options.q is not None:
        raise OptionError(f"q is read from {name} of {hdf5.file_name(file)}: leave it out")
    q, unit = hdf5.finite_numbers(file, name), hdf5.unit(file, name)
    if len(q) != n_bins:
        raise SourceError(
            f"{name} of {hdf5.file_name(file)} has {len(q)} entries for {n_bins} regions"
        )
    if unit is None:
        return inverse_angstrom(q, "1/nm", name)[0], [f"{name} has no unit: q is taken as 1/nm"]
    return inverse_angstrom(q, unit, name)


def _pixels(file: h5py.File, name: str, n_bins: int) -> Int[np.ndarray, " bin"]:
    masks = hdf5.optional(file, name)
    if masks is None or masks.ndim != 3 or len(masks) != n_bins:
        return np.zeros(n_bins, dtype=np.int64)
    return np.count_nonzero(masks, axis=(1, 2)).astype(np.int64)
