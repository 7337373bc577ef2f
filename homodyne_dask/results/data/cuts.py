"""c2 of one bin against lag at one age, or against age at one lag, from the averages of a store."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.store.scan import Cuts, Scan

AGES = (0.01, 0.06, 0.2, 0.5, 0.75)
"""Ages shown, as fractions of the selected time."""
MIN_LAGS = 4
"""Fewest lags at which an age is shown."""
NEAR_LAG = 1.5
"""Factor within which lags of a cut at one lag are."""
CURVE_POINTS = 200
"""Points of a model curve."""


@dataclass(frozen=True)
class Cut:
    """One bin at one age, or at one lag: means over the pairs of cells."""

    t1: Float[np.ndarray, " l"]
    lag: Float[np.ndarray, " l"]
    """s."""
    c2: Float[np.ndarray, " l"]
    stderr: Float[np.ndarray, " l"]
    """Of the mean over the cell, as if its pairs were independent."""
    at_one_lag: bool = False

    @property
    def x(self) -> Float[np.ndarray, " l"]:
        """The ages [s] of a cut at one lag, or the lags."""
        return self.t1 if self.at_one_lag else self.lag

    @property
    def line(self) -> tuple[Float[np.ndarray, " n"], ...]:
        """x, t1 and t2 of a smooth curve through the cells, whose mean t1 depends on the lag."""
        if len(self.x) < 2:
            return (np.empty(0),) * 3
        spaced = np.linspace if self.at_one_lag else np.geomspace
        x = spaced(self.x[0], self.x[-1], CURVE_POINTS)
        t1, lag = (np.interp(x, self.x, of) for of in (self.t1, self.lag))
        return x, t1, t1 + lag


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


def cut_at_age(scan: Scan, read: Cuts, bin: int, age: int) -> Cut:
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
    near = cells[first[apart[first] < np.log(NEAR_LAG)]]
    return _cut(scan, read, bin, near, at_one_lag=True)


def _cut(
    scan: Scan, read: Cuts, bin: int, cells: Int[np.ndarray, " l"], at_one_lag: bool = False
) -> Cut:
    t1, stderr = read.t1[cells], cell_errors(scan, read, cells)[bin]
    return Cut(t1, read.t2[cells] - t1, read.c2[bin, cells], stderr, at_one_lag)


def cell_errors(scan: Scan, read: Cuts, cells: Int[np.ndarray, " l"]) -> Float[np.ndarray, "bin l"]:
    """Return the standard errors of c2 of every bin in some cells, as if their pairs were independent."""
    i, j = (
        np.searchsorted(scan.time, t[cells]).clip(0, scan.n_frames - 1) for t in (read.t1, read.t2)
    )
    count = np.maximum(read.count[:, cells], 1)
    return scan.sigma_row[:, i] * scan.sigma_row[:, j] / np.sqrt(count)


def _known(read: Cuts, bin: int) -> Bool[np.ndarray, " cell"]:
    return np.isfinite(read.c2[bin]) & (read.count[bin] > 0)
