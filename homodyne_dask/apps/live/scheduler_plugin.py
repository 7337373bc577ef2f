"""Scheduler plugin that adds the page /fit to a dashboard."""

from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from homodyne_dask.apps.live.event_messages import TOPIC, event_of
from homodyne_dask.apps.live.shown_fits import MAX_BODY_BYTES, ShownFits
from homodyne_dask.cluster.connect import failures_logged


class FitPage(SchedulerPlugin):
    """Shows on a page the fits of a scheduler."""

    name = "homodyne_dask-fits"
    idempotent = True

    def __init__(self) -> None:
        self.shown = ShownFits()

    async def start(self, scheduler: Any) -> None:
        """Add the page and its tab; Dask documents only a setting read at a scheduler's start."""
        self.scheduler = scheduler
        with failures_logged(
            "the dashboard has no page of fits"
        ):  # the events are sent all the same
            # of each connection Tornado takes 100 MB
            scheduler.http_server.conn_params.max_body_size = MAX_BODY_BYTES
            if scheduler.http_application.applications:  # the dashboard, which has loaded Bokeh
                from distributed.dashboard.scheduler import template_variables

                self.shown.pages = template_variables(scheduler)["pages"]  # one list for all pages
                if "fit" not in self.shown.pages:
                    self.shown.pages.append("fit")
            scheduler.http_application.add_handlers(r".*", self.shown.routes)

    async def before_close(self) -> None:
        """Wait until viewers have fetched the outcome of the fits."""
        await self.shown.fetched()

    async def close(self) -> None:
        """Close the connections of viewers, which a scheduler leaves open until they are garbage."""
        with failures_logged("connections to a closed dashboard stay open"):
            self.scheduler.http_server.stop()
            await self.scheduler.http_server.close_all_connections()

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event of a fit, or note a lost worker."""
        if topic == TOPIC:
            self.shown.add(msg["fit"], event_of(msg))
        elif topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]:
            self.shown.add_lost_worker(msg["worker"])
