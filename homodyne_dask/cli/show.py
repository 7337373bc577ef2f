"""homodyne-dask show: the report of a fit that was written before."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def show(folder: Path) -> None:
    """Print the report of FOLDER, as made by `fit`."""
    from homodyne_dask.result import load_result

    click.echo(str(load_result(folder)))
