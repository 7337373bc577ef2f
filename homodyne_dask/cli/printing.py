"""What commands print: names and notes from files cannot control the terminal."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import click

from homodyne_dask.errors import printable

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
"""Option of commands that print facts."""
_HIDDEN: ContextVar[bool] = ContextVar("progress is hidden", default=False)
_TEXT_TO_STDERR: ContextVar[bool] = ContextVar("text is printed to stderr", default=False)


@contextmanager
def text_to_stderr(wanted: bool) -> Iterator[None]:
    """Print all but JSON to stderr, of what runs inside."""
    before = _TEXT_TO_STDERR.set(wanted)
    try:
        yield
    finally:
        _TEXT_TO_STDERR.reset(before)


@contextmanager
def progress_hidden(hidden: bool) -> Iterator[None]:
    """Hide the progress of what runs inside."""
    before = _HIDDEN.set(hidden)
    try:
        yield
    finally:
        _HIDDEN.reset(before)


def shows_progress() -> bool:
    """Return whether progress is to be shown."""
    return not _HIDDEN.get()


def echo_progress(text: str) -> None:
    """Print a line on progress to stderr, unless it is hidden."""
    if shows_progress():
        echo(text, err=True)


def echo_json(value: Any) -> None:
    """Print a value as one JSON object or list; numbers that are not known are null."""
    from homodyne_dask.results.data.plain_data import plain_values

    text = json.dumps(plain_values(value), indent=1, ensure_ascii=False, allow_nan=False)
    with text_to_stderr(False):
        echo(text)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to stdout, or to stderr, without control characters.

    Nothing is printed from then on where it was closed, as by `| head`: the command goes on.
    """
    err = err or _TEXT_TO_STDERR.get()
    try:
        click.echo(printable(text), err=err, nl=nl)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if err else sys.stdout).fileno())  # for what is buffered, too
        os.close(nowhere)
