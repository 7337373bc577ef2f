"""Several fits in one command, of several stores or of the parts of one store.

A fit that fails does not stop the others; an index lists them all.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client, Future

from homodyne_dask.cli.exit_status import (
    BAD_INPUT,
    BUG,
    NOT_CONVERGED,
    Interrupted,
    error_sentence,
    print_error,
)
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.fit_job import FitJob, MoreFiles, PreviousFit, find_previous
from homodyne_dask.cli.printing import echo, echo_progress
from homodyne_dask.cli.worker_options import client_of, workers_are_local
from homodyne_dask.errors import HomodyneDaskError, in_line
from homodyne_dask.fitting.series import parallel_fits
from homodyne_dask.fitting.series.parallel_fits import FitOutput, FitRequest
from homodyne_dask.models import Model
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_rows import PARTS, SCANS, SeriesEntry, outcome_counts
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.files import folder as folders
from homodyne_dask.results.files import scans_index as index
from homodyne_dask.store.scan import Selection, open_selection

RunFit = Callable[[FitJob, bool, FitOutput | None], FitResult]
"""Runs a job, with `resume` from its checkpoint; an output is that of a worker which made the fit."""


def opened(job: FitJob) -> FitJob:
    """Return a job that opens its data now, once, if they are small: it soon is with a worker.

    Others are opened when it is their turn, a damaged store when its error is reported.
    """
    try:
        scan = job.scan()
    except HomodyneDaskError:
        return job
    return job._replace(scan=lambda: scan) if parallel_fits.is_small(scan) else job


@contextmanager
def shared_workers(
    config: FitConfig, jobs: Sequence[FitJob], drawn: bool
) -> Iterator[Client | None]:
    """Yield a client that all fits share, None where they need none; drawn: figures are drawn, too."""
    with client_of(config) as client:
        if client is not None:
            yield client
            return
        scans = []
        for job in jobs:
            with suppress(HomodyneDaskError):  # raised again by its fit
                scans.append(job.scan())
        many = parallel_fits.MIN_FITS_FOR_WORKERS, parallel_fits.MIN_DRAWN_FITS_FOR_WORKERS
        with parallel_fits.workers_for(scans, None, many[drawn]) as started:
            yield started


def fit_all(
    config: FitConfig,
    model: Model,
    jobs: Sequence[FitJob],
    client: Client | None,
    resume: bool,
    fit: RunFit,
    more: MoreFiles,
    together: Callable[[], FitSeries] | None = None,
) -> int:
    """Run every job, list them in an index, and return the worst exit status.

    together: makes the fits of all jobs in one, which are then only written.

    With `resume`, jobs that have a result of the same fit keep it, and those whose data, model or
    program changed since are fitted again; one with other options raises OptionError before anything
    is written. Small fits are submitted to the workers of the client in advance, each as one task.
    """
    kind = PARTS if config.over else SCANS
    where = jobs[0].folder.parent
    if not config.over:
        common = os.path.commonpath([job.folder.resolve().parent for job in jobs])
        where = config.folder or Path(common)
    entries, statuses, files = [], set(), []
    with folders.locked_folder(where, f".{kind}.lock"):
        index.check_index(where, config.overwrite or resume, kind)
        left = [find_previous(model, job) if resume else PreviousFit() for job in jobs]
        jobs = [j._replace(replace=bool(of.changed)) for j, of in zip(jobs, left, strict=True)]
        new = [job for job, of in zip(jobs, left, strict=True) if of.nothing]
        series = together and together()
        at = [job.folder for job in jobs]
        made = dict(zip(at, series.results, strict=True)) if series else {}
        known = series.global_fit if series else None
        with submitted_jobs(config, client, model, [] if made else new, more) as sent:
            for job, before in zip(jobs, left, strict=True):
                echo_progress(f"\n{in_line(job.name)}, {len(entries) + 1} of {len(jobs)}")
                future = sent.pop(job.folder, None)
                wait = None if future is None else partial(wait_for_fit, client, future)
                if (result := made.get(job.folder)) is not None:
                    wait = partial(FitOutput, (), result)
                entry, status = _run_job(job, before, fit, wait)
                entries.append(entry)
                statuses.add(status)
                files = index.write_index(where, model.names, entries, len(jobs), kind, known)
    if config.over:
        echo(f"\n{FitSeries(config.over, tuple(entries), known)}")
    echo(f"\n{outcome_counts(entries, len(entries), kind)}: {in_line(', '.join(map(str, files)))}")
    return next((s for s in (BUG, BAD_INPUT, NOT_CONVERGED) if s in statuses), 0)


@contextmanager
def submitted_jobs(
    config: FitConfig, client: Client | None, model: Model, jobs: Sequence[FitJob], more: MoreFiles
) -> Iterator[dict[Path, Future]]:
    """Yield the futures of the small fits submitted to workers, by folder of the result.

    Jobs with wrong options are not submitted: they raise when they are run. Workers on this machine
    write the folders too; others may not see them.
    """
    local = workers_are_local(config)
    fits: dict[Path, FitRequest] = {}
    for job in jobs if client is not None else ():
        with suppress(HomodyneDaskError):
            checkpoint = folders.checkpoint_in(job.folder)
            overwrite = config.overwrite or job.replace
            folders.check_folder(job.folder, checkpoint, overwrite, resume=False)
            written = (job.folder, more) if local else ()
            fits[job.folder] = FitRequest(job.scan(), job.options, written)
    task = fit_into if local else parallel_fits.whole_fit
    with parallel_fits.submitted(client, model, list(fits.values()), task) as futures:
        pairs = zip(fits, futures, strict=True)
        yield {folder: future for folder, future in pairs if future is not None}


def wait_for_fit(client: Client | None, sent: Future) -> FitOutput:
    """Wait for a fit that one worker makes; it has no checkpoint."""
    try:
        return parallel_fits.output_of(client, sent)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted: this fit was not saved; repeat the command with --resume to continue with it"
        ) from None


def fit_into(
    selection: Selection, model: Model, options: Mapping[str, Any], folder: Path, more: MoreFiles
) -> FitOutput:
    """Fit a small scan and write the folder of its result; runs as a task on a worker."""
    # check_folder has said before the first fit that it may be overwritten
    checkpoint = folders.checkpoint_in(folder)
    with folders.claimed_folder(folder, checkpoint, overwrite=True, resume=False):
        output = parallel_fits.whole_fit(selection, model, options)
        files = folders.write_result(output.result, open_selection(selection), folder, *more)
    return output._replace(files=tuple(files))


def _run_job(
    job: FitJob, before: PreviousFit, fit: RunFit, wait: Callable[[], FitOutput] | None
) -> tuple[SeriesEntry, int]:
    """Return the entry of one job in the index and its exit status; raises only Interrupted.

    wait: returns the output of the worker that makes the fit.
    """
    if before.result is not None:
        echo_progress(f"{in_line(str(job.folder))}/ already contains its result")
    if before.changed:
        echo_progress(
            f"{in_line(str(job.folder))}/ is fitted again; changed since the last fit: {before.changed}"
        )
    try:
        if before.error is not None:
            raise before.error
        result = before.result or fit(job, before.resume, wait and wait())
    except Interrupted:
        raise
    except Exception as e:  # not even a bug may stop the other fits
        return SeriesEntry(job.name, job.folder, None, error_sentence(e), job.at), print_error(e)
    status = 0 if result.converged else NOT_CONVERGED
    return SeriesEntry(job.name, job.folder, result, "", job.at), status
