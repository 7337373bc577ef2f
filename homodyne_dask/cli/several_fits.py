"""Several fits in one command, of several stores or of the parts of one store.

A fit that fails does not stop the others; an index lists them all.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.cli.earlier_results import Earlier, earlier
from homodyne_dask.cli.exit_status import (
    BAD_INPUT,
    BUG,
    NOT_CONVERGED,
    Interrupted,
    error_sentence,
    print_error,
)
from homodyne_dask.cli.printing import echo, echo_progress
from homodyne_dask.cli.shared_options import selected
from homodyne_dask.errors import HomodyneDaskError, OptionError

if TYPE_CHECKING:
    from distributed import Client, Future

    from homodyne_dask.cli.configuration import FitConfig
    from homodyne_dask.fitting.series.parallel_fits import FitOutput
    from homodyne_dask.models import Model
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.results.data.fit_rows import SeriesEntry
    from homodyne_dask.results.files.folder import WriteFiles
    from homodyne_dask.store.scan import Scan, Selection


MOST_DRAWN = 8
"""Number of fits of one command up to which the figures of each are drawn by default."""


class FitJob(NamedTuple):
    """One fit of a command."""

    name: str
    folder: Path
    """Of its result."""
    scan: "Callable[[], Scan]"
    """Opens the data; raises for a damaged store."""
    options: dict[str, Any]
    """Of `fit`."""
    at: Mapping[str, float]
    """Coordinates of a part of a scan (see `Part`), else empty."""
    replace: bool = False
    """Whether a result in its folder, of data that changed since, is replaced."""


class MoreFiles(NamedTuple):
    """What is written beside the numbers of a result: the last arguments of `write_result`."""

    homodyne: "WriteFiles | None"
    """Writes the files of homodyne."""
    pictures: bool
    nexus: bool
    """Whether `result.nx.h5` is written."""


RunFit = Callable[[FitJob, bool, "Future | None"], "FitResult"]
"""Runs a job, with `resume` from its checkpoint; a future stands for a fit submitted to a worker."""


def fit_jobs(config: "FitConfig") -> list[FitJob]:
    """Return a job for each store, or with `over` one for each part of the one store."""
    return _parts(config) if config.over else _stores(config)


def opened(job: FitJob) -> FitJob:
    """Return a job that opens its data now, once, if they are small: it soon is with a worker.

    Others are opened when it is their turn, a damaged store when its error is reported.
    """
    from homodyne_dask.fitting.series.parallel_fits import is_small

    try:
        scan = job.scan()
    except HomodyneDaskError:
        return job
    return job._replace(scan=lambda: scan) if is_small(scan) else job


def _stores(config: "FitConfig") -> list[FitJob]:
    if config.windows is not None:
        raise OptionError("windows belong to over 'age': give --over age too")
    return [
        FitJob(store.name, folder, partial(selected, config, store), config.fit_options(), {})
        for store, folder in zip(config.data, _folders(config), strict=True)
    ]


def _parts(config: "FitConfig") -> list[FitJob]:
    from homodyne_dask.fitting.request import prepare, require_gap
    from homodyne_dask.fitting.series.rings_and_windows import options_of, parts_of
    from homodyne_dask.models import model_named
    from homodyne_dask.results.files.folder import default_folder

    if len(config.data) > 1:
        raise OptionError(
            f"over is for one store, and {len(config.data)} are given: fit each by itself"
        )
    (store,) = config.data
    scan, over = selected(config, store), config.over or ""
    require_gap(
        prepare(scan, model_named(config.model), **config.fit_options())
    )  # an error is reported once, not for each part
    where = config.folder or default_folder(store, over)
    return [
        FitJob(
            part.name,
            where / part.folder,
            lambda scan=part.scan: scan,
            options_of(part, scan, config.fit_options()),
            part.at,
        )
        for part in parts_of(scan, over, config.windows)
    ]


def fit_all(
    config: "FitConfig",
    model: "Model",
    jobs: Sequence[FitJob],
    client: "Client | None",
    resume: bool,
    fit: RunFit,
    more: MoreFiles,
) -> int:
    """Run every job, list them in an index, and return the worst exit status.

    With `resume`, jobs that have a result of the same fit keep it, and those whose data, model or
    program changed since are fitted again; one with other options raises OptionError before anything
    is written. Small fits are submitted to the workers of the client in advance, each as one task.
    """
    from homodyne_dask.results.data.series import FitSeries
    from homodyne_dask.results.files import scans_index as index
    from homodyne_dask.results.files.folder import locked_folder

    kind = index.PARTS if config.over else index.SCANS
    where = _index_folder(config, jobs)
    entries, statuses, files = [], set(), []
    with locked_folder(where, f".{kind}.lock"):
        index.check_index(where, config.overwrite or resume, kind)
        left = [earlier(model, job) if resume else Earlier() for job in jobs]
        jobs = [j._replace(replace=bool(of.changed)) for j, of in zip(jobs, left, strict=True)]
        new = [
            j for j, of in zip(jobs, left, strict=True) if not (of.result or of.resume or of.error)
        ]
        with submitted_jobs(config, client, model, new, more) as sent:
            for job, before in zip(jobs, left, strict=True):
                echo_progress(f"\n{job.name}, {len(entries) + 1} of {len(jobs)}")
                entry, status = _run_job(job, before, fit, sent.pop(job.folder, None))
                entries.append(entry)
                statuses.add(status)
                files = index.write_index(where, model.names, entries, len(jobs), kind)
    if config.over:
        echo(f"\n{FitSeries(config.over, tuple(entries))}")
    echo(f"\n{index.outcome_counts(entries, len(entries), kind)}: {', '.join(map(str, files))}")
    return next((s for s in (BUG, BAD_INPUT, NOT_CONVERGED) if s in statuses), 0)


@contextmanager
def submitted_jobs(
    config: "FitConfig",
    client: "Client | None",
    model: "Model",
    jobs: Sequence[FitJob],
    more: MoreFiles,
) -> "Iterator[dict[Path, Future]]":
    """Yield the futures of the small fits submitted to workers, by folder of the result.

    Jobs with wrong options are not submitted: they raise when they are run. Workers on this machine
    write the folders too; others may not see them.
    """
    from homodyne_dask.cli.worker_options import workers_are_local
    from homodyne_dask.fitting.series.parallel_fits import FitRequest, submitted, whole_fit
    from homodyne_dask.results.files.folder import check_folder, checkpoint_in

    local = workers_are_local(config)
    fits: dict[Path, FitRequest] = {}
    for job in jobs if client is not None else ():
        with suppress(HomodyneDaskError):
            overwrite = config.overwrite or job.replace
            check_folder(job.folder, checkpoint_in(job.folder), overwrite, resume=False)
            fits[job.folder] = FitRequest(
                job.scan(), job.options, (job.folder, more) if local else ()
            )
    with submitted(client, model, list(fits.values()), fit_into if local else whole_fit) as futures:
        pairs = zip(fits, futures, strict=True)
        yield {folder: future for folder, future in pairs if future is not None}


def fit_into(
    selection: "Selection",
    model: "Model",
    options: Mapping[str, Any],
    folder: Path,
    more: MoreFiles,
) -> "FitOutput":
    """Fit a small scan and write the folder of its result; runs as a task on a worker."""
    from homodyne_dask.fitting.series.parallel_fits import whole_fit
    from homodyne_dask.results.files.folder import checkpoint_in, claimed_folder, write_result
    from homodyne_dask.store.scan import open_selection

    # check_folder has said before the first fit that it may be overwritten
    with claimed_folder(folder, checkpoint_in(folder), overwrite=True, resume=False):
        output = whole_fit(selection, model, options)
        files = write_result(output.result, open_selection(selection), folder, *more)
    return output._replace(files=tuple(files))


def _index_folder(config: "FitConfig", jobs: Sequence[FitJob]) -> Path:
    if config.over:
        return jobs[0].folder.parent
    return config.folder or Path(os.path.commonpath([job.folder.resolve().parent for job in jobs]))


def _folders(config: "FitConfig") -> list[Path]:
    """Return the folder of each result: beside its store, or in the folder `output`."""
    from homodyne_dask.results.files.folder import default_folder

    beside = [default_folder(store) for store in config.data]
    if len(beside) == 1:
        return [config.folder or beside[0]]
    folders = [config.folder / folder.name for folder in beside] if config.folder else beside
    for n, folder in enumerate(folders):
        if folder in folders[:n]:
            first = config.data[folders.index(folder)]
            raise OptionError(
                f"{first} and {config.data[n]} would both write {folder}: fit them one by one, "
                f"each with its --output"
            )
    return folders


def _run_job(
    job: FitJob, before: Earlier, fit: RunFit, sent: "Future | None"
) -> "tuple[SeriesEntry, int]":
    """Return the entry of one job in the index and its exit status; raises only Interrupted."""
    from homodyne_dask.results.data.fit_rows import SeriesEntry

    if before.result is not None:
        echo_progress(f"{job.folder}/ already holds its result")
    if before.changed:
        echo_progress(f"{job.folder}/ is fitted again: {before.changed} changed since")
    try:
        if before.error is not None:
            raise before.error
        result = before.result or fit(job, before.resume, sent)
    except Interrupted:
        raise
    except Exception as e:  # not even a bug may stop the other fits
        return SeriesEntry(job.name, job.folder, None, error_sentence(e), job.at), print_error(e)
    status = 0 if result.converged else NOT_CONVERGED
    return SeriesEntry(job.name, job.folder, result, "", job.at), status
