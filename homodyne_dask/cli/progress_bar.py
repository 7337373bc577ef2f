"""The progress of a fit: a bar with tiles, rate and time left on a terminal, plain lines elsewhere."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as ProgressBar

from homodyne_dask.cli.printing import print_nowhere, shows_progress
from homodyne_dask.errors import printable
from homodyne_dask.fitting.events import Callback, Progress, on_progress, pass_line

LINE_INTERVAL = 30.0
"""Seconds between two plain lines during a pass."""

ShowProgress = Callable[[Progress], None]


class _Console(Console):
    def on_broken_pipe(self) -> None:  # where rich would end the fit
        self.quiet = True
        print_nowhere(sys.stderr)


@contextmanager
def progress_on_stderr() -> Iterator[Callback]:
    if not shows_progress():
        yield lambda _: None
        return
    with progress_on(_Console(stderr=True, highlight=False, soft_wrap=True)) as show:
        yield on_progress(show)


def progress_on(console: Console) -> AbstractContextManager[ShowProgress]:
    return _bar(console) if console.is_terminal else nullcontext(_lines(console, LINE_INTERVAL))


def _lines(console: Console, interval: float = math.inf) -> ShowProgress:
    """Return what prints a line at the start, after each pass, and each interval [s] during one."""
    passes, refused, last = -1, 0, 0.0

    def show(progress: Progress) -> None:
        nonlocal passes, refused, last
        for reason in progress.refused[refused:]:
            console.print(f"refused: {printable(reason)}", markup=False)
        refused = len(progress.refused)
        if progress.now is None or progress.now.done == 0:
            last = progress.at
        if progress.now is None and not progress.done:
            return
        if passes < 0:
            bins = "1 bin" if progress.bins == 1 else f"{progress.bins} bins"
            console.print(f"{progress.pairs:,} {progress.datum} of {bins}, {progress.where}")
            if progress.note:
                console.print(f"note: {printable(progress.note)}", markup=False)
            if progress.page:
                console.print(f"live: {progress.page}")
            passes = 0
        for ended in progress.done[passes:]:
            console.print(pass_line(ended, progress.at - progress.began))
        passes = len(progress.done)
        if progress.at - last >= interval:
            console.print(f"  {progress.doing}: {pass_state(progress)}")
            last = progress.at

    return show


@contextmanager
def _bar(console: Console) -> Iterator[ShowProgress]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20)
    state = TextColumn("{task.fields[more]}")
    with ProgressBar(*columns, state, console=console, transient=True) as bar:
        task = bar.add_task("starting workers, finding initial values", total=None, more="")
        print_lines = _lines(console)

        def show(progress: Progress) -> None:
            print_lines(progress)
            total, done = (current.tiles, current.done) if (current := progress.now) else (None, 0)
            words: dict[str, Any] = {"description": progress.doing, "more": pass_state(progress)}
            bar.update(task, total=total, completed=done, refresh=True, **words)

        yield show


def pass_state(progress: Progress) -> str:
    """Return tiles, rate and time left of the current pass and reduced χ² of the last, as far as known."""
    words = []
    if progress.now is not None:
        words.append(f"{progress.now.done}/{progress.now.tiles} tiles")
        if math.isfinite(progress.rate):
            words.append(f"{progress.rate / 1e6:.3g} M {progress.datum}/s")
        seconds_left = progress.seconds_left(progress.at)
        if math.isfinite(seconds_left):
            words.append(f"{seconds_left:.0f} s left")
    if progress.done:
        words.append(f"reduced χ² {progress.done[-1].redchi:.7g}")
    return "  ".join(words)
