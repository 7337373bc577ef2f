"""Maps of a window of the matrix, and cuts through it at one age and at one lag, with the model."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.apps.view.data_window import (
    CellAxis,
    Span,
    cell_axes,
    mean_sigma,
    times_of,
    window_means,
)
from homodyne_dask.apps.view.viewed_data import Shown
from homodyne_dask.results.views.figures.lag_cuts import Cut, cut_at_lag, cut_of

CURVE_POINTS = 120
NODES = 3
"""Times along a side of a cell at which f is evaluated: exact for f of degree 5 in each time."""
STRIP = 40
"""Rows of cells evaluated at once."""


@dataclass(frozen=True)
class Maps:
    """The data in one window of one bin."""

    rows: CellAxis
    columns: CellAxis
    data: Float32[np.ndarray, "rows columns"]
    sigma: Float[np.ndarray, "rows columns"]
    """Of the mean, as if the pairs of a cell were independent."""


@dataclass(frozen=True)
class Line:
    """One cut: x is the lag [s] at one age, or the age [s] at one lag."""

    averages: Cut
    """Averages over cells of age and lag, from the store."""
    x: Float[np.ndarray, " n"]
    """Of the averages."""
    view_x: Float[np.ndarray, " m"]
    view_c2: Float[np.ndarray, " m"]
    """The cells of the map."""


def data_map(shown: Shown, bin: int, x: Span, y: Span) -> Maps:
    """Return the map of the data of a window; raises SelectionError where no selected frame is in it."""
    columns, rows = cell_axes(shown.scan, x, y)
    c2, pairs = window_means(shown.scan, shown.read, bin, rows, columns)
    sigma = mean_sigma(shown.scan, bin, rows, columns, pairs)
    return Maps(rows, columns, c2.astype(np.float32), sigma)


def model_maps(
    shown: Shown, bin: int, maps: Maps
) -> tuple[Float32[np.ndarray, "rows columns"], Float32[np.ndarray, "rows columns"]]:
    """Return the maps of the model and of the residual (data - model)/σ of a result."""
    assert shown.fit is not None
    contrast, offset = shown.linear_params(bin)
    f = _model_means(shown, bin, maps.rows, maps.columns)
    i, j = maps.rows.cells[:, None], maps.columns.cells
    model = np.where(i == j, np.nan, offset + contrast * f)
    fitted = np.abs(i - j) * maps.rows.side >= shown.fit.result.config["min_lag"]
    residual = np.where(fitted, (maps.data - model) / maps.sigma, np.nan)
    return model.astype(np.float32), residual.astype(np.float32)


def _model_means(
    shown: Shown, bin: int, rows: CellAxis, columns: CellAxis
) -> Float[np.ndarray, "rows columns"]:
    """Return the means of f over the cells of a window."""
    assert shown.fit is not None
    nodes, weights = quadrature(rows.side)
    t1, t2 = (
        times_of(shown.scan, axis.middles[:, None] + nodes).ravel() for axis in (rows, columns)
    )
    n, strips = len(nodes), []
    for first in range(0, len(t1), STRIP * n):
        part = t1[first : first + STRIP * n, None]
        f = shown.fit.model.shape(np.array([bin]), part, t2)[0]
        f = f.reshape(len(part) // n, n, columns.number, n)
        strips.append(np.einsum("inkm,n,m->ik", f, weights, weights))
    return np.concatenate(strips)


def quadrature(side: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return frames around the middle of a cell, and weights, of the mean over its `side` frames.

    Gauss's rule for sums (the zeros of a discrete Chebyshev polynomial): all frames of up to NODES.
    """
    k = np.arange(1, min(side, NODES))
    beside = np.sqrt(k**2 * (side**2 - k**2) / (4.0 * (4 * k**2 - 1)))
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return nodes, vectors[0] ** 2


def cut_along_lag(shown: Shown, bin: int, maps: Maps, t1: float) -> Line:
    """Return c2 against lag at the age t1 [s]."""
    scan, rows, columns = shown.scan, maps.rows, maps.columns
    frame = int(np.searchsorted(scan.time, t1))
    age = int(np.searchsorted(shown.cuts.age_edges, frame, side="right")) - 1
    cut = cut_of(scan, shown.cuts, bin, age)  # empty beyond the last frame
    column = frame // columns.side - columns.first
    if not 0 <= column < columns.number:
        return Line(cut, cut.lag, np.empty(0), np.empty(0))
    lag = times_of(scan, rows.middles) - times_of(scan, columns.middles)[column]
    known = (lag > 0) & np.isfinite(maps.data[:, column])
    return Line(cut, cut.lag, lag[known], maps.data[known, column])


def cut_along_age(shown: Shown, bin: int, maps: Maps, lag: float) -> Line:
    """Return c2 against age at the lag [s]."""
    time, rows, columns = shown.scan.time, maps.rows, maps.columns
    cut = cut_at_lag(shown.scan, shown.cuts, bin, max(lag, float(np.diff(time).min())))
    t1 = times_of(shown.scan, columns.middles)
    later = np.interp(t1 + lag, time, np.arange(len(time))) - columns.middles
    row = np.floor((columns.middles + np.maximum(np.rint(later), 1)) / rows.side) - rows.first
    there = np.flatnonzero((row >= 0) & (row < rows.number) & (t1 + lag <= time[-1]))
    c2 = maps.data[row[there].astype(int), there]
    known = np.isfinite(c2)
    return Line(cut, cut.t1, t1[there][known], c2[known])


def model_curve(
    shown: Shown, bin: int, line: Line
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the model of a result along a cut: x and c2."""
    if shown.fit is None or len(line.x) < 2:
        return np.empty(0), np.empty(0)
    contrast, offset = shown.linear_params(bin)
    cut = line.averages
    spaced = np.geomspace if line.x is cut.lag else np.linspace
    x = spaced(line.x[0], line.x[-1], CURVE_POINTS)
    t1, lag = (np.interp(x, line.x, of) for of in (cut.t1, cut.lag))
    return x, offset + contrast * shown.fit.model.shape(np.array([bin]), t1, t1 + lag)[0]
