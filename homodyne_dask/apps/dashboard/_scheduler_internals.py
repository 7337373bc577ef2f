"""Uses of undocumented parts of Dask's scheduler by the page, seen in distributed 2026.3.0 to 2026.8.0.

Each function names the public call that comes closest. Where a version lacks such a part, that is logged
once and there is less to see; no fit depends on it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from distributed import Scheduler
from tornado.web import RequestHandler

LOG = logging.getLogger(__name__)
_REPORTED: set[str] = set()
Route = tuple[str, type[RequestHandler], dict[str, object]]
"""Pattern of the path, handler, and arguments of the handler."""


@contextmanager
def _logged_if_missing(part: str, instead: str) -> Iterator[None]:
    """Log once per process that distributed lacks a part, and continue after the `with`."""
    try:
        yield
    except Exception as e:
        LOG.debug("%s: %s", part, e, exc_info=True)
        if part not in _REPORTED:
            _REPORTED.add(part)
            LOG.warning("distributed %s has no %s: %s", version("distributed"), part, instead)


def add_pages(scheduler: Scheduler, routes: Sequence[Route], title: str) -> list[str]:
    """Serve pages on a running dashboard and return the titles in its navigation bar.

    Public: the configuration distributed.scheduler.http.routes, read at the scheduler's start. Where
    the part is missing there is no page, and the events are still sent.
    """
    pages: list[str] = []
    with _logged_if_missing("Scheduler.http_application", "the dashboard has no page of fits"):
        applications = scheduler.http_application.applications  # those of the dashboard
        # a dashboard that is not loaded yet adds these to its own
        later = next((one.pages for one in applications if hasattr(one, "pages")), None)
        if later is not None:
            pages = later
        elif applications:
            with _logged_if_missing(
                "template_variables", "the dashboard's navigation does not list fits"
            ):
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


def forget_spans(scheduler: Scheduler, prefix: str, most: int) -> None:
    """Remove finished spans whose names begin with a prefix, but for the latest `most`.

    Public: distributed.span, which keeps every span as long as the scheduler lives.
    """
    with _logged_if_missing("spans extension", "a scheduler keeps 10 kB per pass"):
        spans: Any = scheduler.extensions["spans"]
        if len(spans.root_spans) <= most:
            return
        ours = [root for root in spans.root_spans if root.name[0].startswith(prefix)]
        for root in ours[: max(len(ours) - most, 0)]:
            if root.done:
                spans.root_spans.remove(root)
                for span in list(root.traverse_spans()):
                    _forget_span(spans, span)


def _forget_span(spans: Any, span: Any) -> None:
    del spans.spans[span.id]
    names = [(spans.spans_search_by_name, span.name)]
    for index, key in [*names, *[(spans.spans_search_by_tag, tag) for tag in span.name]]:
        index[key].remove(span)
        if not index[key]:
            del index[key]
