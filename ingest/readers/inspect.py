"""A first look at an HDF5 file in a process of its own: damage can make the library hang or crash.

What describes the matrices is read there first. What ends without an answer there is not read here.
"""

import json
import subprocess
import sys
from pathlib import Path

from homodyne_dask.errors import SourceError
from ingest.readers.detect import HDF5, first_bytes
from ingest.readers.source import Options

PATIENCE = 60.0
"""Seconds for the little that describes the matrices."""
_PROGRAM = """
import json, sys
from pathlib import Path
from ingest.detect import open_source
from ingest.source import options_from
try:
    open_source(Path(sys.argv[1]), options_from(**json.loads(sys.argv[2])))
except Exception:
    pass  # said by who reads it
"""


def look(path: Path, options: Options) -> None:
    """Raise SourceError for an HDF5 file whose description makes the library hang or crash."""
    if first_bytes(path) != HDF5:
        return
    command = [sys.executable, "-c", _PROGRAM, str(path), json.dumps(options.as_json())]
    try:
        ended = subprocess.run(command, timeout=PATIENCE, capture_output=True).returncode
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{path} cannot be read: HDF5 finds no end of its description within {PATIENCE:g} s; it "
            "is damaged, copy it again"
        ) from None
    if ended < 0:
        raise SourceError(
            f"{path} cannot be read: its description crashes HDF5 (signal {-ended}); it is damaged, "
            "copy it again"
        )
