"""Many fits: small ones side by side, each a task of a worker; larger ones in turn, on all workers.

A pass over few pairs takes less time than sending its tasks, and initial values are searched by one
process: small fits made one after the other would leave most of the workers idle. Each fit has a folder for
its result; what an earlier run left there, a result or a checkpoint, is kept, continued or made anew.
"""

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.errors import (
    ClusterError,
    HomodyneDaskError,
    OptionError,
    SourceError,
    StoreError,
)
from homodyne_dask.fitting.events import Callback, Event, FitEnded
from homodyne_dask.fitting.fit import fit, modules_with_dask, plan_for
from homodyne_dask.fitting.minimize import identity
from homodyne_dask.fitting.observer import show_on_page
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.machine.running_code import OUR_CODE, code_digest
from homodyne_dask.models import Model
from homodyne_dask.request.request import Request
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SUMMARY, load_result
from homodyne_dask.solver.checkpoint import checkpoint_exists, identity_differences, saved_identity
from homodyne_dask.store.scan import Scan, open_selection
from homodyne_dask.sweep.layout import IN_PROCESS_PAIRS
from homodyne_dask.sweep.plan import Plan

if TYPE_CHECKING:
    from distributed import Client, Future


class Job(NamedTuple):
    name: str
    scan: Callable[[], Scan]
    """Returns the data; raises for a damaged store."""
    options: Mapping[str, Any]
    folder: Path
    axis_values: Mapping[str, float] = {}
    """As of a `Subset`."""
    written: bool = True
    """Whether the result is written into its folder."""
    checkpoint: Path | None = None
    overwrite: bool = False
    pictures: str = "png"
    """Format of the figures, beside PNG; '' for none."""
    nexus: bool = False
    compared: tuple[dict[str, Any], ...] = ()
    result: FitResult | None = None
    """Its result where it was made together with others: it is only written."""
    with_noise: bool = False
    """Whether its last event is to have the noise of bins, which is large."""


class FitOutput(NamedTuple):
    result: FitResult | None = None
    error: Exception | None = None
    files: tuple[Path, ...] = ()
    events: tuple[Event, ...] = ()
    """Those of a fit that a worker made."""


def is_small(scan: Scan) -> bool:
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins) < IN_PROCESS_PAIRS


def fit_job(
    job: Job,
    model: Model,
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    *,
    resume: bool = False,
    saved: bool = True,
) -> tuple[FitResult, tuple[Path, ...]]:
    scan, result = job.scan(), job.result
    arguments = {"client": client, "callbacks": callbacks, **job.options}
    if not job.written:
        return result or fit(scan, model, **arguments), ()
    checkpoint = job.checkpoint or folders.checkpoint_in(job.folder)
    with folders.claimed_folder(job.folder, checkpoint, job.overwrite, resume):
        if result is None:
            file = checkpoint if saved else None
            result = fit(scan, model, checkpoint=file, resume=resume, **arguments)
        if job.compared:
            result = replace(result, diagnosis=replace(result.diagnosis, comparison=job.compared))
        files = folders.write_result(result, scan, job.folder, job.pictures, job.nexus)
        folders.remove_checkpoint(result, checkpoint)
    return result, tuple(files)


DATA, CODE = "data", "code of the model"
"""What may have changed beside options and versions, by the names in the identity of a checkpoint."""
_WITH_DATA = ("bins", "frames", "excluded frames", "labels", "gap_angstrom")
_SET_DURING_THE_FIT = ("excluded chunks", "device")
_DERIVED = ("model_digest", "changed", "periods")
"""What is in the configuration of a result, but follows from the rest."""


class PreviousFit(NamedTuple):
    result: FitResult | None = None
    resume: bool = False
    changed: str = ""
    """What has changed since, in words: the fit is made anew."""
    error: Exception | None = None
    """Why the data or what was left cannot be read."""

    @property
    def nothing(self) -> bool:
        return not (self.result or self.resume or self.error)


def find_previous(model: Model, job: Job) -> PreviousFit:
    checkpoint, result, saved = folders.checkpoint_in(job.folder), None, {}
    resume = checkpoint_exists(checkpoint)
    if not (resume or (job.folder / SUMMARY).exists()):
        return PreviousFit()
    try:
        scan = job.scan()
        if resume:
            saved = saved_identity(checkpoint)
        else:
            result = load_result(job.folder)
    except (StoreError, SourceError) as e:
        return PreviousFit(error=e)
    request = prepare(scan, model, **job.options)
    if result is None:
        different = [*identity_differences(saved, identity(request))]
    else:
        different = _differences_from_result(result, request)
    if changed := _changed_beside_options(different, job.folder):
        return PreviousFit(changed=" and ".join(changed))
    return PreviousFit(result, resume)


def _changed_beside_options(different: Sequence[str], folder: Path) -> list[str]:
    """Return what of data, code and versions has changed; OptionError where an option has."""
    changed = [key for key in different if key in (DATA, CODE) or key.startswith("version of")]
    allowed = {*changed, *_SET_DURING_THE_FIT, *(_WITH_DATA if DATA in changed else ())}
    options = [key for key in different if key not in allowed]
    if options:
        first = "model" if "model" in options else options[0]
        raise OptionError(
            f"{folder} contains a fit with a different {first}: give --overwrite, or another --output"
        )
    return changed


def _differences_from_result(result: FitResult, request: Request) -> list[str]:
    scan, inputs, config = request.scan, result.provenance.inputs, result.config
    current = json.loads(json.dumps(request.config))
    pairs = {key: (config.get(key), current[key]) for key in current if key not in _DERIVED}
    pairs |= {
        "frames": (inputs.get("frames"), list(scan.frames)),
        "excluded frames": (inputs.get("frames_excluded"), [*map(list, scan.excluded_frames)]),
        "labels": (inputs.get("labels"), scan.label.tolist()),
        "scans": (inputs.get("scans", [1] * len(scan.bins)), scan.scan_number.tolist()),
        "version of homodyne-dask": (result.provenance.version, version("homodyne-dask")),
        f"version of the {OUR_CODE}": (result.provenance.versions.get(OUR_CODE), code_digest()),
        DATA: (inputs.get("store_sha256"), scan.digest),
        CODE: (config.get("model_digest"), current["model_digest"]),
    }
    return [key for key, (before, after) in pairs.items() if (before or None) != (after or None)]


MIN_FITS_FOR_WORKERS = 16
"""Number of small fits from which workers are started: fewer are faster in the process of the caller."""
MIN_DRAWN_FITS_FOR_WORKERS = 8


Observed = Callable[[Job, PreviousFit], AbstractContextManager[Sequence[Callback]]]
"""Returns a context for the fit of a job, with the callbacks of a fit that is made in this process."""


def run_many(
    jobs: Sequence[Job],
    model: Model,
    client: "Client | None",
    observed: Observed,
    *,
    resume: bool = False,
    many: int = MIN_FITS_FOR_WORKERS,
    shared_disk: bool = True,
) -> Generator[FitOutput, None, None]:
    """Yield the output of each job in turn; a fit that fails stops no other.

    resume: jobs that have a result of the same fit keep it, and those whose data, model or program changed
    since are fitted again. many: small fits from which workers are started. shared_disk: whether workers
    of the client write the same folders.
    """
    previous = [find_previous(model, job) if resume else PreviousFit() for job in jobs]
    scans = []
    for job, before in zip(jobs, previous, strict=True):
        with suppress(HomodyneDaskError):  # raised again by its fit
            scans += [] if before.result or job.result else [job.scan()]
    small = sum(map(is_small, scans))
    workers: AbstractContextManager[Client | None] = nullcontext(client)
    if client is None and small >= many:
        # of one thread: a search for initial values occupies a whole process
        workers = modules_with_dask()[0].local_cluster(min(cores(), small), threads=1)
    with (
        workers as connected,
        start_fits(jobs, previous, model, client, connected, shared_disk) as fits,
    ):
        for started in fits:
            yield started.output(observed)


@dataclass(frozen=True)
class StartedFit:
    """The fit of a job, on a worker already if it is small."""

    job: Job
    previous: PreviousFit
    model: Model
    client: "Client | None"
    future: "Future | None" = None

    def ended(self) -> bool:
        return self.future is None or self.future.done()

    def output(self, observed: Observed) -> FitOutput:
        before, job = self.previous, self.job
        with observed(job, before) as callbacks:
            try:
                if before.error is not None:
                    raise before.error
                if before.result is not None:
                    return FitOutput(before.result)
                if self.future is not None and self.future.client is not None:
                    output: FitOutput = modules_with_dask()[0].gathered(
                        self.future.client, [self.future]
                    )[0]
                    show_on_page(self.future.client, output.events)
                    if output.files or not job.written:
                        return output
                    job = job._replace(overwrite=True, result=output.result)
                arguments = {"client": self.client, "callbacks": callbacks, "resume": before.resume}
                result, files = fit_job(job, self.model, **arguments)
                return FitOutput(result, files=files)
            except Exception as e:  # not even a bug may stop the other fits
                return FitOutput(error=e)


@contextmanager
def start_fits(
    jobs: Sequence[Job],
    previous: Sequence[PreviousFit],
    model: Model,
    client: "Client | None",
    connected: "Client | None",
    shared_disk: bool,
) -> Iterator[list[StartedFit]]:
    """client: of large fits. connected: of small ones. Dask drops fits whose futures are released."""
    fits = []
    for job, before in zip(jobs, previous, strict=True):
        job = job._replace(overwrite=job.overwrite or bool(before.changed))
        fits.append(StartedFit(job, before, model, client))
    small = {n: fit.job for n, fit in enumerate(fits) if connected and _fits_on_worker(fit)}
    if any(job.options.get("device") == "gpu" for job in small.values()):
        raise OptionError(
            f"device = 'gpu' is not available: small fits ({len(small)} here) are computed in parallel on "
            f"processors; leave out device"
        )
    planned = connected and _first_planned(small.values(), model, connected)
    if connected is None or planned is None:
        yield fits
        return
    local, _, preflight = modules_with_dask()
    with preflight.checked_workers(connected, *planned):
        name = os.urandom(3).hex()
        with local.cluster_errors(connected):
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


def _fits_on_worker(fit: StartedFit) -> bool:
    if fit.job.result or not fit.previous.nothing:
        return False
    try:
        small = is_small(fit.job.scan())
        if small and fit.job.written:
            checkpoint = folders.checkpoint_in(fit.job.folder)
            folders.check_folder(fit.job.folder, checkpoint, fit.job.overwrite, resume=False)
    except HomodyneDaskError:  # raised again when it is its turn
        return False
    return small


def _first_planned(jobs: Iterable[Job], model: Model, client: "Client") -> tuple[Scan, Plan] | None:
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
    events: list[Event] = []
    result, files = fit_job(job, model, callbacks=[events.append], saved=False)
    if not job.with_noise:
        events = [replace(e, noise=None) if isinstance(e, FitEnded) else e for e in events]
    return FitOutput(result, files=files, events=tuple(events))
