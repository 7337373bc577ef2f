"""The fits that a scheduler keeps for its page: progress, lost workers, and metrics for Prometheus."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

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


GAUGES = {
    "running": ("1 while the fit runs", lambda s: float(s.running)),
    "chisqr": ("chi squared of the last pass", lambda s: s.done[-1].chisqr if s.done else None),
    "chisqr_per_pair": ("chi squared over pairs", lambda s: s.done[-1].per_pair if s.done else None),
    "distance": (
        "estimated distance to the minimum in standard errors",
        lambda s: s.done[-1].distance if s.done else None,
    ),
    "pairs_per_second": ("pairs per second in the current pass, or in the last one", lambda s: s.rate),
    "pairs_per_second_target": (
        "pairs per second for the same tiles if all threads were busy",
        lambda s: s.target,
    ),
    "bytes_per_second": ("decoded bytes of the data that were needed", lambda s: s.byte_rate),
}  # fmt: skip
COUNTERS = {
    "passes": ("completed passes over all data", lambda s: s.passes),
    "coarse_passes": ("completed passes over block means", lambda s: sum(p.factor > 1 for p in s.done)),
    "pairs": ("pairs processed in all passes", lambda s: s.pairs_total),
    "tiles": ("tiles processed in all passes", lambda s: s.tiles_total),
    "tiles_skipped": ("tiles skipped because f has decayed to zero there", lambda s: s.tiles_skipped),
    "task_seconds": ("time of all threads in tasks", lambda s: s.busy),
    "compilations": ("compilations of kernels, known after the fit", lambda s: s.compilations),
}  # fmt: skip
"""Prometheus appends _total to the names of counters."""


class Fits(Collector):
    """Collector of the fits of all schedulers in this process, usually one."""

    def __init__(self) -> None:
        self.schedulers: list[KeptFits] = []

    def add(self, kept: KeptFits) -> None:
        """Add the fits of a scheduler."""
        if not self.schedulers:
            REGISTRY.register(self)
        self.schedulers.append(kept)

    def remove(self, kept: KeptFits) -> None:
        """Remove the fits of a scheduler."""
        self.schedulers.remove(kept)
        if not self.schedulers:
            REGISTRY.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of all fits that are kept."""
        fits = [fit for kept in self.schedulers for fit in kept.progress.values()]
        lost = {fit: len(ws) for kept in self.schedulers for fit, ws in kept.lost.items()}
        for name, (words, value) in GAUGES.items():
            yield _family(GaugeMetricFamily, name, words, fits, value)
        for name, (words, value) in COUNTERS.items():
            yield _family(CounterMetricFamily, name, words, fits, value)
        yield _family(
            CounterMetricFamily, "workers_lost", "workers lost", fits, lambda s: lost[s.fit]
        )
        cost = "processor time spent on events and the page"
        seconds = sum(kept.seconds for kept in self.schedulers)
        yield CounterMetricFamily("homodyne_dask_page_seconds", cost, value=seconds)


def _family(
    family_class: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    words: str,
    fits: list[events.Progress],
    value: Callable[[events.Progress], float | None],
) -> Metric:
    family = family_class(f"homodyne_dask_{name}", words, labels=["fit", "title"])
    for progress in fits:
        number = value(progress)
        if number is not None:
            family.add_metric([progress.fit, progress.title], number)
    return family


FITS = Fits()
