"""Ingest and fit of the scans of a watched folder, on workers that stay warm between them."""

import os
from contextlib import ExitStack
from pathlib import Path

from distributed import Client

import homodyne_dask as hd
from homodyne_dask.cli.commands.ingest import MIN_BYTES_FOR_WORKERS, FileOptions
from homodyne_dask.cli.exit_status import DISK_FULL
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.run_fits import FitOfStore, model_of
from homodyne_dask.cli.worker_options import workers_for_small_fits
from homodyne_dask.errors import ClusterError, FileReadError, HomodyneDaskError, SourceError
from homodyne_dask.results.files.folder import FolderInUse
from homodyne_dask.store.files import open_without_waiting

AHEAD = 2
"""Small fits given to each thread: one to work on, one to go on with."""


def may_pass(error: BaseException) -> bool:
    """Return whether what failed may succeed later as it is: a disk, a folder, workers."""
    if isinstance(error, ClusterError):
        return type(error.__cause__).__name__ != "KilledWorker"  # it kills the next ones, too
    if isinstance(error, FolderInUse | OSError | FileReadError):
        return True
    return (
        isinstance(error, HomodyneDaskError)
        and not isinstance(error, SourceError)
        and isinstance(error.__cause__, OSError)
    )


def concerns_all(error: BaseException) -> bool:
    """Return whether what may pass concerns all files: the workers, or a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in DISK_FULL
    return may_pass(error) and (full or isinstance(error, ClusterError))


class ScanFitter:
    """Fits of one configuration, one scan after another or side by side, on the same workers."""

    def __init__(self, config: FitConfig, pictures: str, nexus: bool, reading: FileOptions) -> None:
        self.config, self.written, self.reading = config, (pictures, nexus), reading
        self.model = model_of(config)
        self.held = ExitStack()
        self.client: Client | None = None
        self.threads = 1

    def connect(self) -> None:
        """Connect to the workers that the options choose, or start some on this machine, once.

        Raises ClusterError where there are none.
        """
        if self.client is None:
            workers = self.held.enter_context(workers_for_small_fits(self.config))
            self.client, self.threads = workers

    def close(self) -> None:
        """End the workers that were started, and leave the others."""
        self.client = None
        self.held.close()

    @property
    def at_once(self) -> int:
        """Number of scans that are worked on at the same time."""
        return AHEAD * self.threads

    def begin(self, source: Path, store: Path, folder: Path) -> FitOfStore:
        """Ingest a file, or go on with it, and begin the fit whose result goes into a folder."""
        with open(source, "rb", opener=open_without_waiting) as file:  # a refusal may pass
            large = os.fstat(file.fileno()).st_size >= MIN_BYTES_FOR_WORKERS
        client = self.client if large else None
        hd.ingest(source, store, client=client, **self.reading.model_dump())
        assert self.client is not None  # it was connected before
        config = self.config.replaced(data=[store], output=folder)
        return FitOfStore(config, self.client, *self.written)
