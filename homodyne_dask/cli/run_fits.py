"""What `homodyne-dask fit` does: the model, the workers, one fit or many, their reports and their index."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import homodyne_dask as hd
from homodyne_dask.cli import progress_bar
from homodyne_dask.cli.exit_status import (
    BAD_INPUT,
    BUG,
    MISFIT,
    NOT_CONVERGED,
    Interrupted,
    error_sentence,
    print_error,
    status_of,
)
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import echo, echo_json, echo_progress
from homodyne_dask.cli.shared_options import RunOptions, selected
from homodyne_dask.cli.worker_options import client_of, workers_are_local
from homodyne_dask.document.blocks import as_text
from homodyne_dask.errors import OptionError, SourceError, in_line
from homodyne_dask.fitting.events import Callback, PassEnded, on_pass
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series import many_fits as many
from homodyne_dask.fitting.series.many_fits import Job, PreviousFit, fit_job
from homodyne_dask.fitting.series.rings_and_windows import (
    SharedByRings,
    Subset,
    fit_subsets_together,
    grouping_of,
    jobs_of,
    subsets_of_stores,
)
from homodyne_dask.fitting.series.subsets import axis_of
from homodyne_dask.models import model_named
from homodyne_dask.request.options import AUTO
from homodyne_dask.results.data import fit_rows
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.files.json_files import writer_of
from homodyne_dask.results.result_classes import FitResult, FitSeries
from homodyne_dask.results.views.fits_report import report_of_fits
from homodyne_dask.solver.checkpoint import checkpoint_exists

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.store.scan import Scan

MOST_DRAWN = 4
"""Number of fits of one command up to which the figures of each are drawn by default."""
ShowResult = Callable[[Job, FitResult, Sequence[Path]], None]


def run_fits(config: FitConfig, run_options: RunOptions) -> int:
    resume, config = run_options.resume, _grouped(config, run_options.resume)
    if config.nexus:
        writer_of("nexus", "--nexus")  # before the fit, not after it
    if config.model == AUTO:
        config, jobs = _with_chosen_model(config, resume)
    else:
        jobs = fit_jobs(config)
    too_many = len(jobs) > MOST_DRAWN and not config.pictures
    picture_format = "" if too_many else config.picture_format
    jobs = [job._replace(pictures=picture_format, nexus=bool(config.nexus)) for job in jobs]
    shown = partial(_print_result, run_options.as_json)
    if len(jobs) == 1 and not (config.over or config.over_scans):
        return _fit_one(config, jobs[0], run_options, shown)
    # of many fits, each report is in its folder; as JSON all are printed
    in_lines = partial(_print_result, True, indent=None)
    status = _fit_many(config, jobs, run_options, in_lines if run_options.as_json else None)
    if not picture_format and config.pictures is None:
        folder = in_line(str(jobs[0].folder))
        command = f"`homodyne-dask show {folder} --pictures`"
        echo(f"figures of individual fits were not drawn: {command} draws them")
    return status


def _grouped(config: FitConfig, resume: bool) -> FitConfig:
    """Return a configuration whose groups of bins or scans are those of `over`, `together` and `per_scan`."""
    groups = config.per, config.per_scan, config.over
    differing, over, options = grouping_of(*groups, config.values())
    is_joint = config.together or bool(differing)
    if is_joint and resume:
        raise OptionError(
            "a fit of scans together, or with per, has no checkpoint: leave out --resume"
        )
    if config.together and over not in (None, "scan"):
        raise OptionError(
            f"scans are fitted together over 'scan', but over is {over!r}: leave out one of them, or select "
            f"rings with --q"
        )
    over = "scan" if config.together else over
    grouping = {"over": over, "scaling": options["scaling"], "together": is_joint}
    return config.replaced(**grouping, per=None, per_scan=differing)


def fit_jobs(config: FitConfig) -> list[Job]:
    options = config.values()
    if config.over or config.over_scans or config.scan_values:
        jobs = _jobs_of_parts(config, options)
    elif config.windows is not None:
        raise OptionError("windows require over 'age': also give --over age")
    else:
        jobs = [
            Job(store.name, cache(partial(selected, config, store)), options, folder)
            for store, folder in zip(config.data, _folders(config), strict=True)
        ]
    writing = {"checkpoint": config.checkpoint, "overwrite": config.overwrite}
    return [job._replace(**writing) for job in jobs]


def _jobs_of_parts(config: FitConfig, options: dict[str, Any]) -> list[Job]:
    scans = [selected(config, store) for store in config.data]
    for scan in scans:  # an error is reported once, not for each part
        prepare(scan, model_named(config.model), **options).require_given()
    over = "together" if config.together and len(scans) > 1 else config.over
    over = axis_of(config.over_scans, over, config.windows).replace(" ", "_")
    of_one_store = len(config.data) == 1
    folder = config.output or folders.default_folder(config.data[0], over, of_one_store)
    jobs = []
    for parts, scan in zip(_parts(config, scans), scans, strict=True):
        jobs += jobs_of(parts, scan, options, folder, config.together)
    return jobs


def _parts(config: FitConfig, scans: "Sequence[Scan]") -> list[tuple[Subset, ...]]:
    grouping = config.over, config.windows, config.over_scans, config.scan_values
    return subsets_of_stores(scans, *grouping, together=config.together)


def _folders(config: FitConfig) -> list[Path]:
    defaults = [folders.default_folder(store) for store in config.data]
    if len(defaults) == 1:
        return [config.output or defaults[0]]
    results = [config.output / folder.name for folder in defaults] if config.output else defaults
    for n, folder in enumerate(results):
        if folder in results[:n]:
            store = config.data[results.index(folder)]
            raise OptionError(
                f"the results of {store} and {config.data[n]} would both be written to {folder}: fit them "
                f"one by one, each with its own --output"
            )
    return results


def _with_chosen_model(config: FitConfig, resume: bool) -> tuple[FitConfig, list[Job]]:
    if len(config.data) > 1 or config.over or config.over_scans or resume:
        raise OptionError(
            "the model auto applies only to a single new fit: compare models on one store first, then "
            "give --model"
        )
    (job,) = fit_jobs(config)
    checkpoint = config.checkpoint or folders.checkpoint_in(job.folder)
    folders.check_folder(job.folder, checkpoint, config.overwrite, resume=False)
    with client_of(config) as client, progress_bar.progress_on_stderr() as show:
        comparison = hd.compare_models(job.scan(), client=client, callbacks=[show], **job.options)
    echo(f"{comparison}\n")
    rows = tuple(row._asdict() for row in comparison.fits)
    # the fit has the prior of the offset with which models with a frozen part were compared
    options = {**job.options, "offset": comparison.results[comparison.chosen].config["offset"]}
    config = config.replaced(model=comparison.chosen)
    return config, [job._replace(compared=rows, options=options)]


def _print_result(
    as_json: bool, job: Job, result: FitResult, files: Sequence[Path], indent: int | None = 1
) -> None:
    folder = str(job.folder)
    if as_json:
        echo_json({"folder": folder} | result.to_dict(), indent)
    else:
        echo(str(result))
    names = ", ".join(str(file.relative_to(job.folder)) for file in files)
    echo(f"\n{in_line(folder)}/ written: {names}")


def _fit_one(config: FitConfig, job: Job, run_options: RunOptions, shown: ShowResult) -> int:
    checkpoint = config.checkpoint or folders.checkpoint_in(job.folder)
    with client_of(config) as client:
        resume = run_options.resume and checkpoint_exists(checkpoint)
        with _observed(checkpoint, resume) as callbacks:
            model = model_named(config.model)
            result, files = fit_job(job, model, client, callbacks, resume=resume)
    shown(job, result, files)
    return status_of(result, bool(config.strict))


@contextmanager
def _observed(
    checkpoint: Path, resume: bool, again: str = "", *also_told: Callback
) -> Iterator[Sequence[Callback]]:
    """Yield callbacks that show the progress of a fit; an interrupt says what was saved of it."""
    passes = 0

    def note_pass(event: PassEnded) -> None:
        nonlocal passes
        passes = event.number

    try:
        with progress_bar.progress_on_stderr() as show:
            yield [on_pass(note_pass), show, *also_told]
    except KeyboardInterrupt:
        sentence = f"interrupted before the end of the first pass: nothing was saved{again}"
        if passes or resume:
            sentence = (
                f"interrupted after pass {passes}: the checkpoint is {checkpoint}; repeat the command "
                f"with --resume to continue"
            )
        raise Interrupted(sentence) from None


def _fit_many(
    config: FitConfig, jobs: Sequence[Job], run_options: RunOptions, shown: ShowResult | None
) -> int:
    """Return the worst exit status; shown: of each result, None where its report is in its folder alone."""
    if config.checkpoint:
        raise OptionError(
            f"checkpoint applies to a single fit, but there are {len(jobs)} fits: leave it out"
        )
    model, (over, prefix, folder) = model_named(config.model), _place_of_index(config, jobs)
    first, correlations = partial(selected, config, config.data[0]), ()
    rings = list[SharedByRings]()
    if config.over == "q" and not config.over_scans:
        rings = [SharedByRings(prepare(first(), model, **config.values()))]
    rows, statuses, files, joint_fit = list[fit_rows.FitRow](), set[int](), list[Path](), None
    with client_of(config) as client, folders.locked_folder(folder, f".{prefix}.lock"):
        folders.check_index(folder, config.overwrite or run_options.resume, prefix)
        earlier = _earlier_correlations(folder) if rings and run_options.resume else ()
        if config.together:
            jobs, joint_fit = _fit_together(config, jobs, client, over or "scan")
        number, suffix = len(jobs), jobs[0].pictures
        with closing(_ended_fits(config, jobs, client, run_options, shown, rings)) as ended:
            for row, status in ended:
                statuses.add(status)
                rows = fit_rows.without_chance([*rows, row], number)
                if rings and len(rows) == number:
                    some_kept = rings[0].ended < number
                    correlations = (some_kept and earlier) or rings[0].correlations()
                files = folders.write_index(
                    folder, model.names, rows, number, prefix, joint_fit, suffix, correlations
                )
    if over:
        report = str(FitSeries(over, tuple(rows), joint_fit, correlations))
    else:
        names = fit_rows.quantity_names(rows, model.names)
        report = as_text(report_of_fits(config.model, names, rows, len(rows), prefix))
    counts = fit_rows.outcome_counts(rows, len(rows), prefix)
    echo(f"\n{report}\n\n{counts}: {in_line(', '.join(map(str, files)))}")
    return _worst_status(statuses, rows, bool(config.strict))


def _worst_status(statuses: set[int], rows: Sequence[fit_rows.FitRow], strict: bool) -> int:
    """Return the exit status of several fits: that of the worst, or with strict of a misfit."""
    if strict and any(row.converged and row.outcome_words != fit_rows.CONVERGED for row in rows):
        statuses = statuses | {MISFIT}
    worst_first = BUG, BAD_INPUT, NOT_CONVERGED, MISFIT
    return next((status for status in worst_first if status in statuses), 0)


def _earlier_correlations(folder: Path) -> tuple[float, ...]:
    """Return those of rings in the index of an earlier run: fits that are kept have no noise."""
    with suppress(SourceError):  # there is none, or of other fits
        return hd.load_series(folder).correlations
    return ()


def _place_of_index(config: FitConfig, jobs: Sequence[Job]) -> tuple[str, str, Path]:
    """Return what a series is over ('' for several scans), the name of the files of the index, its folder."""
    if over := axis_of(config.over_scans, config.over, config.windows):
        return over, fit_rows.PARTS, jobs[0].folder.parent
    common = os.path.commonpath([job.folder.resolve().parent for job in jobs])
    return "", fit_rows.SCANS, config.output or Path(common)


def _fit_together(
    config: FitConfig, jobs: Sequence[Job], client: "Client | None", over: str
) -> tuple[list[Job], GlobalFit | None]:
    data, model = [selected(config, store) for store in config.data], model_named(config.model)
    parts = _parts(config, data)
    with progress_bar.progress_on_stderr() as show:
        arguments = config.per_scan, over, client, [show], config.values()
        series = fit_subsets_together(data, model, parts, *arguments)
    results_of_jobs = zip(jobs, series.results, strict=True)
    return [job._replace(result=result) for job, result in results_of_jobs], series.global_fit


def _ended_fits(
    config: FitConfig,
    jobs: Sequence[Job],
    client: "Client | None",
    run_options: RunOptions,
    shown: ShowResult | None,
    also_told: Sequence[Callback],
) -> Generator[tuple[fit_rows.FitRow, int]]:
    """Run the fits with their progress shown; yield the row and the exit status of each that has ended."""
    numbers = count(1)

    def observed(job: Job, before: PreviousFit) -> AbstractContextManager[Sequence[Callback]]:
        echo_progress(f"\n{in_line(job.name)}, {next(numbers)} of {len(jobs)}")
        folder = in_line(str(job.folder))
        if before.result is not None:
            echo_progress(f"{folder}/ already contains its result")
        if before.changed:
            echo_progress(
                f"{folder}/ is fitted again; changed since the last fit: {before.changed}"
            )
        again = "; repeat the command with --resume to continue with it"
        return _observed(folders.checkpoint_in(job.folder), before.resume, again, *also_told)

    fewest_for_workers = many.MIN_DRAWN_FITS_FOR_WORKERS, many.MIN_FITS_FOR_WORKERS
    options = {"resume": run_options.resume, "many": fewest_for_workers[not jobs[0].pictures]}
    options["shared_disk"] = workers_are_local(config)
    with closing(
        many.run_many(jobs, model_named(config.model), client, observed, **options)
    ) as outputs:
        for job, output in zip(jobs, outputs, strict=True):
            result, message, status = output.result, "", 0
            for event, callback in product(output.events, also_told):
                callback(event)
            if output.error is not None:
                message, status = error_sentence(output.error), print_error(output.error)
            elif result is not None:
                status = status_of(result, strict=False)  # of many fits, one may deviate by chance
                if shown and output.files:  # it is not that of an earlier run
                    shown(job, result, output.files)
            yield fit_rows.fit_row(job.name, job.folder, result, message, job.axis_values), status
