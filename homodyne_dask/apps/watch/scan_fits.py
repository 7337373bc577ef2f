"""Ingest and fit of the scans of a watched folder, on workers that stay warm between them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from distributed import Client, Future

import homodyne_dask as hd
from homodyne_dask.cli.commands.ingest import MIN_BYTES_FOR_WORKERS
from homodyne_dask.cli.exit_status import Interrupted, error_sentence
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.fit_job import (
    FitJob,
    MoreFiles,
    PreviousFit,
    configured_model,
    find_previous,
    fit_job,
    fit_jobs,
)
from homodyne_dask.cli.several_fits import opened, submitted_jobs, wait_for_fit
from homodyne_dask.cli.worker_options import workers_are_local, workers_for_small_fits
from homodyne_dask.errors import ClusterError, FileReadError, HomodyneDaskError, SourceError
from homodyne_dask.results.data.fit_rows import PARTS, SeriesEntry
from homodyne_dask.results.files.folder import FolderInUse
from homodyne_dask.results.files.scans_index import write_index

FILES_FOR_WORKERS = 8
"""Files from which workers are started: fewer are fitted sooner in this process."""
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


class FitsOfScan:
    """The fits of one scan, small ones on workers already: one, or one for each of its parts."""

    def __init__(self, config: FitConfig, client: Client | None, more: MoreFiles) -> None:
        self.config, self.client, self.more = config, client, more
        self.model = model = configured_model(config)
        # what is left in their folder is of a fit that was killed
        self.jobs = [opened(job)._replace(replace=True) for job in fit_jobs(config)]
        self.before: list[PreviousFit] = [find_previous(model, job) for job in self.jobs]
        new = [job for job, of in zip(self.jobs, self.before, strict=True) if of.nothing]
        self.held = ExitStack()
        self.sent: dict[Path, Future] = self.held.enter_context(
            submitted_jobs(config, client, model, new, more)
        )

    def ended(self) -> bool:
        """Return whether all fits on workers have ended; the others are made by `entries`."""
        return all(future.done() for future in self.sent.values())

    def entries(self) -> list[SeriesEntry]:
        """Return the fits, made here where no worker made them; those of parts with their index.

        Raises what made the one fit fail, or a fit of parts in a way that may pass.
        """
        with self.held:
            found = [self._entry(job, of) for job, of in zip(self.jobs, self.before, strict=True)]
        if self.config.over:
            where = self.jobs[0].folder.parent
            write_index(where, self.model.names, found, len(found), PARTS)
        return found

    def close(self) -> None:
        """Give up the fits on workers."""
        self.held.close()

    def _entry(self, job: FitJob, before: PreviousFit) -> SeriesEntry:
        try:
            if before.error is not None:
                raise before.error
            result = before.result or self._fit(job, before.resume)
        except Exception as e:
            if not self.config.over or may_pass(e) or isinstance(e, Interrupted):
                raise
            return SeriesEntry(job.name, job.folder, None, error_sentence(e, then=""), job.at)
        return SeriesEntry(job.name, job.folder, result, "", job.at)

    def _fit(self, job: FitJob, resume: bool) -> hd.FitResult:
        sent = self.sent.pop(job.folder, None)
        output = None if sent is None else wait_for_fit(self.client, sent)
        result, _ = fit_job(
            self.config, self.model, job, self.client, resume, self.more, output=output
        )
        return result


class ScanFitter:
    """Fits of one configuration, one scan after another or side by side, on the same workers."""

    def __init__(self, config: FitConfig, more: MoreFiles, time_offset: float, stay: bool) -> None:
        """`stay`: start workers for whatever comes."""
        self.config, self.more, self.time_offset, self.stay = config, more, time_offset, stay
        self.model = configured_model(config)
        self.held = ExitStack()
        self.client: Client | None = None
        self.threads = 1

    def connect(self, expected: int) -> None:
        """Connect to the workers that the options choose, once; else start some for many scans.

        Raises ClusterError where there are none.
        """
        many = self.stay or expected >= FILES_FOR_WORKERS
        if self.client is None and (many or not workers_are_local(self.config)):
            workers = self.held.enter_context(workers_for_small_fits(self.config))
            self.client, self.threads = workers

    def close(self) -> None:
        """End the workers that were started, and leave the others."""
        self.client = None
        self.held.close()

    @property
    def at_once(self) -> int:
        """Number of scans that are worked on at the same time."""
        return 1 if self.client is None else AHEAD * self.threads

    def ingest(self, source: Path, store: Path) -> str:
        """Write a store, or go on with it; return the SHA-256 of the source as it was read."""
        large = source.stat().st_size >= MIN_BYTES_FOR_WORKERS
        client = self.client if large else None
        hd.ingest(source, store, time_offset=self.time_offset, client=client)
        return hd.open_dataset(store).attrs["source_sha256"]

    def begin(self, store: Path, folder: Path) -> FitsOfScan:
        """Begin the fits of a store, whose results go into a folder."""
        config = replace(self.config, data=[store], output=folder)
        return FitsOfScan(config, self.client, self.more)

    def load(self, folder: Path) -> Sequence[SeriesEntry]:
        """Return the fits in a folder of results; raises SourceError where they cannot be read."""
        if not self.config.over:
            return [SeriesEntry(folder.name, folder, hd.load_result(folder))]
        return hd.load_series(folder).entries
