"""homodyne-dask config: a commented template of the options of a fit."""

from pathlib import Path

import click

from homodyne_dask.cli.fit_config import template
from homodyne_dask.cli.path_arguments import LOCAL_PATH, write_new
from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import in_line


@click.command()
@click.argument("path", type=LOCAL_PATH, default="fit.yaml")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def config(path: Path, overwrite: bool) -> None:
    """Write a commented template of all options of `fit` to PATH (default: fit.yaml; - prints it)."""
    if str(path) == "-":
        echo(template(), nl=False)
        return
    write_new(path, template(), overwrite)
    echo(in_line(f"{path} written: edit it, then run `homodyne-dask fit {path}`"))
