"""Which files of a watched folder are fitted or refused, in one small file.

It is written after each fit. What a watcher began when it was killed is begun again, and goes on: ingest and
fit keep what is in their folders. The file holds no paths: whoever wrote it, only stores and results in the
folder of the results are touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.cli.commands.ingest import FileOptions
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.shared_options import CLUSTER
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fit_rows import SCANS
from homodyne_dask.results.files import json_files
from homodyne_dask.results.files.result_folder import index_files
from homodyne_dask.store.files import remove_tree

STATE, STORES = "watch.json", "stores"
"""The file, and the folder of the stores, both in the folder of the results."""
_REMEDY = "give another --output, or remove that folder"
FORMAT = json_files.Format("homodyne_dask watch", 2, STATE, _REMEDY, dict, sealed=True)
_NOT_OF_THE_FIT = {"data", "output", "overwrite", "checkpoint", *CLUSTER}
_NOT_OF_THE_FIT |= {"pictures", "nexus", "strict"}
"""Keys of a configuration on which no number of a result depends: files and workers."""


class EndedFile(NamedTuple):
    """A file that has its result, or was refused."""

    stamp: Stamp
    problem: str = ""
    """Why it was refused."""


@dataclass
class WatchState:
    results: Path
    fit: Mapping[str, object]
    """Model and options of all fits."""
    ended: dict[str, EndedFile] = field(default_factory=dict)

    def check_place(self) -> None:
        """Raise FileNotFoundError where the folder is gone, as in a remount: nothing may make it anew."""
        (self.results / STATE).stat()

    def places(self, name: str) -> tuple[Path, Path]:
        """Return the store of a file and the folder of its result: A0123.hdf_fit for A0123.hdf."""
        name = Path(name).name
        return self.results / STORES / f"{name}.zarr", self.results / f"{name}_fit"

    def write(self, ended: Mapping[str, EndedFile]) -> None:
        """Write the file; where that fails, OSError, the state stays that of the file."""
        values = FORMAT.to_dict({"fit": self.fit, "files": ended})
        json_files.write_with_checksum(values, self.results / STATE)
        self.ended = dict(ended)


def fit_identity(config: FitConfig, reading: FileOptions) -> Mapping[str, object]:
    """Return what tells the fits of a configuration from others: model, options, selection, reading."""
    values = config.model_dump(mode="json", exclude={*_NOT_OF_THE_FIT})
    return plain_values(
        values | {"reading": reading.model_dump(mode="json", exclude={"gap", "average"})}
    )


def open_state(results: Path, fit: Mapping[str, object]) -> WatchState:
    """Return the state in a folder, which is begun where there is none.

    Raises OptionError for fits of other options or another index, SourceError for a damaged file.
    """
    file, stores, state = results / STATE, results / STORES, WatchState(results, fit)
    if stores.is_symlink():
        raise OptionError(f"{stores} is a link: remove it, or give another --output")
    if not file.exists():
        if any(index.exists() for index in index_files(results, SCANS)):
            raise OptionError(f"{results} contains the index of other scans: give another --output")
        state.write({})
        return state
    read = FORMAT.read(file)
    with json_files.missing_values(file):
        fit_before = dict(read["fit"])
        for name, (stamp, problem) in read["files"].items():
            state.ended[name] = EndedFile(Stamp(*stamp), problem)
    different = [key for key in {**fit_before, **fit} if fit_before.get(key) != fit.get(key)]
    if different:
        raise OptionError(
            f"{results} contains fits with another {different[0]}: give another --output, or the options "
            f"with which they were made"
        )
    return state


def remove_store(store: Path) -> None:
    """Remove a store that was just ingested; it is moved first: no part of one is ever found in its place."""
    removed = store.with_name(".removed")
    remove_tree(removed)  # of a watcher that was killed
    store.rename(removed)
    remove_tree(removed)
