"""A fit as it goes on: on a terminal a bar with tiles, rate and time left; plain lines elsewhere."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as ProgressBar

from homodyne_dask.live.progress import pass_line

if TYPE_CHECKING:
    from homodyne_dask.live.progress import Progress

LINE_INTERVAL = 30.0
"""Seconds between two plain lines within a pass."""

ShowProgress = Callable[["Progress"], None]


@contextmanager
def progress_on_stderr() -> Iterator[ShowProgress]:
    """Yield what `fit` calls as `watch`; lines go to stderr."""
    with progress_on(Console(stderr=True, highlight=False, soft_wrap=True)) as show:
        yield show


def progress_on(console: Console) -> AbstractContextManager[ShowProgress]:
    """Return what shows a fit on a console, as it can."""
    return _bar(console) if console.is_terminal else nullcontext(_plain(console))


def _lines(console: Console) -> ShowProgress:
    """Return what prints the work as it begins, and each pass when it is done."""
    printed, said = -1, 0

    def show(standing: "Progress") -> None:
        nonlocal printed, said
        for words in standing.refused[said:]:
            console.print(f"refused: {words}", markup=False)
        said = len(standing.refused)
        if standing.now is None and not standing.done:
            return
        if printed < 0:
            console.print(f"{standing.pairs:,} pairs of {standing.bins} bins, {standing.where}")
            if standing.page:
                console.print(f"live: {standing.page}")
            printed = 0
        for one in standing.done[printed:]:
            console.print(pass_line(one, standing.at - standing.began))
        printed = len(standing.done)

    return show


def _plain(console: Console) -> ShowProgress:
    """Return what prints lines alone; in a pass that takes long, one every now and then."""
    lines, said = _lines(console), 0.0

    def show(standing: "Progress") -> None:
        nonlocal said
        lines(standing)
        if standing.now is None or standing.now.done == 0:
            said = standing.at
        elif standing.at - said >= LINE_INTERVAL:
            console.print(f"  {standing.doing}: {pass_state(standing)}")
            said = standing.at

    return show


@contextmanager
def _bar(console: Console) -> Iterator[ShowProgress]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20)
    with ProgressBar(
        *columns, TextColumn("{task.fields[more]}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("workers and first values", total=None, more="")
        lines = _lines(console)

        def show(standing: "Progress") -> None:
            lines(standing)
            now = standing.now
            bar.update(
                task,
                description=standing.doing,
                total=now.tiles if now else None,
                completed=now.done if now else 0,
                more=pass_state(standing),
                refresh=True,
            )

        yield show


def pass_state(standing: "Progress") -> str:
    """Return tiles, rate, time left and χ² of the pass that is being made, as far as they are known."""
    words = []
    if standing.now is not None:
        words.append(f"{standing.now.done}/{standing.now.tiles} tiles")
        if math.isfinite(standing.rate):
            words.append(f"{standing.rate / 1e6:.3g} M pairs/s")
        left = standing.seconds_left(standing.at)
        if math.isfinite(left):
            words.append(f"{left:.0f} s left")
    if standing.done:
        words.append(f"χ²/N {standing.done[-1].per_pair:.7g}")
    return "  ".join(words)
