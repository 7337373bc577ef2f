"""Many small fits at once: each is one task, done whole by a thread of the workers that is free.

A pass over few pairs is over before its tasks have all been sent, and first values are searched by one
process: small fits made one after the other leave most of the workers idle.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client, Future

from homodyne_dask import lm
from homodyne_dask.cluster import finishing
from homodyne_dask.dataset import Scan, Selection, opened
from homodyne_dask.fitting import iterate
from homodyne_dask.models import Model
from homodyne_dask.planning import IN_PROCESS_PAIRS
from homodyne_dask.result import FitResult


class Whole(NamedTuple):
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


def whole_fit(selection: Selection, model: Model, options: Mapping[str, Any]) -> Whole:
    """Fit a small scan in this process; a task."""
    states = []
    passes = iterate(opened(selection), model, **options)
    while True:
        try:
            states.append(next(passes))
        except StopIteration as end:
            return Whole(tuple(states), end.value)


def begun(
    client: Client | None,
    model: Model,
    fits: Sequence[tuple[Scan, Any]],
    task: Callable[..., Whole] = whole_fit,
) -> list[Future | None]:
    """Send the small ones of several fits to the workers; None for each that is to be made otherwise.

    fits: a scan and what `task` gets after its selection and the model. Futures that nobody holds any
    more are not worked.
    """
    if client is None:
        return [None] * len(fits)
    name = os.urandom(3).hex()
    return [
        client.submit(task, scan.selection, model, more, key=f"fit-{name}-{n:04d}", pure=False)
        if small(scan)
        else None
        for n, (scan, more) in enumerate(fits)
    ]


def ended(client: Client | None, future: Future) -> Whole:
    """Return a fit that was begun when it has ended.

    Raises what the fit raised, and ClusterError where the workers cannot finish it.
    """
    assert client is not None  # who sent it
    with finishing(client):
        return future.result()
