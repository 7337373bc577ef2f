"""Errors of commands become one sentence each, and every outcome becomes an exit status."""

import errno
import logging
import os
import re
import resource
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import HomodyneDaskError, PlanError, in_line, one_line, shown
from homodyne_dask.plugins import PackageWarning, broken_packages
from homodyne_dask.store.files import DISK_FULL, no_room
from homodyne_dask.surroundings import room_for_threads

if TYPE_CHECKING:
    from homodyne_dask.results.data.fit_result import FitValues

MISFIT, NOT_CONVERGED, BAD_INPUT, BUG, INTERRUPTED = 4, 3, 2, 1, 130
USER_ERRORS = (HomodyneDaskError, click.ClickException, OSError)
LEAST_ADDRESSES = 450_000_000
"""Bytes of address space below which libraries end the process as they are loaded."""
LEAST_THREADS = 8
"""Threads, beside those of each core, below which the same happens."""
MOST_SAID = 300
"""Letters of what a library says, where the cause is named."""
MEMORY_ERRORS = ("RESOURCE_EXHAUSTED", "Cannot allocate memory", "failed to map segment")
MEMORY_ERRORS += ("can't start new thread", "bad_alloc")
"""Words of libraries that found no memory."""

_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+\b")
_OF_LIBRARIES = ("JAX_", "XLA_", "DASK_", "PJRT_", "OMP_", "OPENBLAS_", "MKL_", "ZARR_", "BLOSC_")
_OF_LIBRARIES += ("MPL", "SOURCE_DATE_EPOCH", "HDF5_")
"""Beginnings of variables that libraries read."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; the message says what is kept and how to continue.

    Not an Exception: what goes on after a fit that failed does not go on after this.
    """


def print_error(error: BaseException) -> int:
    """Print an error as one sentence; return the exit status."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        error = Interrupted("interrupted")
    if isinstance(error, Interrupted):
        echo(str(error), err=True)
        return INTERRUPTED
    echo(f"error: {error_sentence(error)}", err=True)
    of_user = isinstance(error, USER_ERRORS) or is_out_of_memory(error) or blamed(error)
    return BAD_INPUT if of_user else BUG


def error_sentence(
    error: BaseException, then: str = ", then run the command again (fits with --resume)"
) -> str:
    """Return an error and its remedy in one line; then: what follows when there is room again."""
    if is_out_of_memory(error):
        room = room_for_threads()
        if room.advice:
            return f"no more processes or threads can be started here ({room.value}): {room.advice}{then}"
        message = one_line(str(error)) or type(error).__name__
        return (
            f"the memory available to this process is used up ({message}): free memory, or raise the limit "
            f"(of the job or of ulimit -v){then}"
        )
    if isinstance(error, USER_ERRORS):
        return one_line(_user_error_sentence(error, then))
    message = f"{type(error).__name__}: {one_line(str(error))}"
    if outside := blamed(error):
        return outside if message in outside else f"{outside} ({message[:MOST_SAID]})"
    return (
        f"this is a bug in homodyne-dask ({message}): run the command "
        f"again with --debug and report the traceback"
    )


def status_of(result: "FitValues", strict: bool) -> int:
    """Return the exit status of a fit; strict: also that of a model that does not describe the data."""
    if not result.converged:
        return NOT_CONVERGED
    return MISFIT if strict and result.misfit else 0


def check_limits() -> None:
    if (room := room_for_threads(least=LEAST_THREADS)).advice:
        raise PlanError(
            f"too few processes and threads can be started here ({room.value}): {room.advice}"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise PlanError(
            f"the address space is limited to {limit // 10**6} MB (ulimit -v), less than the "
            f"{LEAST_ADDRESSES // 10**6} MB that the libraries need: raise the limit"
        )


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, HomodyneDaskError | click.ClickException):
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if any(words in str(error) for words in MEMORY_ERRORS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def blamed(error: BaseException) -> str:
    """Return what outside the program an error comes from, and the remedy, as a phrase; '' for nothing."""
    chain = [error]
    # errors may be each other's context: without the second condition this has no end
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    if variable := _variable_named_in(one_line(" ".join(map(str, chain)))):
        return f"the environment sets {variable}={shown(os.environ[variable])}: correct or unset it"
    frames = (frame for e in chain for frame in traceback.extract_tb(e.__traceback__))
    if any("importlib/metadata" in frame.filename for frame in frames):  # others read them, too
        return ": repair or remove it; ".join([*broken_packages(), ""]).removesuffix("; ")
    return ""


def _variable_named_in(message: str) -> str | None:
    # JAX calls its flags as the variables, in small letters
    names = set(_VARIABLE.findall(message.upper()))
    for name, value in os.environ.items():
        # the value of another program's variable may stand in a message by chance
        is_quoted = name.startswith(_OF_LIBRARIES) and value and repr(value) in message
        if is_quoted or name in names:
            return name
    return None


def _user_error_sentence(
    error: HomodyneDaskError | click.ClickException | OSError, then: str
) -> str:
    if isinstance(error, click.UsageError):
        usage = f"homodyne-dask {error.ctx.info_name}" if error.ctx and error.ctx.parent else ""
        hint = f" (see `{usage or 'homodyne-dask'} --help`)"
        message = error.format_message().rstrip(".")
        if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the whole help
            message = "give one of its commands"
        return message[:1].lower() + message[1:] + hint
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, HomodyneDaskError):
        return error.on_command_line
    file = in_line(str(error.filename or "a file"))
    if error.errno not in DISK_FULL:
        return (
            f"{file}: {error.strerror or error}; check the path, its permissions and the free space"
        )
    return f"{file} cannot be written: {no_room(error, Path(error.filename or 'a file'))}{then}"


@contextmanager
def messages(debug: bool, verbose: bool) -> Iterator[None]:
    """Show the warnings of libraries with `debug` only, and their logs with `debug` or `verbose` only."""
    with ExitStack() as restored, warnings.catch_warnings():
        restored.callback(logging.disable, logging.root.manager.disable)
        if debug or verbose:
            form = "%(asctime)s %(name)s %(levelname)s: %(message)s"
            logging.basicConfig(level=logging.INFO, format=form)
        else:
            logging.disable(logging.CRITICAL)
        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("default", PackageWarning)
        if not debug:
            warnings.showwarning = lambda message, *_: echo(f"warning: {message}", err=True)
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt a command as Ctrl-C does: batch systems send it before they kill."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with ExitStack() as restored:
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGTERM, interrupt)
            restored.callback(signal.signal, signal.SIGTERM, handler)
        yield
