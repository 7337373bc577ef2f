"""A fit as a row of a table of scans that goes on: what is kept of it once its result is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.series_entry import (
    CONVERGED,
    FAILED,
    Quantity,
    SeriesEntry,
)

BEFORE = 8
"""Scans with which the next one is compared."""
FEWEST = 3
SHARE, SCATTERS = 0.2, 5.0
"""A change is said where it is more than this share of the median, and than so many robust scatters."""
_OF_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
_QUANTITIES = {"contrast": "contrast", "redchi": "reduced χ²"}


@dataclass(frozen=True)
class FitRow:
    """One fit of a scan, or a scan that cannot be fitted, with the columns of `SeriesEntry`."""

    scan: str
    """The file."""
    number: int
    """Place of the scan among all, from 1 on."""
    time: float
    """When the file was written [s since 1970]."""
    part: str = ""
    """Name of the part of the scan, '' for the whole."""
    folder: Path | None = None
    outcome: str = FAILED
    outcome_words: str = "failed"
    redchi: float = np.nan
    ndata: int | None = None
    passes: int | None = None
    contrast: float = np.nan
    """Median over the bins."""
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    at: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    warnings: tuple[str, ...] = ()
    """What changed against the scans before."""

    @property
    def name(self) -> str:
        """The file, and the part if there are several."""
        return f"{self.scan}, {self.part}" if self.part else self.scan

    @property
    def columns(self) -> dict[str, Any]:
        """What a table of scans has beside the name."""
        return {
            "number": self.number,
            "time": local_time(self.time),
            **self.at,
            "contrast": self.contrast,
            "warnings": "; ".join(self.warnings),
        }


Fitted = SeriesEntry | FitRow
"""What tables and figures of several fits are made of."""


def local_time(seconds: float) -> str:
    """Return a time as 2026-11-22 23:10:05+01:00."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def fit_rows(scan: str, number: int, time: float, entries: Sequence[SeriesEntry]) -> list[FitRow]:
    """Return the rows of a scan: one, or one for each of its parts."""
    return [
        FitRow(
            scan=scan,
            number=number,
            time=time,
            part=entry.name if entry.at else "",
            folder=entry.folder,
            outcome=entry.outcome,
            outcome_words=entry.outcome_words,
            redchi=entry.redchi,
            ndata=entry.ndata,
            passes=entry.passes,
            contrast=np.nan if entry.result is None else _contrast(entry.result),
            quantities=entry.quantities,
            at=entry.at,
            message=entry.message,
        )
        for entry in entries
    ]


def _contrast(result: FitResult) -> float:
    known = result.scaling["contrast"].values
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else np.nan


def changes(row: FitRow, earlier: Sequence[FitRow]) -> tuple[str, ...]:
    """Return a phrase for each thing that is to be said of a scan after those before it, in their order.

    Outcome other than converged; contrast and reduced χ² far from the median of the last scans.
    """
    if row.outcome == FAILED:
        return ()  # its message says why
    found = [] if row.outcome_words == CONVERGED else [row.outcome_words]
    good = [one for one in earlier if one.outcome != FAILED and one.part == row.part][-BEFORE:]
    for key, words in _QUANTITIES.items():
        now, before = getattr(row, key), np.array([getattr(one, key) for one in good])
        before = before[np.isfinite(before)]
        if len(before) < FEWEST or not np.isfinite(now):
            continue
        median = float(np.median(before))
        scatter = _OF_NORMAL * float(np.median(np.abs(before - median)))
        if abs(now - median) > max(SHARE * abs(median), SCATTERS * scatter):
            found.append(f"{words} {now:.3g} after {median:.3g}")
    return tuple(found)
