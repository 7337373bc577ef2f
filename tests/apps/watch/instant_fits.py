"""Fits that take no time, of files that are words, and the folder in which they are watched."""

import csv
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from homodyne_dask.apps.watch.folder_state import read_state
from homodyne_dask.apps.watch.retries import Retries
from homodyne_dask.apps.watch.scans_page import ScanTable
from homodyne_dask.apps.watch.watch_loop import FolderWatch, WatchOptions
from homodyne_dask.errors import SourceError
from homodyne_dask.results.data.fit_result import FORMAT
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.files.saved_results import SUMMARY
from homodyne_dask.store.own_stores import WORK_FOLDER
from tests.results.made_results import changed, flow_result

QUIET = 5
"""Looks that find nothing to do, after which there is nothing."""
GOOD, BAD = b"good ", b"bad "
NAMES = tuple(map(str, flow_result().parameters["param"].values))


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class InstantFit:
    """A fit that was begun: its result is the digest of its data."""

    def __init__(self, fits: "InstantFits", store: Path, folder: Path) -> None:
        self.fits, self.store, self.folder = fits, store, folder

    def ended(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def entries(self) -> list[SeriesEntry]:
        content = (self.store / "content").read_text()
        self.folder.mkdir(exist_ok=True)
        result = self.folder / "result"
        if not (result.exists() and result.read_text() == content):
            with self.fits.log.open("a") as log:
                log.write(content + "\n")
            result.write_text(content)
            (self.folder / SUMMARY).write_text(f'{{"format": "{FORMAT}"}}')
        return self.fits.load(self.folder)


class InstantFits:
    """Files that begin with GOOD can be fitted; each fit is a line of the log."""

    at_once = 4

    def __init__(self, results: Path) -> None:
        self.log = results / "log"

    def connect(self, expected: int) -> None:
        pass

    def close(self) -> None:
        pass

    def ingest(self, source: Path, store: Path) -> str:
        content = source.read_bytes()
        if not content.startswith(GOOD):
            raise SourceError(f"{source} is no scan: copy it again")
        (store / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
        (store / "content").write_text(digest_of(content))
        return digest_of(content)

    def begin(self, store: Path, folder: Path) -> InstantFit:
        return InstantFit(self, store, folder)

    def load(self, folder: Path) -> list[SeriesEntry]:
        number = int((folder / "result").read_text()[:4], 16)
        return [SeriesEntry(folder.name, folder, changed(flow_result(), redchi=1 + number / 1e6))]

    def fitted(self) -> Counter[str]:
        """How often each content was fitted."""
        return Counter(self.log.read_text().split() if self.log.exists() else ())


def watch_of(folder: Path, results: Path, **options) -> FolderWatch:
    """A watch with instant fits."""
    results.mkdir(exist_ok=True)
    state, retries = read_state(results, {"model": "m"}, None), Retries(True, 0.05)
    looks = WatchOptions(("*.h5",), **({"interval": 0.02} | options))
    return FolderWatch(folder, state, InstantFits(results), ScanTable(NAMES), looks, retries)


def watch_until_quiet(watch: FolderWatch, seconds: float = 20.0) -> None:
    """Watch until all files that are there have stood still and are done."""
    watch.resume()
    end, quiet = time.monotonic() + seconds, 0
    while quiet < QUIET and time.monotonic() < end:
        before = watch.looks
        watch.step()
        busy = watch.in_work or watch.ready or watch.retries.reasons
        quiet = 0 if busy else quiet + (watch.looks > before)
    watch.publish(last=True)
    assert quiet == QUIET, watch.retries.reasons


def watch_until(watch: FolderWatch, reached: Callable[[], object], seconds: float = 20.0) -> None:
    """Watch until something is reached, and write the page."""
    watch.resume()
    end = time.monotonic() + seconds
    while not reached() and time.monotonic() < end:
        watch.step()
    watch.publish(last=True)
    assert reached(), watch.retries.reasons


def last_results(watch: FolderWatch) -> dict[str, str]:
    """The digest of the result of each file, or the beginning of its problem."""
    found = {}
    for name, record in watch.state.files.items():
        content = watch.state.contents.get(record.digest)
        if record.problem or content is None:
            found[name] = "bad"
        else:
            found[name] = (watch.results / content.folder / "result").read_text()
    return found


def expected_results(folder: Path) -> dict[str, str]:
    """What they should be of the files that are there."""
    contents = {file.name: file.read_bytes() for file in folder.glob("*.h5")}
    return {
        name: digest_of(of) if of.startswith(GOOD) else "bad"
        for name, of in contents.items()
        if not name.startswith(".")
    }


def table_rows(results: Path) -> list[dict[str, str]]:
    with (results / "scans.csv").open() as file:
        return list(csv.DictReader(file))


def check_ends(watch: FolderWatch) -> None:
    """Every file has the result of its last content, and no content was fitted twice."""
    assert last_results(watch) == expected_results(watch.folder)
    assert isinstance(watch.fits, InstantFits)
    assert set(watch.fits.fitted().values()) <= {1}
    listed = {row["scan"]: row for row in table_rows(watch.results)}
    for name, found in last_results(watch).items():
        assert (listed[name]["outcome"] == "FAILED") == (found == "bad")
    assert not [*watch.results.rglob("*.partial")]
