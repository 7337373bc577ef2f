"""A folder of the user for what is quicker to read than to compute: whole entries, of bounded size.

An entry may be machine code, and is read as a pickle. So a folder that others can write to is not used, and
an entry counts only with the tag that a process of this user gave it: a keyed hash of its name and content.
Its key is in a file beside the folder that nobody else can read. What others left in the folder while they
could has no such tag, nor has a copy under another name. What cannot be read or written, or is damaged, is
as if it were not there.
"""

import hmac
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

FOLDER = "HOMODYNE_DASK_CACHE"
"""Environment variable: the folder, or `off`."""
MAX_BYTES = 200_000_000
"""Most bytes of all entries; those that were used least recently are removed."""
_MAX_ENTRY_BYTES = 50_000_000
_ENTRY, _PARTIAL, _SECONDS_TO_WRITE = ".executable", ".partial", 3600.0
_KEY, _KEY_BYTES, _TAG_BYTES = ".key", 32, 32
LOG = logging.getLogger(__name__)


class CacheState(NamedTuple):
    """The folder as `doctor` shows it."""

    folder: Path | None
    entries: int
    size: int
    """Bytes."""
    unused: str
    """Why it is not used; '' where it is."""


def user_cache_folder() -> Path | None:
    """Return the folder that would be used: of the variable FOLDER, or below that of the user."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return None if given in ("", "off", "0") else Path(given)
    around = os.environ.get("XDG_CACHE_HOME", "")
    if Path(around).is_absolute():
        return Path(around) / "homodyne-dask"
    with suppress(RuntimeError):  # nobody's home is known
        return Path.home() / ".cache" / "homodyne-dask"
    return None


def cache_state() -> CacheState:
    """Return where the cache is, what it holds, and why it is not used if it is not."""
    folder = user_cache_folder()
    if folder is None:
        return CacheState(None, 0, 0, f"{FOLDER} is set to off, or there is no home folder")
    try:
        with _opened(folder) as at:
            sizes = [status.st_size for _, status in _entries(at)]
        _key_beside(folder)
    except OSError as e:
        return CacheState(folder, 0, 0, e.strerror or str(e))
    return CacheState(folder, len(sizes), sum(sizes), "")


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Yield a handle of the folder, made where it is missing; OSError where others could write to it.

    All files are named relative to the handle: nobody can put another folder in its place meanwhile.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(at)
        if status.st_uid != os.geteuid():
            raise PermissionError(0, "it belongs to another user", str(folder))
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(0, "others can access it", str(folder))
        yield at
    finally:
        os.close(at)


def _key_beside(folder: Path) -> bytes:
    """Return the key of the tags, made where it is missing; OSError where it is not this user's alone."""
    file = folder.with_name(folder.name + _KEY)
    if not file.exists():
        partial = folder.with_name(f"{folder.name}.{uuid4().hex}{_KEY}")
        try:
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as new:
                new.write(os.urandom(_KEY_BYTES))
            with suppress(FileExistsError):  # another process was first
                os.link(partial, file)
        finally:
            partial.unlink(missing_ok=True)
    key = _read_own(file, None, _KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise OSError(0, f"its key {file} is damaged: remove it", str(file))
    return key


def _read_own(name: str | Path, at: int | None, most: int) -> bytes:
    """Return the content of a file, at most so many bytes; OSError where others own it or can change it."""
    with os.fdopen(
        os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at), "rb"
    ) as stream:
        status = os.fstat(stream.fileno())
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not ours or stat.S_IMODE(status.st_mode) & 0o077:
            why = f"the file {name} belongs to another user, or other users can read or change it: remove it"
            raise PermissionError(0, why, str(name))
        return stream.read(most)


def _tag(folder: Path, key: str, content: bytes) -> bytes:
    """Return the tag of an entry, which no other user can make, and no other name or content has."""
    made = hmac.new(_key_beside(folder), b"%d:%s" % (len(key), key.encode()), "sha256")
    made.update(content)
    return made.digest()


def read_entry(key: str) -> bytes | None:
    """Return the content of an entry; None where there is none that is whole and of this user."""
    folder = user_cache_folder()
    if folder is None:
        return None
    name = key + _ENTRY
    try:
        with _opened(folder) as at:
            whole = _read_own(name, at, _MAX_ENTRY_BYTES)
            with suppress(OSError):
                os.utime(name, dir_fd=at)  # used last
        tag, content = whole[:_TAG_BYTES], whole[_TAG_BYTES:]
        return content if hmac.compare_digest(_tag(folder, key, content), tag) else None
    except OSError:
        return None


def write_entry(key: str, content: bytes) -> None:
    """Write an entry, whole or not at all; a disk that is full or may not be written to is no error."""
    folder = user_cache_folder()
    if folder is None or len(content) > _MAX_ENTRY_BYTES - _TAG_BYTES:
        return
    name, partial = key + _ENTRY, f"{key}.{uuid4().hex}{_PARTIAL}"
    try:
        with _opened(folder) as at:
            tag = _tag(folder, key, content)
            try:
                file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
                with os.fdopen(file, "wb") as stream:
                    stream.write(tag + content)
                os.rename(partial, name, src_dir_fd=at, dst_dir_fd=at)
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(partial, dir_fd=at)
                raise
            _trim(at)
    except OSError as e:
        LOG.info("an entry was not kept: %s", e)


def _entries(at: int) -> list[tuple[str, os.stat_result]]:
    """Return the files of the folder, those used least recently first."""
    found = []
    for name in os.listdir(at):
        with suppress(FileNotFoundError):  # another process removed it
            found.append((name, os.stat(name, dir_fd=at, follow_symlinks=False)))
    ours = [(name, status) for name, status in found if name.endswith((_ENTRY, _PARTIAL))]
    return sorted(ours, key=lambda entry: entry[1].st_mtime)


def _trim(at: int) -> None:
    """Remove what killed processes left half written, and entries beyond MAX_BYTES."""
    entries, now = _entries(at), time.time()
    left = sum(status.st_size for _, status in entries)
    for name, status in entries:
        abandoned = name.endswith(_PARTIAL) and now - status.st_mtime > _SECONDS_TO_WRITE
        if left > MAX_BYTES or abandoned:
            left -= status.st_size
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)
