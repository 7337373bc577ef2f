"""The files of a watched folder: which there are, since when they stand still, and what they hold.

Looked at again and again: network file systems deliver no events.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from homodyne_dask.store.files import open_without_waiting, state

PATTERNS = ("*.hdf", "*.hdf5", "*.h5", "*.nxs")
"""Names of result files."""
_TEMPORARY = re.compile(
    r"^[.~#]|~$|(^|\.)(tmp|temp|part|partial|filepart|crdownload|swp)(\.|$)", re.IGNORECASE
)
_READ_BYTES = 1 << 20
END_BYTES = 1 << 16
"""Bytes at the beginning and at the end of a file that a stamp compares."""


class Stamp(NamedTuple):
    """What a look shows of a file: it has changed where this has."""

    size: int
    """bytes"""
    mtime_ns: int
    ends: str
    """SHA-256 of its first and last END_BYTES; '' where they cannot be read."""


class Seen(NamedTuple):
    """A file as it was at a look."""

    stamp: Stamp
    state: tuple[int, ...]
    """Its ends are read where this changes."""


def is_temporary(name: str) -> bool:
    """Return whether a file of that name is being written or copied under another than its own."""
    return _TEMPORARY.search(name) is not None


def listed(folder: Path, patterns: Sequence[str], before: Mapping[str, Seen]) -> dict[str, Seen]:
    """Return the files of a folder whose names match, without temporary ones.

    before: what the last look returned. A link that cannot be followed is listed with its own stamp: to open
    it says why. Raises OSError where the folder cannot be read.
    """
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name) or not any(fnmatch(entry.name, p) for p in patterns):
                continue
            with suppress(FileNotFoundError):  # renamed or removed since
                if (seen := _seen(entry, before.get(entry.name))) is not None:
                    found[entry.name] = seen
    return found


def _seen(entry: "os.DirEntry[str]", before: Seen | None) -> Seen | None:
    """Return a file as it is now, None for what is not a file."""
    try:
        if not entry.is_file():
            return None
        status = entry.stat()
    except FileNotFoundError:
        raise
    except OSError:
        status = entry.stat(follow_symlinks=False)
        return Seen(Stamp(status.st_size, status.st_mtime_ns, ""), state(status))
    if before is not None and before.state == state(status):
        return before
    try:
        with open(entry.path, "rb", buffering=0, opener=open_without_waiting) as file:
            stamp = _stamp(file.fileno())
    except FileNotFoundError:
        raise
    except OSError:
        stamp = Stamp(status.st_size, status.st_mtime_ns, "")
    return Seen(stamp, state(status))


def content_digest(path: Path, stamp: Stamp) -> str | None:
    """Return the SHA-256 of a file, None if it is not, or no longer, as its stamp says.

    An opened file shows its state on the server, where a look may show an earlier one. Raises OSError
    where it cannot be read.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
        if _stamp(file.fileno()) != stamp:
            return None
        while part := file.read(_READ_BYTES):
            digest.update(part)
        return digest.hexdigest() if _stamp(file.fileno()) == stamp else None


def is_as_it_was(path: Path, stamp: Stamp) -> bool:
    """Return whether a file can be read and has not changed."""
    try:
        with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
            return _stamp(file.fileno()) == stamp
    except OSError:
        return False


def _stamp(handle: int) -> Stamp:
    status = os.fstat(handle)
    last = max(status.st_size - END_BYTES, 0)
    ends = os.pread(handle, END_BYTES, 0) + os.pread(handle, END_BYTES, last)
    return Stamp(status.st_size, status.st_mtime_ns, hashlib.sha256(ends).hexdigest())
