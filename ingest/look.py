"""A first look at an HDF5 file in a process of its own: damage can make the library hang or crash.

What describes the matrices is read there first. What ends without an answer there is not read here.
"""

import subprocess
import sys
from pathlib import Path

from homodyne_dask.errors import SourceError

PATIENCE = 60.0
"""Seconds for the little that describes the matrices."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_PROGRAM = """
import sys
from pathlib import Path
from ingest.detect import open_source
from ingest.source import options_from
try:
    open_source(Path(sys.argv[1]), options_from(None, None, None, None, 0.0, None))
except Exception:
    pass  # said by who reads it
"""


def look(path: Path, patience: float = PATIENCE) -> None:
    """Raise SourceError for an HDF5 file whose description makes the library hang or crash."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        if file.read(8) != SIGNATURE:
            return
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    try:
        ended = subprocess.run(command, timeout=patience, capture_output=True).returncode
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{path} cannot be read: HDF5 finds no end of its description within {patience:g} s; it "
            "is damaged, copy it again"
        ) from None
    if ended < 0:
        raise SourceError(
            f"{path} cannot be read: its description crashes HDF5 (signal {-ended}); it is damaged, "
            "copy it again"
        )
