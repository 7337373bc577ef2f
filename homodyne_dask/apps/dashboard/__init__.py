"""The page /fit on the dashboard of a Dask scheduler: running fits and the latest finished ones.

A fit adds it to its scheduler. To have it from the start, run
`dask scheduler --preload homodyne_dask.apps.dashboard`.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from homodyne_dask.fitting.events import TOPIC

if TYPE_CHECKING:
    from distributed import Client, Scheduler

LOG = logging.getLogger(__name__)


def dask_setup(scheduler: "Scheduler") -> None:
    """Add the page to the scheduler that preloads this module."""
    from homodyne_dask.apps.dashboard.scheduler_plugin import FitPage

    scheduler.add_plugin(FitPage(), idempotent=True)  # the scheduler starts it


def connect_page(client: "Client") -> "Publisher":
    """Add the page to the client's scheduler and return the publisher of its events.

    A fit does not depend on its page: if the page cannot be added this is logged, and events are
    still published.
    """
    from homodyne_dask.apps.dashboard.scheduler_plugin import FitPage

    page = str(client.dashboard_link).removesuffix("/status") + "/fit"
    try:
        client.register_plugin(FitPage())
    except Exception as e:
        LOG.warning("the scheduler shows no page /fit: %s: %s", type(e).__name__, e)
        page = ""
    return Publisher(client, page)


class Publisher:
    """Sends events to the scheduler in order, in the client's event loop, without waiting."""

    def __init__(self, client: "Client", page: str) -> None:
        self.client, self.page = client, page
        self.waiting: deque[dict[str, Any]] = deque(maxlen=1000)
        self.busy = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Queue an event; it is dropped if the connection is lost."""
        loop = self.client.loop
        if self.client.status == "running" and loop is not None:
            loop.add_callback(self._send, event)

    async def _send(self, event: dict[str, Any]) -> None:
        self.waiting.append(event)
        if self.busy:
            return
        self.busy = True
        try:
            while self.waiting:
                # in the client's own loop its methods are coroutines
                await cast(Any, self.client.log_event(TOPIC, self.waiting.popleft()))
        except OSError:  # CommClosedError is one; the driver reports a lost scheduler
            self.waiting.clear()
        finally:
            self.busy = False
