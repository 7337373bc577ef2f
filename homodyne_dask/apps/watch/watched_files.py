"""The files of a watched folder, looked at again and again: network file systems deliver no events."""

import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from homodyne_dask.request.option_types import Form, Names, Number
from homodyne_dask.request.options import COMMON, DATA, OUTPUT, Options, option

PATTERNS = ("*.hdf", "*.hdf5", "*.h5", "*.nxs")
"""Names of result files."""
_TEMPORARY = re.compile(
    r"^[.~#]|~$|(^|\.)(tmp|temp|part|partial|filepart|crdownload|swp)(\.|$)", re.IGNORECASE
)


class Stamp(NamedTuple):
    size: int
    """bytes"""
    mtime_ns: int
    ctime_ns: int = 0
    """It moves where a file takes the place of one of its size and time: contents are then compared."""


def listed(folder: Path, patterns: Sequence[str]) -> dict[str, Stamp]:
    """Return the files whose names match, without temporary ones; raises OSError for no folder."""
    files = [file for file in folder.iterdir() if any(fnmatch(file.name, p) for p in patterns)]
    stamps = {file.name: _stamp_of(file) for file in files if not _TEMPORARY.search(file.name)}
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def _stamp_of(path: Path) -> Stamp | None:
    """Return size and time of a file, those of a broken link itself; None for a folder, or no file."""
    with suppress(FileNotFoundError):
        try:
            status = path.stat()
        except OSError:
            status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return None


class WatchedFolder(Options):
    """How a folder is watched, and what is written beside the results."""

    once: bool = option(False, use=COMMON)
    """Exit when all present files are fitted (for cron)."""
    stores: Literal["keep", "delete"] = option("keep", use=COMMON)
    """Whether to keep the ingested data in stores/ after their fit is written."""
    files: Names = option(PATTERNS, DATA, use=COMMON)
    """Pattern of the names of result files; default: *.hdf, *.hdf5, *.h5, *.nxs."""
    interval: Annotated[Number, Field(ge=0.01), Form("seconds, at least 0.01", "FLOAT")] = option(
        1.0, use=COMMON
    )
    """Seconds between checks of the folder."""
    as_json: bool = option(False, OUTPUT, use=COMMON, names=("--json",))
    """Print a JSON object in a line for each file that is fitted or refused; the rest goes to stderr."""
