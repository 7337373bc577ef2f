"""Error classes. Each message names the cause, the value and the remedy."""

import difflib
from collections.abc import Iterable


class HomodyneDaskError(Exception):
    """Base of all errors the user can correct; the command line prints one sentence and exits with 2."""


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
