"""What `homodyne-dask watch` does: look at a folder, ingest and begin fits, note results, write the page.

Each step is noted before the next. What may pass by itself, as a full disk, is said once and waited for. The
workers stay warm between fits.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from distributed import Client

import homodyne_dask as hd
from homodyne_dask.apps.watch.folder_state import (
    STATE,
    WatchState,
    fit_identity,
    read_state,
    remove_own_store,
)
from homodyne_dask.apps.watch.scans_page import ScanTable, row_line
from homodyne_dask.apps.watch.watched_files import PATTERNS, Stamp, WatchedFolder, listed, stamp_of
from homodyne_dask.cli import exit_status, progress_bar
from homodyne_dask.cli.commands.ingest import MIN_BYTES_FOR_WORKERS, FileOptions
from homodyne_dask.cli.exit_status import BAD_INPUT, NOT_CONVERGED, error_sentence
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import echo
from homodyne_dask.cli.run_fits import fit_jobs, model_of
from homodyne_dask.cli.worker_options import (
    check_worker_options,
    workers_are_local,
    workers_for_small_fits,
)
from homodyne_dask.errors import (
    ClusterError,
    FileReadError,
    HomodyneDaskError,
    OptionError,
    SourceError,
    in_line,
)
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.series.many_fits import begun, find_previous
from homodyne_dask.machine.allocator_and_threads import trim_memory
from homodyne_dask.results.data.fit_rows import SCANS, FitRow, fit_row
from homodyne_dask.results.files.result_folder import FolderInUse, index_files, locked_folder
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import load_result
from homodyne_dask.store.files import open_without_waiting

ALL, PAGE = "folders, disk and workers", "the page"
"""What is waited for beside single files: what every file needs, and the page."""
LONGEST_PAUSE = 0.05
"""Seconds until it is asked again whether a fit has ended."""
RELOAD = 10.0
"""Seconds after which the page reloads."""
LARGEST_SHARE = 0.1
"""Share of the time that goes into writing the page."""
AHEAD = 2
"""Small fits given to each thread: one to work on, one to go on with."""


def may_pass(error: BaseException) -> bool:
    """Return whether what failed may succeed later as it is: a disk, a folder, workers."""
    if isinstance(error, ClusterError):
        return type(error.__cause__).__name__ != "KilledWorker"  # it kills the next ones, too
    if isinstance(error, FolderInUse | OSError | FileReadError):
        return True
    ours = isinstance(error, HomodyneDaskError) and not isinstance(error, SourceError)
    return ours and isinstance(error.__cause__, OSError)


def concerns_all(error: BaseException) -> bool:
    """Return whether what may pass concerns all files: the workers, or a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in exit_status.DISK_FULL
    return may_pass(error) and (full or isinstance(error, ClusterError))


class FitOfStore:
    """The fit of a store, if small on a worker already; what its folder has of another fit is replaced."""

    def __init__(self, config: FitConfig, client: Client, pictures: str, nexus: bool) -> None:
        model, (job,) = model_of(config), fit_jobs(config)
        job = job._replace(overwrite=True, pictures=pictures, nexus=nexus)
        given = [job], [find_previous(model, job)], model, client, client
        self.held = ExitStack()
        (self.fit,) = self.held.enter_context(begun(*given, workers_are_local(config)))

    def ended(self) -> bool:
        return self.fit.ended()

    def result(self) -> FitResult:
        """Return the result, of a fit made here where no worker made it; raises what made it fail."""

        @contextmanager
        def progress_shown(*_: object) -> Iterator[Sequence[Callback]]:
            with progress_bar.progress_on_stderr() as show:
                yield [show]

        with self.held:
            output = self.fit.output(progress_shown)
        if output.result is None:
            raise output.error or AssertionError
        return output.result

    def close(self) -> None:
        self.held.close()


class ScanFitter:
    def __init__(self, config: FitConfig, pictures: str, nexus: bool, reading: FileOptions) -> None:
        self.config, self.written, self.reading = config, (pictures, nexus), reading
        self.model = model_of(config)
        self.held = ExitStack()
        self.client: Client | None = None
        self.at_once = 1
        """Number of scans that are worked on at the same time."""

    def connect(self) -> None:
        """Connect to the workers that the options choose, or start some here; ClusterError for none."""
        if self.client is None:
            self.client, threads = self.held.enter_context(workers_for_small_fits(self.config))
            self.at_once = AHEAD * threads

    def close(self) -> None:
        self.client = None
        self.held.close()

    def begin(self, source: Path, store: Path, folder: Path) -> FitOfStore:
        """Ingest a file, or go on with it, and begin the fit whose result goes into a folder."""
        with open(source, "rb", opener=open_without_waiting) as file:  # a refusal may pass
            large = os.fstat(file.fileno()).st_size >= MIN_BYTES_FOR_WORKERS
        client = self.client if large else None
        hd.ingest(source, store, client=client, **self.reading.model_dump())
        assert self.client is not None  # it was connected before
        config = self.config.replaced(data=[store], output=folder)
        return FitOfStore(config, self.client, *self.written)


class InWork(NamedTuple):
    stamp: Stamp
    fit: FitOfStore
    began: float


def say(text: str) -> None:
    echo(in_line(text), err=True)


@dataclass
class FolderWatch:
    folder: Path
    state: WatchState
    fits: ScanFitter
    table: ScanTable
    options: WatchedFolder
    retry: float = 10.0
    """Seconds until what failed, but may pass, is tried again."""
    seen: dict[str, Stamp] = field(default_factory=dict)
    """By the last look."""
    still: dict[str, Stamp] = field(default_factory=dict)
    """Files that stood still between the last two looks."""
    in_work: dict[str, InWork] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Why something is waited for: a file, ALL or PAGE."""
    retry_at: dict[str, float] = field(default_factory=dict)
    looks: int = 0
    next_look: float = 0.0
    statuses: set[int] = field(default_factory=set)
    """What this run has seen, as exit statuses."""

    @property
    def ready(self) -> dict[str, Stamp]:
        idle = self.still.keys() - self.in_work.keys()
        return {name: at for name in idle if not self.state.is_done(name, at := self.still[name])}

    def run(self) -> int:
        self.resume()
        try:
            while not self.done():
                self.step()
        finally:
            self._drop_work()
            self.publish(last=True)
        if self.waiting:
            return BAD_INPUT
        return next((s for s in (BAD_INPUT, NOT_CONVERGED) if s in self.statuses), 0)

    def done(self) -> bool:
        if not self.options.once or self.looks < 2 or self.in_work:
            return False
        return not self.ready.keys() - self.waiting.keys()

    def resume(self) -> None:
        self.state.save()
        for name, record in self.state.files.items():
            if record.problem:
                self._show(name, None, record.problem)
            elif record.done:
                self._delete_store(name)
                try:
                    self._show(name, load_result(self.state.places(name, record)[1]))
                except Exception as e:  # whatever is in one folder, the watch of the others goes on
                    self._show(name, None, error_sentence(e, then=""))

    def step(self) -> None:
        moved = False
        try:
            if not self._too_early(ALL):
                moved = self._do_next()
                if not self.in_work:  # what was begun may fail again for the same reason
                    self._resolved(ALL)
        except Exception as e:
            if self.options.once or not may_pass(e):
                raise
            if isinstance(e, ClusterError):
                self._drop_work()
                self.fits.close()
            self._postpone(ALL, e)
        self.publish(last=False)
        if not moved:
            until = max(self.next_look, self.retry_at.get(ALL, 0.0)) - time.monotonic()
            time.sleep(max(min(until, LONGEST_PAUSE) if self.in_work else until, 0.0))

    def _do_next(self) -> bool:
        self.state.check_place()
        self.state.save()
        self.look()
        if self.ready:
            self.fits.connect()
        return self._collect() or self._start_next()

    def look(self) -> None:
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + self.options.interval
        found = listed(self.folder, self.options.files or PATTERNS)
        self.still = {name: stamp for name, stamp in found.items() if self.seen.get(name) == stamp}
        self.seen, self.looks = found, self.looks + 1
        gone = self.waiting.keys() - found.keys() - {ALL, PAGE}
        for name in gone:
            self._resolved(name)
        for name in gone | self.state.forget_refused(found):  # replaced by another file, perhaps
            self.table.remove(name)

    def _start_next(self) -> bool:
        ready = {name: stamp for name, stamp in self.ready.items() if not self._too_early(name)}
        if not ready or len(self.in_work) >= self.fits.at_once:
            return False
        sign = -1 if self.options.newest_first else 1
        name = min(ready, key=lambda name: (sign * ready[name].mtime_ns, name))
        stamp, began = ready[name], time.monotonic()
        try:
            store, folder = self.state.begin(name, stamp)
            store.parent.mkdir(exist_ok=True)
            fit = self.fits.begin(self.folder / name, store, folder)
            if stamp_of(self.folder / name) == stamp:
                self.in_work[name] = InWork(stamp, fit, began)
                self.table.changed = True
            else:  # it is being written again
                fit.close()
                del self.still[name]
        except Exception as e:  # whatever is in one file, the watch of the others goes on
            self._failed(name, stamp, e)
        return True

    def _collect(self) -> bool:
        name = next((of for of, work in self.in_work.items() if work.fit.ended()), None)
        if name is None:
            return False
        work = self.in_work.pop(name)
        try:
            result = work.fit.result()
            row = self._show(name, result)
        except Exception as e:  # as of one that cannot begin
            self._failed(name, work.stamp, e)
        else:
            self.statuses.add(0 if result.converged else NOT_CONVERGED)
            say(row_line(row, time.monotonic() - work.began))
            self.state.end(name)
            self._delete_store(name)
            for what in (name, ALL):
                self._resolved(what)
        return True

    def _failed(self, name: str, stamp: Stamp, error: Exception) -> None:
        """Wait for what may pass; a file that cannot be fitted is a row with its sentence."""
        if concerns_all(error):
            raise error
        if may_pass(error):
            self._postpone(name, error)
            self._show(name, None, self.waiting[name])
        elif stamp_of(self.folder / name) == stamp:
            problem = error_sentence(error, then=", then touch the file")
            say(f"{name}: {problem}")
            self.statuses.add(BAD_INPUT)
            self._show(name, None, problem)
            self._resolved(name)
            self.state.end(name, problem)
        else:
            self.still.pop(name, None)

    def _show(self, name: str, result: FitResult | None, problem: str = "") -> FitRow:
        record = self.state.files[name]
        folder = None if result is None else self.state.places(name, record)[1]
        return self.table.add(record.number, record.stamp, fit_row(name, folder, result, problem))

    def _postpone(self, what: str, error: Exception) -> None:
        """Note, and say once, that something must pass first."""
        sentence = error_sentence(error, then="")
        if what not in self.waiting:
            say(f"waiting for {what}, retrying every {self.retry:g} s: {sentence}")
            self.table.changed = True
        self.waiting[what] = sentence
        self.retry_at[what] = time.monotonic() + max(self.retry, self.options.interval)

    def _too_early(self, what: str) -> bool:
        return time.monotonic() < self.retry_at.get(what, 0.0)

    def _resolved(self, what: str) -> None:
        """Note, and say of what was waited for, that it is there."""
        self.retry_at.pop(what, None)
        if self.waiting.pop(what, None) is not None:
            say(f"no longer waiting for {what}")
            self.table.changed = True

    def _drop_work(self) -> None:
        """Give up what workers do; what they have written by then is found when it is begun again."""
        for work in self.in_work.values():
            work.fit.close()
        self.in_work.clear()

    def publish(self, last: bool) -> None:
        """Write the table and the page, where there is something new and it is time."""
        if not last and (self._too_early(PAGE) or not self.table.changed):
            return
        work, every = ", ".join(sorted(self.in_work)) or "nothing", self.options.interval
        does = f"is checked every {every:g} s; in progress: {work}"
        said = [f"{self.folder} {'is not being watched' if last else does}"]
        said += [f"waiting for {what}: {why}" for what, why in self.waiting.items()]
        began = time.monotonic()
        try:
            self.state.check_place()
            self.table.write(self.state.results, said, None if last else max(RELOAD, every))
            self._resolved(PAGE)
            took = time.monotonic() - began
            self.retry_at[PAGE] = time.monotonic() + took / LARGEST_SHARE
        except Exception as e:
            if self.options.once:
                raise
            self._postpone(PAGE, e)
        trim_memory()  # of a figure for each scan the allocator keeps pieces

    def _delete_store(self, name: str) -> None:
        """Remove the store of a file, where that is asked for; what is none stays, and that is said."""
        store, _ = self.state.places(name, self.state.files[name])
        if not (self.options.stores == "keep" or remove_own_store(store)):
            say(f"{store} was not removed: it is not a store of homodyne_dask")


def run_watch(folder: Path, config: FitConfig, watching: WatchedFolder, fits: ScanFitter) -> int:
    check_worker_options(config)
    assert config.output is not None  # --output is required
    results = config.output
    try:
        with locked_folder(results, f".{SCANS}.lock"):
            indexed = any(file.exists() for file in index_files(results, SCANS))
            if indexed and not (results / STATE).exists():
                raise OptionError(
                    f"{results} contains the index of another set of scans: give another --output"
                )
            state = read_state(results, fit_identity(config, fits.reading))
            watcher = FolderWatch(folder, state, fits, ScanTable(fits.model.names), watching)
            if not watching.once:
                say(
                    f"{folder} is checked for new files every {watching.interval:g} s; "
                    f"{results / 'scans.html'} shows the scans as they arrive; Ctrl-C stops watching"
                )
            try:
                return watcher.run()
            finally:
                fits.close()
    except KeyboardInterrupt:
        echo("")
        raise exit_status.Interrupted(
            f"interrupted: finished fits are in {results}; the same command continues the watch"
        ) from None
