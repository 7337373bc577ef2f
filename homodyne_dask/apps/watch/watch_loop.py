"""What `homodyne-dask watch` does: look at a folder, ingest and begin fits, note results, write the page.

An obstacle that may pass by itself, such as a full disk, is reported once and waited for. The workers stay
between fits, so that nothing is compiled again.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client

import homodyne_dask as hd
from homodyne_dask import errors
from homodyne_dask.apps.watch import folder_state
from homodyne_dask.apps.watch.folder_state import EndedFile, WatchState, remove_store
from homodyne_dask.apps.watch.scans_page import ScanTable, row_line
from homodyne_dask.apps.watch.watched_files import PATTERNS, Stamp, WatchedFolder, listed
from homodyne_dask.cli import exit_status, worker_options
from homodyne_dask.cli.commands.ingest import MIN_BYTES_FOR_WORKERS, FileOptions
from homodyne_dask.cli.exit_status import BAD_INPUT, NOT_CONVERGED, error_sentence
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import echo, echo_json
from homodyne_dask.cli.run_fits import fit_jobs
from homodyne_dask.fitting.series.many_fits import StartedFit, find_previous, start_fits
from homodyne_dask.machine.allocator_and_threads import trim_memory
from homodyne_dask.models import model_named
from homodyne_dask.results.data.fit_rows import SCANS, FitRow, fit_row
from homodyne_dask.results.files.result_folder import FolderInUse, locked_folder
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import load_result

ALL, PAGE = "folders, disk and workers", "the page"
"""Names of obstacles that do not concern a single file."""
LONGEST_PAUSE = 0.05
"""Seconds between two checks whether a fit has ended."""
RELOAD = 10.0
"""Seconds after which the page reloads; as long it is not written again, which takes time."""
AHEAD = 2
"""Small fits given to each thread: while it computes one, the next one is ready."""


def waits_for(error: BaseException, name: str) -> str:
    """Return what must pass before what failed may succeed as it is: a file, ALL, or '' if it will not."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(error, errors.ClusterError):
        return "" if type(cause).__name__ == "KilledWorker" else ALL  # it kills the next ones, too
    passing = FolderInUse | errors.FileReadError | errors.StoreInUse
    if isinstance(error, passing) or isinstance(cause, PermissionError):
        return name
    expected = isinstance(error, OSError | errors.HomodyneDaskError)
    if expected and isinstance(cause, OSError) and not isinstance(error, errors.SourceError):
        return ALL if cause.errno in exit_status.DISK_FULL else name
    return ""


@dataclass
class ScanFitter:
    config: FitConfig
    reading: FileOptions
    client: Client | None = None
    at_once: int = 1
    """Number of scans that are worked on at the same time."""
    resources: ExitStack = field(default_factory=ExitStack)

    def connect(self) -> None:
        """Connect to the workers that the options choose, or start some here; ClusterError for none."""
        if self.client is None:
            workers = worker_options.workers_for_small_fits(self.config)
            self.client, threads = self.resources.enter_context(workers)
            self.at_once = AHEAD * threads

    def close(self) -> None:
        self.client = None
        self.resources.close()

    def begin(self, source: Path, store: Path, folder: Path) -> tuple[ExitStack, StartedFit]:
        """Ingest a file, or go on with it, and begin its fit, which goes on until the stack is closed."""
        if store.is_symlink():
            raise errors.StoreError(f"{store} is a link to {store.resolve()}: remove the link")
        store.parent.mkdir(exist_ok=True)
        client = self.client if source.stat().st_size >= MIN_BYTES_FOR_WORKERS else None
        try:
            hd.ingest(source, store, client=client, **self.reading.model_dump())
        except errors.StoreError as e:
            if waits_for(e, ALL):
                raise
            # it is of an earlier content of the file
            hd.ingest(source, store, client=client, overwrite=True, **self.reading.model_dump())
        config = self.config.replaced(data=[store], output=folder)
        model, (job,) = model_named(config.model), fit_jobs(config)
        job = job._replace(overwrite=True, pictures=config.picture_format, nexus=config.nexus)
        workers = self.client, self.client, worker_options.workers_are_local(config)
        resources = ExitStack()
        fits = start_fits([job], [find_previous(model, job)], model, *workers)
        return resources, resources.enter_context(fits)[0]


class InWork(NamedTuple):
    stamp: Stamp
    resources: ExitStack
    fit: StartedFit


def say(text: str) -> None:
    """Print a line with its time, as of a log file."""
    echo(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z} {errors.in_line(text)}", err=True)


def _numbers_of(result: FitResult) -> dict[str, Any]:
    keys = "outcome", "model_status", "usable", "redchi", "parameters", "derived", "findings"
    values = result.to_dict()
    return {key: values[key] for key in keys}


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
    """Files that did not change between the last two looks."""
    in_work: dict[str, InWork] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Why something is waited for: a file, ALL or PAGE."""
    retry_at: dict[str, float] = field(default_factory=dict)
    looks: int = 0
    next_look: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    """What became of the files of this run, as exit statuses."""

    @property
    def ready(self) -> dict[str, Stamp]:
        ended = {name: file.stamp for name, file in self.state.ended.items()}
        idle = self.still.keys() - self.in_work.keys()
        return {name: self.still[name] for name in idle if self.still[name] != ended.get(name)}

    def run(self) -> int:
        self.resume()
        try:
            while not self.done():
                self.step()
        finally:
            self._drop_work()
            self.publish(last=True)
        failures = [status for status in self.statuses.values() if status]
        return BAD_INPUT if self.waiting else min(failures, default=0)  # which is BAD_INPUT, too

    def done(self) -> bool:
        ended = self.looks >= 2 and not self.in_work and self.ready.keys() <= self.waiting.keys()
        return self.options.once and ended

    def resume(self) -> None:
        """Show what an earlier run noted."""
        for name, file in self.state.ended.items():
            try:
                result = None if file.problem else load_result(self.state.places(name)[1])
                self._show(name, file.stamp, result, file.problem)
            except Exception as e:  # whatever is in one folder, the watch of the others goes on
                self._show(name, file.stamp, None, error_sentence(e, then=""))

    def step(self) -> None:
        """Finish or begin a fit, or wait where there is none; write the page."""
        progressed = False
        try:
            if self._is_time(ALL):
                self.state.check_place()
                if time.monotonic() >= self.next_look:
                    self.look()
                progressed = self._finish_next() or self._begin_next()
                if not self.in_work:  # what was begun may fail again for the same reason
                    self._resolved(ALL)
        except Exception as e:  # raised again, unless it may pass
            if self.options.once or not waits_for(e, ALL):
                raise
            if isinstance(e, errors.ClusterError):
                self._drop_work()
                self.fits.close()
            self._postpone(ALL, e)
        self.publish()
        if not progressed:
            pause = max(self.next_look, self.retry_at.get(ALL, 0.0)) - time.monotonic()
            time.sleep(max(min(pause, LONGEST_PAUSE) if self.in_work else pause, 0.0))

    def look(self) -> None:
        self.next_look = time.monotonic() + self.options.interval
        files = listed(self.folder, self.options.files or PATTERNS)
        self.still = {name: stamp for name, stamp in files.items() if self.seen.get(name) == stamp}
        self.seen, self.looks = files, self.looks + 1
        refused = {name for name, file in self.state.ended.items() if file.problem}
        for name in (refused | self.waiting.keys()) - {*files, ALL, PAGE}:
            remaining = {n: file for n, file in self.state.ended.items() if n != name}
            self.state.write(remaining)  # if it comes back, it is tried again
            self._resolved(name)
            self.table.remove(name)

    def _begin_next(self) -> bool:
        ready = {name: stamp for name, stamp in self.ready.items() if self._is_time(name)}
        if ready:
            self.fits.connect()
        if not ready or len(self.in_work) >= self.fits.at_once:
            return False
        name = min(ready, key=lambda name: (ready[name].mtime_ns, name))
        with self._alone(name, ready[name]):
            begun_fit = self.fits.begin(self.folder / name, *self.state.places(name))
            self.in_work[name] = InWork(ready[name], *begun_fit)
            self.table.changed = True
        return True

    def _finish_next(self) -> bool:
        name = next((name for name, work in self.in_work.items() if work.fit.ended()), None)
        if name is None:
            return False
        stamp, resources, fit = self.in_work.pop(name)
        with self._alone(name, stamp):
            with resources:
                result, error, *_ = fit.output(lambda *_: nullcontext(()))
            damaged = isinstance(error, errors.StoreError)  # it is ingested again
            if damaged or (result is not None and self.options.stores == "delete"):
                remove_store(self.state.places(name)[0])
            if result is None:
                raise error or AssertionError
            self.state.write(self.state.ended | {name: EndedFile(stamp)})
            row = self._show(name, stamp, result)
            self._tell(row_line(row), file=name, folder=str(row.folder), **_numbers_of(result))
            self.statuses[name] = 0 if result.converged else NOT_CONVERGED
            self._resolved(name)
            self._resolved(ALL)
        return True

    @contextmanager
    def _alone(self, name: str, stamp: Stamp) -> Iterator[None]:
        """Let what fails concern one file: wait for what may pass, else refuse it in its row."""
        try:
            yield
        except Exception as e:  # whatever is in one file, the watch of the others goes on
            obstacle = waits_for(e, name)
            if obstacle == ALL:
                raise
            problem = error_sentence(e, then="" if obstacle else ", then touch the file")
            self._show(name, stamp, None, problem)
            if obstacle:
                self._postpone(name, e)
            else:
                self.state.write(self.state.ended | {name: EndedFile(stamp, problem)})
                self._tell(f"{name}: {problem}", file=name, problem=problem)
                self.statuses[name] = BAD_INPUT
                self._resolved(name)

    def _tell(self, sentence: str, **values: Any) -> None:
        """Print what has become of a file, with --json as an object."""
        say(sentence)
        if self.options.as_json:
            echo_json(values, indent=None)

    def _show(self, name: str, stamp: Stamp, result: FitResult | None, problem: str = "") -> FitRow:
        folder = None if result is None else self.state.places(name)[1]
        row = fit_row(name, folder, result, problem)
        self.table.add(stamp.mtime_ns / 1e9, row)
        return row

    def _postpone(self, obstacle: str, error: Exception) -> None:
        """Note an obstacle, report it once, and wait before the next attempt."""
        sentence = error_sentence(error, then="")
        if obstacle not in self.waiting:
            say(f"waiting for {obstacle}, retrying every {self.retry:g} s: {sentence}")
            self.table.changed = True
        self.waiting[obstacle] = sentence
        self.retry_at[obstacle] = time.monotonic() + max(self.retry, self.options.interval)

    def _is_time(self, obstacle: str) -> bool:
        return time.monotonic() >= self.retry_at.get(obstacle, 0.0)

    def _resolved(self, obstacle: str) -> None:
        """Note that there is no such obstacle any more, and report it if there was one."""
        self.retry_at.pop(obstacle, None)
        if self.waiting.pop(obstacle, None) is not None:
            say(f"no longer waiting for {obstacle}")
            self.table.changed = True

    def _drop_work(self) -> None:
        """Give up what workers do; what they have written by then is found when it is begun again."""
        for work in self.in_work.values():
            work.resources.close()
        self.in_work.clear()

    def publish(self, last: bool = False) -> None:
        """Write the table and the page, where there is something new and it is time."""
        if not last and not (self.table.changed and self._is_time(PAGE)):
            return
        work, interval = ", ".join(sorted(self.in_work)) or "nothing", self.options.interval
        does = f"is checked every {interval:g} s; in progress: {work}"
        sentences = [f"{self.folder} {'is not being watched' if last else does}"]
        sentences += [f"waiting for {what}: {why}" for what, why in self.waiting.items()]
        try:
            self.state.check_place()
            self.table.write(self.state.results, sentences, None if last else max(RELOAD, interval))
            self._resolved(PAGE)
            self.retry_at[PAGE] = time.monotonic() + RELOAD
        except Exception as e:  # fits go on without the page, which is tried again
            if self.options.once:
                raise
            self._postpone(PAGE, e)
        trim_memory()  # of a figure for each scan the allocator keeps pieces


def run_watch(folder: Path, watching: WatchedFolder, fits: ScanFitter) -> int:
    worker_options.check_worker_options(fits.config)
    results = fits.config.output
    assert results is not None  # --output is required
    try:
        with locked_folder(results, f".{SCANS}.lock"), closing(fits):
            identity = folder_state.fit_identity(fits.config, fits.reading)
            state = folder_state.open_state(results, identity)
            table = ScanTable(model_named(fits.config.model).names)
            if not watching.once:
                say(f"{results}/scans.html shows the scans of {folder}; Ctrl-C stops watching")
            return FolderWatch(folder, state, fits, table, watching).run()
    except KeyboardInterrupt:
        echo("")
        raise exit_status.Interrupted(
            f"interrupted: finished fits are in {results}; the same command continues the watch"
        ) from None
