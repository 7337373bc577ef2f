"""The fits on the page /fit, its routes (/fit-now: sections only), and its servers: Dask's and our own."""

import asyncio
import atexit
import math
import socket
import threading
import time
from dataclasses import replace
from functools import cache
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from homodyne_dask import events
from homodyne_dask.apps.live.event_messages import TOPIC, event_of
from homodyne_dask.apps.live.fit_page import render_page
from homodyne_dask.cluster.connect import dashboard_of, failures_logged

MAX_FITS = 20
"""Most fits on the page, the latest ones: one whose driver was killed never ends."""
MAX_BODY_BYTES = 1_000_000
"""Most of a request to the server of the page, whose pages send none that is larger."""
VIEWER_TIMEOUT, CLOSING_GRACE = 3.0, 2.0
"""Seconds after a request in which a viewer is assumed, and most to wait for one before closing."""


_ONE_AT_A_TIME = threading.Lock()
"""Fits of one process emit their events in threads of their own."""


class ShownFits:
    """The fits that run, and those that ended since the latest one began."""

    def __init__(self) -> None:
        self.fits: dict[str, events.Progress] = {}
        self.pages = ["fit"]
        """Names in the navigation bar."""
        self.last_event = self.last_request = -math.inf

    @property
    def routes(self) -> list[Any]:
        return [
            (r"(?:/.*)?/fit", PageHandler, {"shown": self, "template": "page.html"}),
            (r"(?:/.*)?/fit-now", PageHandler, {"shown": self, "template": "sections.html"}),
        ]

    @property
    def awaited(self) -> bool:
        """Whether a viewer has not yet fetched the latest event."""
        return self.last_event > self.last_request > self.last_event - VIEWER_TIMEOUT

    async def fetched(self) -> None:
        """Wait until viewers have fetched the latest event, but not for long."""
        until = time.monotonic() + CLOSING_GRACE
        while self.awaited and time.monotonic() < until:
            await asyncio.sleep(0.05)

    def add(self, fit: str, event: events.Event | None) -> None:
        """Take an event of a fit; None is one that this version does not know."""
        self.last_event = time.monotonic()
        with _ONE_AT_A_TIME:
            if isinstance(event, events.FitPlanned):
                running = [name for name, progress in self.fits.items() if progress.running]
                self.fits = {name: self.fits[name] for name in running[1 - MAX_FITS :]}
            progress = None if event is None else events.apply_event(self.fits.get(fit), event)
            if progress is not None:
                self.fits[fit] = progress

    def add_lost_worker(self, address: str) -> None:
        for fit, progress in self.fits.items():
            if progress.running:
                lost = (*progress.refused, f"worker {address} was lost")
                self.fits[fit] = replace(progress, refused=lost)


class PageHandler(RequestHandler):
    def initialize(self, shown: ShownFits, template: str) -> None:
        self.shown, self.template = shown, template

    def get(self) -> None:
        self.shown.last_request = time.monotonic()
        self.set_header("Cache-Control", "no-store")
        with _ONE_AT_A_TIME:
            fits = list(reversed(self.shown.fits.values()))
        self.write(render_page(self.template, fits, self.shown.pages))


@cache
def served(process: int) -> tuple[ShownFits, str]:
    """Return the fits that a process shows (its number; a fork has another), and their page."""
    shown, listening = ShownFits(), socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    threading.Thread(target=asyncio.run, args=[_serve(shown, listening)], daemon=True).start()
    atexit.register(lambda: asyncio.run(shown.fetched()))
    return shown, f"http://127.0.0.1:{listening.getsockname()[1]}/fit"


async def _serve(shown: ShownFits, listening: socket.socket) -> None:
    server = HTTPServer(Application(shown.routes), max_body_size=MAX_BODY_BYTES)
    server.add_socket(listening)
    await asyncio.Event().wait()


class FitPage(SchedulerPlugin):
    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.shown = ShownFits()

    async def start(self, scheduler: Any) -> None:
        """Add the page and its tab; Dask documents only a setting read at a scheduler's start."""
        self.scheduler = scheduler
        # the events are sent all the same
        with failures_logged("the dashboard has no page of fits"):
            # of each connection Tornado takes 100 MB
            scheduler.http_server.conn_params.max_body_size = MAX_BODY_BYTES
            if scheduler.http_application.applications:  # the dashboard, which has loaded Bokeh
                from distributed.dashboard.scheduler import template_variables

                self.shown.pages = template_variables(scheduler)["pages"]  # one list for all pages
                if "fit" not in self.shown.pages:
                    self.shown.pages.append("fit")
            scheduler.http_application.add_handlers(r".*", self.shown.routes)

    async def before_close(self) -> None:
        await self.shown.fetched()

    async def close(self) -> None:
        """Close the connections of viewers, which a scheduler leaves open until they are garbage."""
        with failures_logged("connections to a closed dashboard stay open"):
            self.scheduler.http_server.stop()
            await self.scheduler.http_server.close_all_connections()

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == TOPIC:
            self.shown.add(msg["fit"], event_of(msg))
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            self.shown.add_lost_worker(msg["worker"])


def add_page(client: Client) -> str:
    """Add the page to the scheduler of a client; return its address, '' where it has no dashboard."""
    with failures_logged("the page of fits was not added"):  # others may listen to the events
        client.register_plugin(FitPage())
        if link := dashboard_of(client):
            return link.removesuffix("/status") + "/fit"
    return ""
