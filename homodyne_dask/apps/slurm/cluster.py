"""A cluster whose workers are jobs of a site."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Real
from pathlib import Path
from secrets import token_hex
from typing import Any

import dask.config

from homodyne_dask.apps.slurm.jobs import cluster_class, job_options, worker_memory
from homodyne_dask.apps.slurm.sites import check_script, site_named
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster.connect import closing_logged
from homodyne_dask.cluster.scratch import scratch_folder
from homodyne_dask.cluster.settings import MONITOR_SETTINGS, SCHEDULER_SETTINGS
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS, Workers
from homodyne_dask.errors import ClusterError, OptionError, require_type, shown
from homodyne_dask.store.files import path_of

IDLE_SECONDS = 60
"""Seconds without work after which workers above the least number are released."""


@contextmanager
def slurm_cluster(
    site: str = "generic",
    jobs: int | tuple[int, int] = 1,
    *,
    folder: str | Path | None = None,
    task: float = LONGEST_TASK_SECONDS,
    **settings: Any,
) -> Iterator[Any]:
    """Start workers as jobs of a site for the duration of a `with` block; yields the cluster at once.

    jobs: number of jobs to keep running, or (least, most): as many as the work needs. A job that is lost
    for any reason is replaced. settings: changes to the settings of the site (templates/template.yaml),
    such as `walltime="02:00:00"`. folder: for the cluster's key, on a file system that all nodes share; by
    default a new one. task: maximum time of a task in seconds, so that workers run many tasks and stop
    before their walltime; `hd.plan(...).longest_task` allows shorter walltimes than the default, which is
    valid for every plan. At a site with PBS, jobs are submitted to PBS. `cluster.get_client()` connects.

    Raises OptionError for a site or setting that cannot be used, ClusterError with the batch system's
    message for a job it refuses, PackageError without dask-jobqueue.

    >>> with hd.slurm_cluster("generic", jobs=(1, 4)) as cluster:  # doctest: +SKIP
    ...     hd.fit("A0123_c2.zarr", "laminar_flow", client=cluster.get_client())
    """
    require_type("site", site, str, "the name of a site")
    require_type("task", task, Real, "seconds")
    chosen, (least, most) = site_named(site, **settings), bounds(jobs)
    where = path_of("folder", folder) if folder else chosen.shared / f"{site}-{token_hex(3)}"
    new_cluster, options = cluster_class(chosen), job_options(chosen, task)
    waits = {
        "distributed.scheduler.no-workers-timeout": chosen["patience"],
        "homodyne-dask.no-progress": chosen["patience"],
        "homodyne-dask.first-worker": chosen["patience"],
    }
    chosen.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS | waits))
        security = held.enter_context(tls.new_key(where)) if chosen["security"] == "tls" else None
        scratch = held.enter_context(scratch_folder())
        cluster: Any = new_cluster(
            security=security,
            name=where.name,
            shared_temp_directory=str(chosen.shared),
            scheduler_options={"local_directory": str(scratch), **chosen["scheduler-options"]},
            **options,
        )
        held.enter_context(closing_logged(cluster))
        cluster.site, cluster.task = chosen, task
        if chosen["batch"] == "slurm":
            check_script(cluster.job_script())
        cluster.expected = Workers(
            processes=most * chosen["processes"],
            threads=most * chosen["cores"],
            memory=most * chosen["processes"] * worker_memory(chosen),
        )
        cluster.adapt(minimum_jobs=least, maximum_jobs=most, interval="1s", wait_count=IDLE_SECONDS)
        cluster.scale(jobs=least)
        cluster.sync(_submitted, cluster)
        for job in cluster.workers.values():
            if job.refusal:
                raise ClusterError(f"the job was refused: {job.refusal}")
        yield cluster


async def _submitted(cluster: Any) -> None:
    await cluster  # until the batch system has answered


def bounds(jobs: int | tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and maximum number of jobs; raises OptionError below 1 or in wrong order."""
    pair = (jobs, jobs) if isinstance(jobs, int) else jobs
    whole = isinstance(pair, tuple | list) and all(type(number) is int for number in pair)
    if not whole or len(pair) != 2 or not 1 <= pair[0] <= pair[1]:
        raise OptionError(
            f"jobs = {shown(jobs)} cannot be used: give a number of at least 1, or (least, most)"
        )
    return pair[0], pair[1]
