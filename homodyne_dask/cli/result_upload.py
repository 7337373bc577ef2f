"""Results whose folder is a URL: written on disk as all results, then copied, what completes them last."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import echo_progress
from homodyne_dask.errors import ObjectStoreError, OptionError
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files.folder import FILES, LOCK, FolderInUse, write_pictures
from homodyne_dask.results.files.saved_results import SUMMARY, data_of, load_result
from homodyne_dask.store import objects
from homodyne_dask.store.files import AnyPath, children
from homodyne_dask.store.lock import locked
from homodyne_dask.store.url_path import UrlPath
from homodyne_dask.text import counted

LISTS = ("series.json", "series.csv", "series.html", "scans.csv", "scans.html")
"""Files that list the results of several fits."""
WITH_STORE = "give --store {}"
"""How to ask for the data of a result that lie elsewhere."""
MAX_BYTES = 2_000_000_000
"""Bytes of the largest file of a result that is fetched."""


@contextmanager
def delivered(config: FitConfig) -> Iterator[tuple[FitConfig, Callable[[Path], str]]]:
    """Yield the configuration of a fit on disk, and a function that says where a path of it will be.

    Where `output` is a URL the fit writes to a temporary folder, which is copied after the block; its
    checkpoint is in the working folder. Raises OptionError where the URL holds something already and
    nothing says to replace it, FolderInUse where another fit is writing there, ObjectStoreError where the
    result cannot be copied: it is kept in the working folder then.
    """
    url = config.output
    if not isinstance(url, UrlPath):
        yield config, str
        return
    with _staging_folder(url) as folder:
        found = {path.name for path in children(url)} - {LOCK}
        if found and not found & {SUMMARY, *LISTS}:
            raise OptionError(
                f"{url} contains objects that do not belong to a result: give another --output"
            )
        if found and not config.overwrite:
            raise OptionError(f"{url} exists: give --overwrite to replace it, or another --output")
        changed: dict[str, Any] = {"output": folder}
        if len(config.data) == 1 and not config.over and config.checkpoint is None:
            changed["checkpoint"] = Path(f"{url.name}.checkpoint.json")
        yield config.replaced(**changed), _names(folder, url)
        with _kept_if_refused(folder, url):
            _replace(folder, url)


@contextmanager
def on_disk(where: AnyPath) -> Iterator[tuple[Path, Callable[[Path], str]]]:
    """Yield the folder of a result, and a function that says where a path of it is or will be.

    A result by URL is copied to a temporary folder; what is changed there is copied back after the block.
    Raises FolderInUse where a fit is writing there.
    """
    if not isinstance(where, UrlPath):
        yield where, str
        return
    with _staging_folder(where) as folder:
        before = {}
        for path in _results_below(where):
            file = folder / path.relative_to(where)
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                before[file] = objects.read(path, MAX_BYTES)
            except ValueError as e:
                raise ObjectStoreError(
                    f"{path} cannot be fetched ({e}): it is no file of a result"
                ) from e
            file.write_bytes(before[file])
        yield folder, _names(folder, where)
        changed = [file for file in _files(folder) if file.read_bytes() != before.get(file)]
        with _kept_if_refused(folder, where):
            _write(changed, folder, where)


def pictures_drawn(where: AnyPath, store: AnyPath | None) -> Iterator[list[str]]:
    """Draw the figures of a result, or of each below a folder; yield the files of each that are written.

    store: the data of all of them, by default those beside them.
    """
    with on_disk(where) as (here, name_of):
        for summary in [*here.glob(SUMMARY), *sorted(here.glob(f"*/{SUMMARY}"))]:
            folder, result = summary.parent, load_result(summary)
            at = where if isinstance(where, UrlPath) else folder
            view = FitView(result, data_of(result, at, WITH_STORE, store))
            yield list(map(name_of, write_pictures(view, folder)))


@contextmanager
def _kept_if_refused(folder: Path, url: UrlPath) -> Iterator[None]:
    """Move a result that cannot be copied into the working folder, and name it in the error."""
    try:
        yield
    except ObjectStoreError as e:
        kept = shutil.move(folder, tempfile.mkdtemp(prefix=f"{url.name}_", dir="."))
        raise ObjectStoreError(f"{e}; the result is kept in {kept}") from e


@contextmanager
def _staging_folder(url: UrlPath) -> Iterator[Path]:
    """Lock a URL and yield a temporary folder for what is there."""
    with (
        locked(url / LOCK) as held,
        tempfile.TemporaryDirectory(prefix="homodyne_dask_result_") as temporary,
    ):
        if not held:
            raise FolderInUse(
                f"another fit is writing {url}: wait until it ends, or give another --output"
            )
        yield Path(temporary, url.name)


def _names(folder: Path, url: UrlPath) -> Callable[[Path], str]:
    return lambda path: str(url.joinpath(*path.relative_to(folder).parts))


def _results_below(url: UrlPath) -> list[UrlPath]:
    """Return the files of a result, or of a list of results and of these, as they are at a URL."""
    found = []
    for path in objects.below(url):
        name = path.relative_to(url)
        if ".." not in name.split("/") and (_of_one(name) or _of_one(name.partition("/")[2])):
            found.append(path)
    return found


def _of_one(name: str) -> bool:
    """Return whether a file is one of a result or of a list of results, by its place below these."""
    return any(fnmatch(name, pattern) for pattern in (*FILES, *LISTS))


def _replace(folder: Path, url: UrlPath) -> None:
    """Remove an earlier result, its summaries first, then write the new one, its summaries last.

    Of a list of results those that are not made again remain.
    """
    files = _files(folder)
    made = {file.relative_to(folder).parts[0] for file in files}
    for path in sorted(_results_below(url), key=lambda path: not _completes(path)):
        name = path.relative_to(url)
        if _of_one(name) or name.partition("/")[0] in made:
            objects.remove(path)
    _write(files, folder, url)
    echo_progress(f"copied {counted(len(files), 'file')} to {url}")


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _completes(path: AnyPath) -> bool:
    return path.name in (SUMMARY, *LISTS)


def _write(files: list[Path], folder: Path, url: UrlPath) -> None:
    """Copy files of a folder to a URL, those last that complete a result."""
    for file in sorted(files, key=_completes):
        objects.write(url / file.relative_to(folder), file.read_bytes())
