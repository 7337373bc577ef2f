"""Error classes, and checks of arguments.

Each message names the cause, the value and the remedy.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from threading import Thread
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)( =)?")
_MAX_SHOWN = 100


class HomodyneDaskError(Exception):
    """Base class of errors that the user can correct; commands print the message and exit with status 2."""

    def __str__(self) -> str:
        pieces = self.on_command_line.split("`")
        pieces[::2] = [_OPTION.sub(_as_argument, piece) for piece in pieces[::2]]
        return "`".join(pieces)

    @property
    def on_command_line(self) -> str:
        """The message with options as they are typed, --frame-time; `str` has frame_time."""
        return printable(super().__str__())


def _as_argument(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return name + (option[2] or "=True" * (name in ("overwrite", "resume", "strict")))


def printable(text: str) -> str:
    """Return text from files as it may be printed: control characters are written as \\x1b.

    Terminals execute them, and some reverse the text after them; line breaks and tabs stay.
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def in_line(text: str) -> str:
    """Return text from files as it may stand in a line: line breaks and tabs are written as \\n, too."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


class SourceError(HomodyneDaskError):
    """A file of measured data is missing, damaged, or not what its format says."""


class StoreError(HomodyneDaskError):
    """A Zarr store is missing, incomplete, damaged, or of another schema."""


class StoreInUse(StoreError):  # noqa: N818 - a StoreError that passes by itself
    """Another ingest is writing the store."""


class OptionError(HomodyneDaskError):
    """An option, parameter, model or configuration key cannot be used as given."""


class SelectionError(HomodyneDaskError):
    """A selection of bins, frames or pairs leaves nothing to fit."""


class PlanError(HomodyneDaskError):
    """The fit needs more memory or workers than there are."""


class ClusterError(HomodyneDaskError):
    """The scheduler or its workers cannot be reached or cannot run the fit."""


class ObjectStoreError(HomodyneDaskError):
    """A store by URL does not answer, or refuses: its network, bucket or credentials."""


class FileReadError(HomodyneDaskError):
    """A file cannot be read now: its file system fails, or it changes meanwhile. It may be whole."""


class PackageError(HomodyneDaskError):
    """A package of an extra is not installed."""


def require_package(feature: str, package: str, extra: str) -> None:
    """Import a package of an extra for what needs it; raises PackageError where it is not installed."""
    try:
        import_module(package)
    except ModuleNotFoundError as e:
        if e.name != package:
            raise
        raise _missing(feature, package, extra) from e


def load_ahead(feature: str, package: str, extra: str) -> None:
    """Begin to import a package of an extra, while others work; PackageError if it is not installed."""
    if find_spec(package) is None:
        raise _missing(feature, package, extra)
    Thread(target=import_module, args=(package,), daemon=True).start()


def _missing(feature: str, package: str, extra: str) -> PackageError:
    return PackageError(f'{feature} needs {package}: pip install "homodyne-dask[{extra}]"')


def shown(value: Any) -> str:
    """Return a value as a message quotes it: in one line, cut if it is long."""
    try:
        text = one_line(repr(value))
    except ValueError:  # a whole number of thousands of digits
        text = f"a number of {value.bit_length()} bits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def require_type(name: str, value: Any, types: Any, form: str) -> None:
    """Raise OptionError for a value of other types (as of isinstance); form: what to give, in words.

    A truth value counts as one only, not as a number.
    """
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise OptionError(f"{name} = {shown(value)} cannot be used: give {form}")


def require_count(name: str, value: Any, least: int | None = None) -> None:
    """Raise OptionError for what is no whole number of at least `least`; by default of 1, or None."""
    if value is not None or least is not None:
        least = 1 if least is None else least
        form = f"a whole number of at least {least}"
        require_type(name, value, Integral, form)
        if value is not None and value < least:
            raise OptionError(f"{name} = {shown(value)} cannot be used: give {form}")


def require_function(name: str, value: Any, needed: bool = False) -> None:
    if not callable(value) and (needed or value is not None):
        raise OptionError(f"{name} = {shown(value)} cannot be used: give a function")


def why_unreadable(error: BaseException) -> str:
    """Return in words why the content of a file cannot be used, to follow the name of the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error))


def first_cause(error: BaseException) -> str:
    """Return the class and the words of the error that others came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {one_line(str(error))}".removesuffix(": ")


def one_line(text: str) -> str:
    return " ".join(text.split())


def nearest(word: object, words: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the known word closest to `word`, else the list of all."""
    names = {str(name).lower(): str(name) for name in words}
    close = difflib.get_close_matches(str(word).lower(), names, n=1)
    if close:
        return f"did you mean {names[close[0]]!r}?"
    return "choose from " + ", ".join(names.values())


def require_known(word: object, words: Collection[Any], wrong: str) -> None:
    """Raise OptionError for a word that is not among those known; wrong: what is said before the nearest."""
    if not isinstance(word, str) or word not in words:
        raise OptionError(f"{wrong}; {nearest(word, words)}")
