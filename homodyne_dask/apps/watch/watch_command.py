"""Fit each result file that appears in a folder."""

from pathlib import Path
from typing import Any

import click

from homodyne_dask.apps.watch.watched_files import WatchedFolder
from homodyne_dask.cli.commands.ingest import FileOptions
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.shared_options import SectionCommand, given_of, options_of
from homodyne_dask.errors import OptionError
from homodyne_dask.store.files import absolute

OF_OTHER_FITS = ("per", "per_scan", "together", "over", "windows", "checkpoint")
NOT_OF_WATCHED = ("data", "output", "overwrite", "strict", *OF_OTHER_FITS)
"""Options of a fit that a watched folder does not have, or has in another form."""

_OF_FITS = {*FitConfig.model_fields, "average"} - {"strict"}
OF_FILES = [name for name in FileOptions.model_fields if name not in _OF_FITS]
"""Options for reading a file, which is one scan; --q and --phi are those of a fit, unless the file cannot
have them."""


@click.command(cls=SectionCommand)
@click.argument("folder", type=LOCAL_PATH)
@click.argument("fit_yaml", metavar="[FIT.yaml]", type=LOCAL_PATH, required=False)
@options_of(WatchedFolder)
@options_of(FileOptions, OF_FILES)
@options_of(FitConfig, [name for name in FitConfig.model_fields if name not in NOT_OF_WATCHED])
@click.option(
    "--output", "-o", required=True, type=LOCAL_PATH, help="Folder of all results and scans.html."
)
def watch(folder: Path, fit_yaml: Path | None, **options: Any) -> None:
    """Ingest and fit each result file that appears in FOLDER, with the options of FIT.yaml.

    A file is complete when its size and its modification time are unchanged between two checks. Results go
    into the folder --output, with scans.csv and scans.html, which shows the scans as they arrive. The same
    command continues where an earlier one ended, for whatever reason; Ctrl-C ends it.

    Exit status with --once: 0 all new fits converged, 3 one did not, 2 a file cannot be fitted.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a directory: give that in which result files appear")
    if folder.resolve() == options["output"].resolve():
        raise OptionError(
            f"--output = {folder} is the watched folder: give another one, such as {folder / 'fits'}"
        )
    watched = {name: options.pop(name) for name in WatchedFolder.model_fields}
    watching = WatchedFolder(**given_of(watched))
    reading = _reading(options)
    config = _configuration(folder, fit_yaml, given_of(options))
    # lazy: xarray and all of a fit, which the help does not need
    from homodyne_dask.apps.watch import watch_loop

    fits = watch_loop.ScanFitter(config, reading)
    click.get_current_context().exit(watch_loop.run_watch(folder, watching, fits))


def _reading(options: dict[str, Any]) -> FileOptions:
    """Take from the options how files are read: with --dataset also q and phi that no dataset has."""
    names = [*OF_FILES]
    if options["dataset"] is not None:
        names += [name for name in ("q", "phi") if options[f"{name}_dataset"] is None]
    return FileOptions(**given_of({name: options.pop(name) for name in names}))


def _configuration(folder: Path, fit_yaml: Path | None, options: dict[str, Any]) -> FitConfig:
    data: list[Any] = [absolute(folder)]
    config = read_config(fit_yaml, options, data) if fit_yaml else FitConfig(**options, data=data)
    if config.model == "auto":
        raise OptionError(
            "the model auto applies only to a single new fit: compare models on one scan first"
        )
    for name in OF_OTHER_FITS:
        if getattr(config, name):
            raise OptionError(
                f"{name} cannot be used here, where each file is one scan with one fit: leave it out"
            )
    return config
