"""Files that are there whole or not at all, and the reading of files that a stranger may have made."""

import os
import stat
import tempfile
from pathlib import Path


def read_plain(path: Path, most: int) -> bytes:
    """Return what a file of at most so many bytes holds; OSError for pipes, devices and larger ones.

    Reading from those would never end.
    """
    whole, _ = read_split(path, most, 0)
    return whole


def read_split(path: Path, most: int, last: int) -> tuple[bytes, bytes]:
    """Return the same but for the last so many bytes, and those: slices would copy the first part."""
    with open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is a pipe or a device, not a file")
        if found.st_size > most:
            raise OSError(f"it holds {found.st_size} bytes where {most} are most")
        return file.read(max(found.st_size - last, 0)), file.read(last)


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for whoever writes into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, and survives a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
