"""Fits on jobs, disturbed in their middle, and what they come to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from homodyne_dask.apps.slurm.jobs import slurm_cluster
from tests.faults.local_workers import POOR, disturbed, when_busy

OPTIONS: dict[str, Any] = {"gap": "200 um", "initial": POOR}


@contextmanager
def jobs_at_work(
    jobs: int | tuple[int, int], workers: int | None = None, **settings: Any
) -> Iterator[tuple[Any, Client]]:
    """A cluster of jobs and its client, when its workers are there: as many as jobs unless said otherwise."""
    with (
        slurm_cluster("loopback", jobs=jobs, **settings) as cluster,
        cluster.get_client() as client,
    ):
        client.wait_for_workers(workers or jobs, timeout=120)
        yield cluster, client


def fit_on(client, scan, disturb: Callable[[], None] | None = None, **more):
    """Fit; `disturb` is called while a worker computes the second pass. more: other options of `fit`."""
    called = []

    def act(number: int) -> None:
        if disturb is not None and number == 1:
            when_busy(client, 10)
            disturb()
            called.append(number)

    result = disturbed(scan, client, act, **more)
    assert len(called) == (disturb is not None)
    return result
