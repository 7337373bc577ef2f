"""homodyne-dask watch: result files appear in a folder, fits follow."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homodyne_dask.cli.commands.fit import OVER
from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.printing import echo
from homodyne_dask.cli.shared_options import (
    FIT,
    LOCAL_PATH,
    MODEL,
    SELECTION,
    WORKERS,
    options_given,
    with_options,
)
from homodyne_dask.errors import OptionError

if TYPE_CHECKING:
    from homodyne_dask.apps.watch.watch_loop import WatchOptions
    from homodyne_dask.cli.configuration import FitConfig
    from homodyne_dask.cli.several_fits import MoreFiles

WATCHING = (
    click.option(
        "--output", "-o", required=True, type=LOCAL_PATH,
        help="Folder of all results, of scans.csv and scans.html.",
    ),
    click.option("--once", is_flag=True, help="End when what is there is fitted, as for cron."),
    click.option("--newest-first", is_flag=True, help="Fit the newest file first, not the oldest."),
    click.option(
        "--stores", type=click.Choice(["keep", "delete"]), default="keep", show_default=True,
        help="Whether the ingested data are kept in stores/ when their fit is written.",
    ),
    click.option(
        "--files", multiple=True,
        help="Pattern of the names of result files; repeatable; default: *.hdf, *.hdf5, *.h5, *.nxs.",
    ),
    click.option(
        "--interval", type=click.FloatRange(0.01), default=1.0, show_default=True,
        help="Seconds between two looks at the folder.",
    ),
    click.option(
        "--time-offset", type=float, default=0.0,
        help="Seconds between loading of the sample and the first frame of each scan.",
    ),
    click.option(
        "--pictures/--no-pictures", default=True, help="Whether the figures of each fit are drawn."
    ),
    click.option(
        "--nexus", is_flag=True, help="Also write result.nx.h5 of each fit, a NeXus file."
    ),
)  # fmt: skip


@click.command()
@click.argument("folder", type=LOCAL_PATH)
@click.argument("fit_yaml", metavar="[FIT.yaml]", type=LOCAL_PATH, required=False)
@with_options(*WATCHING, MODEL, *FIT, *SELECTION, *OVER, *WORKERS)
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

    A file is complete when its size and time of change stand still between two watching. Results go into
    the folder --output, with scans.csv and scans.html, which shows the scans as they come. The same command
    goes on where an earlier one ended, however that was; Ctrl-C ends it.

    Exit status with --once: 0 all new fits converged, 3 one did not, 2 a file cannot be fitted.
    """
    from homodyne_dask.apps.watch.watch_loop import WatchOptions
    from homodyne_dask.apps.watch.watched_files import PATTERNS
    from homodyne_dask.cli.several_fits import MoreFiles

    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder: give the one in which result files appear")
    config = _configuration(folder, fit_yaml, options)
    watching = WatchOptions(files or PATTERNS, interval, once, newest_first, stores == "keep")
    more = MoreFiles(None, pictures, nexus)
    click.get_current_context().exit(_watch(folder, config, watching, time_offset, more))


def _configuration(folder: Path, fit_yaml: Path | None, options: dict[str, Any]) -> "FitConfig":
    """Return the configuration of each fit, but for its data; raises OptionError for mistakes."""
    from homodyne_dask.cli.configuration import from_options, read_config
    from homodyne_dask.cli.worker_options import check_worker_options

    given = options_given(options)
    data = [folder.absolute()]
    config = (
        from_options({"data": data} | given)
        if fit_yaml is None
        else read_config(fit_yaml, given, data)
    )
    if config.model == "auto":
        raise OptionError("the model auto is for one new fit: compare models on one scan first")
    if config.checkpoint is not None:
        raise OptionError("checkpoint is for a single fit, and each scan has its own: leave it out")
    check_worker_options(config)
    return config


def _watch(
    folder: Path,
    config: "FitConfig",
    watching: "WatchOptions",
    time_offset: float,
    more: "MoreFiles",
) -> int:
    """Watch the folder with the lock of its results; return the exit status."""
    from homodyne_dask.apps.watch.folder_state import STATE, fit_identity, read_state
    from homodyne_dask.apps.watch.retries import RETRY_SECONDS, Retries, say
    from homodyne_dask.apps.watch.scan_fits import ScanFitter
    from homodyne_dask.apps.watch.scan_table import ScanTable
    from homodyne_dask.apps.watch.watch_loop import FolderWatch
    from homodyne_dask.results.data.fit_rows import SCANS
    from homodyne_dask.results.files.folder import FolderInUse, locked_folder
    from homodyne_dask.results.files.scans_index import index_files

    assert config.folder is not None  # --output is required
    results = config.folder
    fits = ScanFitter(config, more, time_offset, stay=not watching.once)
    try:
        with locked_folder(results, f".{SCANS}.lock"):
            if not (results / STATE).exists() and any(
                f.exists() for f in index_files(results, SCANS)
            ):
                raise OptionError(
                    f"{results} holds the index of other scans: give another --output"
                )
            state = read_state(results, fit_identity(config, time_offset), config.over)
            retries = Retries(not watching.once, max(RETRY_SECONDS, watching.interval))
            table = ScanTable(fits.model.names)
            watcher = FolderWatch(folder, state, fits, table, watching, retries)
            if not watching.once:
                say(
                    f"{folder} is watched every {watching.interval:g} s; {results / 'scans.html'} shows the "
                    f"scans as they come, Ctrl-C ends it"
                )
            try:
                return watcher.run()
            finally:
                fits.close()
    except FolderInUse:
        raise OptionError(
            f"another watch or fit is writing {results}: end it, or give another --output"
        ) from None
    except (KeyboardInterrupt, Interrupted):
        echo("")
        raise Interrupted(
            f"interrupted: what is fitted is in {results}; the same command goes on"
        ) from None
