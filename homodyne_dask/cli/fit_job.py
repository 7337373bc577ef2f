"""One fit of a command: its data and folder, what an earlier run left there, its progress and its files."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import homodyne_dask as hd
from homodyne_dask.cli import progress_bar
from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.shared_options import selected
from homodyne_dask.errors import OptionError, SourceError, StoreError
from homodyne_dask.fitting import fit as fitting
from homodyne_dask.fitting.events import Callback, PassEnded, on_pass
from homodyne_dask.fitting.minimize import identity
from homodyne_dask.fitting.prepare import prepare, require_gap
from homodyne_dask.fitting.series.rings_and_windows import options_for_part, parts_of
from homodyne_dask.models import Model, model_named
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.files import folder as folders
from homodyne_dask.results.files.saved_results import SUMMARY, load_result
from homodyne_dask.solver.checkpoint import checkpoint_exists, identity_differences, saved_identity
from homodyne_dask.store.processes import OUR_CODE, code_digest
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.fitting.series.parallel_fits import FitOutput
    from homodyne_dask.results.data.comparison import Comparison

DATA, CODE, VERSION = "data", "code of the model", "version of homodyne-dask"
"""What may have changed beside the options, by the names in the identity of a checkpoint."""
_WITH_DATA = ("bins", "frames", "excluded frames", "labels", "gap_angstrom")
"""What the store may have set, and other data with it."""
_FOUND_LATER = ("excluded chunks", "device")
"""Chunks that cannot be read, and whether there is a GPU, are found when the fit starts."""


class FitJob(NamedTuple):
    """One fit of a command."""

    name: str
    folder: Path
    """Of its result."""
    scan: Callable[[], Scan]
    """Opens the data; raises for a damaged store."""
    options: dict[str, Any]
    """Of `fit`."""
    at: Mapping[str, float]
    """Coordinates of a part of a scan (see `Part`), else empty."""
    replace: bool = False
    """Whether a result in its folder, of data that changed since, is replaced."""


class MoreFiles(NamedTuple):
    """What is written beside the numbers of a result: the last arguments of `write_result`."""

    pictures: bool
    nexus: bool
    """Whether `result.nx.h5` is written."""


def configured_model(config: FitConfig) -> Model:
    """Return the model of a configuration; raises OptionError for an unknown one."""
    return model_named(config.model)


def fit_jobs(config: FitConfig) -> list[FitJob]:
    """Return a job for each store, or with `over` one for each part of the one store."""
    if config.over:
        return _parts(config)
    if config.windows is not None:
        raise OptionError("windows require over 'age': also give --over age")
    return [
        FitJob(store.name, folder, partial(selected, config, store), config.fit_options(), {})
        for store, folder in zip(config.data, _folders(config), strict=True)
    ]


def _parts(config: FitConfig) -> list[FitJob]:
    if len(config.data) > 1:
        raise OptionError(
            f"over applies to a single store, but {len(config.data)} are given: fit each separately"
        )
    (store,) = config.data
    scan, over = selected(config, store), config.over or ""
    require_gap(
        prepare(scan, model_named(config.model), **config.fit_options())
    )  # an error is reported once, not for each part
    where = config.folder or folders.default_folder(store, over)
    return [
        FitJob(
            part.name,
            where / part.folder,
            lambda scan=part.scan: scan,
            options_for_part(part, scan, config.fit_options()),
            part.at,
        )
        for part in parts_of(scan, over, config.windows)
    ]


def _folders(config: FitConfig) -> list[Path]:
    """Return the folder of each result: beside its store, or in the folder `output`."""
    beside = [folders.default_folder(store) for store in config.data]
    if len(beside) == 1:
        return [config.folder or beside[0]]
    found = [config.folder / folder.name for folder in beside] if config.folder else beside
    for n, folder in enumerate(found):
        if folder in found[:n]:
            first = config.data[found.index(folder)]
            raise OptionError(
                f"the results of {first} and {config.data[n]} would both be written to {folder}: fit them "
                f"one by one, each with its own --output"
            )
    return found


class PreviousFit(NamedTuple):
    """What an earlier run left of a fit, by default nothing."""

    result: FitResult | None = None
    """Of the same fit: it is kept."""
    resume: bool = False
    """Whether there is a checkpoint of the same fit."""
    changed: str = ""
    """What has changed since, in words: the fit is made anew."""
    error: Exception | None = None
    """Why the data or what was left cannot be read."""

    @property
    def nothing(self) -> bool:
        """Whether the whole fit is still to be made."""
        return not (self.result or self.resume or self.error)


def find_previous(model: Model, job: FitJob) -> PreviousFit:
    """Return what an earlier run left of a fit.

    Raises OptionError for a fit with other options, and for options that this fit cannot have.
    """
    checkpoint, result = folders.checkpoint_in(job.folder), None
    resume = checkpoint_exists(checkpoint)
    if not (resume or (job.folder / SUMMARY).exists()):
        return PreviousFit()
    try:
        scan = job.scan()
        result = None if resume else load_result(job.folder)
        saved = saved_identity(checkpoint) if resume else {}
    except (StoreError, SourceError) as e:
        return PreviousFit(error=e)
    request = prepare(scan, model, **job.options)
    if result is None:
        found = identity_differences(saved, identity(request))
        different = [key for key in found if key not in _FOUND_LATER]
    else:
        different = _from_result(result, request)
    changed = [key for key in different if key in (DATA, CODE) or key.startswith("version of")]
    options = [key for key in different if key not in changed]
    if DATA in changed:
        options = [key for key in options if key not in _WITH_DATA]
    if options:
        first = "model" if "model" in options else options[0]
        raise OptionError(
            f"{job.folder} contains a fit with a different {first}: give --overwrite, or another --output"
        )
    if changed:
        return PreviousFit(changed=" and ".join(changed))
    return PreviousFit(result, resume)


def _from_result(result: FitResult, request: Request) -> list[str]:
    """Return the names of what differs between a result and a fit."""
    scan, before = request.scan, result.config | {"frames": result.provenance.inputs.get("frames")}
    now = json.loads(json.dumps(request.config)) | {"frames": list(scan.frames)}
    before |= {"excluded frames": result.provenance.inputs.get("frames_excluded")}
    now |= {"excluded frames": [list(one) for one in scan.excluded_frames]}
    of = result.provenance
    now |= {"labels": scan.label.tolist(), VERSION: version("homodyne-dask")}
    before |= {"labels": of.inputs.get("labels"), VERSION: of.version}
    now |= {"scans": scan.scan_number.tolist()}
    before |= {"scans": of.inputs.get("scans", [1] * len(scan.bins))}
    now |= {f"version of the {OUR_CODE}": code_digest()}
    before |= {f"version of the {OUR_CODE}": of.versions.get(OUR_CODE)}
    now |= {DATA: scan.digest, CODE: now.pop("model_digest")}
    before |= {DATA: result.provenance.inputs.get("store_sha256"), CODE: before.get("model_digest")}
    for follows_from_others in ("changed", "periods"):
        del now[follows_from_others]
    return [key for key, value in now.items() if (before.get(key) or None) != (value or None)]


def fit_job(
    config: FitConfig,
    model: Model,
    job: FitJob,
    client: "Client | None",
    resume: bool,
    more: MoreFiles,
    *,
    output: "FitOutput | None" = None,
    profile: Path | None = None,
    comparison: "Comparison | None" = None,
) -> tuple[FitResult, list[Path]]:
    """Fit a job, or take the output of a worker that made the fit; return the result and the files written.

    With `resume` it goes on from its checkpoint. profile: folder for a profile of the computing time.
    comparison: that of models, whose outcome the model is.
    """
    scan, folder = job.scan(), job.folder
    checkpoint = config.checkpoint or folders.checkpoint_in(folder)
    checked = config.overwrite or job.replace or output is not None  # before it was submitted
    with folders.claimed_folder(folder, checkpoint, checked, resume):
        if output is not None:
            result = output.result
        else:
            with _profiled(config, model, scan, client, profile) as (client, trace):
                result = _run(job.options, model, scan, client, checkpoint, resume, trace)
        if comparison is not None:
            rows = tuple(row._asdict() for row in comparison.fits)
            result = replace(result, diagnosis=replace(result.diagnosis, comparison=rows))
        written = output is not None and output.files
        files = written or folders.write_result(result, scan, folder, *more)
        folders.remove_checkpoint(result, checkpoint)
    return result, list(files)


@contextmanager
def _profiled(
    config: FitConfig, model: Model, scan: Scan, client: "Client | None", folder: Path | None
) -> Iterator[tuple["Client | None", Callback]]:
    """Yield the client to fit with and a callback of the fit; with a folder, profile."""
    if folder is None:
        yield client, lambda _: None
        return
    from homodyne_dask.cluster.profiling import profiled  # it loads Dask's client

    work = fitting.plan(scan, model, client=client, **config.plan_options())
    with (
        hd.local_cluster(gpus=work.gpus)
        if work.workers.to_start
        else nullcontext(client) as connected,
        profiled(connected, folder) as trace,
    ):
        yield connected, on_pass(trace)


def _run(
    options: dict[str, Any],
    model: Model,
    scan: Scan,
    client: "Client | None",
    checkpoint: Path,
    resume: bool,
    trace: Callback,
) -> FitResult:
    passes = 0
    try:
        with progress_bar.progress_on_stderr() as show:

            def count(event: PassEnded) -> None:
                nonlocal passes
                passes = event.number

            return fitting.fit(
                scan, model, **options, client=client, checkpoint=checkpoint,
                resume=resume, callbacks=[on_pass(count), show, trace],
            )  # fmt: skip
    except KeyboardInterrupt:
        if not (passes or resume):
            raise Interrupted(
                "interrupted before the end of the first pass: nothing was saved"
            ) from None
        raise Interrupted(
            f"interrupted after pass {passes}: the checkpoint is {checkpoint}; repeat the command "
            f"with --resume to continue"
        ) from None
