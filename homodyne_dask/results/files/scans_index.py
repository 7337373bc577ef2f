"""The index of several fits as CSV and HTML: scans.* for several stores, series.* for parts of one."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from homodyne_dask.document.blocks import FORMATS, Document, Picture
from homodyne_dask.document.html import as_page
from homodyne_dask.document.plain_text import as_text
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fit_rows import ONE_OF, PARTS, SCANS, FitRow, column, quantity_names
from homodyne_dask.results.data.number_format import format_range
from homodyne_dask.results.data.series import GlobalFit, SeriesValues
from homodyne_dask.results.files import formats
from homodyne_dask.results.files.csv_tables import entries_csv
from homodyne_dask.results.files.json_files import write_with_checksum
from homodyne_dask.results.files.netcdf import netcdf
from homodyne_dask.results.views.fits_report import report_of_fits, report_of_series, series_title
from homodyne_dask.store.files import replacing, write_atomic

_SUFFIXES = {SCANS: ("csv", "html"), PARTS: ("csv", "html", "txt", "nc", "png", "json")}


def index_files(folder: Path, prefix: str) -> list[Path]:
    """Return the paths of an index: table, page, and of a series its text, netCDF, figure and JSON."""
    return [folder / f"{prefix}.{suffix}" for suffix in _SUFFIXES[prefix]]


def check_index(folder: Path, replace: bool, prefix: str = SCANS) -> None:
    """Raise OptionError where an existing index would be replaced without permission."""
    present = [file for file in index_files(folder, prefix) if os.path.lexists(file)]
    if not present:
        return
    table, beginning = index_files(folder, prefix)[0], b""
    if table.is_file():
        with table.open("rb") as file:
            beginning = file.read(16)
    if not beginning.startswith(f"{ONE_OF[prefix]},".encode()):
        raise OptionError(
            f"{present[0]} is not part of an index of {ONE_OF[prefix]}s: remove it, or give another --output"
        )
    if not replace:
        raise OptionError(
            f"{table} exists: give --resume to make the fits that have no result yet, --overwrite to "
            f"replace it and all results, or another --output"
        )


def write_index(
    folder: Path,
    names: Sequence[str],
    rows: Sequence[FitRow],
    of: int,
    prefix: str = SCANS,
    global_fit: GlobalFit | None = None,
    suffix: str = "",
) -> list[Path]:
    """Write the index of the fits done so far, `of` how many in all, and return its files.

    names: parameters of the model. When all are done there is a figure, and for parts the series with its
    agreement (see `FitSeries`). global_fit: of scans that were fitted together. suffix: format of the figure
    of a series, beside PNG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, series, pictures = quantity_names(rows, names), None, []
    good = [row for row in rows if row.result is not None]
    model = good[0].result.config["model"] if good and good[0].result else "No fit"
    title = f"{model}, {of} {ONE_OF[prefix]}s"
    if len(rows) == of:
        if prefix == PARTS:
            series = SeriesValues(next(iter(rows[0].at)), tuple(rows), global_fit)
            title = series_title(series)
        if len(good) > 1:
            with suppress(OptionError):  # a model of free form alone has nothing to draw
                pictures = [_picture(names, good, series)]
    table, file, *of_series = index_files(folder, prefix)
    pages = [folder / f"{PARTS}.{of}" for of in FORMATS if prefix == PARTS]
    for old in [*reversed(of_series), *pages]:  # a series is never of other fits than the index
        old.unlink(missing_ok=True)
    page = report_of_fits(title, names, rows, of, prefix, folder, pictures, series)
    write_table_and_page(folder, prefix, names, rows, page, series and series.of_rings)
    if series is None:
        return [table, file]
    text, numbers, drawn, whole = of_series
    write_atomic(text, f"{as_text(report_of_series(series))}\n")
    write_atomic(numbers, netcdf(series.table))
    for picture in pictures:
        write_atomic(drawn, picture.png)
    figures = [drawn] * len(pictures)
    if pictures and suffix not in ("", "png"):
        figures.append(write_series_for_print(series, folder, suffix))
    write_with_checksum(formats.SERIES.to_dict(series), whole)  # whatever is there
    return [table, file, text, numbers, *figures, whole]


def write_series_for_print(series: SeriesValues, folder: Path, suffix: str) -> Path:
    """Write the figure of a series as PDF or SVG, and return its path."""
    from homodyne_dask.results.views.figures.panels import vector_of
    from homodyne_dask.results.views.figures.scans_figure import draw_series

    file = folder / f"{PARTS}.{suffix}"
    write_atomic(file, vector_of(draw_series(series), suffix))
    return file


def write_table_and_page(
    folder: Path,
    prefix: str,
    names: Sequence[str],
    rows: Sequence[FitRow],
    page: Document,
    of_rings: Sequence[Mapping[str, float]] | None = None,
    *,
    reload: float | None = None,
    durable: bool = True,
) -> None:
    """Write an index as CSV, and its page; a disk that is full for one of them leaves both as they were.

    The table has a column for each quantity (`FitRow.quantities`) and for each of its errors, one for the
    method of the standard errors, and for what is in `FitRow.at`; unknown numbers are empty cells. of_rings:
    further columns, for each fit. reload: seconds after which the page reloads.
    """
    table, file, *_ = index_files(folder, prefix)
    text = f"{ONE_OF[prefix]},number\n"
    if rows:
        text = entries_csv(names, rows, folder, ONE_OF[prefix], of_rings)
    with replacing(table, durable=durable) as temporary:
        temporary.write_text(text)
        write_atomic(file, as_page(page, reload))


def _picture(names: Sequence[str], good: Sequence[FitRow], whole: SeriesValues | None) -> Picture:
    from homodyne_dask.results.views.figures.scans_figure import (
        draw_scans,
        draw_series,
        scans_title,
    )

    drawn = draw_scans(good) if whole is None else draw_series(whole)
    known = [name for name in names if name in good[0].quantities]
    spans = [f"{name} {format_range(column(good, name), '.4g')}" for name in known]
    of = "scan" if whole is None else whole.over
    ends = f"first fit: {good[0].name}, last fit: {good[-1].name}"
    alt = f"Each parameter with its error against {of} ({ends}): {'; '.join(spans)}."
    return Picture.drawn(drawn, scans_title(good, of), alt)
