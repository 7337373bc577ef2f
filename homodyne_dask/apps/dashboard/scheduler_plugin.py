"""Scheduler plugin of the page /fit."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.apps.dashboard._scheduler_internals import add_pages, forget_spans
from homodyne_dask.apps.dashboard.event_messages import TOPIC
from homodyne_dask.apps.dashboard.fit_page import WorkerRow
from homodyne_dask.apps.dashboard.http_handler import routes
from homodyne_dask.apps.dashboard.kept_fits import KeptFits
from homodyne_dask.apps.dashboard.prometheus_metrics import FITS

if TYPE_CHECKING:
    from distributed import Scheduler

SPAN_PREFIX, MAX_SPANS = "fit ", 2000
"""How the names of a fit's spans begin, and how many passes keep theirs: about 20 MB."""
PAGE = "fit"
VIEWER_TIMEOUT, CLOSING_GRACE = 3.0, 2.0
"""Seconds after a request in which a viewer is assumed, and most to wait for one before closing."""


class FitPage(SchedulerPlugin):
    """Keeps fits and shows them on a page."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.kept = KeptFits()

    async def start(self, scheduler: "Scheduler") -> None:
        """Add the page, its tab and its metrics."""
        self.scheduler = scheduler
        self.kept.pages = add_pages(scheduler, routes(self.kept, self.workers), PAGE)
        FITS.add(self.kept)

    async def before_close(self) -> None:
        """Wait until viewers have fetched the outcome of the fits."""
        kept, until = self.kept, time.monotonic() + CLOSING_GRACE
        while (
            kept.last_event > kept.last_request > kept.last_event - VIEWER_TIMEOUT
            and time.monotonic() < until
        ):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Remove the metrics with the scheduler."""
        FITS.remove(self.kept)

    def update_graph(self, scheduler: "Scheduler", **_: Any) -> None:
        """Remove the spans of the oldest passes."""
        forget_spans(scheduler, SPAN_PREFIX, MAX_SPANS)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event of a fit, or note a lost worker."""
        if topic == TOPIC:
            with self.kept.accounted():
                self.kept.apply(msg)
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            self.kept.add_lost_worker(msg["worker"])

    def workers(self) -> tuple[WorkerRow, ...]:
        """Return the current workers."""
        return tuple(
            WorkerRow(str(w.name), w.nthreads, w.memory.process, w.memory_limit or 0)
            for w in self.scheduler.workers.values()
        )
