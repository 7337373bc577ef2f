"""The rows of the scans of a watched folder, and scans.csv and scans.html, which show them.

The page reloads itself; newest scans first.
"""

import io
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from homodyne_dask.apps.watch.scan_rows import changes, local_time, row_of_scan
from homodyne_dask.apps.watch.watch_figures import (
    Columns,
    draw_last_rates,
    draw_scans_against,
    rates_drawn,
)
from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.document.blocks import Picture
from homodyne_dask.errors import why_unreadable
from homodyne_dask.results.data.fit_rows import (
    FAILED,
    SCANS,
    FitRow,
    quantity_names,
)
from homodyne_dask.results.files.result_folder import write_table_and_page
from homodyne_dask.results.views.fits_report import report_of_fits
from homodyne_dask.results.views.scans_figure import (
    scans_title,
)
from homodyne_dask.store.files import read_regular_file

TIMES, MOST_RATES_BYTES = 200, 100_000_000
"""Most times of rates that are drawn, and bytes of a file of rates that is read."""
COMPARED = 6
"""Scans whose rates are drawn together."""


def read_rates(file: Path) -> Columns:
    """Return columns of the rates.csv of a scan at up to TIMES times, NaN where a cell is empty."""
    content = read_regular_file(file, MOST_RATES_BYTES) or b"empty"
    table = np.atleast_1d(np.genfromtxt(io.BytesIO(content), delimiter=",", names=True))
    names = table.dtype.names or ()
    if not (len(table) and rates_drawn(names)):
        raise ValueError("it has no rates")
    places = np.unique(np.geomspace(1, len(table), TIMES).astype(int)) - 1
    return {name: table[name][places] for name in names}


def live_pictures(rows: Sequence[FitRow], rates: Mapping[str, Columns]) -> list[Picture]:
    """Return figures of the rates of the latest scans, and of all parameters against number and time.

    rates: by the name of the scan; those of a free form that differ from the newest are left out.
    """
    good = [row for row in rows if row.outcome != FAILED]
    if not good:
        return []
    names = quantity_names(good)
    good = [replace(row, quantities={name: row.quantities[name] for name in names}) for row in good]
    drawn = [
        Picture.drawn(
            draw_scans_against(good, against),
            scans_title(good, words),
            f"Each parameter with its error against {words}, from {good[0].name} to {good[-1].name}.",
        )
        for against, words in (("number", "the number of the scan"), ("time", "time"))
    ]
    latest = [(row.name, rates[row.name]) for row in good[-COMPARED:] if row.name in rates]
    latest = [of for of in latest if rates_drawn(of[1]) == rates_drawn(latest[-1][1])]
    if latest:
        title = "Rates of the latest scans: the newest is drawn in colour, with its 68 % band"
        alt = f"J(t) and, with shear, γ̇(t) of {', '.join(scan for scan, _ in latest)}."
        drawn.insert(0, Picture.drawn(draw_last_rates(latest), title, alt))
    return drawn


@dataclass
class ScanTable:
    """The rows of all scans by file, and the page that shows them."""

    names: Sequence[str]
    """Parameters of the model, for a table without fits."""
    rows: dict[str, FitRow] = field(default_factory=dict)
    rates: dict[str, Columns] = field(default_factory=dict)
    """Those of the latest scans, by name."""
    changed: bool = True
    """Since the page was written."""

    def add(self, number: int, stamp: Stamp, row: FitRow) -> FitRow:
        """Add the fit of a file, or a file that cannot be fitted, in place of an earlier one."""
        before = [other for other in self._ordered() if other.at["number"] < number]
        row = row_of_scan(number, stamp.mtime_ns / 1e9, row)
        row = replace(row, warnings=(*changes(row, before), *self._read(row)))
        self.changed |= self.rows.get(row.name) != row
        self.rows[row.name] = row
        return row

    def remove(self, name: str) -> None:
        """Remove the row of a file that is gone, if it has one."""
        self.changed |= self.rows.pop(name, None) is not None

    def _ordered(self) -> list[FitRow]:
        return sorted(self.rows.values(), key=lambda row: row.at["number"])

    def _read(self, row: FitRow) -> list[str]:
        """Read the rates of a scan; return why they cannot be drawn."""
        self.rates.pop(row.name, None)
        if row.folder is None or not os.path.lexists(file := row.folder / "rates.csv"):
            return []
        try:
            self.rates[row.name] = read_rates(file)
        except (OSError, ValueError, TypeError, LookupError) as e:
            return [f"{file} cannot be plotted ({why_unreadable(e)}): fit the scan again"]
        return []

    def write(self, folder: Path, said: Sequence[str], reload: float | None = None) -> None:
        """Write scans.csv and scans.html; raises OSError where that is not possible, and leaves them then.

        said: what the watcher does and what it waits for. reload: seconds after which the page reloads.
        """
        rows = self._ordered()
        latest = [row.name for row in rows if row.name in self.rates][-COMPARED:]
        self.rates = {name: self.rates[name] for name in latest}
        pictures, names = live_pictures(rows, self.rates), quantity_names(rows, self.names)
        title = f"{len(rows)} scans, the latest {rows[-1].name}" if rows else "No scan yet"
        said = [f"{said[0]}; written {local_time(time.time())}", *said[1:]]
        page = report_of_fits(title, names, rows, len(rows), SCANS, folder, pictures, watcher=said)
        rows = [replace(row, at={**row.at, "warnings": "; ".join(row.warnings)}) for row in rows]
        write_table_and_page(folder, SCANS, names, rows, page, reload=reload, durable=False)
        self.changed = False


def row_line(row: FitRow, seconds: float) -> str:
    """Return a row in a line: how its fit ended, its parameters, what changed."""
    if row.outcome == FAILED:
        return f"{row.name}: {row.message}"
    values = ", ".join(f"{name} {quantity}" for name, quantity in row.quantities.items())
    changed = "".join(f"; {words}" for words in row.warnings if words != row.outcome_words)
    outcome = f"{row.outcome_words}, reduced χ² {row.redchi:.4g}{changed}"
    return f"{row.name}: {outcome}; {values} ({seconds:.1f} s)"
