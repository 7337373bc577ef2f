"""Work for a page in a thread, of which only the latest request counts."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any

from bokeh.document import Document

PAUSE_MS = 40
"""Milliseconds in which further requests replace the first."""

Check = Callable[[], None]
Update = Callable[[], None]


class Stale(Exception):  # noqa: N818 - an ending, not an error
    """Nobody waits for this work any more."""


class LatestRequest:
    """Starts work when it is asked for and the last request is a moment old; drops what has become stale."""

    def __init__(
        self,
        pool: Executor,
        work: Callable[[Check], Iterator[Update]],
        failed: Callable[[Exception], None],
    ) -> None:
        """`work` runs in a thread; it yields what to do on the page, and calls `check` often.

        failed: called in the document with what it raises.
        """
        self.pool, self.work, self.failed = pool, work, failed
        self.document: Document | None = None
        """Of the page, as soon as there is one; until then nothing is done."""
        self.number, self.waiting, self.busy, self.closed = 0, False, False, False
        self.finished = 0
        """Requests that were shown to their end."""
        self.dropped = 0
        """Requests that had become stale before their end."""

    def ask(self) -> None:
        """Ask for the work, soon; what is being done becomes stale."""
        self.number += 1
        if self.document is not None and not self.waiting and not self.closed:
            self.waiting = True
            self.document.add_timeout_callback(self._begin, PAUSE_MS)

    def close(self) -> None:
        """Stop: the page is gone."""
        self.closed = True
        self.number += 1

    def _begin(self) -> None:
        self.waiting = False
        if self.busy or self.closed:
            return  # the end of the running work begins it again
        self.busy = True
        future = self.pool.submit(self._run, self.number)
        future.add_done_callback(partial(self._in_document, self._ended))

    def _run(self, number: int) -> None:
        def check() -> None:
            if number != self.number:
                raise Stale

        for update in self.work(check):
            check()
            self._in_document(self._update, number, update)

    def _update(self, number: int, update: Update) -> None:
        if number == self.number:
            update()

    def _ended(self, future: Future[None]) -> None:
        self.busy = False
        try:
            future.result()
            self.finished += 1
        except (Stale, CancelledError):
            self.dropped += 1
            if not self.closed and not self.waiting:
                self._begin()
        except Exception as e:
            self.failed(e)

    def _in_document(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.document is not None and not self.closed:
            self.document.add_next_tick_callback(partial(function, *arguments))
