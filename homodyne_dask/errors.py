"""Error classes. Each message names the cause, the value and the remedy."""

import difflib
import re
from collections.abc import Iterable

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class HomodyneDaskError(Exception):
    """Base of all errors the user can correct; the command line prints one sentence and exits with 2."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return text from files as it may be printed: control characters are written as \\x1b.

    Terminals execute them, and some reverse the text after them; line breaks and tabs stay.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class SourceError(HomodyneDaskError):
    """A file of measured data is missing, damaged, or not what its format says."""


class StoreError(HomodyneDaskError):
    """A Zarr store is missing, incomplete, damaged, or of another schema."""


class OptionError(HomodyneDaskError):
    """An option, parameter, model or configuration key cannot be used as given."""


class SelectionError(HomodyneDaskError):
    """A selection of bins, frames or pairs leaves nothing to fit."""


class PlanError(HomodyneDaskError):
    """The fit needs more memory or workers than there are."""


class ClusterError(HomodyneDaskError):
    """The scheduler or its workers cannot be reached or cannot run the fit."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the known word closest to `word`, else the list of all."""
    names = {str(name).lower(): str(name) for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    if close:
        return f"did you mean {names[close[0]]!r}?"
    return "there is: " + ", ".join(names.values())
