"""The run of any fit: workers, observer, passes until the fit has ended, and the result."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit_observer import FitDescription, FitObserver
from homodyne_dask.fitting.minimize import FitRecord
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.block_cache import forget_large
from homodyne_dask.sweep.plan import Plan

if TYPE_CHECKING:
    from distributed import Client

type Steps[Result] = Generator[lm.State, None, Result]
"""Yields the state of the solver after each pass, and returns the result."""


def run[Result](
    fit: Callable[["Client | None", FitObserver, FitRecord], Steps[Result]],
    description: FitDescription,
    planned: Plan,
    client: "Client | None",
    callbacks: Sequence[Callback],
    record: FitRecord,
    scan: Scan | None = None,
) -> Steps[Result]:
    """Run a fit on the workers of its plan, and tell its callbacks of its steps and its end.

    fit: makes the passes with a client, or None in this process. scan: for which workers are checked.
    """
    with workers_for_plan(scan, planned, client) as (connected, refused):
        observer = FitObserver(description, planned, connected, callbacks, refused)
        record.on_level, record.on_phase = observer.state, observer.start_phase
        with observer.failures_emitted():
            result = yield from fit(connected, observer, record)
    return result


def followed(
    states: Iterator[lm.State], observer: FitObserver, record: FitRecord, *, resumed: bool = False
) -> Steps[lm.State]:
    """Yield the states of a fit, of which callbacks are told; return the last one.

    resumed: whether the first one is that of a checkpoint.
    """
    state = None
    for state in states:
        observer.state(state, resumed=resumed)
        resumed = False
        yield state
    assert state is not None  # there is at least one pass
    observer.start_phase("estimating the errors")
    record.last_pass = time.perf_counter()
    return state


def run_to_completion[Result](passes: Steps[Result]) -> Result:
    """Return the result of a fit that is iterated."""
    while True:
        try:
            next(passes)
        except StopIteration as end:
            return end.value


@contextmanager
def workers_for_plan(
    scan: Scan | None, planned: Plan, client: "Client | None"
) -> "Iterator[tuple[Client | None, Sequence[str]]]":
    """Yield the client to compute with, of workers that are started where the plan says so.

    Its workers are checked as `checked_workers` does, whose messages come with it; of workers that are
    started here, now or in place of one that died, and for data other than a scan, the code alone.

    Dask loads for half a second; a fit in this process does without it, and leaves no data in its memory.
    """
    if client is None and not planned.workers.to_start:
        try:
            yield None, ()
        finally:
            forget_large()
        return
    from homodyne_dask.cluster.local import local_cluster
    from homodyne_dask.sweep.admission import checked_workers
    from homodyne_dask.sweep.distributed_tasks import keep_preferences_soft

    if planned.workers.to_start:
        with local_cluster(gpus=planned.gpus) as started, checked_workers(started) as refused:
            keep_preferences_soft(started)
            yield started, refused
    elif client is not None:
        with checked_workers(client, scan, planned) as refused:
            keep_preferences_soft(client)
            yield client, refused
