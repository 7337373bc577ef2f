"""The routes of the page: /fit, and /fit-now with the sections only, fetched every second."""

import time
from typing import TYPE_CHECKING

from tornado.web import RequestHandler

from homodyne_dask.apps.dashboard.fit_page import PageState, render_page, render_sections
from homodyne_dask.fitting.events import Progress

if TYPE_CHECKING:
    from homodyne_dask.apps.dashboard.scheduler_plugin import FitPage


def routes(plugin: "FitPage") -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """Return the routes of the page, for any prefix of the dashboard."""
    arguments: dict[str, object] = {"plugin": plugin}
    return [
        (r"(?:/.*)?/fit", PageHandler, arguments),
        (r"(?:/.*)?/fit-now", SectionsHandler, arguments),
    ]


class _Page(RequestHandler):
    def initialize(self, plugin: "FitPage") -> None:
        self.plugin = plugin

    def shown(self) -> PageState:
        """Return the state of the page: of the requested fit, or else the latest running one."""
        plugin = self.plugin
        plugin.last_request = time.monotonic()
        fits = sorted(plugin.fits.values(), key=lambda fit: fit.began, reverse=True)
        chosen = plugin.fits.get(self.get_query_argument("id", ""))
        if chosen is None and fits:
            chosen = next((fit for fit in fits if fit.running), fits[0])
        return PageState(
            tuple(fits), chosen, tuple(plugin.workers()), self._lost(chosen), plugin.seconds
        )

    def _lost(self, fit: Progress | None) -> tuple[str, ...]:
        return () if fit is None else tuple(self.plugin.lost[fit.fit])

    def prepare(self) -> None:
        """Disable caching, and connections that would outlive the scheduler."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Connection", "close")


class PageHandler(_Page):
    """Handler of the page."""

    def get(self) -> None:
        """Respond with the whole page."""
        with self.plugin.accounted():
            self.write(render_page(self.shown(), self.plugin.pages))


class SectionsHandler(_Page):
    """Handler of the sections."""

    def get(self) -> None:
        """Respond with the sections."""
        with self.plugin.accounted():
            self.write(render_sections(self.shown()))
