"""The files of a watched folder: which there are, and how they looked.

Looked at again and again: network file systems deliver no events.
"""

import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

PATTERNS = ("*.hdf", "*.hdf5", "*.h5", "*.nxs")
"""Names of result files."""
_TEMPORARY = re.compile(
    r"^[.~#]|~$|(^|\.)(tmp|temp|part|partial|filepart|crdownload|swp)(\.|$)", re.IGNORECASE
)


class Stamp(NamedTuple):
    """What a look shows of a file: it has changed where this has."""

    size: int
    """bytes"""
    mtime_ns: int


def is_temporary(name: str) -> bool:
    """Return whether a file of that name is being written or copied under another than its own."""
    return _TEMPORARY.search(name) is not None


def listed(folder: Path, patterns: Sequence[str]) -> dict[str, Stamp]:
    """Return the files of a folder whose names match, without temporary ones.

    Raises OSError where the folder cannot be read.
    """
    found = [file for file in folder.iterdir() if any(fnmatch(file.name, p) for p in patterns)]
    stamps = {file.name: stamp_of(file) for file in found if not is_temporary(file.name)}
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def stamp_of(path: Path) -> Stamp | None:
    """Return what a look shows of a file; None where there is none.

    A link that cannot be followed has its own stamp: to open it says why.
    """
    with suppress(FileNotFoundError):
        try:
            status = path.stat()
        except OSError:
            status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return Stamp(status.st_size, status.st_mtime_ns)
    return None
