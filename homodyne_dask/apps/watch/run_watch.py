"""What `homodyne-dask watch` does: the state of a folder of results, its workers, the loop over files."""

from pathlib import Path

from homodyne_dask.apps.watch.folder_state import STATE, fit_identity, read_state
from homodyne_dask.apps.watch.retries import RETRY_SECONDS, Retries, say
from homodyne_dask.apps.watch.scan_fits import ScanFitter
from homodyne_dask.apps.watch.scan_table import ScanTable
from homodyne_dask.apps.watch.watch_loop import FolderWatch, WatchOptions
from homodyne_dask.apps.watch.watched_files import PATTERNS
from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.fit_job import MoreFiles
from homodyne_dask.cli.printing import echo
from homodyne_dask.cli.worker_options import check_worker_options
from homodyne_dask.errors import OptionError
from homodyne_dask.results.files.folder import FolderInUse, locked_folder
from homodyne_dask.results.files.scans_index import SCANS, index_files

__all__ = ["PATTERNS", "MoreFiles", "WatchOptions", "run_watch"]


def run_watch(
    folder: Path, config: FitConfig, watching: WatchOptions, time_offset: float, more: MoreFiles
) -> int:
    """Watch the folder with the lock of its results; return the exit status."""
    check_worker_options(config)
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
