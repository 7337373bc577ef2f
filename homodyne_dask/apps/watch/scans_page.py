"""The rows of the scans of a watched folder, and scans.csv and scans.html, which show them.

The page reloads itself; newest scans first.
"""

import csv
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.cli.exit_status import error_sentence
from homodyne_dask.errors import FileReadError, why_unreadable
from homodyne_dask.results.data.fit_rows import (
    CONVERGED,
    FAILED,
    PARTS,
    SCANS,
    FitRow,
    SeriesEntry,
    changes,
    fit_rows,
    local_time,
    outcome_counts,
    quantity_names,
)
from homodyne_dask.results.files.csv_tables import entries_csv
from homodyne_dask.results.files.scans_index import index_files
from homodyne_dask.results.views.figures.scans_figure import (
    Columns,
    draw_last_rates,
    draw_scans_against,
    rates_drawn,
    scans_title,
)
from homodyne_dask.results.views.figures.style import drawable
from homodyne_dask.results.views.html_report import Picture, fits_table
from homodyne_dask.results.views.jinja_templates import RESULTS_PACKAGE, render
from homodyne_dask.store.files import read_regular_file, replacing, write_atomic

if TYPE_CHECKING:
    from homodyne_dask.results.views.figures.picture import FitFigure


MOST_ROWS = 200
"""Fits in the table of the page, the newest; scans.csv has all."""
MOST_SENTENCES = 20
RATES_CSV, TIMES = "rates.csv", 200
"""The rates in the folder of a result, and the most times of them that are drawn."""
MOST_RATES_BYTES = 100_000_000
"""Of a file that is read."""
COMPARED = 6
"""Scans whose rates are drawn together."""
LARGEST_SHARE = 0.1
"""Share of the time that goes into writing the page while there is other work."""
HEARTBEAT = 60.0
"""Seconds after which the page is written though nothing is new: it says when it was written."""


@dataclass(frozen=True)
class WatchStatus:
    """What a page says of the watcher that writes it."""

    reload: float | None
    """Seconds after which the page reloads; None when the watcher has ended."""
    sentence: str
    """What it does."""
    waiting: Sequence[str] = ()
    """What it waits for, a sentence each."""


def live_pictures(rows: Sequence[FitRow]) -> tuple[list[Picture], dict[str, str]]:
    """Return figures of the rates of the last scans, and of all parameters against number and time.

    With them a sentence for each scan whose rates cannot be read, by its name.
    """
    good = [row for row in rows if row.outcome != FAILED]
    if not good:
        return [], {}
    names = _names(good)
    good = [replace(row, quantities={name: row.quantities[name] for name in names}) for row in good]
    drawn = [
        _picture(
            draw_scans_against(good, against),
            scans_title(good, words),
            f"Each parameter with its error against {words}, from {good[0].name} to {good[-1].name}.",
        )
        for against, words in (("number", "the number of the scan"), ("time", "time"))
    ]
    rates, unread = _last_rates(good[-COMPARED:])
    if rates:
        title = "Rates of the latest scans: the newest is drawn in colour, with its 68 % band"
        alt = f"J(t) and, with shear, γ̇(t) of {', '.join(scan for scan, _ in rates)}."
        drawn.insert(0, _picture(draw_last_rates(rates), title, alt))
    return drawn, unread


def _last_rates(rows: Sequence[FitRow]) -> tuple[list[tuple[str, Columns]], dict[str, str]]:
    """Return the rates of scans that have the same as the newest, and why others are not drawn, by name."""
    found: list[tuple[str, Columns]] = []
    unread: dict[str, str] = {}
    for row in reversed(rows):
        file = None if row.folder is None or row.part else row.folder / RATES_CSV
        if file is None or not os.path.lexists(file):
            continue
        try:
            columns = _rates(file)
            if found and rates_drawn(columns) != rates_drawn(found[0][1]):
                raise ValueError(f"its rates differ from those of {found[0][0]}")
            found.append((row.scan, columns))
        except FileReadError as e:
            unread[row.name] = str(e)
        except (OSError, ValueError, IndexError, csv.Error) as e:
            unread[row.name] = f"{file} cannot be plotted ({why_unreadable(e)}): fit the scan again"
    return found[::-1], unread


def _rates(file: Path) -> Columns:
    """Return columns of the rates.csv of a scan at up to TIMES times, NaN where a cell is empty."""
    text = read_regular_file(file, MOST_RATES_BYTES).decode()
    head, *lines = csv.reader(text.splitlines(), strict=True)
    if not (lines and rates_drawn(head)):
        raise ValueError("it has no rates")
    places = np.unique(np.geomspace(1, len(lines), TIMES).astype(int)) - 1
    some = np.array([[float(of or "nan") for of in lines[n][: len(head)]] for n in places])
    if not np.isfinite(drawable(some[:, head.index("t")])).all():
        raise ValueError("some of its times are not numbers")
    return dict(zip(head, some.T, strict=True))


def _names(rows: Sequence[FitRow]) -> list[str]:
    """Return the parameters and rates that all fits have: those of free form follow the length of a scan."""
    return [name for name in rows[0].quantities if all(name in row.quantities for row in rows)]


def _picture(drawn: "FitFigure", title: str, alt: str) -> Picture:
    png = io.BytesIO()
    drawn.savefig(png, format="png")
    return Picture(title, alt, png.getvalue())


def write_live_index(
    folder: Path,
    names: Sequence[str],
    rows: Sequence[FitRow],
    pictures: Sequence[Picture],
    status: WatchStatus,
) -> None:
    """Write scans.csv and scans.html.

    names: parameters of the model, for a table without fits. rows: in the order of the numbers of the
    scans. Raises OSError where that is not possible, and leaves the files as they were.
    """
    at = next((row.at for row in rows if row.at), {})
    good = [row for row in rows if row.outcome != FAILED]
    names = _names(good) if good else quantity_names(names, at)
    table, page = index_files(folder, SCANS)
    # a scan without parts in a table of parts has the same columns
    whole = [row if row.at else replace(row, at=dict.fromkeys(at, math.nan)) for row in rows]
    with replacing(table, durable=False) as staging:
        staging.write_text(entries_csv(names, whole, folder, "scan") if rows else "scan,number\n")
        write_atomic(page, _page(folder, names, rows, pictures, status, bool(at)))


def _page(
    folder: Path,
    names: Sequence[str],
    rows: Sequence[FitRow],
    pictures: Sequence[Picture],
    status: WatchStatus,
    of_parts: bool,
) -> str:
    newest = list(reversed(rows))
    table = fits_table(names, newest[:MOST_ROWS], folder, "scan")
    hidden = len(newest) - MOST_ROWS
    more = [f"scans.csv also lists {hidden} earlier fits"] if hidden > 0 else []
    said = [f"{row.name}: {of}" for row in newest for of in (row.message, *row.warnings) if of]
    cut = [f"and {len(said) - MOST_SENTENCES} more in scans.csv"] * (len(said) > MOST_SENTENCES)
    headings = {"verdict": "Outcome", "pictures": "Figures", "scans": "Scans"}
    if not pictures:
        del headings["pictures"]
    return render(
        RESULTS_PACKAGE,
        "live_index.html",
        title=f"{len(rows)} {'fits' if of_parts else 'scans'}, the latest {newest[0].name}"
        if rows
        else "No scan yet",
        headings=headings,
        reload=status.reload,
        status=f"{status.sentence}; written {local_time(time.time())}",
        waiting=status.waiting,
        converged=bool(rows) and all(row.outcome_words == CONVERGED for row in rows),
        sentence=outcome_counts(rows, len(rows), PARTS if of_parts else SCANS),
        reservations=[*said[:MOST_SENTENCES], *cut],
        pictures=pictures,
        caption=table["caption"],
        rows=table["rows"],
        table_notes=[*table["table_notes"], *more],
    )


@dataclass
class ScanTable:
    """The rows of all scans by file, and the page that shows them."""

    names: Sequence[str]
    """Parameters of the model."""
    rows: dict[str, list[FitRow]] = field(default_factory=dict)
    changed: bool = True
    """Since the page was written."""
    pictures: list[Picture] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Why rates of scans are not in the pictures, by name."""
    drawn: list[FitRow] = field(default_factory=list)
    """The rows in the pictures."""
    written: float = 0.0
    next_time: float = 0.0

    def ordered(self) -> list[FitRow]:
        """Return all rows by the number of their scan."""
        ordered = sorted(self.rows.values(), key=lambda rows: rows[0].number)
        return [row for rows in ordered for row in rows]

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
        except Exception as e:  # whatever is in that folder, the other rows are shown
            self.refuse(name, number, stamp, error_sentence(e, then=""))

    def remove(self, *names: str) -> None:
        """Remove the rows of files that are gone."""
        for name in names:
            self.changed |= self.rows.pop(name, None) is not None

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
            (self.pictures, self.unread), self.drawn = live_pictures(rows), rows
        shown = [
            replace(row, warnings=(*row.warnings, self.unread[row.name]))
            if row.name in self.unread
            else row
            for row in rows
        ]
        write_live_index(folder, self.names, shown, self.pictures, status)
        self.changed, self.written = False, time.monotonic()
        self.next_time = self.written + (self.written - began) / LARGEST_SHARE


def row_line(row: FitRow, seconds: float) -> str:
    """Return a row in a line: how its fit ended, its parameters, what changed."""
    if row.outcome == FAILED:
        return f"{row.name}: {row.message}"
    values = ", ".join(f"{name} {quantity}" for name, quantity in row.quantities.items())
    changed = "".join(f"; {words}" for words in row.warnings if words != row.outcome_words)
    outcome = f"{row.outcome_words}, χ²/N {row.redchi:.4g}{changed}"
    return f"{row.name}: {outcome}; {values} ({seconds:.1f} s)"
