"""Many small fits at once: each is one task, done whole by a thread of the workers that is free.

A pass over few pairs is over before its tasks have all been sent, and first values are searched by one
process: small fits made one after the other leave most of the workers idle.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client, Future

from homodyne_dask.cluster.local import finishing
from homodyne_dask.errors import ClusterError, HomodyneDaskError
from homodyne_dask.fitting.fit import iterate, plan_for
from homodyne_dask.fitting.minimize import run_to_completion
from homodyne_dask.fitting.request import prepare
from homodyne_dask.models import Model
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan, Selection, open_selection
from homodyne_dask.sweep.admission import checked_workers
from homodyne_dask.sweep.plan import IN_PROCESS_PAIRS, Plan


class FitRequest(NamedTuple):
    """One of several fits."""

    scan: Scan
    options: Mapping[str, Any]
    """Of `fit`."""
    more: tuple[Any, ...] = ()
    """What else its task is told."""


class FitOutput(NamedTuple):
    """A fit that a worker made."""

    states: tuple[lm.State, ...]
    """After each pass over all data."""
    result: FitResult
    files: tuple[Path, ...] = ()
    """What was written."""


def small(scan: Scan) -> bool:
    """Return whether a fit of the scan is small enough to be made by one process."""
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins) < IN_PROCESS_PAIRS


def whole_fit(selection: Selection, model: Model, options: Mapping[str, Any]) -> FitOutput:
    """Fit a small scan in this process; a task."""
    states: list[lm.State] = []
    result = run_to_completion(iterate(open_selection(selection), model, **options), states.append)
    return FitOutput(tuple(states), result)


@contextmanager
def submitted(
    client: Client | None,
    model: Model,
    fits: Sequence[FitRequest],
    task: Callable[..., FitOutput] = whole_fit,
) -> Iterator[list[Future | None]]:
    """Send the small ones of several fits to the workers, which are checked before, for a `with`.

    Yields None for each fit that is to be made otherwise. Futures that nobody holds any more are not
    worked. Raises ClusterError where the workers cannot do what is asked.
    """
    few = [asked for asked in fits if small(asked.scan)]
    found = None if client is None else _planned(client, model, few)
    if client is None or found is None:
        yield [None] * len(fits)
        return
    name = os.urandom(3).hex()
    with checked_workers(client, *found):
        yield [
            client.submit(
                task, asked.scan.selection, model, asked.options, *asked.more,
                key=f"fit-{name}-{n:04d}", pure=False,
            )
            if small(asked.scan) else None
            for n, asked in enumerate(fits)
        ]  # fmt: skip


def _planned(client: Client, model: Model, fits: Sequence[FitRequest]) -> tuple[Scan, Plan] | None:
    """Return the first of some fits that can be planned, to examine the workers for."""
    for asked in fits:
        try:
            return asked.scan, plan_for(prepare(asked.scan, model, **asked.options), client)
        except ClusterError:
            raise
        except HomodyneDaskError:  # the worker that fits says so
            continue
    return None


def output_of(client: Client | None, future: Future) -> FitOutput:
    """Return a fit that was begun when it has ended.

    Raises what the fit raised, and ClusterError where the workers cannot finish it.
    """
    assert client is not None  # who sent it
    with finishing(client):
        return future.result()
