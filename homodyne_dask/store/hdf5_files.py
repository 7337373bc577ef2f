"""HDF5 files opened for reading, of which nothing but themselves is read.

An untrusted file could otherwise have any file of the disk read: by external links, external storage and
virtual datasets. Every failure is a SourceError that names the object.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]

from homodyne_dask.errors import SourceError, require_package
from homodyne_dask.store.files import is_failure, is_file, patiently

UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)
MAX_LINKS = 8
"""Soft links that lead to one another."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    if not is_file(path):
        raise SourceError(f"{path} is not a file: check the name")
    with patiently(path, partial(_opened, path)) as file:
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


def object_at(file: h5py.File, name: str) -> h5py.Dataset | h5py.Group | None:
    """Return the object of that name, None if there is none; what lies in another file is refused."""
    with reading(file, name):
        item = follow_links(file, name)
        if isinstance(item, h5py.Dataset):
            _ = item.dtype, item.shape  # raise here when they are damaged
            if item.external or item.is_virtual:
                raise _elsewhere(
                    file, name, str(item.name), "b[x] = a[x][...]; b[x].attrs.update(a[x].attrs)"
                )
            _register_filters(item)
    return item


def _register_filters(dataset: h5py.Dataset) -> None:
    """Load the compression filters that beamlines use, where a dataset has one that HDF5 lacks."""
    properties = dataset.id.get_create_plist()
    numbers = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
    if missing := [number for number in numbers if not h5py.h5z.filter_avail(number)]:
        what = f"{dataset.name} of {file_name(dataset.file)} (compressed with HDF5's filter {missing[0]})"
        require_package(what, "hdf5plugin", "filters")


def follow_links(
    file: h5py.File, name: str, links: int = MAX_LINKS
) -> h5py.Dataset | h5py.Group | None:
    """Return the object that a name leads to, link by link, without opening any other file."""
    item: Any = file
    for step in name.encode("utf-8", "surrogateescape").split(b"/"):
        if step in (b"", b"."):
            continue
        if not isinstance(item, h5py.Group) or not item.id.links.exists(step):
            return None
        kind = item.id.links.get_info(step).type  # h5py's own look-up takes names in UTF-8 alone
        if kind == h5l.TYPE_EXTERNAL:
            place = f"{as_text(item.name or b'').rstrip('/')}/{as_text(step)}"
            raise _elsewhere(file, name, place, "a.copy(a[x], b, x)")
        if kind == h5l.TYPE_SOFT:
            if not links:
                raise KeyError(f"{as_text(step)} is a link, in a chain of too many links")
            target = as_text(item.id.links.get_val(step))
            target = target if target.startswith("/") else f"{as_text(item.name or b'')}/{target}"
            item = follow_links(file, target, links - 1)
        else:
            item = item[step]
    return item


def _elsewhere(file: h5py.File, name: str, place: str, copied: str) -> SourceError:
    """Return the error with a command that writes a whole file; copied: what copies x from file a to b."""
    path = Path(os.fsdecode(file.filename))
    whole = path.with_name(f"{path.stem}_whole{path.suffix}")
    code = (
        f"import h5py, shutil; shutil.copy({str(path)!r}, {str(whole)!r}); x = {place!r}; "
        f"a, b = h5py.File({str(path)!r}), h5py.File({str(whole)!r}, 'r+'); del b[x]; {copied}"
    )
    why = "is in another file, but only data in the file itself are read; this writes one with all:"
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
