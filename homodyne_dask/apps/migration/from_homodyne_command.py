"""homodyne-dask from-homodyne: convert a configuration of homodyne or xpcsjax."""

from pathlib import Path

import click

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import LOCAL_PATH, write_new
from homodyne_dask.cli.printing import echo


@click.command("from-homodyne")
@click.argument("config", metavar="HOMODYNE.yaml", type=LOCAL_PATH)
@click.option("--output", "-o", type=LOCAL_PATH, help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def from_homodyne(config: Path, output: Path | None, overwrite: bool) -> None:
    """Convert a YAML file of homodyne 2.x or xpcsjax to one for `fit`, with remarks on what differs.

    Without --output, the file goes to standard output, and the remarks go to standard error.
    """
    translation = hd.from_homodyne_yaml(config)
    if output is None:
        echo(str(translation), err=True)
        echo(translation.yaml(), nl=False)
        return
    write_new(output, translation.yaml(output.parent), overwrite)
    echo(f"{translation}\nthen:  homodyne-dask fit {output}")
