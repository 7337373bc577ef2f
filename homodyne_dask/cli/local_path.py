"""Arguments of commands that are files and folders of this machine, and no URLs."""

from pathlib import Path
from typing import Any

import click

from homodyne_dask.store.url_path import is_url, local_path


class _LocalPath(click.Path):
    """A path; file:///folder/name is one, too."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(value):
            return super().convert(value, param, ctx)
        here = local_path("the path", value)
        if here is None:
            self.fail("it is a URL: give a path of this machine", param, ctx)
        return super().convert(here, param, ctx)


LOCAL_PATH = _LocalPath()
