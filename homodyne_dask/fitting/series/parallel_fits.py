"""Many small fits at the same time: each is one task, a whole fit on one thread of a worker.

A pass over few pairs takes less time than sending its tasks, and initial values are searched by one
process: small fits made one after the other would leave most of the workers idle.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client, Future

from homodyne_dask.cluster.local import cluster_errors, gathered, local_cluster
from homodyne_dask.errors import ClusterError, HomodyneDaskError, OptionError
from homodyne_dask.fitting.events import Event
from homodyne_dask.fitting.fit import fit, plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models import Model
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.store.processes import cores
from homodyne_dask.store.scan import Scan, Selection, open_selection
from homodyne_dask.sweep.admission import checked_workers
from homodyne_dask.sweep.layout import IN_PROCESS_PAIRS
from homodyne_dask.sweep.plan import Plan

MIN_FITS_FOR_WORKERS = 16
"""Number of small fits from which workers are started: fewer are faster in the process of the caller."""
MIN_DRAWN_FITS_FOR_WORKERS = 8
"""The same number if figures are drawn, too."""


def is_small(scan: Scan) -> bool:
    """Return whether a fit of the scan is small enough for one process."""
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins) < IN_PROCESS_PAIRS


@contextmanager
def workers_for(scans: Sequence[Scan], client: Client | None, many: int) -> Iterator[Client | None]:
    """Yield the client for fits of all these scans: the one given, or one of workers started for them.

    None if they are fewer than `many` and each is small enough to be fitted in this process. Many small
    scans get processes of one thread: a search for initial values occupies a whole process.
    """
    small = all(map(is_small, scans))
    if client is not None or (small and len(scans) < many):
        yield client
        return
    with local_cluster(min(cores(), len(scans)) if small else None) as started:
        yield started


class FitRequest(NamedTuple):
    """One of several fits."""

    scan: Scan
    options: Mapping[str, Any]
    """Those of `fit`."""
    more: tuple[Any, ...] = ()
    """More arguments of its task."""


class FitOutput(NamedTuple):
    """What a worker returns of a fit."""

    events: tuple[Event, ...]
    result: FitResult
    files: tuple[Path, ...] = ()
    """The files that were written."""


def whole_fit(selection: Selection, model: Model, options: Mapping[str, Any]) -> FitOutput:
    """Fit a small scan in this process; this is a task."""
    events: list[Event] = []
    result = fit(open_selection(selection), model, callbacks=[events.append], **options)
    return FitOutput(tuple(events), result)


@contextmanager
def submitted(
    client: Client | None,
    model: Model,
    fits: Sequence[FitRequest],
    task: Callable[..., FitOutput] = whole_fit,
) -> Iterator[list[Future | None]]:
    """Submit the small ones of several fits to the workers, which are checked first, for a `with`.

    Yields a future for each fit, None for those that are not small. Dask drops fits whose futures are
    released. Raises ClusterError where the workers do not meet the requirements, OptionError where small fits
    are to be computed on GPUs.
    """
    small = [request for request in fits if is_small(request.scan)]
    if client is not None and any(request.options.get("device") == "gpu" for request in small):
        raise OptionError(
            f"device = 'gpu' is not available: small fits ({len(small)} here) are computed in parallel on "
            f"processors; leave out device"
        )
    planned = None if client is None else _planned(client, model, small)
    if client is None or planned is None:
        yield [None] * len(fits)
        return
    name = os.urandom(3).hex()
    with checked_workers(client, *planned):
        with cluster_errors(client):
            futures = [
                client.submit(
                    task, request.scan.selection, model, request.options, *request.more,
                    key=f"fit-{name}-{n:04d}", pure=False,
                )
                if is_small(request.scan) else None
                for n, request in enumerate(fits)
            ]  # fmt: skip
        yield futures


def _planned(client: Client, model: Model, fits: Sequence[FitRequest]) -> tuple[Scan, Plan] | None:
    """Return scan and plan of the first fit that can be planned, to check the workers for."""
    for request in fits:
        try:
            return request.scan, plan_for(prepare(request.scan, model, **request.options), client)
        except ClusterError:
            raise
        except HomodyneDaskError:  # raised again by the worker that fits
            continue
    return None


def output_of(client: Client | None, future: Future) -> FitOutput:
    """Return the output of a submitted fit when it has ended.

    Raises the exception of the fit, and ClusterError where the workers cannot finish it.
    """
    assert client is not None  # the futures came from a client
    return gathered(client, [future])[0]
