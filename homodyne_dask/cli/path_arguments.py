"""Paths as arguments and options of commands, which a shell completes."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from homodyne_dask.errors import OptionError
from homodyne_dask.store.files import AnyPath, any_path, path_of, replace_file


class _PathType(click.ParamType):
    """A path, as `any_path` or `path_of` reads it; a shell completes it."""

    name = "path"

    def __init__(self, read: Callable[[str, str], AnyPath]) -> None:
        self.read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> AnyPath:
        return self.read(param.name if param else "path", value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


ANY_PATH, LOCAL_PATH = _PathType(any_path), _PathType(path_of)
PICTURES = (".png", ".pdf", ".svg")
"""Ends of names of files to which figures are drawn."""
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace existing files.")
_MOVED = "Store of the fitted data, if it was moved or is at a URL."
STORE = click.option("--store", type=ANY_PATH, help=_MOVED)
WITH_STORE = "give --store {}"
"""How to ask for the data of a result that are at a URL."""


def require_one_fit(folder: Path) -> None:
    from homodyne_dask.results.saved_results import SUMMARY, fits_in  # lazy: it loads xarray

    fits = [] if (folder / SUMMARY).is_file() else fits_in(folder)
    if fits:
        names = ", ".join(str(folder / fit) for fit in fits[:8]) + ", ..." * (len(fits) > 8)
        raise OptionError(f"{folder} contains fits, but no result itself: give one of {names}")


def check_new(path: Path | None, overwrite: bool, kinds: Collection[str] = ()) -> None:
    """Raise OptionError for a file that exists and is not to be replaced, or whose name ends otherwise."""
    if path is None:
        return
    if kinds and path.suffix.lower() not in kinds:
        ends = " or ".join(kinds)
        raise OptionError(f"{path} cannot be written: give a name that ends with {ends}")
    if os.path.lexists(path) and not overwrite:
        raise OptionError(f"{path} exists: give --overwrite to replace it, or another name")


def write_new(path: Path, content: str | bytes, overwrite: bool) -> None:
    check_new(path, overwrite)
    replace_file(path, content)
