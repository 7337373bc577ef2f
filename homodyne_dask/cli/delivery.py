"""Results whose folder is a URL: written on disk as all results, then copied, what completes them last."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from homodyne_dask.cli.printing import echo_progress
from homodyne_dask.errors import OptionError
from homodyne_dask.store.url_path import UrlPath

if TYPE_CHECKING:
    from homodyne_dask.cli.config import FitConfig

LISTS = ("series.json", "series.csv", "series.html", "scans.csv", "scans.html")
"""Files that list the results of several fits."""


@contextmanager
def delivered(config: "FitConfig") -> Iterator[tuple["FitConfig", Callable[[Path], str]]]:
    """Yield the configuration of a fit on disk, and a function that says where a path of it will be.

    Where `output` is a URL the fit writes to a temporary folder, which is copied after the block; its
    checkpoint is in the working folder. Raises OptionError where the URL holds something already and
    nothing says to replace it, FolderInUse where another fit is writing there.
    """
    from homodyne_dask.results.folder import LOCK, FolderInUse
    from homodyne_dask.store.lock import locked

    url = config.output
    if not isinstance(url, UrlPath):
        yield config, str
        return
    with (
        locked(url / LOCK) as held,
        tempfile.TemporaryDirectory(prefix="homodyne_dask_result_") as aside,
    ):
        if not held:
            raise FolderInUse(
                f"another fit is writing {url}: wait for its end, or give another --output"
            )
        _check_free(url, config.overwrite)
        folder = Path(aside, url.name)
        changed: dict[str, Path] = {"output": folder}
        if len(config.data) == 1 and not config.over and config.checkpoint is None:
            changed["checkpoint"] = Path(f"{url.name}.checkpoint.json")
        yield (
            config.model_copy(update=changed),
            lambda path: str(url.joinpath(*path.relative_to(folder).parts)),
        )
        _copy(folder, url)


def _check_free(url: UrlPath, overwrite: bool) -> None:
    from homodyne_dask.results.fit_result import SUMMARY
    from homodyne_dask.results.folder import LOCK
    from homodyne_dask.store.files import children

    found = {path.name for path in children(url)} - {LOCK}
    if found and not found & {SUMMARY, *LISTS}:
        raise OptionError(f"{url} holds objects that are no result: give another --output")
    if found and not overwrite:
        raise OptionError(f"{url} exists: give --overwrite to replace it, or another --output")


def _copy(folder: Path, url: UrlPath) -> None:
    """Remove an earlier result, its summary first, then write the new one, its summaries last."""
    from homodyne_dask.results.fit_result import SUMMARY
    from homodyne_dask.results.folder import FILES
    from homodyne_dask.store import objects

    files = [file for file in folder.rglob("*") if file.is_file()]
    files.sort(key=lambda file: (file.name in (SUMMARY, *LISTS), file))
    earlier = [path for path in objects.below(url) if path.name not in ("", ".lock")]
    earlier.sort(key=lambda path: path.name not in (SUMMARY, *LISTS))
    for path in earlier:
        if any(fnmatch(path.relative_to(url), pattern) for pattern in (*FILES, *LISTS)):
            objects.remove(path)
    for file in files:
        objects.write(url / file.relative_to(folder), file.read_bytes())
    echo_progress(f"{len(files)} files were copied to {url}")
