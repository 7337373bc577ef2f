"""The passes of a fit as they are done: a moving line on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from homodyne_dask.lm import State
    from homodyne_dask.planning import Plan


@contextmanager
def progress() -> Iterator[Callable[["State", "Plan"], None]]:
    """Yield what `fit` calls with each state; lines go to stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.perf_counter()
    waiting = "workers and first values ..."
    shown = console.status(waiting) if console.is_terminal else nullcontext()
    with shown as status:

        def show(state: "State", plan: "Plan") -> None:
            if state.passes == 1:
                console.print(_work(plan))
            console.print(line(state, time.perf_counter() - began))
            if status is not None:
                status.update(f"pass {state.passes + 1} ...")

        yield show


def line(state: "State", elapsed: float) -> str:
    """Return one pass as a line: χ²/N, the distance to the optimum in standard errors, time."""
    per_pair = state.reduced.chisqr / max(state.reduced.ndata, 1)
    distance = f"{state.decrement:.2g}" if math.isfinite(state.decrement) else "-"
    words = f"pass {state.passes:3d}   χ²/N {per_pair:<12.7g} distance {distance:<9}"
    return f"{words}{elapsed:7.1f} s" + ("" if state.accepted else "   (not lower)")


def _work(plan: "Plan") -> str:
    workers = plan.workers
    where = (
        "in this process"
        if workers.local
        else f"on {workers.processes} Dask worker{'s' * (workers.processes > 1)} with "
        f"{workers.threads} threads"
    )
    return f"{plan.layout.pairs:,} pairs of {plan.bins} bins, {where}"
