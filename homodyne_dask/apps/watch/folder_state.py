"""What has become of the files of a watched folder, in one small file.

It is written before and after each step, so that a watcher that is killed goes on where it stopped. It
holds no paths: whoever wrote it, only stores and results of ours in the folder of the results are touched,
and nothing but what is a store of ours by what is in it is removed.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.cli.commands.ingest import FileOptions
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.shared_options import CLUSTER
from homodyne_dask.errors import OptionError, StoreError
from homodyne_dask.results.files.json_files import (
    missing_values,
    read_with_checksum,
    write_with_checksum,
)
from homodyne_dask.results.files.result_folder import default_folder
from homodyne_dask.store.arrays import read_metadata
from homodyne_dask.store.files import remove_tree
from homodyne_dask.store.schema import FORMAT as STORE_FORMAT
from homodyne_dask.store.schema import WORK_FOLDER, store_beside


def is_own_store(folder: Path) -> bool:
    """Return whether a folder is a store, one being made, or empty; a link is not one."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if (folder / WORK_FOLDER).is_dir() or not any(folder.iterdir()):
        return True
    try:
        return read_metadata(folder).get("attributes", {}).get("format") == STORE_FORMAT
    except StoreError:
        return False


def remove_own_store(folder: Path) -> bool:
    """Remove a store, its mark last, if it is there; return False for anything else, which stays."""
    if not is_own_store(folder):
        return not folder.exists(follow_symlinks=False)
    (folder / WORK_FOLDER).mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name != WORK_FOLDER:
            remove_tree(path)
    remove_tree(folder)
    return True


STATE, STORES = "watch.json", "stores"
"""The file, and the folder of the stores, both in the folder of the results."""
FORMAT, VERSION = "homodyne_dask watch", 1
_NOT_OF_THE_FIT = {"data", "output", "overwrite", "checkpoint", *CLUSTER}
"""Keys of a configuration on which no number of a result depends: files and workers."""


@dataclass(frozen=True)
class FileRecord:
    """What has become of a file: its fit was begun, it has its result, or it was refused."""

    number: int
    """Its place among all files, from 1 on."""
    numbered: bool
    """Whether the names of its store and folder have its number, as others have its name."""
    size: int
    mtime_ns: int
    done: bool = False
    problem: str = ""
    """Why it cannot be fitted; then it is done."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.size, self.mtime_ns)


@dataclass
class WatchState:
    results: Path
    fit: dict[str, object]
    """Model and options of all fits."""
    files: dict[str, FileRecord] = field(default_factory=dict)
    unsaved: bool = True

    def save(self) -> None:
        """Write the file where something is new, whole or not at all; raises OSError."""
        if self.unsaved:
            files = {name: asdict(of) for name, of in self.files.items()}
            values = {"format": FORMAT, "format_version": VERSION, "fit": self.fit, "files": files}
            write_with_checksum(values, self.results / STATE)
            self.unsaved = False

    def check_place(self) -> None:
        """Raise FileNotFoundError where the folder is gone, as in a remount: nothing may make it anew."""
        (self.results / STATE).stat()

    def is_done(self, name: str, stamp: Stamp) -> bool:
        record = self.files.get(name)
        return record is not None and record.done and record.stamp == stamp

    def places(self, name: str, record: FileRecord) -> tuple[Path, Path]:
        """Return the store of a file and the folder of its result: A0123_fit for A0123_results.hdf."""
        store = store_beside(Path(name)).name
        if record.numbered:
            store = f"{store.removesuffix('_c2.zarr')}_{record.number}_c2.zarr"
        folder = default_folder(Path(store)).name
        return self.results / STORES / store, self.results / folder

    def begin(self, name: str, stamp: Stamp) -> tuple[Path, Path]:
        """Note that a fit begins; return its store, removed if of an earlier content, and folder."""
        record = self.files.get(name)
        if record is None:
            record = FileRecord(len(self.files) + 1, False, *stamp)
            others = {path for of in self.files.items() for path in self.places(*of)}
            if any(path in others or os.path.lexists(path) for path in self.places(name, record)):
                record = replace(record, numbered=True)
        elif record.stamp != stamp:
            remove_own_store(self.places(name, record)[0])
        self._note(name, FileRecord(record.number, record.numbered, *stamp))
        return self.places(name, record)

    def end(self, name: str, problem: str = "") -> None:
        self._note(name, replace(self.files[name], done=True, problem=problem))

    def forget_refused(self, there: Iterable[str]) -> set[str]:
        """Return the refused files that are gone, and note it: if one comes back, it is tried again."""
        gone = {name for name, record in self.files.items() if record.problem} - {*there}
        for name in gone:
            self._note(name, replace(self.files[name], done=False, problem=""))
        return gone

    def _note(self, name: str, record: FileRecord) -> None:
        self.files[name], self.unsaved = record, True
        self.save()


def fit_identity(config: FitConfig, reading: FileOptions) -> Mapping[str, object]:
    """Return what tells the fits of a configuration from others: model, options, selection, reading."""
    values = config.model_dump(mode="json", exclude={*_NOT_OF_THE_FIT})
    return values | {"reading": reading.model_dump(mode="json")}


def read_state(results: Path, fit: Mapping[str, object]) -> WatchState:
    """Return the state in a folder; raises OptionError for fits of other options, SourceError for damage."""
    file, stores = results / STATE, results / STORES
    if stores.is_symlink():
        raise OptionError(
            f"{stores} is a link to {stores.resolve()}, but stores are written and removed in a folder, "
            f"not through a link: remove the link, or give another --output"
        )
    if not file.exists():
        return WatchState(results, dict(fit))
    remedy = "give another --output, or remove that folder"
    read = read_with_checksum(file, FORMAT, VERSION, remedy, required=True)
    with missing_values(file):
        before = dict(read["fit"])
        files = {name: FileRecord(**of) for name, of in read["files"].items()}
    different = [key for key in {**before, **fit} if before.get(key) != fit.get(key)]
    if different:
        raise OptionError(
            f"{results} contains fits with another {different[0]}: give another --output, or the options "
            f"with which they were made"
        )
    return WatchState(results, dict(fit), files)
