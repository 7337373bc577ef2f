"""c2 against lag at a few ages, data and model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.views.figures.style import (
    MARKERS,
    bin_name,
    label_axes,
    logarithmic,
    panels,
)
from homodyne_dask.store.scan import Cuts, Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.results.views.figures.picture import FitFigure

AGES = (0.01, 0.06, 0.2, 0.5, 0.75)
"""Ages shown, as fractions of the selected time."""
MIN_LAGS = 4
"""Fewest lags at which an age is shown."""
NEAR_LAG = 1.5
"""Factor within which lags of a cut at one lag are."""
CURVE_POINTS = 200
"""Points of a model curve."""


def draw_cuts(view: FitView) -> "FitFigure":
    """Draw c2 against lag at up to five ages, with error bars and the model, for up to four bins."""
    picture, axes = panels(len(view.shown), 2, 3.8, 2.45, left=0.9)
    for axis, b in zip(axes, view.shown, strict=True):
        _panel(axis, view, int(b))
    return picture


def _panel(axis: "Axes", view: FitView, bin: int) -> None:
    from matplotlib import colormaps

    scan, read, scaling = view.scan, view.cuts, view.result.scaling
    label_axes(axis, "lag t₂ − t₁ [s]", "c₂", bin_name(scan, bin))
    logarithmic(axis, "x")
    contrast, offset = (float(scaling[name].values[bin]) for name in ("contrast", "offset"))
    chosen = ages(read, bin, scan)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(chosen), 1)))
    for age, colour, marker in zip(chosen, shades, MARKERS, strict=False):
        cut = cut_of(scan, read, bin, age)
        look = {"fmt": marker, "ms": 3.5, "color": colour, "elinewidth": 0.8}
        axis.errorbar(cut.lag, cut.c2, cut.stderr, label=f"t₁ = {cut.age:.3g} s", **look)
        t1, lag = cut.line
        f = view.model.shape(np.array([bin]), t1, t1 + lag)[0]
        axis.plot(lag, offset + contrast * f, color=colour)
    if chosen:
        axis.legend(frameon=False, fontsize=8, loc="upper right")


@dataclass(frozen=True)
class Cut:
    """One bin at one age, or at one lag."""

    t1: Float[np.ndarray, " l"]
    lag: Float[np.ndarray, " l"]
    """s, means over the pairs of a cell."""
    c2: Float[np.ndarray, " l"]
    stderr: Float[np.ndarray, " l"]
    """Of the mean over the cell, as if its pairs were independent."""

    @property
    def age(self) -> float:
        """s, of the shortest lag."""
        return float(self.t1[0])

    @property
    def line(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """t1 and lags of a smooth curve through the cells; mean t1 depends on the lag."""
        lag = np.geomspace(self.lag[0], self.lag[-1], CURVE_POINTS)
        return np.interp(lag, self.lag, self.t1), lag


def ages(read: Cuts, bin: int, scan: Scan) -> list[int]:
    """Return the ages shown for a bin: spread over the selected time, each with enough lags."""
    counts = np.bincount(read.age[_known(read, bin)], minlength=len(read.age_edges))
    there = np.flatnonzero(counts >= MIN_LAGS)
    if not len(there):
        return []
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    begins = np.array([read.t1[(read.age == age) & _known(read, bin)][0] for age in there]) - first
    nearest = [int(np.argmin(np.abs(begins - share * (last - first)))) for share in AGES]
    return [int(there[n]) for n in dict.fromkeys(nearest)]


def cut_of(scan: Scan, read: Cuts, bin: int, age: int) -> Cut:
    """Return the cells of one bin and age, sorted by lag."""
    cells = np.flatnonzero((read.age == age) & _known(read, bin))
    return _cut(scan, read, bin, cells[np.argsort(read.lag[cells])])


def cut_at_lag(scan: Scan, read: Cuts, bin: int, lag: float) -> Cut:
    """Return the cell of each age of one bin whose lag is nearest to `lag` [s], sorted by age."""
    cells = np.flatnonzero(_known(read, bin))
    apart = np.abs(np.log((read.t2 - read.t1)[cells] / lag))
    order = np.lexsort((apart, read.age[cells]))
    cells, apart = cells[order], apart[order]
    first = np.flatnonzero(np.diff(read.age[cells], prepend=-1))
    return _cut(scan, read, bin, cells[first[apart[first] < np.log(NEAR_LAG)]])


def _cut(scan: Scan, read: Cuts, bin: int, cells: Int[np.ndarray, " l"]) -> Cut:
    t1, stderr = read.t1[cells], cell_errors(scan, read, cells)[bin]
    return Cut(t1, read.t2[cells] - t1, read.c2[bin, cells], stderr)


def cell_errors(scan: Scan, read: Cuts, cells: Int[np.ndarray, " l"]) -> Float[np.ndarray, "bin l"]:
    """Return the standard errors of c2 of every bin in some cells, as if their pairs were independent."""
    i, j = (
        np.searchsorted(scan.time, t[cells]).clip(0, scan.n_frames - 1) for t in (read.t1, read.t2)
    )
    count = np.maximum(read.count[:, cells], 1)
    return scan.sigma_row[:, i] * scan.sigma_row[:, j] / np.sqrt(count)


def _known(read: Cuts, bin: int) -> Bool[np.ndarray, " cell"]:
    return np.isfinite(read.c2[bin]) & (read.count[bin] > 0)
