"""What `homodyne-dask watch` does: look at a folder, ingest and begin fits, note results, write the page.

Each step is noted before the next. What may pass by itself, as a full disk, is said once and waited for.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from homodyne_dask.apps.watch.folder_state import STATE, WatchState, fit_identity, read_state
from homodyne_dask.apps.watch.retries import RETRY_SECONDS, Retries, say
from homodyne_dask.apps.watch.scan_fits import FitsOfScan, ScanFitter, may_pass
from homodyne_dask.apps.watch.scans_page import ScanTable, WatchStatus, row_line
from homodyne_dask.apps.watch.watched_files import (
    PATTERNS,
    Seen,
    Stamp,
    content_digest,
    is_as_it_was,
    listed,
)
from homodyne_dask.cli.exit_status import (
    BAD_INPUT,
    DISK_FULL,
    NOT_CONVERGED,
    Interrupted,
    error_sentence,
)
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.fit_job import MoreFiles
from homodyne_dask.cli.printing import echo
from homodyne_dask.cli.worker_options import check_worker_options
from homodyne_dask.errors import ClusterError, OptionError
from homodyne_dask.results.data.fit_rows import FAILED
from homodyne_dask.results.files.folder import FolderInUse, locked_folder
from homodyne_dask.results.files.scans_index import SCANS, index_files
from homodyne_dask.store.processes import trim_memory

FOLDER, OUTPUT, WORKERS = "the watched folder", "the folder of results", "the workers"
RESULTS, SAVED, PAGE = "the results", "the state", "the page"
NEEDED = {FOLDER, OUTPUT, WORKERS, RESULTS, SAVED, PAGE}
"""What may have to be waited for, beside single files."""
LONGEST_PAUSE = 0.05
"""Seconds until it is asked again whether a fit has ended."""
TOUCH = ", then touch the file"
RELOAD = 10.0
"""Seconds after which the page reloads."""


class WatchOptions(NamedTuple):
    """How a folder is watched."""

    patterns: tuple[str, ...] = PATTERNS
    interval: float = 1.0
    """Seconds between two looks."""
    once: bool = False
    """End when all files that stand still are fitted."""
    newest_first: bool = False
    keep_stores: bool = True


class InWork(NamedTuple):
    """A scan whose fits were begun."""

    name: str
    stamp: Stamp
    fits: FitsOfScan
    began: float


@dataclass
class FolderWatch:
    """A folder, its state, and the scans in work."""

    folder: Path
    state: WatchState
    fits: ScanFitter
    table: ScanTable
    options: WatchOptions
    retries: Retries
    last_seen: dict[str, Seen] = field(default_factory=dict)
    """By the last look."""
    ready: dict[str, Stamp] = field(default_factory=dict)
    """Files that stood still between the last two looks and have no result."""
    in_work: dict[str, InWork] = field(default_factory=dict)
    """By digest."""
    looks: int = 0
    next_look: float = 0.0
    unsaved: bool = False
    status: int = 0
    """The worst of what this run has seen, as an exit status."""

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.state.results

    def run(self) -> int:
        """Watch until interrupted, or once; return the exit status."""
        self.resume()
        try:
            self.retries.attempt(WORKERS, lambda: self.fits.connect(0))
            while not self.done():
                self.step()
        finally:
            self._drop_work()
            self.publish(last=True)
        return self.status

    def done(self) -> bool:
        """Return whether a watch that is to end has nothing left to do."""
        if not self.options.once or self.looks < 2 or self.in_work:
            return False
        waiting = self.retries.reasons.keys()
        if waiting:
            self._end_with(BAD_INPUT)
        return bool(waiting & NEEDED) or not self.ready.keys() - waiting

    def step(self) -> None:
        """Look if it is time, do one thing, and sleep if there was none."""
        self.look()
        moved = False
        if self.retries.attempt(OUTPUT, self.state.check_place):
            moved = self.collect() or self.start_next()
            self.publish(last=False)
        if not moved:
            until = max(self.next_look - time.monotonic(), 0.0)
            time.sleep(min(until, LONGEST_PAUSE) if self.in_work else until)

    def resume(self) -> None:
        """Finish what an earlier watcher left half done, and read the rows of its results."""
        self.state.move()
        self.state.save()
        for digest in [of for of, content in self.state.contents.items() if content.fitted]:
            self._delete_store(digest)
        self._show(*sorted(self.state.files, key=self.state.numbers.__getitem__))

    def look(self) -> None:
        """Look at the folder, where it is time: what stood still since the last look is ready."""
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + self.options.interval
            self.retries.attempt(FOLDER, self._look)

    def _look(self) -> None:
        found = listed(self.folder, self.options.patterns, self.last_seen)
        self.looks += 1
        self.ready = {
            name: seen.stamp
            for name, seen in found.items()
            if (before := self.last_seen.get(name))
            and before.stamp == seen.stamp
            and not ((record := self.state.files.get(name)) and record.stamp == seen.stamp)
        }
        self.last_seen = found
        gone = self.retries.reasons.keys() - found.keys() - NEEDED
        self.retries.resolved(*gone)
        self.table.remove(*(gone - self.state.files.keys()))

    def start_next(self) -> bool:
        """Ingest a file that is ready and begin its fit; return whether there was one."""
        busy = {work.name for work in self.in_work.values()}
        names = [of for of in self.ready if of not in busy and not self.retries.too_early(of)]
        full = len(self.in_work) >= self.fits.at_once
        if not names or full or self.retries.too_early(RESULTS, WORKERS):
            return False
        name = min(names, key=self._turn)
        stamp, digest = self.ready[name], None
        try:
            digest = content_digest(self.folder / name, stamp)
            if digest is None:  # it is being written again
                self._look_again(name)
            elif not self._same_content(name, stamp, digest):
                self._begin(name, stamp, digest)
        except Interrupted:
            raise
        except Exception as e:
            self._failed(name, stamp, digest, e)
        return True

    def _turn(self, name: str) -> tuple[int, str]:
        written = self.ready[name].mtime_ns
        return (-written if self.options.newest_first else written), name

    def _same_content(self, name: str, stamp: Stamp, digest: str) -> bool:
        """Return whether a content needs no fit of its own: it has one, or has it soon."""
        if digest in self.in_work:
            self.retries.not_before[name] = self.next_look
            return True
        self.state.numbers.setdefault(name, len(self.state.numbers) + 1)
        content = self.state.contents.get(digest)
        if content is None or not content.fitted:
            return False
        if content.name == name:  # an earlier content of the file is there again
            self.state.claim_folder(digest)
        self.state.fitted(name, stamp, digest)
        self.state.save()
        self.state.move()
        self.ready.pop(name)
        self.retries.resolved(name)
        self._show(*{name, *self._sharing(name)})
        return True

    def _begin(self, name: str, stamp: Stamp, digest: str) -> None:
        began = time.monotonic()
        self.fits.connect(len(self.ready))
        for store in self.state.begin(digest, name):
            self._remove_store(store)
        self.state.save()
        store = self.results / self.state.contents[digest].store
        store.parent.mkdir(exist_ok=True)
        if self.fits.ingest(self.folder / name, store) != digest:  # written in the meantime
            self._remove_store(self.state.contents[digest].store)
            return self._look_again(name)
        folder = self.state.claim_folder(digest)
        self.state.save()
        self.state.move()
        self._show(*self._sharing(name))
        self.in_work[digest] = InWork(name, stamp, self.fits.begin(store, folder), began)
        self.ready.pop(name)
        return self.retries.resolved(name, WORKERS)

    def _look_again(self, name: str) -> None:
        """Take a file that is being written for one that has changed since the last look."""
        self.last_seen.pop(name, None)
        self.ready.pop(name, None)

    def _sharing(self, name: str) -> list[str]:
        """Return the files with a content first seen in this one: the folder of its result may have moved."""
        held = {digest for digest, of in self.state.contents.items() if of.name == name}
        return [of for of, record in self.state.files.items() if record.digest in held]

    def collect(self) -> bool:
        """Note the result of a scan whose fits have ended; return whether there was one."""
        digest = next((of for of, work in self.in_work.items() if work.fits.ended()), None)
        if digest is None:
            return False
        work = self.in_work.pop(digest)
        number = self.state.numbers[work.name]
        try:
            rows = self.table.add(work.name, number, work.stamp, work.fits.entries())
        except Interrupted:
            raise
        except Exception as e:
            self._failed(work.name, work.stamp, digest, e)
            return True
        self.state.fitted(work.name, work.stamp, digest)
        self._save()
        self._delete_store(digest)
        self.retries.resolved(work.name, RESULTS)
        for row in rows:
            say(row_line(row, time.monotonic() - work.began))
            ends = {"CONVERGED": 0, FAILED: BAD_INPUT}
            self._end_with(ends.get(row.outcome, NOT_CONVERGED))
        return True

    def _failed(self, name: str, stamp: Stamp, digest: str | None, error: Exception) -> None:
        """Wait for what may pass; a content that cannot be fitted is a row with its sentence."""
        if isinstance(error, ClusterError) and may_pass(error):
            self._drop_work()
            self.fits.close()
            self.retries.postpone(WORKERS, error)
        elif digest is not None and may_pass(error) and self._concerns_all(error):
            self.retries.postpone(RESULTS, error)
        elif digest is None or may_pass(error):
            self.retries.postpone(name, error)
            if name not in self.table.rows:
                number = self.state.numbers.setdefault(name, len(self.state.numbers) + 1)
                self.table.refuse(name, number, stamp, error_sentence(error, then=""))
        elif is_as_it_was(self.folder / name, stamp):
            self._refuse(name, stamp, digest, error_sentence(error, then=TOUCH))
        else:
            self._look_again(name)

    def _concerns_all(self, error: Exception) -> bool:
        """Return whether what failed for one file fails for all: no room, or nothing can be written."""
        if isinstance(error, FolderInUse):
            return False
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return True
        try:
            self.state.save()
        except OSError:
            return True
        return False

    def _drop_work(self) -> None:
        """Give up what workers do; what they have written by then is found when it is begun again."""
        for work in self.in_work.values():
            work.fits.close()
        self.in_work.clear()

    def _refuse(self, name: str, stamp: Stamp, digest: str, problem: str) -> None:
        held = self.state.contents.get(digest)
        if held is not None:
            self._remove_store(held.store)
        self.state.refused(name, stamp, digest, problem)
        self._save()
        self.ready.pop(name, None)
        self.retries.resolved(name)
        self._end_with(BAD_INPUT)
        self._show(name)
        say(f"{name}: {problem}")

    def _save(self) -> None:
        """Save the state, or note that it is not saved; `publish` tries again."""
        self.unsaved = True
        self.retries.attempt(SAVED, self._save_now)

    def _save_now(self) -> None:
        self.state.save()
        self.unsaved = False

    def publish(self, last: bool) -> None:
        """Write the table and the page, where there is something new and it is time."""
        if self.unsaved and (last or not self.retries.too_early(SAVED)):
            self.retries.attempt(SAVED, self._save_now)
        due = self.table.due(not (self.in_work or self.ready), self.retries.changed)
        if last or (due and not self.retries.too_early(PAGE)):
            self.retries.attempt(PAGE, lambda: self._write_page(last), any_error=True)

    def _write_page(self, last: bool) -> None:
        self.state.check_place()
        work = ", ".join(sorted(work.name for work in self.in_work.values())) or "nothing"
        interval = self.options.interval
        doing = f"{self.folder} is checked every {interval:g} s; in progress: {work}"
        self.retries.changed = False
        status = WatchStatus(max(RELOAD, interval), doing, self.retries.lines())
        if last:
            status = WatchStatus(None, f"{self.folder} is not being watched", self.retries.lines())
        self.table.write(self.results, status)
        trim_memory()  # of a figure for each scan the allocator keeps pieces

    def _show(self, *names: str) -> None:
        """Make the rows of files anew from what is noted of them and from the folders of their results."""
        for name in names:
            record, number = self.state.files[name], self.state.numbers[name]
            if record.problem:
                self.table.refuse(name, number, record.stamp, record.problem)
            else:
                folder = self.results / self.state.contents[record.digest].folder
                self.table.load(name, number, record.stamp, folder, self.fits.load)

    def _delete_store(self, digest: str) -> None:
        store = self.state.contents[digest].store
        if store and not self.options.keep_stores and self._remove_store(store):
            self.state.store_removed(digest)

    def _remove_store(self, store: str) -> bool:
        """Remove a store; return False for what is none, or cannot be removed: it stays, and that is said."""
        try:
            removed, why = self.state.remove_store(store), "it is not a store of homodyne_dask"
        except OSError as e:
            removed, why = False, error_sentence(e, then="")
        if not removed:
            say(f"{self.results / store} was not removed: {why}")
        return removed

    def _end_with(self, status: int) -> None:
        worst = (BAD_INPUT, NOT_CONVERGED, 0)
        self.status = min(status, self.status, key=worst.index)


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
            indexed = any(file.exists() for file in index_files(results, SCANS))
            if indexed and not (results / STATE).exists():
                raise OptionError(
                    f"{results} contains the index of another set of scans: give another --output"
                )
            state = read_state(results, fit_identity(config, time_offset), config.over)
            retries = Retries(not watching.once, max(RETRY_SECONDS, watching.interval))
            table = ScanTable(fits.model.names)
            watcher = FolderWatch(folder, state, fits, table, watching, retries)
            if not watching.once:
                say(
                    f"{folder} is checked for new files every {watching.interval:g} s; "
                    f"{results / 'scans.html'} shows the scans as they arrive; Ctrl-C stops watching"
                )
            try:
                return watcher.run()
            finally:
                fits.close()
    except FolderInUse:
        raise OptionError(
            f"another watch or fit is writing {results}: stop it, or give another --output"
        ) from None
    except (KeyboardInterrupt, Interrupted):
        echo("")
        raise Interrupted(
            f"interrupted: finished fits are in {results}; the same command continues the watch"
        ) from None
