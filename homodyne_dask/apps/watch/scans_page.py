"""The rows of the scans of a watched folder, and scans.csv and scans.html, which show them.

A row says what of a scan differs from those before it. The page has figures of the parameters against
number or time, and of the latest rates; it reloads itself, newest scans first.
"""

import io
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator

from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.document.blocks import Picture
from homodyne_dask.errors import why_unreadable
from homodyne_dask.results.data.fit_rows import (
    CONVERGED,
    FAILED,
    SCANS,
    FitRow,
    beyond_scatter,
    quantity_names,
)
from homodyne_dask.results.files.result_folder import write_table_and_page
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fit_figures import AXES as RATE_AXES
from homodyne_dask.results.views.fits_report import report_of_fits
from homodyne_dask.results.views.scans_figure import (
    page_of_panels,
    panels_of_quantities,
    scan_label,
    scans_title,
)
from homodyne_dask.results.views.style import COLOURS, drawable
from homodyne_dask.store.files import read_regular_file

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
    contrasts = [] if row.result is None else row.result.scaling["contrast"].values
    finite = np.extract(np.isfinite(contrasts), contrasts)
    contrast = float(np.median(finite)) if len(finite) else np.nan
    at = {"number": number, "time": local_time(time), "contrast": contrast}
    return replace(row, result=None, at=at)


def changes(row: FitRow, earlier: Sequence[FitRow]) -> tuple[str, ...]:
    """Return what is to be said of a scan after those before it: outcome, contrast or χ² far from theirs."""
    if row.outcome == FAILED:
        return ()  # its message says why
    found = [] if row.outcome_words == CONVERGED else [row.outcome_words]
    good = [one for one in earlier if one.outcome != FAILED][-BEFORE:]
    for words, value_of in _COMPARED.items():
        now, before = value_of(row), np.array([value_of(one) for one in good])
        if away := beyond_scatter(now, before):
            found.append(f"{words} {now:.3g} (median of the scans before: {now - away:.3g})")
    return tuple(found)


Columns = Mapping[str, np.ndarray]


def draw_scans_against(rows: Sequence[FitRow], against: str) -> draw.FitFigure:
    zone = datetime.now().astimezone().tzinfo
    at = [row.at[against] for row in rows]
    if against == "time":
        at = [date2num(datetime.fromisoformat(time)) if time else np.nan for time in at]

    def finish(axis: Axes, _: str) -> None:
        axis.set_xlabel(against, loc="left")  # the date of the ticks is on the right
        ticks = MaxNLocator(5, integer=True)
        if against == "time":
            ticks = AutoDateLocator(zone, minticks=3, maxticks=5)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks, zone))
            axis.xaxis.get_offset_text().set_fontsize(draw.SMALL)
        axis.xaxis.set_major_locator(ticks)

    return page_of_panels(panels_of_quantities(rows, np.array(at, float), "", finish), below=0.1)


def rates_drawn(columns: Collection[str]) -> list[str]:
    """Return the rates that `draw_last_rates` draws of a table; none where one has no times or no band."""
    names = [name for name in ("J", "gamma_dot") if name in columns]
    needed = {"t", *(f"{name}_{end}_68" for name in names for end in ("low", "high"))}
    return names if needed <= {*columns} else []


def draw_last_rates(tables: Sequence[tuple[str, Columns]]) -> draw.FitFigure:
    """Draw J(t) and γ̇(t) of scans (name, rates.csv), the last one in colour and with its 68 % band."""
    tables = [(scan, {name: drawable(of[name]) for name in of}) for scan, of in tables]
    *earlier, (newest, last) = tables
    names = rates_drawn(last)

    def rate(axis: Axes, name: str) -> None:
        draw.label_axes(axis, "t [s]", *RATE_AXES[name])
        for n, (scan, of) in enumerate(earlier):
            shade = str(0.8 - 0.4 * n / len(tables))
            axis.plot(of["t"], of[name], color=shade, lw=1, label=scan_label(scan))
        axis.plot(last["t"], last[name], color=COLOURS[0], lw=1.6, label=scan_label(newest))
        ends = np.stack([last[f"{name}_{end}_68"] for end in ("low", "high")])
        draw.band(axis, last["t"], ends, 68)
        values = np.concatenate([of[name] for _, of in tables])
        draw.log_scale_if_wide(axis, "y", values)
        draw.logarithmic(axis, "x")
        draw.limits(axis, values, ends)

    return draw.page({name: partial(rate, name=name) for name in names}, 2, 2.0)


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
    """Return figures of the latest rates (by name; of the form of the newest), and of all parameters."""
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
    names: Sequence[str]
    """Parameters of the model, for a table without fits."""
    rows: dict[str, FitRow] = field(default_factory=dict)
    rates: dict[str, Columns] = field(default_factory=dict)
    """Those of the latest scans, by name."""
    changed: bool = True
    """Since the page was written."""

    def add(self, number: int, stamp: Stamp, row: FitRow) -> FitRow:
        before = [other for other in self._ordered() if other.at["number"] < number]
        row = row_of_scan(number, stamp.mtime_ns / 1e9, row)
        row = replace(row, warnings=(*changes(row, before), *self._read(row)))
        self.changed |= self.rows.get(row.name) != row
        self.rows[row.name] = row
        return row

    def remove(self, name: str) -> None:
        self.changed |= self.rows.pop(name, None) is not None

    def _ordered(self) -> list[FitRow]:
        return sorted(self.rows.values(), key=lambda row: row.at["number"])

    def _read(self, row: FitRow) -> list[str]:
        self.rates.pop(row.name, None)
        if row.folder is None or not os.path.lexists(file := row.folder / "rates.csv"):
            return []
        try:
            self.rates[row.name] = read_rates(file)
        except (OSError, ValueError, TypeError, LookupError) as e:
            return [f"{file} cannot be plotted ({why_unreadable(e)}): fit the scan again"]
        return []

    def write(self, folder: Path, said: Sequence[str], reload: float | None = None) -> None:
        """Write scans.csv and scans.html; said: what is done and waited for; reload: seconds of the page."""
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
    if row.outcome == FAILED:
        return f"{row.name}: {row.message}"
    values = ", ".join(f"{name} {quantity}" for name, quantity in row.quantities.items())
    changed = "".join(f"; {words}" for words in row.warnings if words != row.outcome_words)
    outcome = f"{row.outcome_words}, reduced χ² {row.redchi:.4g}{changed}"
    return f"{row.name}: {outcome}; {values} ({seconds:.1f} s)"
