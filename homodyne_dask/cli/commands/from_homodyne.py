"""homodyne-dask from-homodyne: a configuration of homodyne or xpcsjax becomes one of ours."""

from pathlib import Path

import click

from homodyne_dask.errors import OptionError


@click.command("from-homodyne")
@click.argument("config", metavar="THEIRS.yaml", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def from_homodyne(config: Path, output: Path | None, overwrite: bool) -> None:
    """Turn the YAML of homodyne 2.x or xpcsjax into a file for `fit`, and say what became of each key.

    Without --output the file is printed, and what is to be said goes to stderr.
    """
    from homodyne_dask.cli.homodyne.translate import from_homodyne_yaml

    found = from_homodyne_yaml(config)
    if output is None:
        click.echo(str(found), err=True)
        click.echo(found.yaml(), nl=False)
        return
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists: give --overwrite to replace it, or another name")
    output.write_text(found.yaml(output.parent))
    click.echo(f"{found}\nthen:  homodyne-dask fit {output}")
