"""homodyne-dask watch: result files appear in a folder, fits follow."""

from pathlib import Path
from typing import Any

import click

from homodyne_dask.cli.fit_config import FitConfig, config_options
from homodyne_dask.cli.read_options import from_options, read_config
from homodyne_dask.cli.shared_options import (
    DATA,
    LOCAL_PATH,
    OUTPUT,
    SectionCommand,
    SectionOption,
    config_parameters,
    options_given,
)
from homodyne_dask.errors import OptionError

_OF_DATA: dict[str, Any] = {"cls": SectionOption, "section": DATA}
_OF_OUTPUT: dict[str, Any] = {"cls": SectionOption, "section": OUTPUT}
NOT_OF_WATCHED = ("data", "per_scan", "over", "windows", "output", "overwrite", "checkpoint")
"""Options of a fit that a watched folder does not have, or has in another form."""


@click.command(cls=SectionCommand)
@click.argument("folder", type=LOCAL_PATH)
@click.argument("fit_yaml", metavar="[FIT.yaml]", type=LOCAL_PATH, required=False)
@click.option("--once", is_flag=True, help="Exit when all present files are fitted (for cron).")
@click.option("--newest-first", is_flag=True, help="Fit the newest file first, not the oldest.")
@click.option(
    "--stores", type=click.Choice(["keep", "delete"]), default="keep", show_default=True,
    help="Whether to keep the ingested data in stores/ after their fit is written.",
)  # fmt: skip
@click.option(
    "--files", multiple=True, **_OF_DATA,
    help="Pattern of the names of result files; repeatable; default: *.hdf, *.hdf5, *.h5, *.nxs.",
)  # fmt: skip
@click.option(
    "--interval", type=click.FloatRange(0.01), default=1.0, show_default=True,
    help="Seconds between checks of the folder.",
)  # fmt: skip
@click.option(
    "--time-offset", type=float, default=0.0, **_OF_DATA,
    help="Seconds between loading the sample and the first frame of each scan.",
)  # fmt: skip
@config_parameters(name for name in config_options() if name not in NOT_OF_WATCHED)
@click.option(
    "--output", "-o", required=True, type=LOCAL_PATH, **_OF_OUTPUT,
    help="Folder of all results, scans.csv and scans.html.",
)  # fmt: skip
@click.option(
    "--pictures/--no-pictures", default=True, **_OF_OUTPUT,
    help="Whether to draw the figures of each fit.",
)  # fmt: skip
@click.option(
    "--nexus", is_flag=True, **_OF_OUTPUT,
    help="Also write each result as a NeXus file, result.nx.h5.",
)  # fmt: skip
def watch(
    folder: Path,
    fit_yaml: Path | None,
    once: bool,
    newest_first: bool,
    stores: str,
    files: tuple[str, ...],
    interval: float,
    time_offset: float,
    pictures: bool,
    nexus: bool,
    **options: Any,
) -> None:
    """Ingest and fit each result file that appears in FOLDER, with the options of FIT.yaml.

    A file is complete when its size and its modification time are unchanged between two checks. Results go
    into the folder --output, with scans.csv and scans.html, which shows the scans as they arrive. The same
    command continues where an earlier one ended, for whatever reason; Ctrl-C ends it.

    Exit status with --once: 0 all new fits converged, 3 one did not, 2 a file cannot be fitted.
    """
    if not folder.is_dir():
        raise OptionError(
            f"{folder} is not a directory: give the directory in which result files appear"
        )
    config = _configuration(folder, fit_yaml, options)
    from homodyne_dask.apps.watch import watch_loop  # with xarray and all of a fit

    patterns = files or watch_loop.PATTERNS
    watching = watch_loop.WatchOptions(patterns, interval, once, newest_first, stores == "keep")
    fits = watch_loop.ScanFitter(config, pictures, nexus, time_offset)
    status = watch_loop.run_watch(folder, config, watching, fits)
    click.get_current_context().exit(status)


def _configuration(folder: Path, fit_yaml: Path | None, options: dict[str, Any]) -> FitConfig:
    """Return the configuration of each fit, but for its data; raises OptionError for mistakes."""
    given = options_given(options)
    data = [folder.absolute()]
    config = (
        from_options({"data": data} | given)
        if fit_yaml is None
        else read_config(fit_yaml, given, data)
    )
    if config.model == "auto":
        raise OptionError(
            "the model auto applies only to a single new fit: compare models on one scan first"
        )
    for name in ("per_scan", "over", "windows", "checkpoint"):
        if getattr(config, name):
            raise OptionError(
                f"{name} cannot be used here, where each file is one scan with one fit: leave it out"
            )
    return config
