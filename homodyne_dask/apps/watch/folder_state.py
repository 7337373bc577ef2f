"""What has become of the files of a watched folder, in one small file.

It is written before and after each step, so that a watcher that is killed goes on where it stopped. Names
in it are plain: whoever wrote it, only stores and results of ours in the folder of the results are touched.
"""

import errno
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.errors import OptionError, SourceError, shown
from homodyne_dask.results.files.folder import default_folder
from homodyne_dask.results.files.json_files import (
    is_plain_name,
    missing_values,
    read_with_checksum,
    write_with_checksum,
)
from homodyne_dask.results.files.scans_index import holds_results
from homodyne_dask.store.own_stores import remove_own_store
from homodyne_dask.store.schema import store_beside

STATE, STORES = "watch.json", "stores"
"""The file, and the folder of the stores, both in the folder of the results."""
FORMAT, VERSION = "homodyne_dask watch", 1
STEM_BYTES = 200
"""Most bytes of the stem of a file that names of stores and folders repeat: these are longer."""
_NOT_OF_THE_FIT = {
    "data", "output", "overwrite", "checkpoint",
    "scheduler", "key", "scheduler_file", "site", "jobs",
}  # fmt: skip
"""Keys of a configuration on which no number of a result depends: files and workers."""


@dataclass(frozen=True)
class FileRecord:
    """A file that was fitted or refused, as it was then."""

    size: int
    mtime_ns: int
    digest: str
    """SHA-256 of its content."""
    problem: str = ""
    """Why its content cannot be fitted."""
    ends: str = ""
    """SHA-256 of its beginning and end."""

    @property
    def stamp(self) -> Stamp:
        """What a look showed of it."""
        return Stamp(self.size, self.mtime_ns, self.ends)


@dataclass(frozen=True)
class ContentRecord:
    """A content that a file has or had: each is fitted once."""

    name: str
    """The file in which it was first seen."""
    store: str
    """Its store, relative to the folder of the results; '' once that is deleted."""
    folder: str = ""
    """The folder of its result; '' before its fit begins."""
    fitted: bool = False


@dataclass
class WatchState:
    """Files and contents, in the order in which they came."""

    results: Path
    fit: dict[str, object]
    """Model and options of all fits."""
    over: str | None = None
    files: dict[str, FileRecord] = field(default_factory=dict)
    contents: dict[str, ContentRecord] = field(default_factory=dict)
    """By digest."""
    folders: dict[str, str] = field(default_factory=dict)
    """The folder of the last result of each file."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The place of each file among all."""
    moves: list[tuple[str, str]] = field(default_factory=list)
    """Folders that are to be renamed, or were: each is renamed where the new name is free."""

    def save(self) -> None:
        """Write the file, whole or not at all; OSError where that is not possible."""
        write_with_checksum(
            {
                "format": FORMAT,
                "format_version": VERSION,
                "fit": self.fit,
                "files": {name: asdict(of) for name, of in self.files.items()},
                "contents": {digest: asdict(of) for digest, of in self.contents.items()},
                "folders": self.folders,
                "numbers": self.numbers,
                "moves": self.moves,
            },
            self.results / STATE,
        )

    def check_place(self) -> None:
        """Raise FileNotFoundError where the folder of the results is gone, as in a remount.

        Nothing may make it anew meanwhile, in the place where it is to be mounted. OptionError where its
        stores are behind a link.
        """
        _check_stores(self.results)
        if not (self.results / STATE).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.results))

    def begin(self, digest: str, name: str) -> list[str]:
        """Note that a content is ingested; return the stores of unfinished ones before it, to be removed."""
        held = self.contents.get(digest)
        before = [
            of
            for of, content in self.contents.items()
            if content.name == name and of != digest and not content.fitted
        ]
        stores = [self.contents.pop(of).store for of in before]
        if held is None:
            self.contents[digest] = ContentRecord(name, self._free_store(name))
        return stores

    def claim_folder(self, digest: str) -> Path:
        """Give a content the folder of its file; what another content has there is kept under a number.

        The folders themselves are renamed by `move`, after `save`.
        """
        content = self.contents[digest]
        target = self.folders.setdefault(content.name, self._free_folder(content.name))
        if content.folder != target:
            for other, of in self.contents.items():
                if of.folder == target:
                    self._rename(other, self._numbered(target))
            if content.folder:
                self._rename(digest, target)
            self.contents[digest] = replace(self.contents[digest], folder=target)
        return self.results / target

    def _rename(self, digest: str, to: str) -> None:
        content = self.contents[digest]
        self.moves.append((content.folder, to))
        self.contents[digest] = replace(content, folder=to)

    def move(self) -> None:
        """Rename folders as it was noted; where that was done before nothing is left to do.

        Raises OptionError for a folder that holds no result.
        """
        for old, new in self.moves:
            here, there = self.results / old, self.results / new
            if os.path.lexists(here) and not os.path.lexists(there):
                if not holds_results(here):
                    raise OptionError(
                        f"{here} is recorded as a result but is not one: move it elsewhere, or give another "
                        f"--output"
                    )
                here.rename(there)
        self.moves = []

    def fitted(self, name: str, stamp: Stamp, digest: str) -> None:
        """Note that the content of a file has its result."""
        self.files[name] = _record(stamp, digest)
        self.contents[digest] = replace(self.contents[digest], fitted=True)

    def refused(self, name: str, stamp: Stamp, digest: str, problem: str) -> None:
        """Note that the content of a file cannot be fitted."""
        self.files[name] = _record(stamp, digest, problem)
        self.contents.pop(digest, None)

    def store_removed(self, digest: str) -> None:
        """Note that the store of a content is deleted."""
        self.contents[digest] = replace(self.contents[digest], store="")

    def remove_store(self, store: str) -> bool:
        """Remove a store, if it is there; return False for anything else, which stays."""
        _check_stores(self.results)
        return not store or remove_own_store(self.results / store)

    def _free_store(self, name: str) -> str:
        """Return a name of a store that no content has and nobody else."""
        first = Path(STORES, _store_name(name))
        taken = {content.store for content in self.contents.values()}
        number, store = 1, first
        while str(store) in taken or os.path.lexists(self.results / store):
            number += 1
            store = first.with_name(re.sub(r"(_c2)?\.zarr$", f"_{number}_c2.zarr", first.name))
        return str(store)

    def _free_folder(self, name: str) -> str:
        """Return A0123_fit for A0123_results.hdf, with the whole name where another file has that."""
        folder = default_folder(Path(_store_name(name)), self.over).name
        return f"{_cut(name)}_fit" if folder in self.folders.values() else folder

    def _numbered(self, folder: str) -> str:
        """Return the folder with the first number that is free."""
        taken = {content.folder for content in self.contents.values()}
        number = 1
        while f"{folder}.{number}" in taken or os.path.lexists(self.results / f"{folder}.{number}"):
            number += 1
        return f"{folder}.{number}"


def fit_identity(config: FitConfig, time_offset: float) -> Mapping[str, object]:
    """Return what tells the fits of a configuration from others: model, options, selection."""
    values = {name: one for name, one in config.plain().items() if name not in _NOT_OF_THE_FIT}
    return values | {"time_offset": time_offset}


def read_state(results: Path, fit: Mapping[str, object], over: str | None) -> WatchState:
    """Return the state in a folder of results, an empty one where there is none.

    fit: model and options. Raises OptionError where results of other options are there, SourceError for a
    damaged file.
    """
    _check_stores(results)
    file, new = results / STATE, WatchState(results, dict(fit), over)
    if not file.exists():
        return new
    remedy = "give another --output, or remove that folder"
    read = read_with_checksum(file, FORMAT, VERSION, remedy, required=True)
    with missing_values(file):
        files = {name: _typed(FileRecord, of) for name, of in read["files"].items()}
        contents = {digest: _typed(ContentRecord, of) for digest, of in read["contents"].items()}
        folders, numbers = dict(read["folders"]), dict(read["numbers"])
        moves = [(old, new) for old, new in read["moves"]]
        before = dict(read["fit"])
        known = all(of.problem or contents[of.digest].folder for of in files.values())
        if not known or not all(type(numbers[name]) is int for name in files):
            raise ValueError("files without results")
        names = [*files, *folders, *folders.values(), *(name for move in moves for name in move)]
        names += [name for of in contents.values() for name in (of.name, of.folder or of.name)]
        stores = [of.store for of in contents.values() if of.store or not of.fitted]
        wrong = [name for name in names if not is_plain_name(name)]
        wrong += [store for store in stores if not _is_below_stores(store)]
    if wrong:
        raise SourceError(
            f"{file} names {shown(wrong[0])}, which is not in the expected folder: the file "
            f"was changed by another program; {remedy}"
        )
    different = [key for key in {**before, **fit} if before.get(key) != fit.get(key)]
    if different and any(content.fitted for content in contents.values()):
        raise OptionError(
            f"{results} contains fits with another {different[0]}: give another --output, or the options "
            f"with which they were made"
        )
    files = {} if different else files  # what was refused may be fitted now
    return WatchState(results, dict(fit), over, files, contents, folders, numbers, moves)


def _check_stores(results: Path) -> None:
    """Raise OptionError where the folder of the stores is a link."""
    stores = results / STORES
    if stores.is_symlink():
        raise OptionError(
            f"{stores} is a link to {stores.resolve()}, but stores are written and removed in a folder, "
            f"not through a link: remove the link, or give another --output"
        )


def _is_below_stores(store: str) -> bool:
    folder, _, name = store.partition("/")
    return folder == STORES and is_plain_name(name)


def _record(stamp: Stamp, digest: str, problem: str = "") -> FileRecord:
    return FileRecord(stamp.size, stamp.mtime_ns, digest, problem, stamp.ends)


def _typed[Record: FileRecord | ContentRecord](kind: type[Record], read: Any) -> Record:
    """Return a record as it was read; raises TypeError where one of its values is of another kind."""
    record = kind(**read)
    for one in fields(record):
        if type(value := getattr(record, one.name)) is not one.type:
            raise TypeError(f"{one.name} = {shown(value)}")
    return record


def _store_name(name: str) -> str:
    """Return the name of the store of a file, from which that of the folder of its result follows."""
    store = store_beside(Path(name)).name
    return f"{_cut(store.removesuffix('_c2.zarr'))}_c2.zarr"


def _cut(name: str) -> str:
    """Return a name that leaves room for more: of a long one its beginning, and a digest."""
    encoded = os.fsencode(name)
    if len(encoded) <= STEM_BYTES:
        return name
    return f"{encoded[: STEM_BYTES - 20].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:8]}"
