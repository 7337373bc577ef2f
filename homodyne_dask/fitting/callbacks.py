"""The callbacks of a fit: those that users give, the log, and those that installed packages register."""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from homodyne_dask.errors import require_function, require_type
from homodyne_dask.fitting import events
from homodyne_dask.plugins import loaded, offered_in, passed_over, unusable

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger(__name__)
GROUP = "homodyne_dask.callbacks"
"""The group of entry points in which installed packages register a `Subscribe` function."""
PAGE = "page"
"""Name of the entry point of an application that shows fits on a page."""
PAIRS_FOR_PAGE = 4_000_000
"""Fewest pairs of a fit without a client that has a page: others end before anybody opens it."""
Subscribe = Callable[["Client | None"], events.Subscriber | None]
"""Called as a fit begins, with its Dask client; returns None for a fit that it does not follow."""


def subscribers(client: "Client | None", pairs: int) -> list[events.Subscriber]:
    """Return the subscribers to a fit; of an installed package that fails is warned, the fit goes on.

    pairs: a fit of few pairs without a client has no page.
    """
    following: list[events.Subscriber] = []
    for point in offered_in(GROUP):
        if point.name == PAGE and client is None and pairs < PAIRS_FOR_PAGE:
            continue
        with passed_over(point):
            subscriber = loaded(point, callable, "a function")(client)
            if not isinstance(subscriber, events.Subscriber | None):
                raise unusable(point, f"it returned {type(subscriber).__name__}, not a Subscriber")
            if subscriber is not None:
                following.append(subscriber._replace(callback=_guarded(point, subscriber.callback)))
    return following


def show_on_page(client: "Client", seen: Sequence[events.Event]) -> None:
    """Show a fit that a worker has made, by its events, on the page of its scheduler."""
    for point in offered_in(GROUP):
        if point.name == PAGE:
            with passed_over(point):
                page = loaded(point, callable, "a function")(client)
                for event in seen:
                    page.callback(event)


def _guarded(point: EntryPoint, callback: events.Callback) -> events.Callback:
    """Return the callback of a package; once it has failed, it gets no further event of the fit."""
    works = True

    def pass_on(event: events.Event) -> None:
        nonlocal works
        if works:
            failed = True
            with passed_over(point):
                callback(event)
                failed = False
            works = works and not failed

    return pass_on


def require_callbacks(callbacks: Sequence[events.Callback]) -> None:
    """Raise OptionError for what is not a list of functions."""
    require_type("callbacks", callbacks, list | tuple, "a list of functions")
    for n, callback in enumerate(callbacks):
        require_function(f"callbacks[{n}]", callback, needed=True)


def log_callback() -> events.Callback:
    """Return the callback that writes passes, refused workers and the outcome to the log."""
    began = 0.0

    def log(event: events.Event) -> None:
        nonlocal began
        match event:
            case events.FitPlanned():
                began = event.at
            case events.WorkerRefused():
                LOG.warning("fit %s: %s", event.fit, event.reason)
            case events.PassEnded():
                LOG.info("fit %s: %s", event.fit, events.pass_line(event, event.at - began))
            case events.FitEnded() | events.FitFailed():
                LOG.info("fit %s: %s", event.fit, event.sentence)

    return log
