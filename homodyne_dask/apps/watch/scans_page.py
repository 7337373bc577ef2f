"""scans.csv and scans.html of a watched folder: scans in the order in which their files were written."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from homodyne_dask.document.blocks import Picture
from homodyne_dask.results.data.fit_rows import FAILED, SCANS, FitRow, quantity_names
from homodyne_dask.results.files.result_folder import write_table_and_page
from homodyne_dask.results.views.fits_report import report_of_fits
from homodyne_dask.results.views.scans_figure import names_drawn, page_of_scans, scans_title


def local_time(seconds: float) -> str:
    """Return a time as 2026-11-22 23:10:05+01:00; '' for one in no year of a calendar."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def pictures_of(rows: Sequence[FitRow]) -> list[Picture]:
    """Return the figure of all parameters, scan by scan; none where there is nothing to draw."""
    fitted = [row for row in rows if row.outcome != FAILED]
    names = quantity_names(fitted)
    rows = [
        replace(row, quantities={name: row.quantities[name] for name in names}) for row in fitted
    ]
    if not (rows and names_drawn(rows)):
        return []
    alt = f"Each parameter with its error, from {rows[0].name} to {rows[-1].name}."
    return [Picture.drawn(page_of_scans(rows).figure(), scans_title(rows, "scan"), alt)]


@dataclass
class ScanTable:
    names: Sequence[str]
    """Parameters of the model, for a table without fits."""
    rows: dict[str, tuple[float, FitRow]] = field(default_factory=dict)
    """When each file was written [s since 1970], and its row without the result, which is large."""
    changed: bool = True
    """Since the page was written."""

    def add(self, written: float, row: FitRow) -> None:
        self.rows[row.name] = written, replace(row, result=None)
        self.changed = True

    def remove(self, name: str) -> None:
        self.changed |= self.rows.pop(name, None) is not None

    def write(self, folder: Path, sentences: Sequence[str], reload: float | None = None) -> None:
        """Write scans.csv and scans.html; said: what is done and waited for; reload: seconds of the page."""
        rows = []
        for written, row in sorted(self.rows.values(), key=lambda entry: (entry[0], entry[1].name)):
            columns = {"number": len(rows) + 1, "time": local_time(written)}
            rows.append(replace(row, at=columns))
        names = quantity_names(rows, self.names)
        title = f"{len(rows)} scans, the latest {rows[-1].name}" if rows else "No scan yet"
        sentences = [f"{sentences[0]}; written {local_time(time.time())}", *sentences[1:]]
        of_folder = SCANS, folder, pictures_of(rows)
        page = report_of_fits(title, names, rows, len(rows), *of_folder, watcher=sentences)
        write_table_and_page(folder, SCANS, names, rows, page, reload=reload, durable=False)
        self.changed = False


def row_line(row: FitRow) -> str:
    values = ", ".join(f"{name} {quantity}" for name, quantity in row.quantities.items())
    return f"{row.name}: {row.outcome_words}, reduced χ² {row.redchi:.4g}; {values}"
