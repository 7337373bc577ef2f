"""homodyne-dask config: a commented template of the options of a fit."""

from pathlib import Path

import click

from homodyne_dask.errors import OptionError


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="fit.yaml")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def config(path: Path, overwrite: bool) -> None:
    """Write a commented template of all options of `fit` to PATH (default fit.yaml; - prints it)."""
    from homodyne_dask.cli.config import template

    if str(path) == "-":
        click.echo(template(), nl=False)
        return
    if path.exists() and not overwrite:
        raise OptionError(f"{path} exists: give --overwrite to replace it, or another name")
    path.write_text(template())
    click.echo(f"{path} written: edit it, then run `homodyne-dask fit {path}`")
