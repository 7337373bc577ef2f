"""The tasks of a pass on a Dask cluster: sent to workers that have the data, gathered as they finish."""

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from distributed import Client, Future, as_completed

from homodyne_dask.cluster import _dask_internals as internals
from homodyne_dask.cluster import local as cluster
from homodyne_dask.cluster.local import cluster_errors
from homodyne_dask.kernels.gram import AnyGram
from homodyne_dask.sweep.affinity import assign_tasks
from homodyne_dask.sweep.tasks import Report, Task

if TYPE_CHECKING:
    from homodyne_dask.sweep.sweep import Sweep

LOG = logging.getLogger(__name__)


def computed_on_cluster[G: AnyGram](
    sweep: "Sweep", task: Task[G], at: Any
) -> Iterator[tuple[int, G, Report]]:
    """Yield the number of each task of a sweep, its Gram and its report, in the order of arrival."""
    client = sweep.client
    assert client is not None
    name = f"{task.key}-{os.urandom(3).hex()}"
    futures: dict[Future, int] = {}
    # the workers that cache the data, or at least their sums
    owners = sweep.owners if internals.preferences_can_be_dropped() else {}
    for owner, numbers in assign_tasks(sweep.tasks, owners).items():
        preference: dict[str, Any] = (
            {"workers": [owner], "allow_other_workers": True} if owner else {}
        )
        made = client.map(
            task.function,
            [sweep.context] * len(numbers),
            [sweep.tasks[n] for n in numbers],
            [at] * len(numbers),
            key=[f"{name}-{n:05d}" for n in numbers],
            pure=False,
            **preference,
        )
        futures |= zip(made, numbers, strict=True)
    try:
        with cluster_errors(client):
            for future, (gram, report) in _finished(client, set(futures)):
                future.release()
                yield futures[future], gram, report
    finally:
        _cancel(client, [future for future in futures if not future.done()])


def _cancel(client: Client, futures: list[Future]) -> None:
    """Cancel the remaining tasks of a pass; a failure must neither cost its result nor hide its error.

    Also where none is left: the answer comes when the scheduler has forgotten the others, and only
    then do the tasks of the next pass have a span of their own.
    """
    if client.status == "running":
        try:
            client.cancel(futures, reason="the pass has ended")
        except Exception as e:
            LOG.warning("tasks were not cancelled: %s: %s", type(e).__name__, e)


def _finished(client: Client, waiting: set[Future]) -> Iterator[tuple[Future, tuple[Any, Report]]]:
    """Yield futures with their results as they finish; TimeoutError if none does for too long."""
    while waiting:
        before = len(waiting)
        try:
            done = as_completed(
                waiting,
                client.loop,
                with_results=True,
                timeout=cluster.time_limit("no-progress", cluster.NO_PROGRESS_TIMEOUT),
            )
            for future, result in done:
                if isinstance(result, BaseException):  # the connection to the scheduler is lost
                    raise result
                waiting = waiting - {future}
                yield future, result
        except TimeoutError:
            if len(waiting) == before:
                raise
