"""The folder of a result, written atomically, and the index of several: scans.*, or series.* of parts."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from homodyne_dask.document.blocks import FORMATS, Document, Picture, as_page, as_text
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data import rate_curves as curves
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_rows import ONE_OF, PARTS, SCANS, FitRow, column, quantity_names
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.numbers_and_intervals import format_range
from homodyne_dask.results.data.series import GlobalFit, SeriesValues
from homodyne_dask.results.files import csv_and_netcdf as tables
from homodyne_dask.results.files import json_files as formats
from homodyne_dask.results.files.csv_and_netcdf import result_netcdf
from homodyne_dask.results.views.fits_report import report_of_fits, report_of_series, series_title
from homodyne_dask.results.views.report_content import report_of
from homodyne_dask.results.views.style import TITLES
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import AnyPath, locked, replacing, write_atomic, write_file
from homodyne_dask.store.scan import Scan

SUMMARY, CHECKPOINT, LOCK = formats.RESULT.file, "checkpoint.json", ".lock"
TEMPORARY = ".partial-"
"""Beginning of the name of the temporary folder in which a result is written."""
POSTERIOR_PICTURES = "posterior_*.png"
NEXUS = "result.nx.h5"
WRITERS: dict[str, Callable[[FitView], str | bytes | None]] = {
    "parameters.csv": lambda view: tables.parameters_csv(view.result),
    "scaling.csv": lambda view: tables.columns_csv(view.result.scaling, "label"),
    "rates.csv": lambda view: (
        tables.rates_csv(curves.rates_in(view)) if curves.has_rates(view.result) else None
    ),
    "distribution.csv": lambda view: (
        tables.columns_csv(curves.distribution_in(view.result), "rate")
        if curves.has_distribution(view.result)
        else None
    ),
    "report.txt": lambda view: as_text(report_of(view.result), all=True) + "\n",
    "result.nc": result_netcdf,
}
"""What writes each file in the folder of a result; None: it has no such file."""
_PICTURES = tuple(f"{picture}.{suffix}" for picture in TITLES for suffix in FORMATS)
FILES = (SUMMARY, *WRITERS, "report.html", NEXUS, *_PICTURES, "posterior.nc", POSTERIOR_PICTURES)
"""Patterns of all files of a result, its summary first."""
_HEAD_BYTES = 1000
"""Bytes at the beginning of a file that name its format."""


class FolderInUse(OptionError):  # noqa: N818 - an OptionError that passes by itself
    """Another fit is writing a folder."""


def default_folder(store: AnyPath, over: str | None = None, single: bool = True) -> Path:
    """Return the default folder of the result of a store: A0123_c2.zarr → A0123_fit, beside it.

    That of a store by URL is in the working folder. over: q or age, for parts: A0123_fit_q. single: False for
    several stores: fit_temperature.
    """
    name = store.name.removesuffix(".zarr").removesuffix("_c2") + "_fit" if single else "fit"
    parent = store.parent if isinstance(store, Path) else Path()
    return parent / (f"{name}_{over}" if over else name)


def checkpoint_in(folder: Path) -> Path:
    """Return the default checkpoint of a fit that writes to `folder`."""
    return folder / CHECKPOINT


@contextmanager
def claimed_folder(folder: Path, checkpoint: Path, overwrite: bool, resume: bool) -> Iterator[None]:
    """Lock the folder for one fit; raises OptionError if it holds something that would be lost."""
    with locked_folder(folder, LOCK):
        check_folder(folder, checkpoint, overwrite, resume)
        yield


@contextmanager
def locked_folder(folder: Path, lock: str) -> Iterator[None]:
    """Create and lock a folder for a `with`; one that is still empty at its end is removed."""
    is_new = not folder.exists()
    _check_is_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / lock) as is_locked:
            if not is_locked:
                raise FolderInUse(
                    f"another fit is writing {folder}: wait until it has ended, or give another --output"
                )
            yield
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _check_is_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file: give another --output")
    if folder.is_symlink():
        raise OptionError(
            f"{folder} is a link to {folder.resolve()}: give that folder as --output, or another one"
        )


def check_folder(folder: Path, checkpoint: Path, overwrite: bool, resume: bool) -> None:
    """Raise OptionError if a folder holds something that a fit would overwrite."""
    _check_is_folder(folder)
    contents, interrupted = _contents(folder), checkpoints.checkpoint_exists(checkpoint)
    half_written = any(name.startswith(TEMPORARY) for name in contents)  # its fit was killed
    is_result = formats.RESULT.name.encode() in _head_of(folder / SUMMARY)
    # also with --overwrite: it replaces results, not what a user has in a folder
    if contents and not (is_result or interrupted or half_written):
        raise OptionError(f"{folder} contains files that are not a result: give another --output")
    if overwrite or resume:
        return
    if interrupted:
        raise OptionError(
            f"{checkpoint} belongs to an interrupted fit: give --resume to continue, --overwrite to start "
            f"again, or another --output"
        )
    if is_result or half_written:
        state = "exists" if (folder / SUMMARY).exists() else "contains an incomplete result"
        raise OptionError(f"{folder} {state}: give --overwrite to replace it, or another --output")


def _contents(folder: Path) -> list[str]:
    """Return the names of files in a folder; none where a killed fit left nothing but temporary ones."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [] if all(".partial" in name or name == LOCK for name in names) else names


def _head_of(file: Path) -> bytes:
    if file.is_symlink() or not file.is_file():
        return b""
    with file.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def write_result(
    result: FitValues, scan: Scan, folder: Path, pictures: str = "png", nexus: bool = False
) -> list[Path]:
    """Write a result into its folder and return the files, summary.json last.

    pictures: format of figures beside PNG; '' leaves them out. nexus: adds `result.nx.h5`. Everything is
    written to a temporary folder first: a failure leaves the folder unchanged. The files of an earlier result
    are removed before the first new one is moved: a folder never holds those of two.
    """
    view = FitView(result, scan)
    with staging(folder) as temporary:
        for name, write in WRITERS.items():
            if (content := write(view)) is not None:
                write_file(temporary / name, content)
        pictures_drawn = _figures()[0].save_all(view, temporary, pictures) if pictures else ()
        write_report(result, temporary, pictures_drawn)
        if nexus:
            write_file(temporary / NEXUS, formats.writer_of("nexus", "--nexus")(view))
        formats.write_json(formats.RESULT.to_dict(result), temporary / SUMMARY)
        return _exchange(temporary, folder)


def write_pictures(view: FitView, folder: Path, suffix: str = "png") -> list[Path]:
    """Draw the figures of an earlier result into its folder, and into its report; return these files."""
    with locked_folder(folder, LOCK), staging(folder) as temporary:
        has_posterior = view.result.errors.posterior is not None
        of_posterior = sorted(folder.glob(POSTERIOR_PICTURES)) if has_posterior else []
        of_fit = _figures()[0].save_all(view, temporary, suffix)
        write_report(view.result, temporary, of_fit, of_posterior)
        return move_files(temporary, folder)


def write_report(
    result: FitValues, folder: Path, of_fit: Sequence[Path], of_posterior: Sequence[Path] = ()
) -> None:
    figures = [[Picture.in_file(path) for path in paths] for paths in (of_fit, of_posterior)]
    write_file(folder / "report.html", as_page(report_of(result, *figures)))


def _figures():
    from homodyne_dask.results.views import fit_figures, scans_figure  # lazy: they load matplotlib

    return fit_figures, scans_figure


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in a folder; an OSError on one of its files names what that was to become."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        try:
            yield Path(temporary)
        except OSError as e:
            if e.filename is not None and Path(e.filename).is_relative_to(temporary):
                e.filename = str(folder / Path(e.filename).relative_to(temporary))
            raise


def move_files(temporary: Path, folder: Path) -> list[Path]:
    """Move the files of a temporary folder into a folder, summary.json last; return them."""
    names = sorted(path.name for path in temporary.iterdir())
    names.sort(key=lambda name: name == SUMMARY)
    for name in names:
        (temporary / name).replace(folder / name)
    return [folder / name for name in names]


def _exchange(temporary: Path, folder: Path) -> list[Path]:
    earlier = [path for pattern in FILES for path in folder.glob(pattern)]
    for path in earlier:
        path.unlink()
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.name != temporary.name and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # of a fit that was killed
    return move_files(temporary, folder)


def remove_checkpoint(result: FitValues, checkpoint: Path) -> None:
    """Remove the checkpoint of a finished fit, but not of one at its limit of passes, which can resume."""
    if result.outcome is not Outcome.MAX_PASSES:
        for file in checkpoints.checkpoint_files(checkpoint):
            file.unlink(missing_ok=True)


_SUFFIXES = {SCANS: ("csv", "html", "json"), PARTS: ("csv", "html", "txt", "nc", "png", "json")}


def index_files(folder: Path, prefix: str) -> list[Path]:
    return [folder / f"{prefix}.{suffix}" for suffix in _SUFFIXES[prefix]]


def check_index(folder: Path, replace: bool, prefix: str = SCANS) -> None:
    """Raise OptionError where an existing index would be replaced without permission."""
    present = [file for file in index_files(folder, prefix) if os.path.lexists(file)]
    if not present:
        return
    table = index_files(folder, prefix)[0]
    if not _head_of(table.resolve()).startswith(f"{ONE_OF[prefix]},".encode()):
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
    total: int,
    prefix: str = SCANS,
    global_fit: GlobalFit | None = None,
    suffix: str = "",
    correlations: tuple[float, ...] = (),
) -> list[Path]:
    """Write the index of the fits done so far, `total` how many in all, and return its files.

    names: parameters of the model. When all are done there is a figure, and for parts the series with its
    agreement. global_fit: of scans that were fitted together. suffix: format of the figure beside PNG.
    correlations: of a series (`SeriesValues`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, done = quantity_names(rows, names), len(rows) == total
    fitted = [row for row in rows if row.result is not None]
    series, pictures = None, []
    if done and prefix == PARTS:
        series = SeriesValues(next(iter(rows[0].at)), tuple(rows), global_fit, correlations)
        title = series_title(series)
    else:
        model = next((row.result.config["model"] for row in fitted if row.result), "No fit")
        title = f"{model}, {total} {ONE_OF[prefix]}s"
    if done and len(fitted) > 1:
        with suppress(OptionError):  # a model of free form alone has nothing to draw
            pictures = [_picture(names, fitted, series)]
    index = index_files(folder, prefix)
    drawn = FORMATS if prefix == PARTS else ()
    # a series, and the JSON of all fits, are never of other fits than the index
    for old in [*reversed(index[2:]), *(folder / f"{PARTS}.{ending}" for ending in drawn)]:
        old.unlink(missing_ok=True)
    page = report_of_fits(title, names, rows, total, prefix, folder, pictures, series)
    write_table_and_page(folder, prefix, names, rows, page, series and series.of_rings)
    if series is not None:
        return index[:2] + _write_series(series, folder, pictures, suffix)
    if done:
        scans = [replace(row, at={"scan": n, **row.at}) for n, row in enumerate(rows, 1)]
        of_all = SeriesValues("scan", tuple(scans))
        formats.write_with_checksum(formats.SERIES.to_dict(of_all), index[2])
    return index if done else index[:2]


def _write_series(
    series: SeriesValues, folder: Path, pictures: Sequence[Picture], suffix: str
) -> list[Path]:
    text, numbers, figure, summary = index_files(folder, PARTS)[2:]
    write_atomic(text, f"{as_text(report_of_series(series))}\n")
    write_atomic(numbers, tables.netcdf(series.table))
    for picture in pictures:
        write_atomic(figure, picture.png)
    figures = [figure] * len(pictures)
    if pictures and suffix not in ("", "png"):
        figures.append(write_series_for_print(series, folder, suffix))
    formats.write_with_checksum(formats.SERIES.to_dict(series), summary)  # whatever is there
    return [text, numbers, *figures, summary]


def write_series_for_print(series: SeriesValues, folder: Path, suffix: str) -> Path:
    file, (_, figures) = folder / f"{PARTS}.{suffix}", _figures()
    write_atomic(file, figures.draw.vector_of(figures.page_of_series(series).figure(), suffix))
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
    """Write an index as CSV, and its page; where a disk is full both stay as they were."""
    table, file, *_ = index_files(folder, prefix)
    text = f"{ONE_OF[prefix]},number\n"
    if rows:
        text = tables.entries_csv(names, rows, folder, ONE_OF[prefix], of_rings)
    with replacing(table, durable=durable) as temporary:
        temporary.write_text(text)
        write_atomic(file, as_page(page, reload))


def _picture(
    names: Sequence[str], fitted: Sequence[FitRow], series: SeriesValues | None
) -> Picture:
    _, figures = _figures()
    page = figures.page_of_scans(fitted) if series is None else figures.page_of_series(series)
    drawn_names = [name for name in names if name in fitted[0].quantities]
    spans = [f"{name} {format_range(column(fitted, name), '.4g')}" for name in drawn_names]
    over = "scan" if series is None else series.over
    ends = f"first fit: {fitted[0].name}, last fit: {fitted[-1].name}"
    alt = f"Each parameter with its error against {over} ({ends}): {'; '.join(spans)}."
    return Picture.drawn(page.figure(), figures.scans_title(fitted, over), alt)
