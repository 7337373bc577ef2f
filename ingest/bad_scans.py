"""Repeats that do not agree with the others, found before they are stored or averaged.

Of each scan, averages over cells of age and lag give three numbers: c2 at long lags (the baseline), c2 at
short lags, and how far its cells are from their median over scans. A number far from those of the other
scans is an outlier by the generalized extreme Studentized deviate test (Rosner, Technometrics 25, 165
(1983)), which finds several that hide each other; a trend from scan to scan is none.
"""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from homodyne_dask.errors import OptionError
from homodyne_dask.store.cells import age_edges, lag_edges
from ingest.clean import NoDataError
from ingest.readers.source import Source
from ingest.repeats_and_copies import cleaned_scan, joined
from ingest.store_writer import cell_averages, mask_matrix

LEVEL = 0.01
"""Probability that good scans lose one, over all three numbers."""
FEWEST = 5
"""Scans."""
MOST_BAD = 1 / 3
"""Of the scans."""


class Outlier(NamedTuple):
    scan: int
    what: str
    value: float
    others: float
    spread: float


def without_bad(source: Source) -> Source:
    """Return the source without scans that differ from the others, and notes that say by what."""
    number, names = len(source.scans), source.scan_names
    if number < FEWEST:
        raise OptionError(
            f"reject_scans needs {FEWEST} scans or more to tell which differ, not {max(number, 1)}: leave it "
            "out"
        )
    outliers = [*_outliers(np.stack([_cells(scan) for scan in source.scans]))]
    bad = {outlier.scan for outlier in outliers}
    kept = [n for n in range(number) if n not in bad]
    table = [
        f"{names[scan]} left out: {what} is {value:.5g}, of the others {others:.5g} ± {spread:.2g}"
        for scan, what, value, others, spread in sorted(outliers)
    ]
    whole = source
    if bad:
        whole = joined([source.scans[n] for n in kept], [names[n] for n in kept])
    frames = [note for note in source.notes if "exclude_frames" in note and note not in whole.notes]
    heading = f"reject_scans: {len(bad)} of {number} scans left out"
    return replace(whole, notes=(*whole.notes, *frames, heading, *table))


def _cells(scan: Source) -> Float[np.ndarray, "bin age lag"]:
    """Return averages of c2 of each bin over cells of age and lag, NaN of a bin without data."""
    if scan.g2 is not None:
        return scan.g2[:, None, 1:]
    ages, lags = age_edges(scan.n_frames), lag_edges(scan.n_frames)
    cells = np.full((len(scan.label), len(ages) - 1, len(lags) - 1), np.nan)
    for n in range(len(cells)):
        with suppress(NoDataError):
            cleaned, _ = cleaned_scan(scan.only(n))
            matrix = mask_matrix(cleaned.c2, np.ones(scan.n_frames, bool))
            cells[n] = cell_averages(matrix, ages, lags)[0]
    return cells


def _outliers(cells: Float[np.ndarray, "scan bin age lag"]) -> Iterator[Outlier]:
    with warnings.catch_warnings(
        category=RuntimeWarning, action="ignore"
    ):  # of cells without pairs
        by_lag = np.nanmean(cells, axis=(1, 2))
        apart = cells - np.nanmedian(cells, axis=0)
        spread = np.nanmedian(np.abs(apart), axis=0)
        apart = np.sqrt(
            np.nanmean((apart / np.where(spread > 0, spread, np.nan)) ** 2, axis=(1, 2, 3))
        )
        quarter = max(by_lag.shape[1] // 4, 1)
        numbers = {
            "c2 at long lags": np.nanmean(by_lag[:, -quarter:], axis=1),
            "c2 at short lags": np.nanmean(by_lag[:, :quarter], axis=1),
            "the logarithm of its distance from the median scan": np.log(apart),
        }
    for what, values in numbers.items():
        without_data = np.flatnonzero(~np.isfinite(values))
        known = np.flatnonzero(np.isfinite(values))
        bad = known[_extreme(values[known], LEVEL / len(numbers))]
        others = np.setdiff1d(known, bad)
        about = float(values[others].mean()), float(values[others].std(ddof=1))
        for scan in (*without_data, *bad):
            yield Outlier(int(scan), what, float(values[scan]), *about)


def _extreme(values: Float[np.ndarray, " scan"], level: float) -> list[int]:
    """Return the outliers among values that are otherwise normal."""
    left, found, outliers = list(range(len(values))), list[int](), 0
    for _ in range(int(len(values) * MOST_BAD)):
        rest = values[left]
        if (deviation := rest.std(ddof=1)) == 0:
            break
        farthest = int(np.argmax(np.abs(rest - rest.mean())))
        n = len(left)
        t = stdtrit(n - 2, 1 - level / (2 * n))
        largest = t * (n - 1) / np.sqrt((n - 2 + t**2) * n)
        found.append(left.pop(farthest))
        if np.abs(rest - rest.mean())[farthest] > largest * deviation:
            outliers = len(found)
    return found[:outliers]
