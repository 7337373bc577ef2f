"""The routes of the page: all of it, and the part that changes, asked for every second."""

import time
from typing import TYPE_CHECKING

from tornado.web import RequestHandler

from homodyne_dask.live.dashboard.page import PageState, render_page, render_sections
from homodyne_dask.live.progress import Progress

if TYPE_CHECKING:
    from homodyne_dask.live.dashboard.plugin import FitPage


def routes(plugin: "FitPage") -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """Return the routes of the page, whatever prefix the dashboard has."""
    given: dict[str, object] = {"plugin": plugin}
    return [(r"(?:/.*)?/fit", PageHandler, given), (r"(?:/.*)?/fit-now", SectionsHandler, given)]


class _Page(RequestHandler):
    def initialize(self, plugin: "FitPage") -> None:
        self.plugin = plugin

    def shown(self) -> PageState:
        """Return what the page shows: the fit asked for, or the latest."""
        plugin = self.plugin
        plugin.looked = time.monotonic()
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
        """Let no browser keep what is about to change, nor a connection to a scheduler that closes."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Connection", "close")


class PageHandler(_Page):
    """The page."""

    def get(self) -> None:
        """Answer with the whole page."""
        with self.plugin.accounted():
            self.write(render_page(self.shown(), self.plugin.pages))


class SectionsHandler(_Page):
    """What changes of the page."""

    def get(self) -> None:
        """Answer with the part that changes."""
        with self.plugin.accounted():
            self.write(render_sections(self.shown()))
