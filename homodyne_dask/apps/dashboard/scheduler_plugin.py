"""Scheduler plugin of the page /fit, and its routes: /fit-now has the sections only, fetched every second."""

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.web import RequestHandler

from homodyne_dask import events
from homodyne_dask.apps.dashboard.event_messages import TOPIC, Message, event_of
from homodyne_dask.apps.dashboard.fit_page import render_page
from homodyne_dask.cluster._dask_internals import add_pages

MAX_FITS = 20
"""Most fits on the page, the latest ones: one whose driver was killed never ends."""
MAX_BODY_BYTES = 1_000_000
"""Most of a request to the dashboard, whose pages send none that is larger."""
VIEWER_TIMEOUT, CLOSING_GRACE = 3.0, 2.0
"""Seconds after a request in which a viewer is assumed, and most to wait for one before closing."""


class FitPage(SchedulerPlugin):
    """Shows on a page the fits that run, and those that ended since the latest one began."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.fits: dict[str, events.Progress] = {}
        self.pages: list[str] = []
        """Names in the navigation bar of the dashboard."""
        self.last_event = self.last_request = -math.inf

    async def start(self, scheduler: Scheduler) -> None:
        """Add the page and its tab."""
        routes: list[Any] = [
            (r"(?:/.*)?/fit", PageHandler, {"page": self, "template": "page.html"}),
            (r"(?:/.*)?/fit-now", PageHandler, {"page": self, "template": "sections.html"}),
        ]
        self.pages = add_pages(scheduler, routes, "fit", MAX_BODY_BYTES) or []

    async def before_close(self) -> None:
        """Wait until viewers have fetched the outcome of the fits."""
        until = time.monotonic() + CLOSING_GRACE
        while (
            self.last_event > self.last_request > self.last_event - VIEWER_TIMEOUT
            and time.monotonic() < until
        ):
            await asyncio.sleep(0.05)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event of a fit, or note a lost worker."""
        if topic == TOPIC:
            self._apply(msg)
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            for fit, progress in self.fits.items():
                if progress.running:
                    lost = (*progress.refused, f"worker {msg['worker']} was lost")
                    self.fits[fit] = replace(progress, refused=lost)

    def _apply(self, message: Message) -> None:
        fit, event, self.last_event = message["fit"], event_of(message), time.monotonic()
        if isinstance(event, events.FitPlanned):
            running = [name for name, progress in self.fits.items() if progress.running]
            self.fits = {name: self.fits[name] for name in running[1 - MAX_FITS :]}
        progress = None if event is None else events.apply_event(self.fits.get(fit), event)
        if progress is not None:
            self.fits[fit] = progress


class PageHandler(RequestHandler):
    """Responds with the whole page, or with its sections."""

    def initialize(self, page: FitPage, template: str) -> None:
        """Take the arguments of a route."""
        self.page, self.template = page, template

    def get(self) -> None:
        """Respond with the page or the sections, the latest fit first."""
        self.page.last_request = time.monotonic()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Connection", "close")  # one that is kept would outlive the scheduler
        fits = reversed(self.page.fits.values())
        self.write(render_page(self.template, fits, self.page.pages))
