"""Publishes the progress of a fit: to its page on the dashboard, the log, and a user's function."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps import dashboard
from homodyne_dask.apps.dashboard.fit_page import render_cell
from homodyne_dask.fitting.events import Event, Progress, apply_event, pass_line
from homodyne_dask.solver import levenberg_marquardt as lm

if TYPE_CHECKING:  # kernels load JAX, and the first line of progress comes before that
    from distributed import Client

    from homodyne_dask.kernels.gram import AnyGram
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.sweep.plan import Plan
    from homodyne_dask.sweep.sweep import Sweep
    from homodyne_dask.sweep.tasks import Report, Task

LOG = logging.getLogger(__name__)
EVENT_INTERVAL = 0.4
"""Least time between two events of completed tiles [s]."""


class FitDescription(NamedTuple):
    """Title, parameters and errors of a fit, published with its passes."""

    title: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    errors: Callable[[lm.State], Float[np.ndarray, " p"]]
    """Standard errors of theta at a state; NaN if unknown."""
    store: str = ""
    """Path of the data; "" where they are in no store."""


class FitObserver:
    """Turns the steps of one fit into events and passes them to the page, the log and `watch`."""

    def __init__(
        self,
        description: FitDescription,
        plan: "Plan",
        client: "Client | None",
        watch: Callable[[Progress], None] | None = None,
        refused: Sequence[str] = (),
    ) -> None:
        self.description, self.refused = description, refused
        self.watch = notebook_observer() if watch is None else watch
        self.publisher = None if client is None else dashboard.connect_page(client)
        self.fit = os.urandom(3).hex()
        self.began = time.time()
        self.progress: Progress | None = None
        self.totals = {"pairs_total": 0, "tiles_total": 0, "tiles_skipped": 0, "busy": 0.0}
        self.done: dict[int, int] = {}
        """Completed passes at each resolution, including those before a resume."""
        self.pass_began = self.began
        self.step = ""
        """What the fit does after its last step; passes have numbers before."""
        self.publish(
            "begun",
            title=description.title,
            store=description.store,
            where=plan.workers.in_words + (f", on {plan.device.gpus}" if plan.gpus else ""),
            names=list(description.names),
            units=list(description.units),
            pairs=plan.layout.pairs,
            bins=plan.bins,
            threads=plan.workers.threads,
            page="" if self.publisher is None else self.publisher.page,
        )

    def publish(self, what: str, **more: Any) -> None:
        """Publish an event, after those of workers that were refused meanwhile."""
        published = len(self.refused) if self.progress is None else len(self.progress.refused)
        for words in self.refused[published:]:
            LOG.warning("fit %s: %s", self.fit, words)
            self._publish("refused", words=words)
        self._publish(what, **more)

    def _publish(self, what: str, **more: Any) -> None:
        event: Event = {"what": what, "fit": self.fit, "at": time.time()} | more
        self.progress = apply_event(self.progress, event)
        if self.publisher is not None:
            self.publisher(dict(event))
        if self.watch is not None and self.progress is not None:
            self.watch(self.progress)

    def observed(self, sweep: "Sweep") -> "Sweep":
        """Return the sweep with events added for its passes and tiles."""
        unobserved = sweep.compute

        def compute(
            sweep: "Sweep", task: "Task[Any]", at: Any
        ) -> "Iterator[tuple[int, AnyGram, Report]]":
            factor = sweep.layout.factor
            words = self._words(task.label, factor)
            self.pass_began = time.time()
            self.publish("pass", words=words, factor=factor, tiles=sweep.layout.blocks)
            parts = unobserved(sweep, task, at)
            with self._span(words):  # tasks are submitted for the first part
                part = next(parts, None)
            published = time.perf_counter()
            here: dict[str, Any] = dict.fromkeys(("done", "pairs", "bytes", "seconds"), 0)
            while part is not None:
                self._add(sweep, here, part)
                if (
                    here["done"] == sweep.layout.blocks
                    or time.perf_counter() - published > EVENT_INTERVAL
                ):
                    published = time.perf_counter()
                    self.publish("tiles", **here, **self.totals)
                yield part
                part = next(parts, None)

        return replace(sweep, compute=compute)

    def _span(self, words: str) -> AbstractContextManager[Any]:
        """Return a context in which the tasks of a pass are submitted, for the dashboard."""
        if self.publisher is None:
            return nullcontext()
        from distributed import span

        return span(f"fit {self.fit}", words)

    def _words(self, label: str | None, factor: int) -> str:
        means = f" over {factor}×{factor} means" if factor > 1 else ""
        if label is None and self.step:
            return self.step
        if label is None:
            number = self.done.get(factor, 0) + 1
            return f"pass {number}{means or ' over all data'}"
        return f"pass {label}{means}"

    def _add(
        self, sweep: "Sweep", here: dict[str, Any], part: "tuple[int, AnyGram, Report]"
    ) -> None:
        n, gram, report = part
        tiles, cost = len(sweep.tasks[n].tiles), report.cost
        pairs, skipped = int(gram.pairs.sum()), cost.blocks - cost.read
        here["done"] += tiles
        here["pairs"] += pairs
        here["bytes"] += (tiles - skipped) * sweep.layout.block_bytes
        here["seconds"] += report.seconds
        for key, more in zip(self.totals, (pairs, tiles, skipped, report.seconds), strict=True):
            self.totals[key] += more

    def state(self, state: lm.State, factor: int = 1) -> None:
        """Publish the state after a pass."""
        now = time.time()
        self.done[factor] = state.passes
        errors = self.description.errors(state)
        self.publish(
            "state",
            number=state.passes,
            factor=factor,
            chisqr=float(state.reduced.chisqr),
            per_pair=float(state.reduced.chisqr / max(state.reduced.ndata, 1)),
            distance=float(state.decrement),
            damping=float(state.damping),
            accepted=bool(state.accepted),
            seconds=now - self.pass_began,
            theta=state.theta.tolist(),
            stderr=errors.tolist(),
        )
        assert self.progress is not None
        LOG.info("fit %s: %s", self.fit, pass_line(self.progress.done[-1], now - self.began))

    def doing(self, words: str) -> None:
        """Publish the current step of the fit, whose passes are called by it from then on."""
        self.step = words
        self.publish("doing", words=words)

    def ended(self, result: "FitResult") -> None:
        """Publish the outcome and values of a result."""
        table = result.parameters
        self.end(
            result.outcome.name, result.verdict, [*result.undetermined, *result.warnings],
            table["value"].values.tolist(), result.error_used.tolist(),
            sum(result.compilations.values()),
        )  # fmt: skip

    def end(
        self,
        outcome: str,
        sentence: str,
        reservations: list[str],
        theta: list[float],
        stderr: list[float],
        compilations: int,
    ) -> None:
        """Publish the outcome of a fit: its name, a sentence, and reservations."""
        LOG.info("fit %s: %s", self.fit, sentence)
        self.publish(
            "ended", outcome=outcome, sentence=sentence, reservations=reservations, theta=theta,
            stderr=stderr, compilations=compilations,
        )  # fmt: skip

    @contextmanager
    def failures_published(self) -> Iterator[None]:
        """Publish an exception or interruption inside the `with` as the outcome of the fit."""
        try:
            yield
        except BaseException as e:
            self.watch = None
            if isinstance(e, KeyboardInterrupt | GeneratorExit):
                self.end("INTERRUPTED", lm.Outcome.INTERRUPTED.value, [], [], [], 0)
            else:
                self.end("FAILED", f"failed: {e}", [], [], [], 0)
            raise


def notebook_observer() -> Callable[[Progress], None] | None:
    """Return a function that shows progress below the running cell of a notebook; None elsewhere."""
    shell = None if (ipython := sys.modules.get("IPython")) is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    display = sys.modules["IPython.display"]
    handle = display.display(display.HTML(""), display_id=True)
    return lambda progress: handle.update(display.HTML(render_cell(progress)))
