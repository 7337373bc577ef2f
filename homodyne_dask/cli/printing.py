"""What commands print: names and notes from files cannot control the terminal."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import click

from homodyne_dask.errors import in_line, printable
from homodyne_dask.store.files import replace_file

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_HIDDEN: ContextVar[bool] = ContextVar("progress is hidden", default=False)
_TEXT_TO_STDERR: ContextVar[bool] = ContextVar("text is printed to stderr", default=False)


@contextmanager
def printing(*, hidden: bool | None = None, to_stderr: bool | None = None) -> Iterator[None]:
    """Hide the progress of what runs inside, or print all of it but JSON to stderr."""
    with ExitStack() as restored:
        for variable, on in ((_HIDDEN, hidden), (_TEXT_TO_STDERR, to_stderr)):
            if on is not None:
                restored.callback(variable.reset, variable.set(on))
        yield


def shows_progress() -> bool:
    return not _HIDDEN.get()


def echo_progress(text: str) -> None:
    if shows_progress():
        echo(text, err=True)


def echo_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as one JSON object or list, in a line without indent; unknown numbers are null."""
    # lazy: it loads xarray
    from homodyne_dask.results.data.dataclass_json import plain_values

    text = json.dumps(plain_values(value), indent=indent, ensure_ascii=False, allow_nan=False)
    with printing(to_stderr=False):
        echo(text)


def echo_found(result: Any, as_json: bool, picture: Path | None = None) -> None:
    """Print what a computation has found, or its values as JSON, and draw it to a file if one is given."""
    if as_json:
        echo_json(result.to_dict())
    else:
        echo(str(result))
    if picture is not None:
        content = io.BytesIO()
        result.plot().savefig(content, format=picture.suffix[1:].lower())
        replace_file(picture, content.getvalue())
        echo(f"\nwritten: {in_line(str(picture))}", err=as_json)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without control characters; nothing from then on where it was closed, as by `| head`."""
    err = err or _TEXT_TO_STDERR.get()
    try:
        click.echo(printable(text), err=err, nl=nl)
    except BrokenPipeError:
        print_nowhere(sys.stderr if err else sys.stdout)


def print_nowhere(stream: TextIO) -> None:
    """Print no more to a stream that was closed, nor what is buffered for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
