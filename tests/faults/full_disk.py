"""Writing to a disk with too little room for each of the files."""

import shutil
from pathlib import Path


def leave_free(disk: Path, free: int | None) -> None:
    """Leave so many bytes of the disk free; None: all that is not needed by its files."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    if free is not None:
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - free))


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def full_at_each_file(disk: Path, write, most: int, step: int) -> set[str]:
    """Run `write` with more and more room until it succeeds; return the names of the files that had none."""
    refused = set()
    for free in range(0, most, step):
        leave_free(disk, free)
        try:
            write()
        except OSError as e:
            refused.add(Path(e.filename).name)
            continue
        return refused
    raise AssertionError("never enough room")


def unchanged(folder: Path, before: dict[str, bytes], write) -> None:
    try:
        write()
    except OSError:
        assert file_contents(folder) == before
        raise
