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
from homodyne_dask.results.data.fit_rows import PARTS, SCANS
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files.folder import FILES, LOCK, FolderInUse, write_pictures
from homodyne_dask.results.files.scans_index import index_files, write_series_for_print
from homodyne_dask.results.saved_results import SERIES, SUMMARY, data_of, load_result, load_series
from homodyne_dask.store import objects
from homodyne_dask.store.files import AnyPath, children
from homodyne_dask.store.lock import locked
from homodyne_dask.store.url_path import UrlPath
from homodyne_dask.text import counted

LISTS = tuple(file.name for prefix in (SCANS, PARTS) for file in index_files(Path(), prefix))
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
    nothing says to replace it, and as `on_disk`.
    """
    url = config.output
    if not isinstance(url, UrlPath):
        yield config, str
        return
    with on_disk(url, fetched=False) as (folder, name_of):
        present = {path.name for path in children(url)} - {LOCK}
        if present and not present & {SUMMARY, *LISTS}:
            raise OptionError(
                f"{url} contains objects that do not belong to a result: give another --output"
            )
        if present and not config.overwrite:
            raise OptionError(f"{url} exists: give --overwrite to replace it, or another --output")
        changed: dict[str, Any] = {"output": folder}
        if len(config.data) == 1 and not config.over and config.checkpoint is None:
            changed["checkpoint"] = Path(f"{url.name}.checkpoint.json")
        yield config.replaced(**changed), name_of


@contextmanager
def on_disk(where: AnyPath, fetched: bool = True) -> Iterator[tuple[Path, Callable[[Path], str]]]:
    """Yield the folder of a result, and a function that says where a path of it is or will be.

    A result by URL is copied to a temporary folder, where it is to be fetched; what is changed there is
    copied back after the block, in place of what was not fetched. Raises FolderInUse where another fit is
    writing there, ObjectStoreError where the result cannot be copied: it is kept in the working folder then.
    """
    if not isinstance(where, UrlPath):
        yield where, str
        return
    with (
        locked(where / LOCK) as held,
        tempfile.TemporaryDirectory(prefix="homodyne_dask_result_") as temporary,
    ):
        if not held:
            raise FolderInUse(
                f"another fit is writing {where}: wait until it ends, or give another --output"
            )
        folder = Path(temporary, where.name)
        before = _fetch(where, folder) if fetched else {}
        yield folder, lambda path: str(where.joinpath(*path.relative_to(folder).parts))
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        changed = [file for file in files if file.read_bytes() != before.get(file)]
        try:
            if not fetched:
                _remove(where, {file.relative_to(folder).parts[0] for file in files})
            for file in sorted(changed, key=_completes):
                objects.write(where / file.relative_to(folder), file.read_bytes())
        except ObjectStoreError as e:
            kept = shutil.move(folder, tempfile.mkdtemp(prefix=f"{where.name}_", dir="."))
            raise ObjectStoreError(f"{e}; the result is kept in {kept}") from e
        if not fetched:
            echo_progress(f"copied {counted(len(files), 'file')} to {where}")


def _fetch(url: UrlPath, folder: Path) -> dict[Path, bytes]:
    contents = {}
    for path in _results_below(url):
        file = folder / path.relative_to(url)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            contents[file] = objects.read(path, MAX_BYTES)
        except ValueError as e:
            raise ObjectStoreError(
                f"{path} cannot be fetched ({e}): it is no file of a result"
            ) from e
        file.write_bytes(contents[file])
    return contents


def pictures_drawn(where: AnyPath, store: AnyPath | None, suffix: str) -> Iterator[list[str]]:
    """Draw the figures of a result, or of each below a folder; yield the files of each that are written.

    store: the data of all of them, by default those beside them. suffix: a format beside PNG; of a series its
    own figure is written in it, too.
    """
    with on_disk(where) as (local, name_of):
        if suffix != "png" and (local / SERIES).is_file():
            series = load_series(local / SERIES)
            yield [name_of(write_series_for_print(series, local, suffix))]
        for summary in [*local.glob(SUMMARY), *sorted(local.glob(f"*/{SUMMARY}"))]:
            folder, result = summary.parent, load_result(summary)
            at = where if isinstance(where, UrlPath) else folder
            view = FitView(result, data_of(result, at, WITH_STORE, store))
            yield list(map(name_of, write_pictures(view, folder, suffix)))


def _results_below(url: UrlPath) -> list[UrlPath]:
    """Return the files of a result, or of a list of results and of these, as they are at a URL."""
    names = {path: path.relative_to(url) for path in objects.below(url)}
    return [
        path
        for path, name in names.items()
        if ".." not in name.split("/") and (_of_one(name) or _of_one(name.partition("/")[2]))
    ]


def _of_one(name: str) -> bool:
    """Return whether a file is one of a result or of a list of results, by its place below these."""
    return any(fnmatch(name, pattern) for pattern in (*FILES, *LISTS))


def _remove(url: UrlPath, made: set[str]) -> None:
    """Remove an earlier result, its summaries first; of a list of results those that are made again.

    made: first names of the new files.
    """
    for path in sorted(_results_below(url), key=lambda path: not _completes(path)):
        name = path.relative_to(url)
        if _of_one(name) or name.partition("/")[0] in made:
            objects.remove(path)


def _completes(path: AnyPath) -> bool:
    """Return whether a file, written last and removed first, says that a result is complete."""
    return path.name in (SUMMARY, *LISTS)
