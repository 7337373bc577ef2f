"""The page /fit: running fits, on the dashboard of a Dask scheduler or on a server of this process.

A fit adds it to its scheduler. To have it from the start, run
`dask scheduler --preload homodyne_dask.apps.live`. A notebook shows the same below its cell.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from homodyne_dask import events
from homodyne_dask.apps.live.event_messages import TOPIC, Message, message_of

if TYPE_CHECKING:
    from distributed import Client, Scheduler

LOG = logging.getLogger(__name__)


def dask_setup(scheduler: "Scheduler") -> None:
    # lazy: this module loads with every fit, the page with the first that has one
    from homodyne_dask.apps.live.shown_fits import FitPage

    scheduler.add_plugin(FitPage(), idempotent=True)  # the scheduler starts it


def subscribe_page(client: "Client | None") -> events.Subscriber | None:
    """Return what shows a fit on the page of its client's scheduler, or of this process; None for no page."""
    from homodyne_dask.apps.live import shown_fits  # lazy: Dask and Tornado

    if client is None:
        try:
            shown, page = shown_fits.served(os.getpid())
        except OSError as e:
            LOG.warning("the fit has no page: %s", e)
            return None
        return events.Subscriber(lambda event: shown.add(event.fit, event), page)
    return events.Subscriber(_publisher(client), shown_fits.add_page(client))


def _publisher(client: "Client") -> Callable[[events.Event], None]:
    """Return what sends events to the scheduler in order, in the client's event loop, without waiting."""
    one_at_a_time = asyncio.Lock()

    async def send(message: Message) -> None:
        # a lost connection is reported by the driver; in the client's own loop its methods are coroutines
        async with one_at_a_time:
            with suppress(OSError):
                await cast(Any, client.log_event(TOPIC, message))

    def publish(event: events.Event) -> None:
        if client.status == "running" and (loop := client.loop) is not None:  # else it is dropped
            loop.add_callback(send, message_of(event))

    return publish


def subscribe_notebook(_: "Client | None") -> events.Subscriber | None:
    """Return the display of progress below the running cell of a notebook; None elsewhere."""
    shell = None if (ipython := sys.modules.get("IPython")) is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    from homodyne_dask.apps.live.fit_page import render_cell  # lazy: pages load in notebooks only

    html = sys.modules["IPython.display"]
    handle = html.display(html.HTML(""), display_id=True)
    return events.Subscriber(
        events.on_progress(lambda progress: handle.update(html.HTML(render_cell(progress))))
    )
