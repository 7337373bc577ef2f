"""The options that choose the workers of a command: --workers, --scheduler, --scheduler-file, --site."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.shared_options import selected
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS, MAX_THREADS_PER_WORKER
from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.sweep.layout import layout, longest_task

if TYPE_CHECKING:
    from distributed import Client

WORKER_OPTIONS = ("scheduler", "scheduler_file", "site")
MOST_PROCESSES = 8
"""Workers up to which each small fit gets a process of its own."""


def workers_are_local(config: FitConfig) -> bool:
    return not any(getattr(config, name) for name in WORKER_OPTIONS)


def check_worker_options(config: FitConfig) -> None:
    names = [name for name in ("workers", *WORKER_OPTIONS) if getattr(config, name)]
    if len(names) > 1:
        raise OptionError(f"{names[0]} and {names[1]} are both given: choose one of them")
    if config.jobs and not config.site:
        raise OptionError("--jobs applies to a site: also give --site, or leave out --jobs")
    if config.key and not (config.scheduler or config.scheduler_file):
        reason = " (jobs of a site have their own key)" if config.site else ""
        reason = " (those here have none)" if config.workers else reason
        raise OptionError(
            f"the key {config.key} would not be used{reason}: --key applies to "
            f"--scheduler and --scheduler-file only; leave it out"
        )


@contextmanager
def client_of(config: FitConfig) -> Iterator["Client | None"]:
    check_worker_options(config)
    if config.scheduler:
        with hd.connect(config.scheduler, config.key) as client:
            yield client
    elif config.scheduler_file:
        from homodyne_dask.cluster.connect import connect_by_file  # lazy: it loads Dask's client

        with connect_by_file(config.scheduler_file, config.key) as client:
            yield client
    elif config.site:
        starting = hd.slurm_cluster(
            config.site, 1 if config.jobs is None else config.jobs, task=longest_task_of(config)
        )
        with starting as cluster, cluster.get_client() as client:
            yield client
    elif config.workers:
        with hd.local_cluster(config.workers) as client:
            yield client
    else:
        yield None


@contextmanager
def workers_for_small_fits(config: FitConfig) -> Iterator[tuple["Client", int]]:
    """Yield a client, and the threads of its workers: those of the options, else some on this machine."""
    from homodyne_dask.cluster.local import workers_of  # lazy: it loads Dask's client

    with client_of(config) as opened:
        processes = max(min(cores(), MOST_PROCESSES), -(-cores() // MAX_THREADS_PER_WORKER))
        with nullcontext(opened) if opened is not None else hd.local_cluster(processes) as client:
            yield client, workers_of(client).threads


def longest_task_of(config: FitConfig) -> float:
    seconds, min_lag = [], config.min_lag
    for store in config.data:
        with suppress(HomodyneDaskError):  # the fit of this store reports it
            seconds.append(longest_task(layout(selected(config, store), min_lag)))
    return max(seconds, default=LONGEST_TASK_SECONDS)
