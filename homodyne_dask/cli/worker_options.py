"""The workers a command is told to use: a running scheduler's, jobs of a site, or none yet."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from homodyne_dask.errors import HomodyneDaskError, OptionError

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.cli.config import FitConfig

WORKER_OPTIONS = ("scheduler", "scheduler_file", "site")


def workers_are_local(config: "FitConfig") -> bool:
    """Return whether the workers are started here, and so see and write the same files."""
    return not any(getattr(config, name) for name in WORKER_OPTIONS)


def check_worker_options(config: "FitConfig") -> None:
    """Raise OptionError where a configuration says of its workers what would not be heard."""
    ways = [name for name in WORKER_OPTIONS if getattr(config, name)]
    if len(ways) > 1:
        raise OptionError(f"{ways[0]} and {ways[1]} are both given: one of them says who computes")
    if config.jobs and not config.site:
        raise OptionError("jobs are of a site: give --site too, or leave --jobs out")
    if config.key and not config.scheduler:
        own = {
            "site": "a cluster of jobs makes its own",
            "scheduler_file": "its own lies beside it",
        }
        why = f" ({own[ways[0]]})" if ways else ""
        raise OptionError(
            f"the key {config.key} would not be used{why}: it is of --scheduler; leave --key out"
        )


@contextmanager
def client_of(config: "FitConfig") -> "Iterator[Client | None]":
    """Yield a client of the workers that a configuration names, None where it names none."""
    from homodyne_dask.cluster.connect import connect

    check_worker_options(config)
    if config.scheduler:
        with connect(config.scheduler, config.key) as client:
            yield client
    elif config.scheduler_file:
        from homodyne_dask.cluster.slurm.persistent import connection_by

        with connection_by(config.scheduler_file) as client:
            yield client
    elif config.site:
        from homodyne_dask.cluster.slurm.cluster import slurm_cluster

        jobs, task = config.jobs or 1, longest_task_of(config)
        with slurm_cluster(config.site, jobs, task=task) as cluster, cluster.get_client() as client:
            yield client
    else:
        yield None


def longest_task_of(config: "FitConfig") -> float:
    """Return the seconds that a task of the fits of a configuration may take."""
    from homodyne_dask.cli.options import selected
    from homodyne_dask.cluster.workers import LONGEST_TASK
    from homodyne_dask.sweep.plan import layout, longest_task

    found, min_lag = [], config.fit_options()["min_lag"]
    for store in config.data:
        with suppress(HomodyneDaskError):  # its own fit says what is wrong with it
            found.append(longest_task(layout(selected(config, store), min_lag)))
    return max(found, default=LONGEST_TASK)
