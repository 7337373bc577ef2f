"""The routes of the page: /fit, and /fit-now with the sections only, fetched every second."""

import time
from collections.abc import Callable

from tornado.web import RequestHandler

from homodyne_dask.apps.dashboard._scheduler_internals import Route
from homodyne_dask.apps.dashboard.fit_page import PageState, WorkerRow, render_page, render_sections
from homodyne_dask.apps.dashboard.kept_fits import KeptFits

Workers = Callable[[], tuple[WorkerRow, ...]]


def routes(kept: KeptFits, workers: Workers) -> list[Route]:
    """Return the routes of the page, for any prefix of the dashboard."""
    arguments: dict[str, object] = {"kept": kept, "workers": workers}
    return [
        (r"(?:/.*)?/fit", PageHandler, arguments),
        (r"(?:/.*)?/fit-now", SectionsHandler, arguments),
    ]


class _Page(RequestHandler):
    def initialize(self, kept: KeptFits, workers: Workers) -> None:
        self.kept, self.workers = kept, workers

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


class PageHandler(_Page):
    """Handler of the page."""

    def get(self) -> None:
        """Respond with the whole page."""
        with self.kept.accounted():
            self.write(render_page(self.shown(), self.kept.pages))


class SectionsHandler(_Page):
    """Handler of the sections."""

    def get(self) -> None:
        """Respond with the sections."""
        with self.kept.accounted():
            self.write(render_sections(self.shown()))
