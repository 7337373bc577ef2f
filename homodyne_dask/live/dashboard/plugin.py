"""What the scheduler keeps of fits: their progress from their events, and the workers they lost."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.cluster._dask_internals import add_pages, forget_spans
from homodyne_dask.live.dashboard.handler import routes
from homodyne_dask.live.dashboard.metrics import FITS
from homodyne_dask.live.progress import TOPIC, Progress, apply_event

if TYPE_CHECKING:
    from distributed import Scheduler

MOST = 100
"""Fits that are kept, the latest ones."""
SPANS, MOST_SPANS = "fit ", 2000
"""How the names of a fit's spans begin, and how many passes keep theirs: about 20 MB."""
PAGE = "fit"
LOOKING, GRACE = 3.0, 2.0
"""Seconds since a browser last asked for which somebody is looking, and most that is waited for it."""


class WorkerRow(NamedTuple):
    """A worker as the page shows it."""

    name: str
    threads: int
    memory: int
    """Bytes of the process."""
    limit: int
    """Bytes it may have; 0 for no limit."""


class FitPage(SchedulerPlugin):
    """Fits by id, the page that shows them, and what that costs."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.fits: dict[str, Progress] = {}
        self.lost: dict[str, list[str]] = {}
        """Workers that a fit lost while it ran."""
        self.pages: list[str] = []
        """Names in the navigation bar of the dashboard."""
        self.heard = self.looked = -math.inf
        """When the last event came, and when a browser last asked."""
        self.seconds = 0.0
        """Processor time spent on events and pages."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Add the page, its tab and its metrics."""
        self.scheduler = scheduler
        self.pages = add_pages(scheduler, routes(self), PAGE)
        FITS.add(self)

    async def before_close(self) -> None:
        """Let who is looking see how the fits ended before the scheduler is gone."""
        until = time.monotonic() + GRACE
        while self.heard > self.looked > self.heard - LOOKING and time.monotonic() < until:
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Take the metrics away with the scheduler."""
        FITS.remove(self)

    def update_graph(self, scheduler: "Scheduler", **_: Any) -> None:
        """Forget the oldest passes as new ones come."""
        forget_spans(scheduler, SPANS, MOST_SPANS)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in one event."""
        if topic == TOPIC:
            with self.accounted():
                self._hear(msg)
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            for fit, progress in self.fits.items():
                if progress.running:
                    self.lost[fit].append(msg["worker"])

    def _hear(self, event: dict[str, Any]) -> None:
        fit, self.heard = event["fit"], time.monotonic()
        progress = apply_event(self.fits.get(fit), event)
        if progress is None:
            return
        self.fits[fit] = progress
        self.lost.setdefault(fit, [])
        while len(self.fits) > MOST:
            oldest = next(iter(self.fits))
            del self.fits[oldest], self.lost[oldest]

    def workers(self) -> list[WorkerRow]:
        """Return the workers there are now."""
        return [
            WorkerRow(str(w.name), w.nthreads, w.memory.process, w.memory_limit or 0)
            for w in self.scheduler.workers.values()
        ]

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """Add the processor time of what is done inside the `with`."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began
