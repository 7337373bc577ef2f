"""Uses of undocumented parts of Dask's scheduler by the page, seen in distributed 2026.3.0 to 2026.8.0.

Each function names the public call that comes closest. Where a version lacks such a part, that is logged
and there is less to see; no fit depends on it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from distributed import Scheduler
from tornado.web import RequestHandler

LOG = logging.getLogger(__name__)


@contextmanager
def _logged_if_missing(part: str, instead: str) -> Iterator[None]:
    """Log that distributed lacks a part, and continue after the `with`."""
    try:
        yield
    except Exception as e:
        LOG.debug("%s: %s", part, e, exc_info=True)
        LOG.warning("distributed %s has no %s: %s", version("distributed"), part, instead)


def add_pages(
    scheduler: Scheduler,
    routes: Sequence[tuple[str, type[RequestHandler], dict[str, object]]],
    title: str,
) -> list[str]:
    """Serve pages on a running dashboard and return the titles in its navigation bar.

    routes: pattern of the path, handler, and its arguments. Public: the configuration
    distributed.scheduler.http.routes, read at the scheduler's start. Where the part is missing there is no
    page, and the events are still sent.
    """
    pages: list[str] = []
    with _logged_if_missing("Scheduler.http_application", "the dashboard has no page of fits"):
        applications = scheduler.http_application.applications
        late = [one.pages for one in applications if hasattr(one, "pages")]
        if late:  # a dashboard that is not loaded yet adds these to its own
            pages = late[0]
        elif applications:  # those of the dashboard
            from distributed.dashboard.scheduler import template_variables  # loads Bokeh

            pages = template_variables(scheduler)["pages"]  # one list for all pages
        if title not in pages:
            pages.append(title)
        scheduler.http_application.add_handlers(r".*", routes)
    return pages


def limit_bodies(scheduler: Scheduler, most: int) -> None:
    """Have the dashboard refuse requests whose body is larger than so many bytes, before it is read.

    Public: none; Tornado's own limit is 100 MB, which is held in memory for each connection.
    """
    with _logged_if_missing("Scheduler.http_server", "the dashboard takes requests of 100 MB"):
        scheduler.http_server.conn_params.max_body_size = most
