"""homodyne-dask fit: a store becomes parameters with errors, in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homodyne_dask.cli.exit_status import NOT_CONVERGED
from homodyne_dask.cli.printing import echo, echo_json, words_on_stderr
from homodyne_dask.cli.shared_options import (
    FIT,
    LOCAL_PATH,
    MODEL,
    SELECTION,
    WORKERS,
    configuration,
    with_options,
)
from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.fitting.options import AUTO

if TYPE_CHECKING:
    from distributed import Client, Future

    from homodyne_dask.cli.configuration import FitConfig
    from homodyne_dask.cli.several_fits import FitJob
    from homodyne_dask.fitting.choose_model import ModelComparison
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.store.scan import Scan

OVER = (
    click.option("--over", help="Fit each ring (q) or each window of age (age) separately."),
    click.option(
        "--windows",
        multiple=True,
        help="With --over age: number of windows, or start and end in seconds; repeatable.",
    ),
)
FILES = (
    click.option(
        "--output",
        "-o",
        help="Folder of the result, or of all results of several; default: A0123_fit.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace an earlier result in that folder."),
    click.option(
        "--checkpoint",
        help="File to resume from; default: checkpoint.json in the folder of the result.",
    ),
)


@click.command()
@click.argument("sources", metavar="STORE... | FIT.yaml", nargs=-1, required=True)
@with_options(MODEL, *FIT, *SELECTION, *OVER, *WORKERS, *FILES)
@click.option("--resume", is_flag=True, help="Resume an interrupted fit from its checkpoint.")
@click.option(
    "--go-on", is_flag=True, help="Like --resume if there is a checkpoint, else start anew."
)
@click.option(
    "--pictures/--no-pictures",
    default=None,
    help="Whether to draw the figures of each fit; default: of up to 8 fits. `show FOLDER --pictures` "
    "draws them later.",
)
@click.option(
    "--nexus", is_flag=True, help="Also write result.nx.h5, a NeXus file (NXxpcs, NXfit)."
)
@click.option(
    "--check-rates", is_flag=True,
    help="Also test whether the rates follow their power laws, in one more pass; print where they do not, "
    "and write rates_check.json.",
)  # fmt: skip
@click.option("--homodyne-output", is_flag=True, help="Also write the files of homodyne, in nlsq/.")
@click.option("--profile", type=LOCAL_PATH, help="Folder for a profile of the computing time.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a JSON object for each fit; all else goes to stderr.",
)  # fmt: skip
def fit(
    sources: tuple[str, ...],
    resume: bool,
    go_on: bool,
    pictures: bool | None,
    nexus: bool,
    check_rates: bool,
    homodyne_output: bool,
    profile: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to each STORE, or run the fit of FIT.yaml, and write the result to A0123_fit/.

    With several stores, or the parts of one with --over, a fit that fails does not stop the others;
    scans.csv and scans.html, or series.csv and series.html, list them all.

    Exit status: 0 converged, 3 ended without converging, 2 bad input, 130 interrupted.
    """
    click.get_current_context().with_resource(words_on_stderr(as_json))
    from homodyne_dask.cli.result_upload import delivered

    with delivered(configuration(sources, options)) as (config, where):
        config, comparison = _with_model(config, resume or go_on)
        from homodyne_dask.cli.several_fits import MOST_DRAWN, MoreFiles, fit_all, fit_jobs, opened
        from homodyne_dask.cli.single_fit import echoed_check_of_rates, fit_job
        from homodyne_dask.models import model_named
        from homodyne_dask.results.files.folder import checkpoint_in
        from homodyne_dask.solver.checkpoint import checkpoint_exists

        model = model_named(config.model)
        jobs = fit_jobs(config)
        drawn = len(jobs) <= MOST_DRAWN if pictures is None else pictures
        more = MoreFiles(_write_homodyne_files if homodyne_output else None, drawn, nexus)
        one = len(jobs) == 1 and not config.over
        if not one and (config.checkpoint or profile):
            raise OptionError(
                f"checkpoint and profile are for a single fit, and these are {len(jobs)} fits: leave them out"
            )
        jobs = jobs if one else list(map(opened, jobs))
        with _workers(config, jobs, drawn) as client:

            def run(job: "FitJob", resume: bool, sent: "Future | None" = None) -> "FitResult":
                result, files = fit_job(
                    config, model, job, client, resume, more,
                    sent=sent, profile=profile, comparison=comparison,
                )  # fmt: skip
                if as_json:
                    echo_json({"folder": where(job.folder)} | result.to_dict())
                else:
                    echo(str(result))
                if check_rates:
                    files = [*files, echoed_check_of_rates(result, job, client)]
                names = ", ".join(str(file.relative_to(job.folder)) for file in files if file)
                echo(f"\n{where(job.folder)}/ written: {names}")
                return result

            if one:
                checkpoint = config.checkpoint or checkpoint_in(jobs[0].folder)
                again = resume or (go_on and checkpoint_exists(checkpoint))
                status = 0 if run(jobs[0], again).converged else NOT_CONVERGED
            else:
                status = fit_all(config, model, jobs, client, resume or go_on, run, more)
                if drawn < (pictures is None):
                    echo(
                        f"figures of single fits were not drawn: show {where(jobs[0].folder)} --pictures "
                        f"draws them"
                    )
    click.get_current_context().exit(status)


def _with_model(config: "FitConfig", resume: bool) -> "tuple[FitConfig, ModelComparison | None]":
    """Return the configuration with a model, and the comparison that chose it where `auto` was asked for.

    Raises OptionError where that is not one new fit.
    """
    if config.model != AUTO:
        return config, None
    from homodyne_dask.cli.progress_bar import progress_on_stderr
    from homodyne_dask.cli.several_fits import fit_jobs
    from homodyne_dask.cli.shared_options import selected
    from homodyne_dask.cli.worker_options import client_of
    from homodyne_dask.fitting.choose_model import compare_models
    from homodyne_dask.results.files.folder import check_folder, checkpoint_in

    if len(config.data) > 1 or config.over or resume:
        raise OptionError(
            "the model auto is for one new fit: compare models on one store first, then give --model"
        )
    (job,) = fit_jobs(config)
    checkpoint = config.checkpoint or checkpoint_in(job.folder)
    check_folder(job.folder, checkpoint, config.overwrite, resume=False)
    with client_of(config) as client, progress_on_stderr() as show:
        scan = selected(config, config.data[0])
        comparison = compare_models(scan, client=client, callbacks=[show], **config.fit_options())
    echo(f"{comparison}\n")
    return config.model_copy(update={"model": comparison.chosen}), comparison


@contextmanager
def _workers(config: "FitConfig", jobs: "list[FitJob]", drawn: bool) -> Iterator["Client | None"]:
    """Yield a client that all fits share; None if each starts its own workers, or needs none."""
    from homodyne_dask.cli.worker_options import client_of

    with client_of(config) as client:
        if client is not None or len(jobs) == 1:
            yield client
            return
        from homodyne_dask.fitting.series import parallel_fits as small_fits

        scans = []
        for job in jobs:
            with suppress(HomodyneDaskError):  # raised again by its fit
                scans.append(job.scan())
        many = small_fits.MIN_DRAWN_FITS_FOR_WORKERS if drawn else small_fits.MIN_FITS_FOR_WORKERS
        with small_fits.workers_for(scans, None, many) as started:
            yield started


def _write_homodyne_files(result: "FitResult", scan: "Scan", folder: Path) -> None:
    from homodyne_dask.apps.migration.output_files import write_homodyne_files

    write_homodyne_files(result, scan, folder)
