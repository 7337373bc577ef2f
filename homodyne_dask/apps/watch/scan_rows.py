"""Rows of the scans of a watched folder, and what of a scan differs from those before it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from homodyne_dask.results.data.fit_rows import CONVERGED, FAILED, FitRow, beyond_scatter

BEFORE = 8
"""Scans with which the next one is compared."""
_COMPARED: dict[str, Callable[[FitRow], float]] = {
    "contrast": lambda row: row.at["contrast"],
    "reduced χ²": lambda row: row.redchi,
}


def local_time(seconds: float) -> str:
    """Return a time as 2026-11-22 23:10:05+01:00; '' for one in no year of a calendar."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def row_of_scan(number: int, time: float, row: FitRow) -> FitRow:
    """Return the row of a watched file without the result; time: when it was written [s since 1970]."""
    contrast = np.nan
    if row.result is not None:
        known = row.result.scaling["contrast"].values
        known = known[np.isfinite(known)]
        contrast = float(np.median(known)) if len(known) else np.nan
    at = {"number": number, "time": local_time(time), "contrast": contrast}
    return replace(row, result=None, at=at)


def changes(row: FitRow, earlier: Sequence[FitRow]) -> tuple[str, ...]:
    """Return a phrase for each thing that is to be said of a scan after those before it, in their order.

    Outcome other than converged; contrast and reduced χ² far from the median of the last scans.
    """
    if row.outcome == FAILED:
        return ()  # its message says why
    found = [] if row.outcome_words == CONVERGED else [row.outcome_words]
    good = [one for one in earlier if one.outcome != FAILED][-BEFORE:]
    for words, value_of in _COMPARED.items():
        now, before = value_of(row), np.array([value_of(one) for one in good])
        if away := beyond_scatter(now, before):
            found.append(f"{words} {now:.3g} (median of the scans before: {now - away:.3g})")
    return tuple(found)
