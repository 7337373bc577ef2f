"""Fits that take no time, of files that are words, and the folder in which they are watched."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from homodyne_dask.apps.watch.folder_state import open_state
from homodyne_dask.apps.watch.scans_page import ScanTable
from homodyne_dask.apps.watch.watch_loop import FolderWatch
from homodyne_dask.apps.watch.watched_files import WatchedFolder
from homodyne_dask.errors import SourceError
from homodyne_dask.fitting.series.many_fits import FitOutput
from homodyne_dask.results.result_classes import FitResult
from tests.results.made_results import changed, flow_result
from tests.run_command import csv_rows

QUIET = 5
"""Looks that find nothing to do, after which there is nothing."""
GOOD, BAD = b"good ", b"bad "
NAMES = tuple(map(str, flow_result().parameters["param"].values))


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class InstantFit:
    """A fit that was begun: its χ² is a digest of its data."""

    def __init__(self, fits: "InstantFits", store: Path, folder: Path) -> None:
        self.fits, self.store, self.folder = fits, store, folder

    def ended(self) -> bool:
        return True

    def output(self, _: object) -> FitOutput:
        content = (self.store / "content").read_text()
        self.folder.mkdir(exist_ok=True)
        written = self.folder / "result"
        if not (written.exists() and written.read_text() == content):
            with self.fits.log.open("a") as log:
                log.write(f"{self.folder.name}:{content}\n")
            written.write_text(content)
        return FitOutput(load_instant(self.folder))


def load_instant(folder: Path) -> FitResult:
    number = int((folder / "result").read_text()[:4], 16)
    return changed(flow_result(), redchi=1 + number / 1e6)


class InstantFits:
    """Files that begin with GOOD can be fitted; each fit is a line of the log."""

    at_once = 4

    def __init__(self, results: Path) -> None:
        self.log = results / "log"

    def connect(self) -> None:
        pass

    def close(self) -> None:
        pass

    def begin(self, source: Path, store: Path, folder: Path) -> tuple[ExitStack, InstantFit]:
        content = source.read_bytes()
        if not content.startswith(GOOD):
            raise SourceError(f"{source} is no scan: copy it again")
        store.mkdir(parents=True, exist_ok=True)
        (store / "content").write_text(digest_of(content))
        return ExitStack(), InstantFit(self, store, folder)

    def fitted(self) -> Counter[str]:
        return Counter(self.log.read_text().split() if self.log.exists() else ())


def watch_of(folder: Path, results: Path, **options) -> FolderWatch:
    results.mkdir(exist_ok=True)
    state = open_state(results, {"model": "m"})
    looks = WatchedFolder(files="*.h5").model_copy(update={"interval": 0.02} | options)
    return FolderWatch(folder, state, InstantFits(results), ScanTable(NAMES), looks, retry=0.05)


def watch_until_quiet(watch: FolderWatch) -> None:
    """Watch until all files that are there have stood still and are done."""
    busy_at = watch.looks

    def quiet() -> bool:
        nonlocal busy_at
        if watch.in_work or watch.ready or watch.waiting:
            busy_at = watch.looks
        return watch.looks >= busy_at + QUIET

    watch_until(watch, quiet)


def watch_until(watch: FolderWatch, reached: Callable[[], object]) -> None:
    """Watch until something is reached, and write the page."""
    watch.resume()
    end = time.monotonic() + 20.0
    while not reached() and time.monotonic() < end:
        watch.step()
    watch.publish(last=True)
    assert reached(), watch.waiting


def last_results(watch: FolderWatch) -> dict[str, str]:
    results = {}
    for name, file in watch.state.ended.items():
        folder = watch.state.places(name)[1]
        results[name] = "bad" if file.problem else (folder / "result").read_text()
    return results


def expected_results(folder: Path) -> dict[str, str]:
    contents = {file.name: file.read_bytes() for file in folder.glob("*.h5")}
    return {
        name: digest_of(of) if of.startswith(GOOD) else "bad"
        for name, of in contents.items()
        if not name.startswith(".")
    }


def table_rows(results: Path) -> list[dict[str, str]]:
    return csv_rows(results, "scans.csv")


def check_ends(watch: FolderWatch, most: int = 1) -> None:
    """Every file has the result of its last content, and none was fitted more often than `most`."""
    assert last_results(watch) == expected_results(watch.folder)
    assert isinstance(watch.fits, InstantFits)
    assert all(number <= most for number in watch.fits.fitted().values())
    listed = {row["scan"]: row for row in table_rows(watch.state.results)}
    for name, result in last_results(watch).items():
        assert (listed[name]["outcome"] == "FAILED") == (result == "bad")
    assert not [*watch.state.results.rglob("*.partial")]
