"""Scheduler plugin that adds the page /fit to a dashboard."""

from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.apps.live.event_messages import TOPIC, event_of
from homodyne_dask.apps.live.shown_fits import MAX_BODY_BYTES, ShownFits
from homodyne_dask.cluster._dask_internals import add_pages, close_connections


class FitPage(SchedulerPlugin):
    """Shows on a page the fits of a scheduler."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.shown = ShownFits()

    async def start(self, scheduler: Scheduler) -> None:
        """Add the page and its tab."""
        self.scheduler = scheduler
        pages = add_pages(scheduler, self.shown.routes, "fit", MAX_BODY_BYTES)
        self.shown.pages = pages or self.shown.pages

    async def before_close(self) -> None:
        """Wait until viewers have fetched the outcome of the fits."""
        await self.shown.fetched()

    async def close(self) -> None:
        """Close the connections of viewers."""
        await close_connections(self.scheduler)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event of a fit, or note a lost worker."""
        if topic == TOPIC:
            self.shown.add(msg["fit"], event_of(msg))
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            self.shown.add_lost_worker(msg["worker"])
