"""Files and folders, on disk or by URL: replaced atomically, read patiently, locked by one process."""

import errno
import fcntl
import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from datetime import datetime
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from socket import gethostname
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

from homodyne_dask.errors import FileReadError, OptionError, in_line, shown
from homodyne_dask.store import object_stores as objects
from homodyne_dask.store.object_stores import WEB, UrlPath, is_url, url_path
from homodyne_dask.text import size

AnyPath = Path | UrlPath
"""Of a file or folder on disk, or by URL; what reads and writes either is in this module."""
PARTIAL = ".partial"
"""End of the name of a file that is being written; a killed process leaves it behind."""
DAMAGED = (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, RuntimeError)
"""What reading raises where the content is missing or wrong; any other OSError says nothing of it."""
MAY_PASS = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.ECONNABORTED, errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENOLINK, errno.ECOMM, errno.EPROTO, errno.EBUSY,
    errno.ENFILE, errno.EMFILE, errno.EAGAIN, errno.EKEYEXPIRED, errno.ENODATA, errno.ENONET,
    errno.ECANCELED, errno.EUCLEAN,
}  # fmt: skip
"""With which a file system, or the way to its server, fails, and works again a moment later."""
DISK_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "it exceeds the largest file size allowed here",
}
PLENTY = 100_000_000
INTERRUPTED = Event()
"""Set while a process leaves on an interrupt: no thread waits for a file system any more."""


def path_of(name: str, value: str | AnyPath) -> Path:
    path = any_path(name, value)
    if isinstance(path, UrlPath):
        raise OptionError(
            f"{name} = {shown(str(path))} is a URL, but only stores are at URLs: give a file or folder on "
            f"this machine, and copy it with the tool of the provider, such as `aws s3 cp --recursive`"
        )
    return path


def any_path(name: str, value: str | AnyPath) -> AnyPath:
    if isinstance(value, UrlPath):
        return value
    if not isinstance(value, str | os.PathLike):
        raise OptionError(
            f"{name} = {shown(value)} is not a path: give the name of a file or folder"
        )
    path = url_path(name, value) if isinstance(value, str) and is_url(value) else value
    return path if isinstance(path, UrlPath) else Path(path)


def working_folder() -> Path:
    """Return the working folder by the names through which a shell came here."""
    folder = Path(os.environ.get("PWD", ""))
    is_this_folder = folder.is_absolute() and folder.is_dir() and folder.samefile(".")
    return folder if is_this_folder else Path.cwd()


def absolute[P: AnyPath](path: P) -> P:
    """Return a path that is valid in other folders: links in it stay, they differ between machines."""
    return path if isinstance(path, UrlPath) or path.is_absolute() else working_folder() / path


def inside(store: str | AnyPath, *names: str) -> AnyPath:
    if not is_url(store):
        return Path(store, *names)  # type: ignore[arg-type]
    return any_path("store", store).joinpath(*names)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a new name; its file replaces `path` after a block without error, if durable past a crash."""
    partial = path.with_name(f"{path.name}.{uuid4().hex}{PARTIAL}")
    try:
        with named_in_errors(path):
            yield partial
            if durable:
                _sync(partial)
            partial.replace(path)
            if durable:
                _sync(path.parent)  # the new name
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno is not None and e.filename is None:
            e.filename = str(path)
        raise


def no_room(error: OSError, path: AnyPath) -> str:
    if error.errno not in DISK_FULL:
        return f"{error.strerror or error}; check the permissions and the file system of its folder"
    why = DISK_FULL[error.errno]
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not isinstance(path, Path):
        return f"{why}; free some space"
    folder = next(above for above in path.absolute().parents if above.is_dir())
    if (free := shutil.disk_usage(folder).free) < PLENTY:
        return f"{why} ({size(free)} free); free some space"
    return (
        f"there is room for {size(free)}, but a quota or the number of files is used up; see `quota -s` and "
        f"`df -i`, and remove files (`ingest --sharded` writes few)"
    )


def write_file(path: Path, content: str | bytes) -> None:
    with named_in_errors(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_atomic(path: AnyPath, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file or an object: it is complete or absent, also after a crash if it is durable."""
    content = content.encode() if isinstance(content, str) else content
    if isinstance(path, UrlPath):
        objects.write(path, content)
    else:
        with replacing(path, durable=durable) as partial:
            partial.write_bytes(content)


_HDF5 = b"\x89HDF"
_KINDS = (_HDF5, b"\x89PNG", b"%PDF", b"<?xml", b"{", b"PK\3\4", b"\x93NUMPY", b"MATLAB")
"""First bytes of files by which their kinds are told, as which all others are one: text."""


def check_replaceable(path: Path, content: bytes, source: str = "") -> None:
    """Raise OptionError where content (or its first bytes) would replace another kind, or lie in a store."""
    folder = path.parent.resolve()
    for above in (folder, *folder.parents):
        if (above / "zarr.json").exists():
            raise OptionError(f"{path} would lie in the store {above}: give a name elsewhere")
    if path.exists() and (path.name == source or not _is_alike(path, content)):
        raise OptionError(f"{path} is something else than what is written: give another name")


def replace_file(path: Path, content: str | bytes, source: str = "") -> None:
    content = content.encode() if isinstance(content, str) else content
    check_replaceable(path, content, source)
    write_atomic(path, content)


def _is_alike(path: Path, content: bytes) -> bool:
    """Return whether a file is one of the same kind; as HDF5 only one of this program."""
    if not path.is_file() or not path.stat().st_size:
        return path.is_file()
    kind = next((kind for kind in _KINDS if content.startswith(kind)), b"")
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as held:
        if kind == _HDF5:
            return any(held.find(name) >= 0 for name in (b"homodyne-dask", b"homodyne_dask"))
        return kind == next((kind for kind in _KINDS if held[:8].startswith(kind)), b"")


def exists(path: AnyPath) -> bool:
    if isinstance(path, UrlPath):
        return any(True for _ in objects.below(path))
    try:
        patiently(path, path.stat)
    except (OSError, ValueError) as e:
        if getattr(e, "errno", errno.ENOENT) not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False
    return True


def is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(patiently(path, path.stat).st_mode)
    except (OSError, ValueError):
        return False


def children(path: AnyPath) -> list[AnyPath]:
    """Return the files and folders in a folder, or what is directly below a URL; a web server lists none."""
    if isinstance(path, UrlPath):
        urls = () if path.root.startswith(WEB) else objects.below(path)
        names = {url.key.removeprefix(path.key).strip("/").partition("/")[0] for url in urls}
        return [path / name for name in sorted(names)]
    return [*path.iterdir()] if path.is_dir() else []


def remove_tree(path: AnyPath) -> None:
    if isinstance(path, UrlPath):
        for key in (path, *objects.below(path)):
            objects.remove(key)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def partial_files(path: Path) -> list[Path]:
    return [*path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}")]


def _sync(path: Path) -> None:
    """Wait until a file is on disk, or the names in a folder where its file system can wait for them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as e:
        if not path.is_dir() or e.errno in MAY_PASS | DISK_FULL.keys():
            raise
    finally:
        os.close(handle)


def zarr_store(store: str | AnyPath) -> Any:
    path = inside(store)
    if not isinstance(path, UrlPath):
        return path
    from zarr.storage import ObjectStore

    return ObjectStore(objects.connection(path.root, path.key))


def read_regular_file(path: AnyPath, max_bytes: int) -> bytes:
    """Return the content of a file; ValueError for what never ends: a pipe, or more than `max_bytes`."""
    if isinstance(path, UrlPath):
        return objects.read(path, max_bytes)
    return read_with_tail(path, max_bytes, 0)[0]


def read_with_tail(
    path: Path, max_bytes: int, n_tail: int, span: tuple[int, int] | None = None
) -> tuple[bytes, bytes]:
    """Return the content, or that of a span (first byte, number), and its last `n_tail` bytes apart."""

    def read() -> tuple[bytes, bytes]:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is a pipe or a device, not a file")
            first, number = span or (0, status.st_size)
            if number > max_bytes:
                raise ValueError(f"it has {number:,} bytes, but at most {max_bytes:,} are allowed")
            file.seek(first)
            parts = file.read(max(number - n_tail, 0)), file.read(n_tail)
            if None in parts:  # as Python calls EAGAIN
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return parts

    return patiently(path, read)


def patiently[T](path: Path, read: Callable[[], T]) -> T:
    """Return what is read of a file; where its file system fails, it is read again, as objects are."""
    began, backoff = monotonic(), objects.BACKOFF
    for retries in count():
        try:
            with named_in_errors(path):
                return read()
        except OSError as e:
            if not is_failure(e):
                raise
            late = monotonic() - began > objects.RETRIES["retry_timeout"].total_seconds()
            if late or retries == objects.RETRIES["max_retries"] or INTERRUPTED.is_set():
                remedy = "its file system fails; try again when it works"
                if e.errno in (errno.EMFILE, errno.ENFILE):
                    remedy = "close some, or see `ulimit -n`"
                raise FileReadError(
                    f"{path} cannot be read ({os.strerror(e.errno or 0)}, after {retries} retries): {remedy}"
                ) from e
        pause = backoff["init_backoff"] * backoff["base"] ** retries
        INTERRUPTED.wait(min(pause, backoff["max_backoff"]).total_seconds())
    raise AssertionError


_KEPT_OPEN: ContextVar[dict[Path, Any] | None] = ContextVar("kept open", default=None)


@contextmanager
def files_kept_open() -> Iterator[None]:
    """Keep what `opened_once` opens in the block open to its end: many matrices of a file are read."""
    token = _KEPT_OPEN.set(kept := {})
    try:
        yield
    finally:
        _KEPT_OPEN.reset(token)
        for file in kept.values():
            file.close()


@contextmanager
def opened_once[T: AbstractContextManager[Any]](
    path: Path, opened: Callable[[Path], T]
) -> Iterator[T]:
    """Yield an open file: opened for this block, or that which is kept open."""
    kept = _KEPT_OPEN.get()
    if kept is None:
        with opened(path) as file:
            yield file
        return
    file = kept[path] = kept.get(path) or opened(path)
    try:
        yield file
    except BaseException:  # where a file system fails, it is opened anew
        kept.pop(path, file).close()
        raise


@contextmanager
def no_more_waiting() -> Iterator[None]:
    """Set INTERRUPTED where the block is interrupted; who waits for the threads then clears it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        INTERRUPTED.set()
        raise


def is_failure(error: BaseException) -> bool:
    """Return whether a file system failed, which says nothing about what a file holds."""
    return isinstance(error, OSError) and error.errno in MAY_PASS


def twice[T](read: Callable[[], T]) -> T:
    """Return what is read; it is read again where it is wrong or missing, for only damage stays."""
    try:
        return read()
    except DAMAGED as e:
        if isinstance(e, OSError):
            INTERRUPTED.wait(objects.BACKOFF["init_backoff"].total_seconds())
        return read()


def state(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes where a file is written, or where another takes its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


NOT_OFFERED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""With which a file system answers that it has no locks."""
_MAX_BYTES = 1000


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Hold a lock for the length of a `with`; yields False where another process holds it.

    The system releases it when its process ends, however that ended, on NFS too. On a file system without
    locks (Lustre mounted without flock) everybody gets it. By URL it is an object that one process alone can
    create; that of a killed process stays, as `how_to_unlock` says.
    """
    with ExitStack() as stack:
        if isinstance(path, UrlPath):
            holder = (
                f"process {os.getpid()} of {gethostname()}, begun {datetime.now():%F %T}\n{uuid4()}"
            )
            # a request whose answer was lost is repeated, and then meets the object that it has made
            held = objects.write(path, holder.encode(), create=True) or _content(path) == holder
        else:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            stack.enter_context(os.fdopen(handle, "r+b", buffering=0))
            # the last holder may just have removed the file
            held = _lock(handle) and path.exists() and path.stat().st_ino == os.fstat(handle).st_ino
        try:
            yield held
        finally:
            if held:
                remove_tree(path)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in NOT_OFFERED:
            raise
    return True


def _content(path: AnyPath) -> str:
    return read_regular_file(path, _MAX_BYTES).decode(errors="replace")


def how_to_unlock(path: AnyPath) -> str:
    if isinstance(path, Path):
        return "wait until it ends"
    try:
        holder = in_line(_content(path).partition("\n")[0])
    except (FileNotFoundError, ValueError):  # it was just released, or is another's
        holder = "unknown"
    return (
        f"wait until it ends ({holder}), or, if it was killed, remove {path} with the tool of the provider, "
        f"such as `aws s3 rm`"
    )
