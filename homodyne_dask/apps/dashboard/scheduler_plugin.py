"""Scheduler plugin of the page /fit: the progress of fits, and the workers they lost."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.apps.dashboard.http_handler import routes
from homodyne_dask.apps.dashboard.prometheus_metrics import FITS
from homodyne_dask.cluster._dask_internals import add_pages, forget_spans
from homodyne_dask.fitting.events import TOPIC, Progress, apply_event

if TYPE_CHECKING:
    from distributed import Scheduler

MAX_FITS = 100
"""Number of fits kept, the latest ones."""
SPAN_PREFIX, MAX_SPANS = "fit ", 2000
"""How the names of a fit's spans begin, and how many passes keep theirs: about 20 MB."""
PAGE = "fit"
VIEWER_TIMEOUT, CLOSING_GRACE = 3.0, 2.0
"""Seconds after a request in which a viewer is assumed, and most to wait for one before closing."""


class WorkerRow(NamedTuple):
    """A worker in the table of the page."""

    name: str
    threads: int
    memory: int
    """Memory of the process [bytes]."""
    limit: int
    """Memory limit [bytes]; 0 for none."""


class FitPage(SchedulerPlugin):
    """Keeps fits by id, shows them on a page, and measures the cost of that."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.fits: dict[str, Progress] = {}
        self.lost: dict[str, list[str]] = {}
        """Workers lost during each fit."""
        self.pages: list[str] = []
        """Names in the navigation bar of the dashboard."""
        self.last_event = self.last_request = -math.inf
        """Times of the last event and of the last request of a browser."""
        self.seconds = 0.0
        """Processor time spent on events and pages."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Add the page, its tab and its metrics."""
        self.scheduler = scheduler
        self.pages = add_pages(scheduler, routes(self), PAGE)
        FITS.add(self)

    async def before_close(self) -> None:
        """Wait until viewers have fetched the outcome of the fits."""
        until = time.monotonic() + CLOSING_GRACE
        while (
            self.last_event > self.last_request > self.last_event - VIEWER_TIMEOUT
            and time.monotonic() < until
        ):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Remove the metrics with the scheduler."""
        FITS.remove(self)

    def update_graph(self, scheduler: "Scheduler", **_: Any) -> None:
        """Remove the spans of the oldest passes."""
        forget_spans(scheduler, SPAN_PREFIX, MAX_SPANS)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event of a fit, or note a lost worker."""
        if topic == TOPIC:
            with self.accounted():
                self._apply(msg)
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            for fit, progress in self.fits.items():
                if progress.running:
                    self.lost[fit].append(msg["worker"])

    def _apply(self, event: dict[str, Any]) -> None:
        fit, self.last_event = event["fit"], time.monotonic()
        progress = apply_event(self.fits.get(fit), event)
        if progress is None:
            return
        self.fits[fit] = progress
        self.lost.setdefault(fit, [])
        while len(self.fits) > MAX_FITS:
            oldest = next(iter(self.fits))
            del self.fits[oldest], self.lost[oldest]

    def workers(self) -> list[WorkerRow]:
        """Return the current workers."""
        return [
            WorkerRow(str(w.name), w.nthreads, w.memory.process, w.memory_limit or 0)
            for w in self.scheduler.workers.values()
        ]

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """Count the processor time of the code inside the `with`."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began
