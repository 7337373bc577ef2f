"""Cuts through the window of a page at one age and at one lag."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps.view.viewed_data import Shown
from homodyne_dask.results.data.cuts import Cut, cut_at_age, cut_at_lag
from homodyne_dask.results.data.window_means import Window, times_of


@dataclass(frozen=True)
class Line:
    """One cut: x is the lag [s] at one age, or the age [s] at one lag."""

    averages: Cut
    """Averages over cells of age and lag, from the store."""
    x: Float[np.ndarray, " m"]
    c2: Float[np.ndarray, " m"]
    """The cells of the window."""


def cut_along_lag(shown: Shown, bin: int, window: Window, t1: float) -> Line:
    """Return c2 against lag at the age t1 [s]."""
    scan, rows, columns = shown.scan, window.rows, window.columns
    frame = int(np.searchsorted(scan.time, t1))
    age = int(np.searchsorted(shown.cuts.age_edges, frame, side="right")) - 1
    cut = cut_at_age(scan, shown.cuts, bin, age)  # empty beyond the last frame
    column = frame // columns.side - columns.first
    if not 0 <= column < columns.number:
        return Line(cut, np.empty(0), np.empty(0))
    lag = times_of(scan, rows.middles) - times_of(scan, columns.middles)[column]
    known = (lag > 0) & np.isfinite(window.c2[:, column])
    return Line(cut, lag[known], window.c2[known, column])


def cut_along_age(shown: Shown, bin: int, window: Window, lag: float) -> Line:
    """Return c2 against age at the lag [s]."""
    time, rows, columns = shown.scan.time, window.rows, window.columns
    cut = cut_at_lag(shown.scan, shown.cuts, bin, max(lag, float(np.diff(time).min())))
    t1 = times_of(shown.scan, columns.middles)
    later = np.interp(t1 + lag, time, np.arange(len(time))) - columns.middles
    row = np.floor((columns.middles + np.maximum(np.rint(later), 1)) / rows.side) - rows.first
    there = np.flatnonzero((row >= 0) & (row < rows.number) & (t1 + lag <= time[-1]))
    c2 = window.c2[row[there].astype(int), there]
    known = np.isfinite(c2)
    return Line(cut, t1[there][known], c2[known])
