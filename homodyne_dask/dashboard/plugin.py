"""What the scheduler keeps of fits: their standing from their events, and the workers they lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.dashboard import TOPIC
from homodyne_dask.dashboard.handler import routes
from homodyne_dask.dashboard.metrics import FITS
from homodyne_dask.standing import Standing, after

if TYPE_CHECKING:
    from distributed import Scheduler

MOST = 100
"""Fits that are kept, the latest ones."""
PAGE = "fit"


class Worker(NamedTuple):
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
        self.fits: dict[str, Standing] = {}
        self.lost: dict[str, list[str]] = {}
        """Workers that a fit lost while it ran."""
        self.seconds = 0.0
        """Processor time spent on events and pages."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Add the page, its tab and its metrics."""
        from distributed.dashboard.scheduler import template_variables  # loads Bokeh

        self.scheduler = scheduler
        self.pages: list[str] = template_variables(scheduler)["pages"]
        """Those of the dashboard, as in its navigation bar; all pages share the list."""
        if PAGE not in self.pages:
            self.pages.append(PAGE)
        scheduler.http_application.add_handlers(r".*", routes(self))
        FITS.add(self)

    async def close(self) -> None:
        """Take the metrics away with the scheduler."""
        FITS.remove(self)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in one event."""
        if topic == TOPIC:
            with self.accounted():
                self._hear(msg)
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            for fit, standing in self.fits.items():
                if standing.running:
                    self.lost[fit].append(msg["worker"])

    def _hear(self, event: dict[str, Any]) -> None:
        fit = event["fit"]
        standing = after(self.fits.get(fit), event)
        if standing is None:
            return
        self.fits[fit] = standing
        self.lost.setdefault(fit, [])
        while len(self.fits) > MOST:
            oldest = next(iter(self.fits))
            del self.fits[oldest], self.lost[oldest]

    def workers(self) -> list[Worker]:
        """Return the workers there are now."""
        return [
            Worker(str(w.name), w.nthreads, w.memory.process, w.memory_limit or 0)
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
