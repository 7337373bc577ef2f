"""The rows of the scans of a watched folder, and when their table and page are written."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from homodyne_dask.apps.watch.scans_page import WatchStatus, live_pictures, write_live_index
from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.results.data.fit_rows import FAILED, FitRow, SeriesEntry, changes, fit_rows
from homodyne_dask.results.views.html_report import Picture

LARGEST_SHARE = 0.1
"""Share of the time that goes into writing the page while there is other work."""
HEARTBEAT = 60.0
"""Seconds after which the page is written though nothing is new: it says when it was written."""


@dataclass
class ScanTable:
    """The rows of all scans by file, and the page that shows them."""

    names: Sequence[str]
    """Parameters of the model."""
    rows: dict[str, list[FitRow]] = field(default_factory=dict)
    changed: bool = True
    """Since the page was written."""
    pictures: list[Picture] = field(default_factory=list)
    drawn: list[FitRow] = field(default_factory=list)
    """The rows in the pictures."""
    written: float = 0.0
    next_time: float = 0.0

    def ordered(self) -> list[FitRow]:
        """Return all rows by the number of their scan."""
        return [row for rows in sorted(self.rows.values(), key=_number) for row in rows]

    def add(
        self, name: str, number: int, stamp: Stamp, entries: Sequence[SeriesEntry]
    ) -> list[FitRow]:
        """Add the fits of a file, in place of earlier ones; return their rows."""
        before = [row for row in self.ordered() if row.number < number]
        made = fit_rows(name, number, stamp.mtime_ns / 1e9, entries)
        made = [replace(row, warnings=changes(row, before)) for row in made]
        self._set(name, made)
        return made

    def refuse(self, name: str, number: int, stamp: Stamp, problem: str) -> None:
        """Add a file that cannot be fitted."""
        self._set(name, [FitRow(name, number, stamp.mtime_ns / 1e9, message=problem)])

    def load(
        self,
        name: str,
        number: int,
        stamp: Stamp,
        folder: Path,
        read: Callable[[Path], Sequence[SeriesEntry]],
    ) -> None:
        """Add the fits of a file from the folder of its results."""
        try:
            self.add(name, number, stamp, read(folder))
        except HomodyneDaskError as e:
            self.refuse(name, number, stamp, str(e))

    def _set(self, name: str, rows: list[FitRow]) -> None:
        self.rows[name] = rows
        self.changed = True

    def due(self, idle: bool, waits_changed: bool) -> bool:
        """Return whether the page is to be written: it shows what is new, at a small share of the time."""
        now = time.monotonic()
        new = (self.changed or waits_changed) and (idle or now >= self.next_time)
        return new or now - self.written > HEARTBEAT

    def write(self, folder: Path, status: WatchStatus) -> None:
        """Write scans.csv and scans.html; raises OSError where that is not possible."""
        began, rows = time.monotonic(), self.ordered()
        if rows != self.drawn:
            self.pictures, self.drawn = live_pictures(rows), rows
        write_live_index(folder, self.names, rows, self.pictures, status)
        self.changed, self.written = False, time.monotonic()
        self.next_time = self.written + (self.written - began) / LARGEST_SHARE


def _number(rows: list[FitRow]) -> int:
    return rows[0].number


def row_line(row: FitRow, seconds: float) -> str:
    """Return a row in a line: how its fit ended, its parameters, what changed."""
    if row.outcome == FAILED:
        return f"{row.name}: {row.message}"
    values = ", ".join(f"{name} {quantity}" for name, quantity in row.quantities.items())
    changed = "".join(f"; {words}" for words in row.warnings if words != row.outcome_words)
    outcome = f"{row.outcome_words}, χ²/N {row.redchi:.4g}{changed}"
    return f"{row.name}: {outcome}; {values} ({seconds:.1f} s)"
