"""One fit of a command: its progress, checkpoint and files."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import OptionError

if TYPE_CHECKING:
    from distributed import Client, Future

    from homodyne_dask.cli.configuration import FitConfig
    from homodyne_dask.cli.several_fits import FitJob, MoreFiles
    from homodyne_dask.fitting.choose_model import ModelComparison
    from homodyne_dask.fitting.events import Callback, PassEnded
    from homodyne_dask.fitting.series.parallel_fits import FitOutput
    from homodyne_dask.models import Model
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.store.scan import Scan


def fit_job(
    config: "FitConfig",
    model: "Model",
    job: "FitJob",
    client: "Client | None",
    resume: bool,
    more: "MoreFiles",
    *,
    sent: "Future | None" = None,
    profile: Path | None = None,
    comparison: "ModelComparison | None" = None,
) -> "tuple[FitResult, list[Path]]":
    """Fit a job, or wait for its fit `sent` to a worker; return the result and the files written.

    With `resume` it goes on from its checkpoint. profile: folder for a profile of the computing time.
    comparison: that of models, whose outcome the model is.
    """
    from homodyne_dask.results.files import folder as folders

    scan, folder = job.scan(), job.folder
    if more.homodyne is not None and (why := _refusal(scan)):
        echo(why)
    output = None if sent is None else _output_of(client, sent)
    checkpoint = config.checkpoint or folders.checkpoint_in(folder)
    checked = config.overwrite or job.replace or output is not None  # before it was sent
    with folders.claimed_folder(folder, checkpoint, checked, resume):
        if output is not None:
            result = output.result
        else:
            with _profiled(config, model, scan, client, profile) as (client, trace):
                result = _run(job.options, model, scan, client, checkpoint, resume, trace)
        if comparison is not None:
            rows = tuple(row._asdict() for row in comparison.table)
            result = replace(result, diagnosis=replace(result.diagnosis, comparison=rows))
        written = output is not None and output.files
        files = written or folders.write_result(result, scan, folder, *more)
        folders.remove_checkpoint(result, checkpoint)
    return result, list(files)


def echoed_check_of_rates(
    result: "FitResult", job: "FitJob", client: "Client | None"
) -> Path | None:
    """Print whether the rates of a fit follow their power laws, or why that is not known.

    It is added to the result in the folder of the job. Return its own file, None where it is not known.
    """
    from homodyne_dask.fitting.check_rates import check_rates
    from homodyne_dask.results.files.folder import write_rates_check

    try:
        found = check_rates(result, job.scan(), client=client)
    except OptionError as e:
        echo(f"\nrates are not checked: {e}")
        return None
    echo(f"\n{found}")
    return write_rates_check(found, job.folder)[0]


def _refusal(scan: "Scan") -> str | None:
    from homodyne_dask.apps.migration.fitted_data import fitted_data_refusal

    return fitted_data_refusal(scan)


@contextmanager
def _profiled(
    config: "FitConfig",
    model: "Model",
    scan: "Scan",
    client: "Client | None",
    folder: Path | None,
) -> Iterator[tuple["Client | None", "Callback"]]:
    """Yield the client to fit with and a callback of the fit; with a folder, profile."""
    if folder is None:
        yield client, lambda _: None
        return
    from homodyne_dask.cluster.local import local_cluster
    from homodyne_dask.cluster.profiling import profiled
    from homodyne_dask.fitting.events import on_pass
    from homodyne_dask.fitting.fit import plan

    work = plan(scan, model, client=client, **config.plan_options())
    with (
        local_cluster(gpus=work.gpus)
        if work.workers.to_start
        else nullcontext(client) as connected,
        profiled(connected, folder) as trace,
    ):
        yield connected, on_pass(trace)


def _output_of(client: "Client | None", sent: "Future") -> "FitOutput":
    """Wait for a fit that one worker makes; it has no checkpoint."""
    from homodyne_dask.fitting.series.parallel_fits import output_of

    try:
        return output_of(client, sent)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted: this fit was not saved; the same command with --resume repeats it and continues"
        ) from None


def _run(
    options: dict[str, Any],
    model: "Model",
    scan: "Scan",
    client: "Client | None",
    checkpoint: Path,
    resume: bool,
    trace: "Callback",
) -> "FitResult":
    from homodyne_dask.cli.progress_bar import progress_on_stderr
    from homodyne_dask.fitting.events import on_pass
    from homodyne_dask.fitting.fit import fit as run

    passes = 0
    try:
        with progress_on_stderr() as show:

            def count(event: "PassEnded") -> None:
                nonlocal passes
                passes = event.number

            return run(
                scan, model, **options, client=client, checkpoint=checkpoint,
                resume=resume, callbacks=[on_pass(count), show, trace],
            )  # fmt: skip
    except KeyboardInterrupt:
        if not (passes or resume):
            raise Interrupted(
                "interrupted before the end of the first pass: nothing was saved"
            ) from None
        raise Interrupted(
            f"interrupted after pass {passes}: the checkpoint is {checkpoint}; the same command "
            f"with --resume continues"
        ) from None
