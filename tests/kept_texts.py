"""Texts that tests compare with files; HOMODYNE_DASK_ACCEPT=1 writes the files: then read the difference."""

import os
from pathlib import Path


def kept_in(path: Path, found: str) -> str:
    """Return the text of a file, which is replaced by the one found where changes are accepted."""
    if "HOMODYNE_DASK_ACCEPT" in os.environ:
        path.write_text(found)
    return path.read_text()
