"""Scheduler plugin of the page /fit, and its routes: /fit-now has the sections only, fetched every second."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.web import RequestHandler

from homodyne_dask.apps.dashboard._scheduler_internals import (
    Route,
    add_pages,
    forget_spans,
    limit_bodies,
)
from homodyne_dask.apps.dashboard.event_messages import TOPIC
from homodyne_dask.apps.dashboard.fit_page import PageState, WorkerRow, render_page, render_sections
from homodyne_dask.apps.dashboard.kept_fits import FITS, KeptFits

SPAN_PREFIX, MAX_SPANS = "fit ", 2000
"""How the names of a fit's spans begin, and how many passes keep theirs: about 20 MB."""
PAGE = "fit"
MAX_BODY_BYTES = 1_000_000
"""Most of a request to the dashboard, whose pages send none that is larger."""
VIEWER_TIMEOUT, CLOSING_GRACE = 3.0, 2.0
"""Seconds after a request in which a viewer is assumed, and most to wait for one before closing."""
Workers = Callable[[], tuple[WorkerRow, ...]]


def routes(kept: KeptFits, workers: Workers) -> list[Route]:
    """Return the routes of the page, for any prefix of the dashboard."""
    arguments: dict[str, object] = {"kept": kept, "workers": workers}
    return [
        (r"(?:/.*)?/fit", PageHandler, arguments | {"whole": True}),
        (r"(?:/.*)?/fit-now", PageHandler, arguments | {"whole": False}),
    ]


class PageHandler(RequestHandler):
    """Responds with the whole page, or with its sections."""

    def initialize(self, kept: KeptFits, workers: Workers, whole: bool) -> None:
        """Take the arguments of a route."""
        self.kept, self.workers, self.whole = kept, workers, whole

    def shown(self) -> PageState:
        """Return the state of the page: of the requested fit, or else the latest running one."""
        kept = self.kept
        kept.last_request = time.monotonic()
        fits = sorted(kept.progress.values(), key=lambda fit: fit.began, reverse=True)
        chosen = kept.progress.get(self.get_query_argument("id", ""))
        if chosen is None and fits:
            chosen = next((fit for fit in fits if fit.running), fits[0])
        lost = () if chosen is None else tuple(kept.lost[chosen.fit])
        return PageState(tuple(fits), chosen, self.workers(), lost, kept.seconds)

    def prepare(self) -> None:
        """Disable caching, and connections that would outlive the scheduler."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Connection", "close")

    def get(self) -> None:
        """Respond with the page or the sections."""
        with self.kept.accounted():
            shown = self.shown()
            self.write(
                render_page(shown, self.kept.pages) if self.whole else render_sections(shown)
            )


class FitPage(SchedulerPlugin):
    """Keeps fits and shows them on a page."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.kept = KeptFits()

    async def start(self, scheduler: Scheduler) -> None:
        """Add the page, its tab and its metrics."""
        self.scheduler = scheduler
        self.kept.pages = add_pages(scheduler, routes(self.kept, self.workers), PAGE)
        limit_bodies(scheduler, MAX_BODY_BYTES)
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

    def update_graph(self, scheduler: Scheduler, **_: Any) -> None:
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
