"""Folders that only this user can read."""

from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever the umask."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            with suppress(FileExistsError):  # another process was first
                path.mkdir(mode=0o700)
