"""The fits that a scheduler keeps for its page: their progress, and the workers they lost."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from homodyne_dask import events
from homodyne_dask.apps.dashboard.event_messages import Message, event_of

MAX_FITS = 100
"""Number of fits kept, the latest ones."""


class KeptFits:
    """Fits by name, and the cost of keeping and showing them."""

    def __init__(self) -> None:
        self.progress: dict[str, events.Progress] = {}
        self.lost: dict[str, list[str]] = {}
        """Addresses of the workers lost during each fit."""
        self.pages: list[str] = []
        """Names in the navigation bar of the dashboard."""
        self.last_event = self.last_request = -math.inf
        """Times of the last event and of the last request of a browser."""
        self.seconds = 0.0
        """Processor time spent on events and pages."""

    def apply(self, message: Message) -> None:
        """Apply the event of a message."""
        fit, self.last_event = message["fit"], time.monotonic()
        event = event_of(message)
        progress = None if event is None else events.apply_event(self.progress.get(fit), event)
        if progress is None:
            return
        self.progress[fit] = progress
        self.lost.setdefault(fit, [])
        while len(self.progress) > MAX_FITS:
            oldest = next(iter(self.progress))
            del self.progress[oldest], self.lost[oldest]

    def add_lost_worker(self, address: str) -> None:
        """Note a lost worker for each fit that runs."""
        for fit, progress in self.progress.items():
            if progress.running:
                self.lost[fit].append(address)

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """Count the processor time of the code inside the `with`."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began
