"""Ingest and fit of the scans of a watched folder, on workers that stay warm between them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributed import Client

import homodyne_dask as hd
from homodyne_dask.cli import progress_bar
from homodyne_dask.cli.commands.ingest import MIN_BYTES_FOR_WORKERS, FileOptions
from homodyne_dask.cli.exit_status import DISK_FULL
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.run_fits import fit_jobs, model_of
from homodyne_dask.cli.worker_options import workers_are_local, workers_for_small_fits
from homodyne_dask.errors import ClusterError, FileReadError, HomodyneDaskError, SourceError
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.series.many_fits import begun, find_previous
from homodyne_dask.results.files.result_folder import FolderInUse
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.files import open_without_waiting

AHEAD = 2
"""Small fits given to each thread: one to work on, one to go on with."""


def may_pass(error: BaseException) -> bool:
    """Return whether what failed may succeed later as it is: a disk, a folder, workers."""
    if isinstance(error, ClusterError):
        return type(error.__cause__).__name__ != "KilledWorker"  # it kills the next ones, too
    if isinstance(error, FolderInUse | OSError | FileReadError):
        return True
    ours = isinstance(error, HomodyneDaskError) and not isinstance(error, SourceError)
    return ours and isinstance(error.__cause__, OSError)


def concerns_all(error: BaseException) -> bool:
    """Return whether what may pass concerns all files: the workers, or a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in DISK_FULL
    return may_pass(error) and (full or isinstance(error, ClusterError))


class FitOfStore:
    """The fit of a single store, if it is small on a worker already.

    What is left in its folder is kept where it is of the same fit, and else replaced.
    """

    def __init__(self, config: FitConfig, client: Client, pictures: str, nexus: bool) -> None:
        model, (job,) = model_of(config), fit_jobs(config)
        job = job._replace(overwrite=True, pictures=pictures, nexus=nexus)
        given = [job], [find_previous(model, job)], model, client, client
        self.held = ExitStack()
        (self.fit,) = self.held.enter_context(begun(*given, workers_are_local(config)))

    def ended(self) -> bool:
        """Return whether the fit on a worker has ended; another one is made by `result`."""
        return self.fit.ended()

    def result(self) -> FitResult:
        """Return the result, of a fit made here where no worker made it; raises what made it fail."""

        @contextmanager
        def progress_shown(*_: object) -> Iterator[Sequence[Callback]]:
            with progress_bar.progress_on_stderr() as show:
                yield [show]

        with self.held:
            output = self.fit.output(progress_shown)
        if output.result is None:
            raise output.error or AssertionError
        return output.result

    def close(self) -> None:
        """Give up the fit on a worker."""
        self.held.close()


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
