"""The formats of files: their names, versions and places, and what writes and reads each.

Those below are read back, and are JSON with a checksum; `saved_results` makes results of what they read.
`folder.WRITERS` are the tables, texts and netCDF in the folder of a fit. Applications and other packages add
formats by entry points of the group homodyne_dask.writers: a function from a `FitView` to bytes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from homodyne_dask.errors import PackageError
from homodyne_dask.plugins import applications_in, load_application, loaded, offered_in
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files.json_files import (
    MAX_BYTES,
    read_with_checksum,
    write_with_checksum,
)
from homodyne_dask.results.files.summaries import comparison_summary, series_summary, summary_of
from homodyne_dask.store.files import check_replaceable, path_of

WRITERS = "homodyne_dask.writers"


class Format(NamedTuple):
    """A format of files that are read back."""

    name: str
    version: int
    file: str
    """The name of such a file in the folder of a fit, '' where it has none."""
    remedy: str
    """What to give in place of another file: the end of a sentence."""
    summary: Callable[[Any], dict[str, Any]]
    """Makes plain values of what is written."""
    max_bytes: int = MAX_BYTES
    """Of the largest file that is read."""

    def to_dict(self, values: Any) -> dict[str, Any]:
        """Return what is written as plain values, beginning with its format."""
        return {"format": self.name, "format_version": self.version} | self.summary(values)

    def read(self, path: Path) -> dict[str, Any]:
        """Return the plain values in a file; raises SourceError for one of another format or version."""
        expected = self.name, self.version, self.remedy
        return read_with_checksum(path, *expected, max_bytes=self.max_bytes)


RESULT = Format(
    "homodyne_dask result",
    2,
    "summary.json",
    "give a folder made by fit, or its summary.json",
    summary_of,
)
SERIES = Format(
    "homodyne_dask series",
    1,
    "series.json",
    "give a folder made by fit --over, or its series.json",
    partial(series_summary, dict_of=RESULT.to_dict),
)
COMPARISON = Format(
    "homodyne_dask comparison",
    1,
    "",
    "give a file that Comparison.to_json wrote",
    comparison_summary,
)


def write_json(values: Mapping[str, Any], path: str | Path) -> None:
    """Write plain values with their checksum; raises OptionError where a file of another kind is."""
    check_replaceable(path_of("path", path), b"{")
    write_with_checksum(values, path)


def writer_of(name: str, what: str) -> Callable[[FitView], bytes]:
    """Return what writes a format that an application or another package adds.

    what: what needs it, as an error begins. Raises PackageError where nothing writes it.
    """
    for point in applications_in(WRITERS):
        if point.name == name:
            return load_application(point, what)
    for point in offered_in(WRITERS):
        if point.name == name:
            return loaded(point, callable, "a function")
    raise PackageError(f"{what} needs the application {name!r}, which is not installed")
