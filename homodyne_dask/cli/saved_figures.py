"""Figures of results that were written without, or in another format."""

from collections.abc import Iterator
from pathlib import Path

from homodyne_dask.cli.path_arguments import WITH_STORE
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files.result_folder import write_pictures, write_series_for_print
from homodyne_dask.results.saved_results import SERIES, SUMMARY, data_of, load_result, load_series
from homodyne_dask.store.files import AnyPath


def draw_saved(folder: Path, store: AnyPath | None, suffix: str) -> Iterator[list[Path]]:
    """Draw the figures of a result, or of each in a folder; yield the files of each that are written.

    store: the data of all of them, by default those they name. suffix: a format beside PNG; the figure of a
    series is written in it, too.
    """
    if suffix != "png" and (folder / SERIES).is_file():
        yield [write_series_for_print(load_series(folder / SERIES), folder, suffix)]
    for summary in [*folder.glob(SUMMARY), *sorted(folder.glob(f"*/{SUMMARY}"))]:
        result = load_result(summary)
        view = FitView(result, data_of(result, summary.parent, WITH_STORE, store))
        yield write_pictures(view, summary.parent, suffix)
