"""Many fits: small ones side by side, each a task of a worker; larger ones in turn, on all workers.

A pass over few pairs takes less time than sending its tasks, and initial values are searched by one
process: small fits made one after the other would leave most of the workers idle.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from distributed import Client, Future

from homodyne_dask.cluster.local import cluster_errors, gathered, local_cluster
from homodyne_dask.errors import ClusterError, HomodyneDaskError, OptionError
from homodyne_dask.fitting.callbacks import show_on_page
from homodyne_dask.fitting.events import Callback, Event
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series.fit_job import FitOutput, Job, fit_job, is_small
from homodyne_dask.fitting.series.previous_fit import PreviousFit, find_previous
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.models import Model
from homodyne_dask.store.scan import Scan, open_selection
from homodyne_dask.sweep.admission import checked_workers
from homodyne_dask.sweep.plan import Plan

MIN_FITS_FOR_WORKERS = 16
"""Number of small fits from which workers are started: fewer are faster in the process of the caller."""
MIN_DRAWN_FITS_FOR_WORKERS = 8
"""The same number if figures are drawn, too."""


Observed = Callable[[Job, PreviousFit], AbstractContextManager[Sequence[Callback]]]
"""Returns a context for the fit of a job, with the callbacks of a fit that is made in this process."""


@contextmanager
def workers_for(scans: Sequence[Scan], client: Client | None, many: int) -> Iterator[Client | None]:
    """Yield the client for the small ones of these scans: the one given, or one of workers started for them.

    None where there are fewer than `many`. They get processes of one thread: a search for initial values
    occupies a whole process.
    """
    small = sum(map(is_small, scans))
    if client is not None or small < many:
        yield client
        return
    with local_cluster(min(cores(), small), threads=1) as started:
        yield started


def run_many(
    jobs: Sequence[Job],
    model: Model,
    client: Client | None,
    observed: Observed,
    *,
    resume: bool = False,
    many: int = MIN_FITS_FOR_WORKERS,
    shared_disk: bool = True,
) -> Generator[FitOutput, None, None]:
    """Make the fits of all jobs, and yield the output of each in turn; a fit that fails stops no other.

    resume: jobs that have a result of the same fit keep it, and those whose data, model or program changed
    since are fitted again. many: small fits from which workers are started. shared_disk: whether workers
    of the client write the same folders. Raises OptionError, before the first fit, where a folder has a fit
    of other options.
    """
    previous = [find_previous(model, job) if resume else PreviousFit() for job in jobs]
    scans = []
    for job, before in zip(jobs, previous, strict=True):
        with suppress(HomodyneDaskError):  # raised again by its fit
            scans += [] if before.result or job.made else [job.scan()]
    with (
        workers_for(scans, client, many) as connected,
        begun(jobs, previous, model, client, connected, shared_disk) as fits,
    ):
        for begun_fit in fits:
            yield begun_fit.output(observed)


@dataclass(frozen=True)
class BegunFit:
    """The fit of a job, on a worker already if it is small."""

    job: Job
    previous: PreviousFit
    model: Model
    client: Client | None
    future: Future | None = None

    def ended(self) -> bool:
        """Return whether the fit on a worker has ended; another one is made by `output`."""
        return self.future is None or self.future.done()

    def output(self, observed: Observed) -> FitOutput:
        """Return what becomes of the job, of a fit made here where no worker makes it."""
        before, job = self.previous, self.job
        with observed(job, before) as callbacks:
            try:
                if before.error is not None:
                    raise before.error
                if before.result is not None:
                    return FitOutput(before.result)
                if self.future is not None and self.future.client is not None:
                    made: FitOutput = gathered(self.future.client, [self.future])[0]
                    show_on_page(self.future.client, made.events)
                    if made.files or not job.written:
                        return made
                    job = job._replace(overwrite=True, made=made.result)
                given = {"client": self.client, "callbacks": callbacks, "resume": before.resume}
                result, files = fit_job(job, self.model, **given)
                return FitOutput(result, files=files)
            except Exception as e:  # not even a bug may stop the other fits
                return FitOutput(error=e)


@contextmanager
def begun(
    jobs: Sequence[Job],
    previous: Sequence[PreviousFit],
    model: Model,
    client: Client | None,
    connected: Client | None,
    shared_disk: bool,
) -> Iterator[list[BegunFit]]:
    """Yield all fits, the small ones submitted to the workers, which are checked first, for a `with`.

    client: of large ones. connected: of small ones.

    Dask drops fits whose futures are released. Raises ClusterError where the workers do not meet the
    requirements, OptionError where small fits are to be computed on GPUs.
    """
    fits = []
    for job, before in zip(jobs, previous, strict=True):
        job = job._replace(overwrite=job.overwrite or bool(before.changed))
        fits.append(BegunFit(job, before, model, client))
    small = {n: fit.job for n, fit in enumerate(fits) if connected and _may_be_sent(fit)}
    if any(job.options.get("device") == "gpu" for job in small.values()):
        raise OptionError(
            f"device = 'gpu' is not available: small fits ({len(small)} here) are computed in parallel on "
            f"processors; leave out device"
        )
    planned = connected and _first_planned(small.values(), model, connected)
    if connected is None or planned is None:
        yield fits
        return
    with checked_workers(connected, *planned):
        name = os.urandom(3).hex()
        with cluster_errors(connected):
            for n, job in small.items():
                task = job._replace(
                    scan=partial(open_selection, job.scan().selection),
                    written=job.written and shared_disk,
                    overwrite=True,  # that was checked
                )
                key = f"fit-{name}-{n:04d}"
                future = connected.submit(fit_on_worker, task, model, key=key, pure=False)
                fits[n] = replace(fits[n], future=future)
        yield fits


def _may_be_sent(fit: BegunFit) -> bool:
    """Return whether a fit is a small one that is still to be made, and whose folder may be written."""
    if fit.job.made or not fit.previous.nothing:
        return False
    try:
        small = is_small(fit.job.scan())
        if small and fit.job.written:
            from homodyne_dask.results.files import folder as folders  # with figures and pages

            checkpoint = folders.checkpoint_in(fit.job.folder)
            folders.check_folder(fit.job.folder, checkpoint, fit.job.overwrite, resume=False)
    except HomodyneDaskError:  # raised again when it is its turn
        return False
    return small


def _first_planned(jobs: Iterable[Job], model: Model, client: Client) -> tuple[Scan, Plan] | None:
    for job in jobs:
        try:
            request = prepare(job.scan(), model, **job.options)
            return request.scan, plan_for(request, client)
        except ClusterError:
            raise
        except HomodyneDaskError:  # raised again by the worker that fits
            continue
    return None


def fit_on_worker(job: Job, model: Model) -> FitOutput:
    """Make a small fit in this process, without a checkpoint; this is a task."""
    events: list[Event] = []
    result, files = fit_job(job, model, callbacks=[events.append], saved=False)
    return FitOutput(result, files=files, events=tuple(events))
