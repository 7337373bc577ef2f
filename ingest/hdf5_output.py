"""A file for HDF5 on a disk that may become full."""

import io
from pathlib import Path
from typing import Any


class FileForHdf5(io.FileIO):
    """A new file for h5py to write; an error is kept, and raised by `check` and at the end of a `with`.

    HDF5 cannot close a file that cannot be written: it prints its internals, or crashes. So it is told
    that all is well. It may read again what could not be written, which is therefore kept
    in memory: writers call `check` before each large array.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []
        """Offset and content, in the order of writing."""

    def check(self) -> None:
        """Raise the error of an earlier write."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of the data at the current position."""
        content, at = bytes(data), self.tell()
        written = 0
        while written < len(content) and self._error is None:
            try:
                written += super().write(content[written:])
            except OSError as e:
                self._error = e
        if self._error is not None:
            self._unwritten.append((at, content))
        return len(content)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current position, as if all had been written; zeros past the end."""
        view, at = memoryview(buffer).cast("B"), self.tell()
        read = super().readinto(view) or 0
        view[read:] = bytes(len(view) - read)
        for start, content in self._unwritten:
            first, last = max(at, start), min(at + len(view), start + len(content))
            if first < last:
                view[first - at : last - at] = content[first - start : last - start]
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, where it can be written."""
        if self._error is None:
            try:
                return super().truncate(size)
            except OSError as e:
                self._error = e
        return self.tell()

    def __exit__(self, *raised: Any) -> None:
        """Close the file; raise the error of an earlier write."""
        super().__exit__(*raised)
        self.check()
