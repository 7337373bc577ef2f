"""The index of several fits as CSV and HTML: scans.* for several stores, series.* for parts of one."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from homodyne_dask.errors import OptionError
from homodyne_dask.models.parameters import joined_with_and
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data.scan_row import Fitted
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.data.series_entry import (
    CONVERGED,
    FAILED,
    SeriesEntry,
    quantity_names,
)
from homodyne_dask.results.files.csv_tables import entries_csv
from homodyne_dask.results.files.netcdf import netcdf
from homodyne_dask.results.views import numbers
from homodyne_dask.results.views.figures.scans_figure import draw_scans as picture_of
from homodyne_dask.results.views.html_report import Picture
from homodyne_dask.results.views.html_template import RESULTS_PACKAGE, render
from homodyne_dask.results.views.series_report import agreement_sentences
from homodyne_dask.store.files import replacing, write_atomic

SCANS, PARTS = "scans", "series"
"""What is indexed: several scans, or the parts of one; also the names of the files."""
ERRORS_IN_TABLES = (
    "± is the cluster-robust standard error; with *, where that is unknown, the larger of the naive error "
    "and the lower bound"
)
_ONE = {SCANS: "scan", PARTS: "fit"}


def index_files(folder: Path, prefix: str) -> tuple[Path, Path]:
    """Return the paths of the table and the page of an index."""
    return folder / f"{prefix}.csv", folder / f"{prefix}.html"


def series_files(folder: Path) -> list[Path]:
    """Return the paths of a series as text, JSON, netCDF and figure."""
    return [folder / f"{PARTS}.{suffix}" for suffix in ("txt", "json", "nc", "png")]


def check_index(folder: Path, replace: bool, prefix: str = SCANS) -> None:
    """Raise OptionError where an existing index would be replaced without permission."""
    files = [*index_files(folder, prefix), *(series_files(folder) if prefix == PARTS else ())]
    table = files[0]
    present = [file for file in files if os.path.lexists(file)]
    if present and not (table.is_file() and _is_index(table, prefix)):
        raise OptionError(
            f"{present[0]} is of no index of {_ONE[prefix]}s: remove it, or give another --output"
        )
    if present and not replace:
        raise OptionError(
            f"{table} exists: give --resume to fit what has no result yet, --overwrite to "
            f"replace it and all results, or another --output"
        )


def _is_index(table: Path, prefix: str) -> bool:
    """Return whether a file begins as the tables of `write_index` do."""
    with table.open("rb") as file:
        return file.read(16).startswith(f"{_ONE[prefix]},".encode())


def write_index(
    folder: Path, names: Sequence[str], entries: Sequence[SeriesEntry], of: int, prefix: str = SCANS
) -> list[Path]:
    """Write the index of the fits done so far, `of` how many in all, and return its files.

    names: parameters of the model. The table has a column for each quantity (`SeriesEntry.quantities`), one
    for its robust and one for its naive error; unknown numbers are empty cells; for parts also q or age.
    When all are done there is a figure, and for parts the series with its agreement (see `FitSeries`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    fitted = (list(entry.quantities) for entry in entries if entry.result is not None)
    names = next(fitted, quantity_names(names, entries[0].at))
    good = [entry for entry in entries if entry.result is not None]
    complete = len(entries) == of
    series = (
        FitSeries(next(iter(entries[0].at)), tuple(entries))
        if prefix == PARTS and complete
        else None
    )
    picture = _picture(names, good, series) if complete and len(good) > 1 else None
    table, page = index_files(folder, prefix)
    if prefix == PARTS:
        for old in reversed(series_files(folder)):  # a series is never of other fits than the index
            old.unlink(missing_ok=True)
    with replacing(table) as aside:  # a disk that is full for one of them leaves both as they were
        aside.write_text(entries_csv(names, entries, folder, _ONE[prefix]))
        write_atomic(page, _page(folder, names, entries, of, prefix, series, picture))
    return [table, page, *(_write_series(series, folder, picture) if series else [])]


def _write_series(series: FitSeries, folder: Path, picture: Picture | None) -> list[Path]:
    """Write the series of the parts of a scan: text, JSON, netCDF, figure."""
    made = series_files(folder)
    text, whole, table, drawn = made
    write_atomic(text, f"{series}\n")
    write_atomic(table, netcdf(series.table))
    if picture is not None:
        write_atomic(drawn, picture.png)
    series.to_json(whole)
    return made if picture is not None else [text, whole, table]


def outcome_counts(entries: Sequence[Fitted], of: int, prefix: str = SCANS) -> str:
    """Return how many fits converged, ended otherwise, failed and are not yet done."""
    outcomes = [entry.outcome for entry in entries]
    converged, failed = outcomes.count("CONVERGED"), outcomes.count(FAILED)
    others = len(entries) - converged - failed
    words = [f"{converged} of {len(entries)} {_ONE[prefix]}s converged"]
    words += [f"{others} ended without converging"] * (others > 0)
    words += [f"{failed} failed"] * (failed > 0)
    words += [f"{of - len(entries)} not yet done"] * (of > len(entries))
    return ", ".join(words)


def _page(
    folder: Path,
    names: Sequence[str],
    entries: Sequence[SeriesEntry],
    of: int,
    prefix: str,
    series: FitSeries | None,
    picture: Picture | None,
) -> str:
    good = [entry.result for entry in entries if entry.result is not None]
    one = _ONE[prefix]
    failed = [f"{entry.name}: {entry.message}" for entry in entries if entry.result is None]
    headings = {"verdict": "Outcome", "scans": f"{one.capitalize()}s"}
    return render(
        RESULTS_PACKAGE,
        "index.html",
        title=f"{good[0].config['model'] if good else 'no fit'}, {of} {one}s",
        headings=headings if picture is None else headings | {"pictures": "Figures"},
        converged=all(entry.outcome == "CONVERGED" for entry in entries) and len(entries) == of,
        sentence=outcome_counts(entries, of, prefix),
        reservations=[*failed, *(agreement_sentences(series) if series else [])],
        picture=picture,
        **fits_table(names, entries, folder, one),
    )


def series_fragment(series: FitSeries) -> str:
    """Return the table of a series and the agreement of its fits as an HTML fragment for Jupyter."""
    return render(
        RESULTS_PACKAGE,
        "series_fragment.html",
        sentence=outcome_counts(series.entries, len(series.entries), PARTS),
        agreement=agreement_sentences(series),
        **fits_table(series.names, series.entries, None, _ONE[PARTS]),
    )


def fits_table(
    names: Sequence[str], entries: Sequence[Fitted], folder: Path | None, one: str
) -> dict[str, Any]:
    """Return rows, caption and notes of the table of fits."""
    found = next((entry.quantities for entry in entries if entry.quantities), {})
    units = {name: found[name].unit if name in found else "" for name in names}
    head = [f"{name} [{units[name]}]" if units[name] else name for name in names]
    rows: list[list[object]] = [[one, "outcome", "χ²/N", *head]]
    for entry in entries:
        if entry.outcome == FAILED:
            rows.append([entry.name, "✗ failed", "-", *["-"] * len(names)])
            continue
        values = [str(entry.quantities[name]) for name in names]
        mark = "✓" if entry.outcome_words == CONVERGED else "✗"
        redchi = f"{entry.redchi:.4f}"
        rows.append([_linked(entry, folder), f"{mark} {entry.outcome_words}", redchi, *values])
    return {
        "rows": rows,
        "caption": f"Outcome and parameters of each {one}",
        "table_notes": [ERRORS_IN_TABLES, *_of_middle(names, entries)],
    }


def _of_middle(names: Sequence[str], entries: Sequence[Fitted]) -> list[str]:
    """Return the note on rates without a formula of whole scans."""
    rates = [name for name in names if name in RATES and not any("age" in e.at for e in entries)]
    return [f"{joined_with_and(rates)}: in the middle of each record"] if rates else []


def _linked(entry: Fitted, folder: Path | None) -> object:
    if entry.folder is None or folder is None:
        return entry.name
    link = Path(os.path.relpath(entry.folder, folder), "report.html").as_posix()
    return Markup('<a href="{}">{}</a>').format(quote(link), entry.name)


def _picture(names: Sequence[str], good: Sequence[SeriesEntry], whole: FitSeries | None) -> Picture:
    png = io.BytesIO()
    drawn = picture_of(good) if whole is None else whole.plot()
    drawn.savefig(png, format="png")
    spans = [
        f"{name} {numbers.format_range(np.array([e.quantities[name].value for e in good]), '.4g')}"
        for name in names
    ]
    of = "scan" if whole is None else whole.over
    ends = f"{good[0].name} to {good[-1].name}"
    alt = f"Each parameter with its error against {of}, {ends}: {'; '.join(spans)}."
    title = f"Parameters against {of}: bars are cluster-robust errors, for open symbols "
    title += "the larger of naive errors and lower bounds; crosses are values at a bound"
    return Picture(title, alt, png.getvalue())
