"""What commands print: names and notes from files cannot control the terminal."""

import os
import sys

import click

from homodyne_dask.errors import printable


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to stdout, or to stderr, without control characters.

    Nothing is printed from then on where it was closed, as by `| head`: the command goes on.
    """
    try:
        click.echo(printable(text), err=err, nl=nl)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if err else sys.stdout).fileno())  # for what is buffered, too
        os.close(nowhere)
