"""The files of a watched folder: which there are, since when they stand still, and what they hold.

Looked at again and again: network file systems deliver no events.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

PATTERNS = ("*.hdf", "*.hdf5", "*.h5", "*.nxs")
"""Names of result files."""
_TEMPORARY = re.compile(
    r"^[.~#]|~$|(^|\.)(tmp|temp|part|partial|filepart|crdownload|swp)(\.|$)", re.IGNORECASE
)
_READ_BYTES = 1 << 20


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
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name) or not any(fnmatch(entry.name, p) for p in patterns):
                continue
            try:
                if entry.is_file():
                    found[entry.name] = _stamp(entry.stat())
            except FileNotFoundError:  # renamed or removed since
                continue
    return found


def content_digest(path: Path, stamp: Stamp) -> str | None:
    """Return the SHA-256 of a file, None if it is not, or no longer, as its stamp says.

    An opened file shows its state on the server, where a look may show an earlier one. Raises OSError
    where it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if _stamp(os.fstat(file.fileno())) != stamp:
            return None
        while part := file.read(_READ_BYTES):
            digest.update(part)
        return digest.hexdigest() if _stamp(os.fstat(file.fileno())) == stamp else None


def is_as_it_was(path: Path, stamp: Stamp) -> bool:
    """Return whether a file can be read and has not changed."""
    try:
        with path.open("rb") as file:
            return _stamp(os.fstat(file.fileno())) == stamp
    except OSError:
        return False


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns)
