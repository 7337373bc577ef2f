"""What commands print: names and notes from files cannot control the terminal."""

import click

from homodyne_dask.errors import printable


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to stdout, or to stderr, without control characters."""
    click.echo(printable(text), err=err, nl=nl)
