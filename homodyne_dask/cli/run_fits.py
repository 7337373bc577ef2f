"""What `homodyne-dask fit` does: the model, the workers, one fit or several, their reports."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import homodyne_dask as hd
from homodyne_dask.cli import fit_job as jobs_of
from homodyne_dask.cli import progress_bar
from homodyne_dask.cli.exit_status import NOT_CONVERGED
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.fit_job import FitJob, MoreFiles, fit_jobs
from homodyne_dask.cli.printing import echo, echo_json
from homodyne_dask.cli.result_upload import delivered
from homodyne_dask.cli.shared_options import selected
from homodyne_dask.cli.worker_options import client_of
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.models import model_named
from homodyne_dask.request.options import AUTO
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.files.folder import check_folder, checkpoint_in
from homodyne_dask.solver.checkpoint import checkpoint_exists

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.fitting.series.parallel_fits import FitOutput
    from homodyne_dask.results.data.comparison import Comparison

MOST_DRAWN = 8
"""Number of fits of one command up to which the figures of each are drawn by default."""


class RunOptions(NamedTuple):
    """Options of `fit` that a configuration does not hold: how this run goes and what it writes."""

    resume: bool
    go_on: bool
    pictures: bool | None
    nexus: bool
    performance_report: Path | None
    as_json: bool


def run_fits(config: FitConfig, chosen: RunOptions) -> int:
    """Make the fits of a configuration, print and write their results; return the exit status."""
    resume = chosen.resume or chosen.go_on
    if config.per_scan:  # parameters differ by scan
        if resume:
            raise OptionError(
                "a fit with per_scan has no checkpoint: leave out --resume and --go-on"
            )
        config = config.replaced(over=config.over or "scan")
    with delivered(config) as (config, where):
        config, comparison = _with_model(config, resume)
        jobs = fit_jobs(config)
        drawn = len(jobs) <= MOST_DRAWN if chosen.pictures is None else chosen.pictures
        more = MoreFiles(drawn, chosen.nexus)
        run = partial(_run_one, config, chosen, more, comparison, where)
        if len(jobs) == 1 and not config.over:
            with client_of(config) as client:
                checkpoint = config.checkpoint or checkpoint_in(jobs[0].folder)
                again = chosen.resume or (chosen.go_on and checkpoint_exists(checkpoint))
                return 0 if run(client, jobs[0], again).converged else NOT_CONVERGED
        if config.checkpoint or chosen.performance_report:
            raise OptionError(
                f"checkpoint and performance_report apply to a single fit, but there are "
                f"{len(jobs)} fits: leave them out"
            )
        from homodyne_dask.cli import several_fits as several  # it loads Dask's client

        jobs = list(map(several.opened, jobs))
        with several.shared_workers(config, jobs, drawn) as client:
            status = several.fit_all(
                config, model_named(config.model), jobs, client, resume, partial(run, client), more,
                partial(_fitted_together, config, client) if config.per_scan else None,
            )  # fmt: skip
            if not drawn and chosen.pictures is None:
                echo(
                    f"figures of individual fits were not drawn: `homodyne-dask show "
                    f"{in_line(where(jobs[0].folder))} --pictures` draws them"
                )
    return status


def _fitted_together(config: FitConfig, client: "Client | None") -> hd.FitSeries:
    """Return the series of a global fit of all scans."""
    with progress_bar.progress_on_stderr() as show:
        return hd.fit_each(
            selected(config, config.data[0]), config.model, over=config.over or "scan",
            per_scan=config.per_scan, client=client, callbacks=[show], **config.fit_options(),
        )  # fmt: skip


def _run_one(
    config: FitConfig,
    chosen: RunOptions,
    more: MoreFiles,
    comparison: "Comparison | None",
    where: Callable[[Path], str],
    client: "Client | None",
    job: FitJob,
    resume: bool,
    output: "FitOutput | None" = None,
) -> FitResult:
    """Make one fit, or take the output of a worker that made it; print and write its result."""
    result, files = jobs_of.fit_job(
        config, model_named(config.model), job, client, resume, more,
        output=output, profile=chosen.performance_report, comparison=comparison,
    )  # fmt: skip
    if chosen.as_json:
        echo_json({"folder": where(job.folder)} | result.to_dict())
    else:
        echo(str(result))
    names = ", ".join(str(file.relative_to(job.folder)) for file in files)
    echo(f"\n{in_line(where(job.folder))}/ written: {names}")
    return result


def _with_model(config: FitConfig, resume: bool) -> "tuple[FitConfig, Comparison | None]":
    """Return the configuration with a model, and the comparison that chose it where `auto` was asked for.

    Raises OptionError where that is not one new fit.
    """
    if config.model != AUTO:
        return config, None
    if len(config.data) > 1 or config.over or resume:
        raise OptionError(
            "the model auto applies only to a single new fit: compare models on one store first, then "
            "give --model"
        )
    (job,) = fit_jobs(config)
    checkpoint = config.checkpoint or checkpoint_in(job.folder)
    check_folder(job.folder, checkpoint, config.overwrite, resume=False)
    with client_of(config) as client, progress_bar.progress_on_stderr() as show:
        scan = selected(config, config.data[0])
        comparison = hd.compare_models(
            scan, client=client, callbacks=[show], **config.fit_options()
        )
    echo(f"{comparison}\n")
    return config.replaced(model=comparison.chosen), comparison
