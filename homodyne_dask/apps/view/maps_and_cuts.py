"""Maps of a window of the matrix, and cuts through it at one age and at one lag, with the model."""

from collections.abc import Callable
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
from homodyne_dask.apps.view.viewed_data import ShownScan, linear_params
from homodyne_dask.results.views.figures.lag_cuts import Cut, cut_at_lag, cut_of

CURVE_POINTS = 120


@dataclass(frozen=True)
class Maps:
    """The maps of one window of one bin; of a store the data alone."""

    rows: CellAxis
    columns: CellAxis
    data: Float32[np.ndarray, "rows columns"]
    model: Float32[np.ndarray, "rows columns"] | None
    residual: Float32[np.ndarray, "rows columns"] | None
    """(data - model)/σ of the mean."""


@dataclass(frozen=True)
class Line:
    """One cut: x is the lag [s] at one age, or the age [s] at one lag."""

    x: Float[np.ndarray, " n"]
    c2: Float[np.ndarray, " n"]
    stderr: Float[np.ndarray, " n"]
    """Averages over cells of age and lag, from the store."""
    view_x: Float[np.ndarray, " m"]
    view_c2: Float[np.ndarray, " m"]
    """The cells of the map."""
    model_x: Float[np.ndarray, " k"]
    model_c2: Float[np.ndarray, " k"]


def data_map(
    one: ShownScan, bin: int, x: Span, y: Span, check: Callable[[], None]
) -> tuple[Maps, Float[np.ndarray, "rows columns"]]:
    """Return the map of the data of a window alone, and σ of its cells; `check` as in `window_means`."""
    columns, rows = cell_axes(one.scan, x, y)
    means = window_means(one.scan, one.tiles, bin, rows, columns, check)
    sigma = mean_sigma(one.scan, bin, rows, columns, means.pairs)
    return Maps(rows, columns, means.c2.astype(np.float32), None, None), sigma


def with_model(
    one: ShownScan, bin: int, maps: Maps, sigma: Float[np.ndarray, "rows columns"]
) -> Maps:
    """Return the maps with those of the model and of the residual, of a result.

    Raises OptionError where the model cannot be evaluated.
    """
    assert one.result is not None
    assert one.model is not None
    contrast, offset = linear_params(one, bin)
    f = one.model.means(bin, maps.rows, maps.columns)
    i, j = maps.rows.cells[:, None], maps.columns.cells
    model = np.where(i == j, np.nan, offset + contrast * f)
    fitted = np.abs(i - j) * maps.rows.side >= one.result.config["min_lag"]
    residual = np.where(fitted, (maps.data - model) / sigma, np.nan)
    return Maps(
        maps.rows, maps.columns, maps.data, model.astype(np.float32), residual.astype(np.float32)
    )


def cut_along_lag(one: ShownScan, bin: int, maps: Maps, t1: float) -> Line:
    """Return c2 against lag at the age t1 [s]."""
    frame = int(np.searchsorted(one.scan.time, t1))
    age = int(np.searchsorted(one.cuts.age_edges, frame, side="right")) - 1
    cut = cut_of(one.scan, one.cuts, bin, age)  # empty beyond the last frame
    column = frame // maps.columns.side - maps.columns.first
    view_x = view_c2 = np.empty(0)
    if 0 <= column < maps.columns.number:
        lag = (
            times_of(one.scan, maps.rows.middles) - times_of(one.scan, maps.columns.middles)[column]
        )
        view_x, view_c2 = lag[lag > 0], maps.data[lag > 0, column]
    return _line(one, bin, cut, cut.lag, (view_x, view_c2))


def cut_along_age(one: ShownScan, bin: int, maps: Maps, lag: float) -> Line:
    """Return c2 against age at the lag [s]."""
    cut = cut_at_lag(one.scan, one.cuts, bin, max(lag, float(np.diff(one.scan.time).min())))
    columns, time = np.arange(maps.columns.number), one.scan.time
    t1 = times_of(one.scan, maps.columns.middles)
    later = np.interp(t1 + lag, time, np.arange(len(time))) - maps.columns.middles
    frames = np.maximum(np.rint(later), 1)
    rows = np.floor((maps.columns.middles + frames) / maps.rows.side).astype(int) - maps.rows.first
    there = (rows >= 0) & (rows < maps.rows.number) & (t1 + lag <= time[-1])
    view = (t1[there], maps.data[rows[there], columns[there]])
    return _line(one, bin, cut, cut.t1, view)


def _line(
    one: ShownScan,
    bin: int,
    cut: Cut,
    x: Float[np.ndarray, " n"],
    view: tuple[np.ndarray, np.ndarray],
) -> Line:
    model_x = model_c2 = np.empty(0)
    if one.model is not None and len(x) > 1:
        contrast, offset = linear_params(one, bin)
        spaced = np.geomspace if x is cut.lag else np.linspace
        model_x = spaced(x[0], x[-1], CURVE_POINTS)
        t1, lag = (np.interp(model_x, x, of) for of in (cut.t1, cut.lag))
        model_c2 = offset + contrast * one.model.f_at(bin, t1, t1 + lag)
    known = np.isfinite(view[1])
    return Line(x, cut.c2, cut.stderr, view[0][known], view[1][known], model_x, model_c2)
