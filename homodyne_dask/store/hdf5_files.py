"""HDF5 files opened for reading, of which nothing but themselves is read, and files that they may lead to.

An untrusted file could otherwise have any file of the disk read: by external links, external storage and
virtual datasets (`linked_files`). Every failure is a SourceError that names the object.
"""

import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import h5py
import numpy as np
from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]

from homodyne_dask.errors import SourceError, require_package
from homodyne_dask.store.files import is_failure, is_file, opened_once, patiently
from homodyne_dask.store.linked_files import (
    Piece,
    Reader,
    assembled,
    beside,
    followed_now,
    located,
    opened,
    pieces_of,
)
from homodyne_dask.text import some_of

UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)
MAX_LINKS = 8
"""Links, or virtual datasets, that lead to one another."""
MAX_NAMED = 20
"""Missing files that an error names."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    if not is_file(path):
        raise SourceError(f"{path} is not a file: check the name")
    with (
        beside(path),
        opened_once(path, lambda path: patiently(path, partial(_opened, path))) as file,
    ):
        yield file


def _opened(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking="best-effort")
    except UNREADABLE as error:
        way_out = "it is truncated, still being written, or not an HDF5 file; copy it again"
        if "h5clear" in str(error) or "unable to lock" in str(error):
            command = f"h5clear -s {shlex.quote(str(path))}"
            way_out = f"its writer runs, or died: wait until it has ended, then try `{command}`"
        elif "bad object header version" in str(error):  # what it holds until its first flush
            way_out = (
                "its groups were never written, or are damaged: its writer runs, or was killed before "
                "it wrote them; wait until it has ended, or get the file anew"
            )
        elif is_failure(error):
            raise
        elif getattr(error, "errno", None):  # of the system: it says nothing of the content
            way_out = "check its permissions and its file system"
        raise SourceError(f"{path} cannot be opened as HDF5 ({error}): {way_out}") from error


def check_contents(path: Path) -> None:
    """Raise SourceError where anything in a file lies in another, or groups lead in a circle."""
    with open_hdf5(path) as file:
        waiting, seen = [""], {file["/"]}
        while waiting:
            group = waiting.pop()
            for name in members(file, group or "/"):
                inside = f"{group}/{name}"
                item = object_at(file, inside)
                if not isinstance(item, h5py.Group):
                    continue
                if item in seen:
                    raise wrong(file, inside, "leads to a group elsewhere in the file")
                seen.add(item)
                waiting.append(inside)


def members(file: h5py.File, group: str) -> list[str]:
    held = object_at(file, group)
    with reading(file, group):
        return [as_text(name or b"") for name in held] if isinstance(held, h5py.Group) else []


def as_text(name: str | bytes) -> str:
    """Return a name in a file as text, from which `follow_links` makes the same bytes if it is not UTF-8."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def object_at(
    file: h5py.File, name: str, links: int = MAX_LINKS
) -> h5py.Dataset | h5py.Group | None:
    """Return the object of that name, None if there is none; in other files only what may be followed."""
    with reading(file, name):
        item = follow_links(file, name)
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                _check_sources(file, name, item, links)
            _ = item.dtype, item.shape  # raise here when they are damaged
            _register_filters(item)
    return item


def part_of(dataset: h5py.Dataset, index: Any = (), links: int = MAX_LINKS) -> np.ndarray:
    """Return the values of a dataset at an index, of a virtual one those of its sources."""
    if not dataset.is_virtual:
        return np.asarray(dataset[index])

    def source(piece: Piece) -> tuple[tuple[int, ...], Reader]:
        item = _source(dataset, piece, links)
        return item.shape, partial(part_of, item, links=links - 1)

    return assembled(dataset, index, source)


def _check_sources(file: h5py.File, name: str, dataset: h5py.Dataset, links: int) -> None:
    """Raise SourceError unless all sources of a virtual dataset are files that may be read."""
    followed = followed_now()
    pieces = None if dataset.external or followed is None else pieces_of(dataset)
    if pieces is None:
        copied = "b[x] = a[x][...]; b[x].attrs.update(a[x].attrs)"
        raise _elsewhere(file, name, str(dataset.name), copied)
    if followed is None or followed.checked:
        return
    _check_present(file, name, dataset.file, {piece.file for piece in pieces} - {"."})
    for piece in pieces:
        _source(dataset, piece, links)


def _source(dataset: h5py.Dataset, piece: Piece, links: int) -> h5py.Dataset:
    if not links:
        raise KeyError(f"{dataset.name} is in a chain of too many virtual datasets")
    other = dataset.file
    if piece.file != ".":
        other = opened(_located(dataset.file, piece.file), _opened)
    item = object_at(other, piece.dataset, links - 1)
    if not isinstance(item, h5py.Dataset):
        raise KeyError(f"{piece.file} has no dataset {piece.dataset}")
    return item


def _check_present(file: h5py.File, name: str, referrer: h5py.File, others: set[str]) -> None:
    path = Path(os.fsdecode(referrer.filename))
    if missing := sorted(other for other in others if located(other, path) is None):
        why = (
            f"needs {some_of(missing, MAX_NAMED)}, which {'is' if len(missing) == 1 else 'are'} not below "
            f"{_folder()}: get what is missing, or give --follow, the folder that has it all"
        )
        raise wrong(file, name, why)


def _located(file: h5py.File, name: str) -> Path:
    path = located(name, Path(os.fsdecode(file.filename)))
    if path is None:
        raise KeyError(f"{name} is not below {_folder()}")
    return path


def _folder() -> Path | None:
    followed = followed_now()
    return followed and followed.folder


def _register_filters(dataset: h5py.Dataset) -> None:
    """Load the compression filters that beamlines use, where a dataset has one that HDF5 lacks."""
    properties = dataset.id.get_create_plist()
    numbers = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
    if missing := [number for number in numbers if not h5py.h5z.filter_avail(number)]:
        what = f"{dataset.name} of {file_name(dataset.file)} (compressed with HDF5's filter {missing[0]})"
        require_package(what, "hdf5plugin", "filters")


class _LastGroup(threading.local):
    """The group that a thread has looked up last, in an open file: it may have thousands of matrices."""

    file: Callable[[], h5py.File | None] = staticmethod(lambda: None)
    name = ""
    held: Any = None


_LAST = _LastGroup()


def follow_links(
    file: h5py.File, name: str, links: int = MAX_LINKS
) -> h5py.Dataset | h5py.Group | None:
    """Return the object that a name leads to, link by link, without HDF5's opening any other file."""
    above, _, last = name.rpartition("/")
    group: Any = _group_above(file, above, links) if above.strip("/") else file
    step = last.encode("utf-8", "surrogateescape")
    if step in (b"", b"."):
        return group
    if not isinstance(group, h5py.Group) or not group.id.links.exists(step):
        return None
    kind = group.id.links.get_info(step).type  # h5py's own look-up takes names in UTF-8 alone
    if kind == h5l.TYPE_EXTERNAL:
        return _in_other_file(file, name, group, step, links)
    if kind != h5l.TYPE_SOFT:
        item: Any = group[step]
        return item
    if not links:
        raise KeyError(f"{last} is a link, in a chain of too many links")
    target = as_text(group.id.links.get_val(step))
    target = target if target.startswith("/") else f"{as_text(group.name or b'')}/{target}"
    return follow_links(file, target, links - 1)


def _group_above(file: h5py.File, name: str, links: int) -> h5py.Dataset | h5py.Group | None:
    if _LAST.file() is file and _LAST.name == name:
        return _LAST.held
    item = follow_links(file, name, links)
    if item is not None and item.file.filename == file.filename:  # others are closed before
        _LAST.file, _LAST.name, _LAST.held = ref(file), name, item
    return item


def _in_other_file(
    file: h5py.File, name: str, group: h5py.Group, step: bytes, links: int
) -> h5py.Dataset | h5py.Group | None:
    """Return what an external link leads to, if it may be followed."""
    if followed_now() is None:
        place = f"{as_text(group.name or b'').rstrip('/')}/{as_text(step)}"
        raise _elsewhere(file, name, place, "a.copy(a[x], b, x)")
    if not links:
        raise KeyError(f"{as_text(step)} is a link, in a chain of too many links")
    others, target = (as_text(part) for part in group.id.links.get_val(step))
    if located(others, Path(os.fsdecode(group.file.filename))) is None:  # name those beside it, too
        _check_present(file, name, group.file, set(_files_linked_from(group)))
    return follow_links(opened(_located(group.file, others), _opened), target, links - 1)


def _files_linked_from(group: h5py.Group) -> Iterator[str]:
    for name in group.id:
        if group.id.links.get_info(name).type == h5l.TYPE_EXTERNAL:
            yield as_text(group.id.links.get_val(name)[0])


def _elsewhere(file: h5py.File, name: str, place: str, copied: str) -> SourceError:
    """Return the error with a command that writes a whole file; copied: what copies x from file a to b."""
    path = Path(os.fsdecode(file.filename))
    whole = path.with_name(f"{path.stem}_whole{path.suffix}")
    code = (
        f"import h5py, shutil; shutil.copy({str(path)!r}, {str(whole)!r}); x = {place!r}; "
        f"a, b = h5py.File({str(path)!r}), h5py.File({str(whole)!r}, 'r+'); del b[x]; {copied}"
    )
    why = "is in another file, but only data in the file itself are read"
    if followed_now() is not None:
        why = "is in raw files, or in files named by a pattern or of a size that grows, which are not read"
    why += "; this writes a file with all:"
    return wrong(file, name, f"{why} python -c {shlex.quote(code)}")


@contextmanager
def reading(file: h5py.File, name: str, checked_size: bool = False) -> Iterator[None]:
    """Raise SourceError, naming an object, where the block finds it damaged; no failure of a file system."""
    try:
        yield
    except UNREADABLE as e:
        if is_failure(e) or (checked_size and isinstance(e, MemoryError)):
            raise
        why = f"cannot be read ({e}): the file is damaged; copy it again"
        raise wrong(file, name, why) from e


def wrong(file: h5py.File, name: str, why: str) -> SourceError:
    return SourceError(f"{name} of {file_name(file)} {why}")


def file_name(file: h5py.File) -> str:
    return Path(os.fsdecode(file.filename)).name
